"""Tests in several processes: one thread each, and what takes longest to set up first. What was collected is kept.

A test marked `sample(n)` is run with n of its settings, drawn by a seed that is printed; MILEPOST_SEED=… draws the same
again, and MILEPOST_SWEEP=1 runs all.
"""

import gc
import os
import random
from collections import defaultdict
from collections.abc import Generator

import pytest

FIRST = ("test_ray_cluster.py", "test_ray.py", "test_parallel.py", "test_ranks.py")
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


def pytest_configure() -> None:
    # Processes of xdist inherit it, and draw the same.
    os.environ.setdefault("MILEPOST_SEED", str(random.randrange(10**6)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    for item in items:
        if item.get_closest_marker("gpu") is not None and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    if not os.environ.get("MILEPOST_SWEEP"):
        left_out = not_drawn(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def has_gpu() -> bool:
    """True with a GPU; torch is loaded here, and only for tests that ask."""
    import torch

    return torch.cuda.is_available()


def not_drawn(items: list[pytest.Item]) -> set[pytest.Item]:
    """Draw n settings of each test marked `sample(n)` next to those marked `always`; return the others.

    Settings with different arguments after n are drawn apart.
    """
    settings: defaultdict[tuple[str, tuple[object, ...]], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None and item.get_closest_marker("always") is None:
            settings[item.nodeid.partition("[")[0], mark.args].append(item)
    left_out = set[pytest.Item]()
    for (name, (n, *_)), group in settings.items():
        drawn = random.Random(f"{os.environ['MILEPOST_SEED']} {name}").sample(group, min(n, len(group)))
        left_out |= {*group} - {*drawn}
    return left_out


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With MILEPOST_BROWSER=1 a run of all tests in which none drove a browser has failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    whole = session.config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if not whole or os.environ.get("MILEPOST_BROWSER") != "1" or "PYTEST_XDIST_WORKER" in os.environ:
        return
    assert reporter is not None
    driven = sum(1 for each in reporter.stats.get("passed", ()) if "browser" in each.keywords and each.when == "call")
    reporter.write_line(f"\nMILEPOST_BROWSER=1: {driven} tests drove a browser")
    if driven == 0 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"settings were drawn by MILEPOST_SEED={os.environ['MILEPOST_SEED']}")


if "PYTEST_XDIST_WORKER" in os.environ:
    # With more they wait for one another, and take four times as long. Read when torch is loaded, here and in the
    # processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ray's workers give way to all others, and beside tests would hardly run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import torch

    THREADS = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(THREADS)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown() -> None:
        # A cell of the lab sets its own number, which would slow every test that follows.
        torch.set_num_threads(THREADS)
