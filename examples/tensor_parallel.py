"""Attention whose heads are on several devices: torch's tensor parallelism, and `scheme.take_heads`.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

`parallelize_module` gives each rank some columns of the projections, which are some of the heads; the scheme gives
these heads the slopes, tables and sinks that they have among all.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import milepost as mp


class Attention(nn.Module):
    """Eight query heads and four key heads of 16 channels, with T5's bias and a sink for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.scheme = mp.Scheme(mp.Rope(16), mp.T5Bias(8), mp.SinkLogit(8), mp.causal)
        self.q, self.k, self.v = nn.Linear(128, 128), nn.Linear(128, 64), nn.Linear(128, 64)
        self.out = nn.Linear(128, 128)

    def forward(self, x: Tensor, rank: int = 0) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, 16)).transpose(1, 2) for project in (self.q, self.k, self.v))
        heads = q.shape[1]
        found = mp.attend(q, k, v, self.scheme.take_heads(rank * heads, heads))
        return self.out(found.transpose(1, 2).flatten(2))


def main(mesh: DeviceMesh) -> float:
    """Return how far the output and the gradient of T5's table are from those of one process."""
    torch.manual_seed(0)
    layer, x = Attention(), torch.randn(2, 50, 128)
    want = layer(x)
    want.square().mean().backward()
    table = next(iter(layer.scheme.parameters()))
    whole = table.grad
    layer.zero_grad()
    columns = {name: ColwiseParallel() for name in ("q", "k", "v")}
    parallelize_module(layer, mesh, {**columns, "out": RowwiseParallel()})
    out = layer(x, mesh.get_local_rank())
    out.square().mean().backward()
    # Each rank has the gradient of its own heads.
    assert table.grad is not None
    assert whole is not None
    dist.all_reduce(table.grad, group=mesh.get_group())
    return max(float((out - want).abs().max()), float((table.grad - whole).abs().max()))


if __name__ == "__main__":
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    apart = main(mesh["tp"])
    if mesh.get_rank() == 0:
        print(f"{mesh.size()} ranks: output and gradient differ from those of one process by at most {apart:.1e}")
    dist.destroy_process_group()
