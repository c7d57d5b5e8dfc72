"""A text cut into the ranks' shares, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from milepost.parallel.collectives import Group, exchange, gather
from milepost.parallel.layout import Layout, Span


def shard(x: Tensor, layout: Layout, mesh: DeviceMesh, *, dim: int) -> Tensor:
    """Return this rank's tokens of x, which has those of the whole text along dim."""
    group = group_of(mesh, layout)
    if x.shape[dim] != layout.length:
        raise ValueError(f"shard(dim={dim}): x is {list(x.shape)}, and the layout has {layout.length} tokens")
    own = [x.narrow(dim, start, stop - start) for start, stop in layout.spans[group.rank()]]
    return torch.cat(own, dim) if own else x.narrow(dim, 0, 0)


def unshard(x: Tensor, layout: Layout, mesh: DeviceMesh, *, dim: int) -> Tensor:
    """Return the whole text, on every rank, from each rank's x, which has its tokens along dim.

    Its gradient is the sum of what all ranks ask of a token: where each computes the same loss, divide that by their
    number.
    """
    group = group_of(mesh, layout)
    check_share("unshard", x, layout, group, dim)
    return fetch(x.movedim(dim, 0), layout, group, [[(0, layout.length)]] * layout.ranks)[0][1].movedim(0, dim)


def fetch(x: Tensor, layout: Layout, group: Group, wanted: Sequence[Sequence[Span]]) -> list[tuple[Span, Tensor]]:
    """Return the spans of the text that this rank wants, from the ranks that have them; x: its own tokens [t …].

    wanted: the spans of every rank. Where all want the whole text shards are gathered, else pieces are exchanged.
    """
    rank, ranks = group.rank(), range(layout.ranks)
    whole = all([*spans] == [(0, layout.length)] for spans in wanted)
    if whole:
        gathered = gather(torch.cat([x, x.new_zeros(layout.most - len(x), *x.shape[1:])]), group)
        shares = [gathered[source, : layout.tokens(source)] for source in ranks]
    else:
        sent = [[x[place] for span in wanted[other] for _, place in layout.within(rank, span)] for other in ranks]
        sizes = [sum(b - a for span in wanted[rank] for (a, b), _ in layout.within(each, span)) for each in ranks]
        shares = exchange([torch.cat(pieces or [x[:0]]) for pieces in sent], sizes, group)
    return list(zip(wanted[rank], assembled(shares, layout, wanted[rank]), strict=True))


def assembled(shares: Sequence[Tensor], layout: Layout, spans: Sequence[Span]) -> list[Tensor]:
    """Return spans of the text, of what each rank sent of them, [n …], span by span."""
    taken, found = [0] * layout.ranks, list[Tensor]()
    for span in spans:
        pieces: list[tuple[Span, Tensor]] = []
        for source in range(layout.ranks):
            for (start, stop), _ in layout.within(source, span):
                first, taken[source] = taken[source], taken[source] + stop - start
                pieces.append(((start, stop), shares[source][first : taken[source]]))
        # An empty span is still part of the graph of what was sent.
        found.append(torch.cat([piece for _, piece in sorted(pieces, key=lambda each: each[0])] or [shares[0][:0]]))
    return found


def group_of(mesh: DeviceMesh, layout: Layout) -> Group:
    """Return the process group of a mesh of one axis, as many ranks as the layout has."""
    group = axis_of(mesh)
    check_fit(group, layout)
    return group


def axis_of(mesh: DeviceMesh) -> Group:
    """Return the process group of a mesh of one axis."""
    if mesh.ndim != 1:
        raise ValueError(
            f"parallel: the mesh has {mesh.ndim} axes, {mesh.mesh_dim_names}; give that of the text alone: mesh['cp']"
        )
    return mesh.get_group()


def check_fit(group: Group, layout: Layout) -> None:
    """Refuse a layout for another number of ranks."""
    if group.size() != layout.ranks:
        raise ValueError(f"parallel: the layout is for {layout.ranks} ranks, and the mesh has {group.size()}")


def check_share(caller: str, x: Tensor, layout: Layout, group: Group, dim: int) -> None:
    """Refuse a tensor that has other than this rank's tokens along dim."""
    own = layout.tokens(group.rank())
    if x.shape[dim] != own:
        raise ValueError(
            f"{caller}: a tensor {list(x.shape)} has {x.shape[dim]} tokens along dim {dim}, and the layout gives rank "
            f"{group.rank()} {own} of {layout.length}; cut it with parallel.shard"
        )
