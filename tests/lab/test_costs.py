"""What a row costs stands beside its bits: parameters, bytes a second and memory, measured once and kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from milepost.lab.cells.store import Store
from milepost.lab.judging.costs import Cost, cost_of
from milepost.lab.report import gather, page
from milepost.lab.schemes.named import build
from milepost.lab.training.model import Model, Shape
from tests.lab.test_sweep import SWEEP, work

SHAPE = Shape(16, 1, 2, hidden=16)


@pytest.mark.parametrize("name", ["rope", "learned", "t5", "cope", "transformer-xl", "Rope(dim) + Rerope(8)"])
def test_reading_and_writing_stay_within_the_longest_length(name: str):
    """A learned table has a row for each byte up to there, and no more."""
    seen: list[int] = []

    class Counted(Model):
        def states(self, tokens: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
            seen.append(tokens.shape[1])
            return super().states(tokens, *rest, **named)  # type: ignore[arg-type]

    found = cost_of(Counted(SHAPE, build(name, SHAPE, 8, 24)), 24)
    assert seen == [16] + [1] * 8
    assert set(found) == {"read", "written"}
    assert all(value > 0 for value in found.values())


def test_costs_of_every_row_are_kept_and_reported_and_measured_once(tmp_path: Path):
    asked = replace(SWEEP, schemes=("rope",), free=False, rows=(("rope", "Rope(dim) + Rerope(8)"),))
    seen = work(asked, tmp_path)
    costs = [event for _, event in seen if isinstance(event, Cost)]
    assert [each.variant for each in costs] == ["", "window", "window and sinks", "Rope(dim) + Rerope(8)"]
    store = Store(tmp_path / "lab.sqlite")
    found = gather(store, asked)
    store.close()
    plain, *others = found.rows
    assert plain.costs["read"] == costs[0].values["read"]
    assert plain.costs["trained"] == pytest.approx(14 * 2 * 16 / plain.seconds)
    assert all(set(row.costs) == {"read", "written"} for row in others)
    html = page(found)
    assert "What it costs" in html
    assert f"<td>{plain.parameters:,}</td>" in html
    assert work(asked, tmp_path) == []


def test_a_search_measures_no_costs(tmp_path: Path):
    judging = replace(SWEEP.judging, protocols=("validation",))  # type: ignore[arg-type]
    part = replace(SWEEP.corpus, validation=SWEEP.corpus.test)
    seen = work(replace(SWEEP, schemes=("nope",), judging=judging, corpus=part, free=False), tmp_path)
    assert not [event for _, event in seen if isinstance(event, Cost)]
