"""Every group makes its rows, at small sizes on a CPU, and nobody disagrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from milepost import CannotRun
from milepost.bench.compile_ahead import SHARES, jobs
from milepost.bench.harness import clock
from milepost.bench.harness.contest import Contest, Entry
from milepost.bench.harness.report import Report, Table, read
from milepost.bench.harness.settings import Settings
from milepost.bench.run import measure
from milepost.bench.suites import bounds
from milepost.bench.suites.groups import GROUPS, contests_of
from tests.bench.tiny import TINY


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WARM", 0)


def tables(name: str, settings: Settings = TINY) -> list[Table]:
    return measure([name], settings, Report({}), show=lambda words: None).tables


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "packed", "encoder", "host", "decoding", "accuracy"])
def test_rows_are_made_compared_and_timed(name: str):
    # A has the schemes of B, but one.
    found = [each.run("cpu", 3) for each in contests_of(name, TINY)[-1 if name == "attention" else 0 :]]
    for table in found:
        assert table.failed is None
        for row in table.rows:
            reason = row.failed or ""
            assert "disagrees" not in reason, f"{row.name}: {reason}"
            if reason.startswith('CannotRun: backend "triton"'):
                continue
            assert (row.agreement is None) == (row.who == "limit" or "as a batch" in row.name), row.name
            eager = [column for column in table.columns if column != "graph"]
            assert set(row.measures) == set(eager), f"{row.name}: {reason}"


@pytest.mark.slow
def test_whole_models_run_with_our_kernels_and_without_them(monkeypatch: pytest.MonkeyPatch):
    from milepost.backends.rotary import by_table as rotated
    from milepost.backends.triton import backend

    asked = mock.Mock(wraps=backend._no_device)
    monkeypatch.setattr(backend, "_no_device", asked)
    before = backend._no_device, rotated._ready
    lab, extended = tables("models", replace(TINY, skip=("ALiBi", "T5", "nope", "YaRN", "with Pivot")))
    assert asked.called
    assert (backend._no_device, rotated._ready) == before
    for table in (lab, extended):
        assert table.failed is None
        names = [row.name for row in table.rows]
        first = [name for name in names if f"{name}, without our kernels" in names]
        assert len(names) == 2 * len(first) + (table.limit not in first)
        for row in table.rows:
            assert row.failed is None, f"{row.name}: {row.failed}"
            assert set(row.measures) == set(table.columns)
            assert row.backend == ("torch" if "without" in row.name or row.who == "limit" else "")
    assert {"RoPE", "KERPLE-power", "HWFA"} <= {row.name for row in lab.rows}
    assert {"ReRoPE", "Self-Extend"} <= {row.name for row in extended.rows}


def test_schemes_that_are_met_without_our_kernels_are_refused_by_them():
    from milepost import Alibi, Scheme, attend, causal
    from milepost.bench.suites.models import without_ours

    q = torch.randn(1, 2, 8, 16)
    with without_ours(), pytest.raises(CannotRun, match="left out, to be compared with"):
        attend(q, q, q, Scheme(Alibi(2), causal), backend="triton")


@pytest.mark.slow
def test_memory_is_counted_on_a_gpu_only_and_says_so():
    names = {each.name for each in contests_of("memory", TINY)[0].contenders()}
    few = replace(TINY, skip=tuple(names - {"plain causal SDPA", "RoPE", "ALiBi"} - {"RoPE with YaRN"}))
    (table,) = measure(["memory"], few, Report({}), show=lambda words: None).tables
    assert len(table.rows) > 2
    assert {row.failed for row in table.rows} == {
        "forward: RuntimeError: peak memory is counted on a GPU only; "
        "forward+backward: RuntimeError: peak memory is counted on a GPU only"
    }


@pytest.mark.slow
def test_the_rotation_is_compared_with_float64(monkeypatch: pytest.MonkeyPatch):
    import torch

    # Compiling takes a minute here, and is not what is tested.
    monkeypatch.setattr(torch, "compile", lambda turn, **options: turn)
    found = GROUPS["rotary"].contests(replace(TINY, peers="with"))[0].run("cpu", 3)
    names = [row.name for row in found.rows]
    assert names[0] == found.limit == "copy of q and k"
    assert {"milepost, cos and sin given", "milepost, from positions", "transformers, eager"} <= set(names)
    for row in found.rows:
        if row.name not in ("copy of q and k", "clone of q and k"):
            assert row.agreement is not None
            assert row.agreement.agrees


def test_bounds_and_schemes_go_by_the_same_names():
    found = {contest.title[0]: contest for contest in GROUPS["attention"].contests(TINY)}
    names = {letter: {each.name for each in contest.entries()} for letter, contest in found.items()}
    assert set(bounds.CAUSAL) <= names["B"]
    assert set(bounds.CAUSAL) - names["A"] == {"RoPE, window of 1024 with 4 sinks"}
    assert found["A"].bound("T5", "forward", 1.0) == 1.4
    assert found["B"].bound("T5", "forward+backward", 1.0) == 1.2
    assert found["B"].bound("soft cap", "forward", 1.0) is None
    assert set(bounds.ENCODER) < {each.name for each in GROUPS["encoder"].contests(TINY)[0].entries()}


def test_a_contest_without_tensors_is_a_table_with_a_reason_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken() -> list[Entry]:
        raise RuntimeError("no room for q")

    contests = [Contest("encoder", "first", (), broken), Contest("encoder", "second", (), lambda: [])]
    monkeypatch.setitem(GROUPS, "encoder", replace(GROUPS["encoder"], contests=lambda settings: contests))
    said: list[str] = []
    report = measure(["encoder"], TINY, Report({"device": "none"}), tmp_path / "bench.json", said.append)
    assert [table.failed for table in report.tables] == ["RuntimeError: no room for q", None]
    assert read(tmp_path / "bench.json") == report
    assert "no room for q" in said[0]


def test_compiling_ahead_covers_every_contender_once():
    waiting = jobs(["attention", "cpu"], TINY)
    assert {(name, number) for _, name, number, _ in waiting} == {("attention", 0), ("attention", 1)}
    contest = GROUPS["encoder"].contests(TINY)[0]
    names = [each.name for each in contest.entries()]
    assert sorted(name for share in range(SHARES) for name in names[share::SHARES]) == sorted(names)
    assert len(waiting) == 2 * SHARES


def test_rows_are_left_out_by_a_word_in_their_names():
    everybody = {each.name for each in contests_of("encoder", TINY)[0].contenders()}
    left = {each.name for each in contests_of("encoder", replace(TINY, skip=("deberta", "T5")))[0].contenders()}
    assert everybody - left == {"DeBERTa, reach 512", "T5, both sides"}


def test_a_run_whose_time_is_up_keeps_what_it_has_and_leaves_out_the_rest(tmp_path: Path):
    said: list[str] = []
    late = replace(TINY, budget=clock.Budget(0.0))
    assert measure(["host", "decoding"], late, Report({}), tmp_path / "bench.json", said.append).tables == []
    assert said[0] == "host: no time left for b2 h2 t12 d8, float32"
    contest = contests_of("host", TINY)[0]
    table = contest.run("cpu", 3, clock.Budget(0.0))
    assert {row.failed for row in table.rows} == {"TimeoutError: the 0 seconds of this run are up"}


def test_peers_can_be_timed_by_themselves():
    names = {
        peers: {each.name for each in contests_of("rotary", replace(TINY, peers=peers))[0].contenders()}
        for peers in ("with", "without", "only")
    }
    assert names["only"] & names["without"] == {"copy of q and k"}
    assert names["only"] | names["without"] == names["with"]
    assert "transformers, eager" in names["only"]
