"""One run over several devices, started by `torchrun` (or `accelerate launch`, which says the same to its processes).

Every process draws the same batch and works on its own rows of it. What is computed is what one process computes, up to
the order of sums: the loss and the gradients are those of the whole batch, whatever each process's rows count.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import Alone, Loss, read_checkpoint
from milepost.seams import demand

# While the first process judges, the others wait. Should it die, torchrun ends them.
PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and the device it works on."""

    rank: int
    size: int
    device: torch.device


def world(device: str | torch.device = "cpu") -> World:
    """This process among those that torchrun started, or the only one; on GPUs, each has its own."""
    rank, size, local = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device(device)
    if size > 1 and device.type == "cuda":
        device = torch.device("cuda", local)
    return World(rank, max(1, size), device)


def join(here: World) -> None:
    """Meet the other processes, once: gloo carries what is on CPUs, nccl what is on GPUs."""
    if dist.is_initialized():
        return
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if here.device.type == "cuda" else "gloo", timeout=PATIENCE)


def spread_over(here: World, how: str = "ddp") -> Alone:
    """How a run is spread over the processes there are: `ddp` keeps the whole model in each, `fsdp` a shard of it."""
    ways = {"ddp": Ddp, "fsdp": Fsdp}
    demand.one_of(spread_over, "how", how, tuple(ways))
    if here.size == 1:
        return Alone()
    join(here)
    return ways[how](here)


class Ddp(Alone):
    """The whole model in every process; gradients are averaged after each batch."""

    def __init__(self, here: World) -> None:
        self.here, self.first = here, here.rank == 0

    def wrapped(self, model: Reader, recipe: Recipe) -> nn.Module:
        self._fits(recipe)
        self.module = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return self.module

    def _fits(self, recipe: Recipe) -> None:
        if recipe.batch % (self.here.size * recipe.accumulate):
            raise ValueError(
                f"Recipe(batch={recipe.batch}, accumulate={recipe.accumulate}): {self.here.size} processes cannot "
                f"share a batch evenly; make it a multiple of {self.here.size * recipe.accumulate}, or start "
                f"another number of processes"
            )

    def compiled(self, loss: Loss, model: Reader) -> Loss:
        # Layer by layer: gradients travel while earlier layers are still at work, and hooks between layers stay whole.
        for layer in model.parts():
            layer.forward = torch.compile(layer.forward, fullgraph=True)
        return loss

    def share(self, rows: Tensor) -> Tensor:
        return rows.chunk(self.here.size)[self.here.rank]

    def part(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if last else self.module.no_sync()

    def backward(self, loss: Tensor) -> None:
        # Gradients will be averaged over the processes, and are wanted summed.
        (loss * self.here.size).backward()

    def total(self, loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss

    def agreed(self, answer: bool) -> bool:
        return from_first(answer)

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors, notes = read_checkpoint(path) if self.first else ({}, {})
        sizes, notes = from_first(({name: (each.shape, each.dtype) for name, each in tensors.items()}, notes))
        # Elsewhere nothing is read: these pages are never touched, but for the one tensor that is being received.
        return tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in sizes.items()}, notes

    def placed(self, tensor: Tensor, like: Tensor) -> Tensor:
        tensor = tensor.to(like.device)
        dist.broadcast(tensor, 0)
        return tensor


class Fsdp(Ddp):
    """A shard of every layer in each process, put together while it is at work (FSDP2).

    What schemes learn is small, or a single number, and is kept whole.
    """

    def wrapped(self, model: Reader, recipe: Recipe) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._fits(recipe)
        mesh = init_device_mesh(self.here.device.type, (self.here.size,))
        self.learned = list(model.learned())
        with torch.no_grad():
            for weight in model.parameters():
                dist.broadcast(weight, 0)
        for layer in model.parts():
            fully_shard(layer, mesh=mesh)
        self.sharded = fully_shard(model, mesh=mesh, ignored_params=set(self.learned))
        return model

    @contextlib.contextmanager
    def part(self, last: bool) -> Generator[None]:
        self.sharded.set_requires_gradient_sync(last)
        yield
        if last:
            for weight in self.learned:
                if weight.grad is not None:
                    dist.all_reduce(weight.grad.div_(self.here.size))

    def clip(self, model: Reader, most: float) -> None:
        kept = {id(weight) for weight in self.learned}
        groups = [[each for each in model.parameters() if (id(each) in kept) == known] for known in (False, True)]
        grads = [[each.grad for each in group if each.grad is not None] for group in groups]
        norms = [_whole(nn.utils.get_total_norm(group)) for group in grads if group]
        norm = torch.stack([norm.square() for norm in norms]).sum().sqrt()
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, most, norm)

    def gathered(self, tensor: Tensor) -> Tensor:
        whole = _whole(tensor)
        # One device may not have room for all that its fellows hold.
        return whole.cpu() if self.first else whole

    def placed(self, tensor: Tensor, like: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(like, DTensor) and tensor.dim():
            return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
        return super().placed(tensor, like)


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor put together from its shards, where it has some."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def from_first(value: Any) -> Any:
    """Return what the first process holds, in every process."""
    box = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(box, 0)
    return box[0]
