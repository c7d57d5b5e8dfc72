"""Two standing groups of processes, started when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.parallel.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[Callable[[int], World]]:
    """The group of n processes."""
    worlds: dict[int, World] = {}

    def of(n: int) -> World:
        return worlds[n] if n in worlds else worlds.setdefault(n, World(n))

    yield of
    for each in worlds.values():
        each.close()
