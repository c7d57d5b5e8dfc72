"""Tests in several processes: one thread each, and what takes longest to set up first. What was collected is kept."""

import gc
import os
from collections.abc import Generator

import pytest

FIRST = ("test_ray_cluster.py", "test_ray.py", "test_parallel.py")
"""Files whose tests share what takes half a minute to make, much of it spent waiting. At the end of a run they would be
dealt out to several processes, each of which makes it anew."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look through it for garbage, again and again, takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


if "PYTEST_XDIST_WORKER" in os.environ:
    # With more they wait for one another, and take four times as long. Read when torch is loaded, here and in the
    # processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ray's workers give way to all others, and beside tests would hardly run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
