"""A text on several devices: train a layer on it, and compare with one process.

    torchrun --nproc-per-node 2 examples/context_parallel.py

Each rank has its share of the tokens, and attends to those of all. The gradients of weights are added up at the end;
under DDP or FSDP multiply the loss by the size of mesh["cp"] instead, since these divide by the number of ranks.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import milepost as mp
from milepost import parallel
from milepost.parallel import Layout, shard


class Layer(nn.Module):
    """Attention with T5's bias, eight heads of 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.scheme = mp.Scheme(mp.T5Bias(8), mp.causal)
        self.into, self.out = nn.Linear(128, 3 * 128), nn.Linear(128, 128)

    def forward(self, x: Tensor, mesh: DeviceMesh | None = None, layout: Layout | None = None) -> Tensor:
        q, k, v = (each.unflatten(-1, (8, 16)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        if mesh is None or layout is None:
            found = mp.attend(q, k, v, self.scheme)
        else:
            found = parallel.attend(q, k, v, self.scheme, mesh=mesh, layout=layout)
        return self.out(found.transpose(1, 2).flatten(2))


def main(mesh: DeviceMesh, tokens: int = 1000) -> float:
    """Return how far the gradients are from those of one process."""
    torch.manual_seed(0)
    layer, text = Layer(), torch.randn(2, tokens, 128)
    layout = Layout.head_tail(tokens, mesh.size())
    out = layer(shard(text, layout, mesh, dim=1), mesh, layout)
    # Each rank has the loss of its own tokens, over the number of all.
    (out.square().sum() / text.numel()).backward()
    parallel.sum_gradients(layer.parameters(), mesh)
    found = [weight.grad.clone() for weight in layer.parameters() if weight.grad is not None]
    layer.zero_grad()
    layer(text).square().mean().backward()
    return max(float((each - weight.grad).abs().max()) for each, weight in zip(found, layer.parameters(), strict=True))


if __name__ == "__main__":
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("cp",))
    apart = main(mesh["cp"])
    if mesh.get_rank() == 0:
        print(f"{mesh.size()} ranks: gradients differ from those of one process by at most {apart:.1e}")
    dist.destroy_process_group()
