"""One file measures how long work takes; whatever is compared was timed by it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMERS = re.compile(
    r"perf_counter|process_time|time\.time\(|timeit|utils\.benchmark|do_bench|enable_timing|elapsed_time"
)
OTHERS = {
    # The cost of a cell is a column of the lab's report, measured once, in passing; the lab is below the benchmarks.
    "src/milepost/lab/judging/costs.py",
    # The age of a file.
    "src/milepost/lab/training/whole.py",
}


def test_there_is_one_timer():
    """Progress, throughput in passing and deadlines read the monotonic clock, and compare nothing."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if TIMERS.search(path.read_text(encoding="utf-8"))}
    assert found - OTHERS == {"src/milepost/bench/harness/clock.py"}
