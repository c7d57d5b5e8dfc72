"""Gradients of weights: each rank has what its own tokens ask for."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


def sum_gradients(weights: Iterable[Tensor], mesh: DeviceMesh) -> None:
    """Add up the gradients of weights over the ranks of a mesh, in place, after a backward pass.

        loss = token_losses.sum() / tokens_of_the_whole_text
        loss.backward()
        parallel.sum_gradients(model.parameters(), mesh["cp"])

    For models without DDP and FSDP, which add them up themselves. A weight that has no gradient on a rank counts as 0
    there, so that every rank sends the same.
    """
    group = mesh.get_group()
    for weight in weights:
        if weight.requires_grad:
            weight.grad = weight.new_zeros(weight.shape) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad, group=group)
