"""A sweep on a Ray cluster: every cell is a task, and what it tells comes back through one small actor.

Nodes need milepost installed, and nothing else: the text travels once, through the object store. A cell whose worker
died is begun again, and ends with the same numbers; where nodes share the folder, under the same path, it goes on from
its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell, Event, Known, work
from milepost.lab.cells.turns import END, PAUSE, End, Turn
from milepost.lab.engines.local import failures
from milepost.lab.text.corpus import Corpus
from milepost.refusal import need


@dataclass(frozen=True)
class Ray:
    """Many cells at a time, wherever the cluster has room.

    address: of a running cluster. If None: the one this program is connected to, or RAY_ADDRESS names, or runs on this
    machine; else a new one is started here, as it is for "local". retries: how often a cell whose worker died is begun
    again.
    """

    folder: Path
    device: str = "cpu"
    address: str | None = None
    retries: int = 5

    def run(self, cells: Iterable[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        ray, waiting = _ray(), iter(cells)
        first = next(waiting, END)
        while first is None:
            time.sleep(PAUSE)
            first = next(waiting, END)
        if isinstance(first, End):
            return
        with _connected(ray, self.address, first[0].threads):
            # One cell stands for all: they ask for as much.
            self._fits(ray, first[0])
            try:
                yield from self._run(ray, itertools.chain([first], waiting), corpus)
            except ray.exceptions.RayError as error:
                raise RuntimeError(f"the Ray cluster failed: {error}; the same command goes on") from error

    def _run(self, ray: Any, cells: Iterator[Turn], corpus: Corpus) -> Iterator[tuple[Cell, Event]]:
        # A slice would travel with all of the text that it was cut from.
        parts = {name: getattr(corpus, name).clone() for name in ("train", "test", "validation")}
        text, post = ray.put(replace(corpus, **parts)), _post(ray)
        begun: list[Cell] = []
        running: dict[Any, Cell] = {}
        failed: list[tuple[Cell, Exception]] = []

        def begin(cell: Cell, known: Known) -> None:
            task = ray.remote(_work).options(name=cell.called, max_retries=self.retries, **self._needs(cell))
            running[task.remote(len(begun), cell, text, self.folder.resolve(), self._device, known, post)] = cell
            begun.append(cell)

        coming, more = post.take.remote(), True
        try:
            while more or running:
                while more:
                    turn = next(cells, END)
                    more = not isinstance(turn, End)
                    if turn is None or isinstance(turn, End):
                        break
                    begin(*turn)
                # While others work on what is left, it is asked for again now and then.
                for each in ray.wait([coming, *running], timeout=PAUSE if more else None)[0] if running or more else ():
                    if each == coming:
                        yield from ((begun[number], event) for number, event in ray.get(coming))
                        coming = post.take.remote()
                        continue
                    cell = running.pop(each)
                    try:
                        ray.get(each)
                    except ray.exceptions.RayError as error:
                        failed.append((cell, error))
        finally:
            for each in running:
                ray.cancel(each, force=True)
            ray.kill(post)
        if failed:
            raise RuntimeError(failures(failed, len(begun))) from failed[0][1]

    @property
    def _device(self) -> str:
        """Ray shows each task the GPU that is its own, and no other."""
        return "cuda" if self.device.startswith("cuda") else self.device

    def _needs(self, cell: Cell) -> dict[str, Any]:
        return {"num_cpus": cell.threads, "num_gpus": int(self._device == "cuda")}

    def _fits(self, ray: Any, cell: Cell) -> None:
        """Refuse what no node could ever run: Ray would wait for such a node, and say nothing."""
        cpus, gpus = self._needs(cell).values()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        have = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes]
        if not any(node[0] >= cpus and node[1] >= gpus for node in have):
            sizes = ", ".join(f"{each[0]} and {each[1]}" for each in sorted(set(have), reverse=True))
            raise ValueError(
                f"Ray: a cell asks for {cpus} CPUs and {gpus} GPUs of one node, but the nodes of this cluster have "
                f"{sizes}; lower --threads, choose another --device, or add a node"
            )


class Post:
    """Events on their way to the driver.

    Whoever puts one waits until it is kept, that is, until the driver takes the next ones: a cell never saves a
    checkpoint of steps whose losses could still be lost.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Event, asyncio.Event]] = []
        self.taken: list[asyncio.Event] = []
        self.came = asyncio.Event()

    async def put(self, number: int, event: Event) -> None:
        """Send an event of a cell."""
        kept = asyncio.Event()
        self.waiting.append((number, event, kept))
        self.came.set()
        await kept.wait()

    async def take(self) -> list[tuple[int, Event]]:
        """All events that came since the last time, at least one; those of the last time are kept by now."""
        for kept in self.taken:
            kept.set()
        await self.came.wait()
        self.came.clear()
        found, self.waiting = self.waiting, []
        self.taken = [kept for *_, kept in found]
        return [(number, event) for number, event, _ in found]


def _work(number: int, cell: Cell, corpus: Corpus, folder: Path, device: str, known: Known, post: Any) -> None:
    """One cell, on a worker."""
    import ray

    folder.mkdir(parents=True, exist_ok=True)
    for event in work(cell, corpus, folder, device, known):
        ray.get(post.put.remote(number, event))


def _ray() -> Any:
    need("--engine ray", "ray")
    import ray

    return ray


def _post(ray: Any) -> Any:
    """The actor, beside the driver: should a node of workers die, what they reported does not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(Post).options(num_cpus=0, scheduling_strategy=here).remote()


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, threads: int) -> Generator[None]:
    """Join a cluster, or start one; leave it afterwards, unless the program was connected before."""
    if ray.is_initialized():
        yield
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
        yield
    finally:
        ray.shutdown()
        for name in alone:
            os.environ.pop(name, None)
