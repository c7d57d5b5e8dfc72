"""The collector of a Ray sweep: letters of workers on their way to the driver, and its answers on their way back.

A letter waits here until the driver has answered it, and its worker waits with it: a cell never saves a checkpoint of
steps whose losses could still be lost. Nothing depends on this process: where it is killed, Ray starts another, and
sends again whatever was not answered. So a letter can come twice, under the same mark; the driver keeps it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.lab.cells.events import Event

Mark = tuple[int, int, int]
"""Which letter it is: the number of the cell, how often it was begun before, and how many letters came before."""


@dataclass(frozen=True)
class Letter:
    """What a worker has to say of its cell."""

    mark: Mark
    event: Event | None
    """None asks for the newest checkpoint of the cell."""
    parcel: Any = None
    """Where a checkpoint that was saved is fetched from."""


class Post:
    """Letters that wait for an answer."""

    def __init__(self) -> None:
        self.waiting: dict[Mark, tuple[Letter, asyncio.Future[Any]]] = {}
        self.came = asyncio.Event()
        self.closed = False

    async def put(self, letter: Letter) -> Any:
        """Leave a letter; returns the answer to it."""
        if letter.mark not in self.waiting:
            self.waiting[letter.mark] = letter, asyncio.get_running_loop().create_future()
        self.came.set()
        return await self.waiting[letter.mark][1]

    async def answer(self, answers: Mapping[Mark, Any]) -> None:
        """Let those go on whose letters were kept."""
        for mark, answer in answers.items():
            # One that is not here was sent to a collector that is gone, and will come again.
            if mark in self.waiting:
                self.waiting.pop(mark)[1].set_result(answer)

    async def take(self, answers: Mapping[Mark, Any], known: Collection[Mark] = ()) -> list[Letter]:
        """Answer some letters, then wait for one or more that are not `known`: those are answered later."""
        await self.answer(answers)
        while not self.closed:
            if found := [letter for mark, (letter, _) in self.waiting.items() if mark not in known]:
                return found
            self.came.clear()
            await self.came.wait()
        return []

    async def close(self) -> None:
        """Let go of a driver that waits. Killed while it does, it would be waited for again."""
        self.closed = True
        self.came.set()
