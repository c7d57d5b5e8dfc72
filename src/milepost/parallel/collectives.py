"""What ranks send one another: shards gathered, and pieces exchanged, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = "dist.ProcessGroup"
# torch 2.13 has new names for them, and warns of the old ones.
_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009


def gather(x: Tensor, group: Group) -> Tensor:
    """Return x [n …] of every rank, [ranks n …]; n is the same everywhere. Gradients are summed where x came from."""
    return cast("Tensor", _Gather.apply(x, group)).view(group.size(), *x.shape)


def exchange(pieces: Sequence[Tensor], sizes: Sequence[int], group: Group) -> list[Tensor]:
    """Send each rank its piece [n …], and return what each sends here, [size …]; sizes may differ, and be 0."""
    sent = torch.cat([*pieces])
    found = _Exchange.apply(sent, [len(piece) for piece in pieces], [*sizes], group)  # pyright: ignore
    return [*torch.split(cast("Tensor", found), [*sizes])]


def around(x: Tensor, group: Group) -> tuple[Tensor, list[Any]]:
    """Start to send x to the next rank; return where that of the rank before arrives, and what to wait for."""
    rank, n, arrived = group.rank(), group.size(), torch.empty_like(x)
    one, other = (dist.get_global_rank(group, (rank + step) % n) for step in (1, -1))
    sends = dist.P2POp(dist.isend, x, one, group), dist.P2POp(dist.irecv, arrived, other, group)
    return arrived, [*dist.batch_isend_irecv([*sends])]


def gather_numbers(x: Tensor, group: Group) -> Tensor:
    """Return x [n] of every rank, [ranks n], without gradients."""
    found = x.new_empty(group.size(), len(x))
    _gather(found, x[None], group=group)
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        found = x.new_empty(group.size() * len(x), *x.shape[1:])
        if found.numel():
            _gather(found, x.contiguous(), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(grads[0], ctx.group), None  # pyright: ignore


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        found = x.new_empty(len(x) // group.size(), *x.shape[1:])
        if found.numel():
            _scatter(found, x.contiguous(), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grads[0], ctx.group), None  # pyright: ignore


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
        ctx.how = sent, received, group
        found = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(found, x.contiguous(), received, sent, group)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.how
        return _Exchange.apply(grads[0], received, sent, group), None, None, None  # pyright: ignore
