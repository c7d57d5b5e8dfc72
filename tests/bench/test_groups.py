"""Every group makes its rows, at small sizes on a CPU, and nobody disagrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from milepost import CannotRun
from milepost.bench import bounds
from milepost.bench.contest import Contest, Entry
from milepost.bench.groups import GROUPS, contests_of, measure
from milepost.bench.report import Report, Table, read
from milepost.bench.warm import SHARES, jobs
from tests.bench.tiny import TINY


def tables(name: str) -> list[Table]:
    return measure([name], TINY, Report({}), say=lambda words: None).tables


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "packed", "encoder", "decoding", "accuracy"])
def test_rows_are_made_compared_and_timed(name: str):
    found = tables(name)
    assert len(found) == len(GROUPS[name].contests(TINY))
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
    from milepost.backends import rotated
    from milepost.backends.triton import backend

    asked = mock.Mock(wraps=backend._no_device)
    monkeypatch.setattr(backend, "_no_device", asked)
    before = backend._no_device, rotated._ready
    lab, extended = tables("models")
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
    from milepost.bench.models import without_ours

    q = torch.randn(1, 2, 8, 16)
    with without_ours(), pytest.raises(CannotRun, match="left out, to be compared with"):
        attend(q, q, q, Scheme(Alibi(2), causal), backend="triton")


@pytest.mark.slow
def test_memory_is_counted_on_a_gpu_only_and_says_so():
    names = {each.name for each in contests_of("memory", TINY)[0].contenders()}
    few = replace(TINY, skip=tuple(names - {"plain causal SDPA", "RoPE", "ALiBi"} - {"RoPE with YaRN"}))
    (table,) = measure(["memory"], few, Report({}), say=lambda words: None).tables
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
    found = GROUPS["rotary"].contests(replace(TINY, peers=True))[0].run("cpu", 3)
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
    waiting = jobs(["attention", "memory"], TINY)
    assert {(name, number) for _, name, number, _ in waiting} == {("attention", 0), ("attention", 1)}
    contest = GROUPS["encoder"].contests(TINY)[0]
    names = [each.name for each in contest.entries()]
    assert sorted(name for share in range(SHARES) for name in names[share::SHARES]) == sorted(names)
    assert len(waiting) == 2 * SHARES


def test_rows_are_left_out_by_a_word_in_their_names():
    everybody = {each.name for each in contests_of("encoder", TINY)[0].contenders()}
    left = {each.name for each in contests_of("encoder", replace(TINY, skip=("deberta", "T5")))[0].contenders()}
    assert everybody - left == {"DeBERTa, reach 512", "T5, both sides"}
