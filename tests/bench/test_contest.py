"""A contest checks everybody, times those who are right, and goes on past those who fail."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.bench.harness import clock
from milepost.bench.harness.agreement import ROWS, against_float64, compared, learned
from milepost.bench.harness.contest import BOTH, FORWARD, Contest, Entry, Works, passes
from milepost.bench.harness.report import Measure
from milepost.bench.suites.attention import COLD, entry, tensors
from tests.bench.tiny import TINY

SHAPE = (2, 2, 24, 8)


def alibi() -> mp.Scheme:
    return mp.Scheme(mp.Alibi(2), mp.causal)


def t5() -> mp.Scheme:
    torch.manual_seed(0)
    return mp.Scheme(mp.T5Bias(2), mp.causal)


def works(run, scheme: mp.Scheme, given: list[Tensor]) -> Works:
    q, k, v, grad = given
    return Works(
        passes(run, (q, k, v, *learned(scheme)), grad), lambda: against_float64(run, q, k, v, grad, scheme), "own"
    )


def entries() -> list[Entry]:
    """Three that work, one that is wrong, one that cannot be made, one that breaks when it is timed."""
    given = tensors(TINY, *SHAPE)
    q, k, v, grad = given
    scheme = alibi()

    def plain() -> Tensor:
        return mp.attend(q, k, v, mp.Scheme(mp.causal))

    def too_steep() -> Tensor:
        return mp.attend(q, k, v, mp.Scheme(mp.Alibi(2, bias_max=7.0), mp.causal))

    def out_of_memory() -> object:
        raise torch.OutOfMemoryError("tried to allocate much")

    def cannot() -> Works:
        raise ModuleNotFoundError("No module named 'liger_kernel'")

    return [
        Entry("limit", "limit", lambda: Works(passes(plain, (q, k, v), grad))),
        entry("right", alibi, (q, k, v, grad), TINY),
        Entry("wrong", "peer", lambda: works(too_steep, scheme, given)),
        Entry("missing", "peer", cannot),
        Entry("large", "peer", lambda: Works({FORWARD: out_of_memory, BOTH: out_of_memory})),
        entry("last", t5, (q, k, v, grad), TINY),
    ]


def test_whoever_is_wrong_or_fails_has_a_reason_and_the_others_have_figures():
    table = Contest("attention", "a title", COLD, entries, "limit").run("cpu", 3)
    rows = {row.name: row for row in table.rows}
    assert list(rows) == ["limit", "right", "wrong", "missing", "large", "last"]
    for name in ("limit", "right", "last"):
        assert rows[name].failed is None
        assert set(rows[name].measures) == {FORWARD, BOTH}
    for name in ("wrong", "missing", "large"):
        assert rows[name].measures == {}
    wrong = rows["wrong"].failed
    assert wrong is not None
    assert wrong.startswith("disagrees with float64: output off by ")
    assert wrong.endswith("; not timed")
    assert rows["missing"].failed == "ModuleNotFoundError: No module named 'liger_kernel'"
    assert rows["large"].failed == "forward: out of memory; forward+backward: out of memory"


def test_figures_are_set_beside_the_limit_and_the_bound():
    contest = Contest("attention", "a title", COLD, entries, "limit", bound=lambda name, column, limit: 1.5)
    rows = {row.name: row for row in contest.run("cpu", 3).rows}
    limit, right = rows["limit"].measures[FORWARD], rows["right"].measures[FORWARD]
    assert (limit.ratio, right.bound) == (1.0, 1.5)
    assert right.ratio == pytest.approx(right.value / limit.value)
    assert right.low <= right.value <= right.high
    contest.ratio = "share"
    rows = {row.name: row for row in contest.run("cpu", 3).rows}
    limit, right = rows["limit"].measures[FORWARD], rows["right"].measures[FORWARD]
    assert right.ratio == pytest.approx(limit.value / right.value)


@pytest.mark.parametrize("spoiled", ["output", "q", "k", "v", "table"])
def test_a_wrong_output_and_each_wrong_gradient_is_found(spoiled: str):
    q, k, v, grad = tensors(TINY, *SHAPE)
    scheme = t5()
    names = {"q": q, "k": k, "v": v, "table": scheme.parts[0].table}

    def run() -> Tensor:
        out = mp.attend(q, k, v, scheme)
        if spoiled == "output":
            return out * 1.001
        # Nothing is added to the output, and something to one gradient.
        x = names[spoiled].sum() * 1e-2
        return out + (x - x.detach())

    assert not against_float64(run, q, k, v, grad, scheme).agrees
    assert against_float64(lambda: mp.attend(q, k, v, scheme), q, k, v, grad, scheme).agrees


@pytest.mark.parametrize("tokens", [2 * ROWS + 1, 3 * ROWS])
def test_some_rows_of_a_long_text_decide_for_all(tokens: int):
    q, k, v, grad = tensors(TINY, 2, 2, tokens, 8)
    scheme = t5()
    found = against_float64(lambda: mp.attend(q, k, v, scheme), q, k, v, grad, scheme)
    assert found.agrees
    assert 0 < found.output < 1e-5
    assert 0 < found.gradients < 1e-4


def test_one_document_is_compared_as_a_text_of_its_own():
    q, k, v, grad = tensors(TINY, 1, 2, 24, 8)
    documents = torch.arange(24) // 6
    found = against_float64(lambda: mp.attend(q, k, v, alibi(), documents=documents), q, k, v, grad, alibi(), first=18)
    assert found.agrees
    assert not against_float64(lambda: mp.attend(q, k, v, alibi()), q, k, v, grad, alibi(), first=18).agrees


def test_what_is_not_a_number_disagrees():
    x = torch.ones(3, dtype=torch.float64)
    assert not compared([x * torch.nan], [x], [x], 1e-2).agrees
    assert compared([x], [x], [x], 1e-2).agrees


def test_a_call_that_takes_seconds_is_the_figure(monkeypatch: pytest.MonkeyPatch):
    calls = [0]

    def work() -> None:
        calls[0] += 1

    monkeypatch.setattr(clock, "SLOW", -1.0)
    found = clock.race({"slow": work}, "cold", "cpu", 15)["slow"]
    assert isinstance(found, Measure)
    assert (found.calls, calls[0]) == (1, 3)


def test_contenders_take_turns():
    order: list[str] = []
    clock.race({name: lambda name=name: order.append(name) for name in "ab"}, "cold", "cpu", 3)
    # Each is tried some times, then they alternate.
    assert order == [*"a" * (clock.WARM + 2), *"b" * (clock.WARM + 2), *"ab" * 3]


def test_the_first_calls_do_not_say_how_many_a_burst_has():
    # A second call that is slow would leave a burst of one, in which nothing runs beside anything.
    calls = iter((0.02, 0.02, 0.02))
    assert clock._tried(lambda: time.sleep(next(calls, 0.0)), "cpu") < 0.01


def test_what_needs_a_gpu_says_so():
    for how, words in (("graph", "CUDA graphs need a GPU"), ("memory", "peak memory is counted on a GPU only")):
        assert clock.race({"one": lambda: None}, how, "cpu", 3) == {"one": f"RuntimeError: {words}"}
