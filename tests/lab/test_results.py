"""The store behind docs/results.md: its tables are what it says, and its picture can be drawn from it."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from milepost.lab.cells.store import Store
from milepost.lab.report import gather
from milepost.lab.report.markdown import to_markdown
from milepost.lab.sweep.recorded import recorded
from milepost.lab.sweep.search import as_chosen
from tests.examples import example_of
from tests.lab.test_claims import STORE

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: to open a store is to be able to write to it."""
    folder = tmp_path_factory.mktemp("results")
    shutil.copy(RESULTS / "lab.sqlite", folder)
    return folder


@pytest.mark.slow
def test_the_tables_are_what_the_store_says(kept: Path):
    """Where a scheme is spelled out otherwise than when it was trained, its row is missing here: train it anew."""
    store = Store(kept / "lab.sqlite")
    sweep, command = recorded(store)
    found = gather(store, as_chosen(sweep, store), command)
    store.close()
    written = (RESULTS / "tables.md").read_text(encoding="utf-8")
    assert written == to_markdown(found), "make docs writes it anew"


@pytest.mark.slow
def test_the_picture_of_a_report_can_be_drawn(tmp_path: Path):
    (tmp_path / "lab.sqlite").write_bytes(gzip.decompress(STORE.read_bytes()))
    example_of("report_picture").main([str(tmp_path), str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 50_000


def test_a_picture_that_cannot_be_drawn_says_why(kept: Path, tmp_path: Path):
    draw = example_of("report_picture").main
    for given, message in (
        ([], "give the --out"),
        ([str(tmp_path / "none"), "a.png"], "give the --out"),
        ([str(kept), str(tmp_path / "a.png")], "no rows without training on RoPE"),
    ):
        with pytest.raises(ValueError, match=message):
            draw(given)
    assert not (tmp_path / "none").exists()
