"""The stores behind docs/results.md: a picture can be drawn from one. That their tables are what they say, the test of
`make docs` finds."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.lab.cells.store import Store
from milepost.lab.sweep.recorded import record
from tests.examples import example_of
from tests.lab.test_claims import STORE
from tests.lab.test_sweep import SWEEP, work

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.slow
def test_the_picture_of_a_report_can_be_drawn(tmp_path: Path):
    (tmp_path / "lab.sqlite").write_bytes(gzip.decompress(STORE.read_bytes()))
    example_of("report_picture").main([str(tmp_path), str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 50_000


@pytest.mark.slow
def test_a_picture_of_rope_alone_shows_no_panel_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(RESULTS / "rows" / "lab.sqlite", tmp_path)
    module, drawn = example_of("report_picture"), []
    draw = module.draw
    monkeypatch.setattr(module, "draw", lambda ax, panel: (drawn.append(panel), draw(ax, panel)))
    module.main([str(tmp_path), str(tmp_path / "picture.png")])
    assert [(panel.y_name, panel.x_name) for panel in drawn] == [
        ("bits per byte", "length in bytes"),
        ("more bits per byte", "length in bytes"),
        ("bits saved per byte", "distance in bytes"),
        ("bits saved per byte", "distance in bytes"),
    ]
    assert len({str(panel.curves) for panel in drawn}) == 4


def test_a_picture_that_cannot_be_drawn_says_why(tmp_path: Path):
    draw, kept = example_of("report_picture").main, tmp_path / "kept"
    asked = replace(SWEEP, schemes=("rope",), free=False)
    kept.mkdir()
    work(asked, kept)
    store = Store(kept / "lab.sqlite")
    record(store, asked, "milepost compare rope")
    store.close()
    for given, message in (
        ([], "give the --out"),
        ([str(tmp_path / "none"), "a.png"], "give the --out"),
        ([str(kept), str(tmp_path / "a.png")], "no rows without training on RoPE"),
    ):
        with pytest.raises(ValueError, match=message):
            draw(given)
    assert not (tmp_path / "none").exists()
