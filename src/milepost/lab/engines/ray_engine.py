"""A sweep on a Ray cluster: every cell is a task, and what it reports comes back through one small actor.

Nodes need milepost installed, and nothing else: no disk is shared. The text travels once, through the object store;
checkpoints travel to the driver's folder, and from there to whoever goes on with a cell whose worker died.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Event
from milepost.lab.cells.turns import Turn
from milepost.lab.engines.local import Waiting
from milepost.lab.engines.parcels import way
from milepost.lab.engines.ray_driver import Driver
from milepost.lab.text.corpus import Corpus
from milepost.refusal import need


@dataclass(frozen=True)
class Ray:
    """Many cells at a time, wherever the cluster has room.

    address: of a running cluster. If None: the one this program is connected to, or RAY_ADDRESS names, or runs on this
    machine; else a new one is started here, as it is for "local". retries: how often in a row, with no checkpoint in
    between, the worker of a cell may die before the cell fails. gpus: how much of a GPU each cell has, where the device
    is one. checkpoints: a URL by which checkpoints travel; if None, Ray carries them.
    """

    folder: Path
    device: str = "cpu"
    address: str | None = None
    retries: int = 5
    gpus: float = 1.0
    checkpoints: str | None = None

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        need("--engine ray", "ray")
        waiting = Waiting(cells)
        first = waiting.next()
        if first is None:
            return
        with _connected(self.address, first[0].threads) as ray:
            # One cell stands for all: they ask for as much.
            self._fits(ray, first[0])
            try:
                with way(self.checkpoints) as carried:
                    driver = Driver(ray, self.folder.resolve(), carried, self._device, self._needs, self.retries)
                    yield from driver.run(itertools.chain([first], waiting.turns), corpus)
            except ray.exceptions.RayError as error:
                raise RuntimeError(f"the Ray cluster failed: {error}; rerun the command to resume") from error

    @property
    def _device(self) -> str:
        """Ray shows each task the GPU that is its own, and no other."""
        return "cuda" if self.device.startswith("cuda") else self.device

    def _needs(self, cell: Cell) -> dict[str, Any]:
        return {"num_cpus": cell.threads, "num_gpus": self.gpus if self._device == "cuda" else 0}

    def _fits(self, ray: Any, cell: Cell) -> None:
        """Refuse what no node could ever run: Ray would wait for such a node, and say nothing."""
        cpus, gpus = self._needs(cell).values()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        have = [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes]
        if not any(node[0] >= cpus and node[1] >= gpus for node in have):
            sizes = ", ".join(f"{each[0]:g} and {each[1]:g}" for each in sorted(set(have), reverse=True))
            raise ValueError(
                f"Ray: a cell asks for {cpus} CPUs and {gpus:g} GPUs of one node, but the nodes of this cluster have "
                f"{sizes}; lower --threads, choose another --device, or add a node"
            )


@contextlib.contextmanager
def _connected(address: str | None, threads: int) -> Generator[Any]:
    """Join a cluster, or start one, and yield Ray; leave it afterwards, unless the program was connected before."""
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    # Workers would write over the progress that is shown.
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    alone = {"RAY_AUTH_MODE": "disabled"} if "RAY_AUTH_MODE" not in os.environ else {}
    try:
        if address != "local":
            with contextlib.nullcontext() if address else contextlib.suppress(ConnectionError):
                ray.init(address or "auto", **quiet)
        if not ray.is_initialized():
            # A cluster of this machine alone needs no token, and with one would write it into the user's home.
            os.environ.update(alone)
            cpus = max(threads, os.cpu_count() or 1)
            ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
        yield ray
    finally:
        ray.shutdown()
        for name in alone:
            os.environ.pop(name, None)
