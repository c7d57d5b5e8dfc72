"""One computation at a time in each of a few lanes, away from the server's own thread; of a page's questions only the
newest is answered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
PAGES = 256
"""So many pages and views are known at once; who asked longest ago is forgotten."""


PATIENCE = 0.06
"""Seconds for which maps let the weights of a short text go first."""


class SupersededError(Exception):
    """A newer question of the same page came while this one waited."""


SLOW = {"weights": "weights", "maps": "maps", "csv": "files", "export": "files", "words": "words"}
"""The lane of each view that reads every key: it lets the curves asked before it go first, and none waits for it."""


class Latest:
    """Computes for pages, one after the other; what is slow in a lane of its own."""

    def __init__(self) -> None:
        self.lanes = {name: asyncio.Lock() for name in ("curves", *SLOW.values())}
        self.numbers = count()
        self.newest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def run(self, page: str, view: str, compute: Callable[[], T], left: Callable[[], Awaitable[bool]]) -> T:
        """Return what is computed, unless the page asks for the same view again before its turn has come, or has left.

        left: whether the page no longer waits for the answer.
        """
        number, asker = next(self.numbers), (page, view)
        self.newest[asker] = number
        self.newest.move_to_end(asker)
        while len(self.newest) > PAGES:
            self.newest.popitem(last=False)
        lane = SLOW.get(view.partition("-")[0], "curves")
        if lane != "curves":
            await self._passed("curves")
        if lane == "maps":
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._passed("weights"), PATIENCE)
        async with self.lanes[lane]:
            if self.newest.get(asker) != number or await left():
                raise SupersededError
            return await run_in_threadpool(compute)

    async def _passed(self, lane: str) -> None:
        """Wait until what was asked before in a lane is computed."""
        async with self.lanes[lane]:
            pass


__all__ = ["Latest", "SupersededError"]
