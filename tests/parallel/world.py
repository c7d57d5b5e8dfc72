"""A standing group of processes, which are sent jobs: to start one costs seconds, a job milliseconds."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

PATIENCE = 60
"""Seconds until a rank that hears nothing of the others gives up."""


class World:
    """n processes of one gloo group."""

    def __init__(self, n: int) -> None:
        # One process imports torch, and the ranks are forked from it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.parallel.jobs", "torchdiffeq"])
        self.n, self._folder = n, tempfile.TemporaryDirectory()
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(n):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, n, str(Path(self._folder.name, "store")), there), daemon=True
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, job: Callable[..., Any], **given: Any) -> list[Any]:
        """Return what every rank's job(mesh, **given) returns; raise what any raises."""
        for pipe in self.pipes:
            pipe.send((job, given))
        found = [pipe.recv() for pipe in self.pipes]
        for rank, (_, error) in enumerate(found):
            if error is not None:
                raise AssertionError(f"rank {rank} of {self.n}:\n{error}")
        return [value for value, _ in found]

    def close(self) -> None:
        """End all processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(rank: int, n: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, n), rank=rank, world_size=n, timeout=timedelta(seconds=PATIENCE)
    )
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("cp",))
    while True:
        try:
            job, given = pipe.recv()
        except EOFError:
            return
        try:
            answer = job(mesh, **given), None
        except Exception:
            answer = None, traceback.format_exc()
        pipe.send(answer)
