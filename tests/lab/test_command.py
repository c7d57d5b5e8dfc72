"""The command line: what it loads, what its tables show at any width, and what it refuses to overwrite."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from milepost.lab.cells.store import Store
from milepost.lab.command.files import check_out
from milepost.lab.command.shown import PIPE, Column, Fitted, differences, table
from milepost.lab.report import Findings, gather, to_markdown
from milepost.lab.report.headlines import at_an_edge, lede
from milepost.lab.report.tables import quarters
from milepost.lab.schemes.choices import edge_of
from milepost.lab.schemes.named import build, refuse_blind
from milepost.lab.statistics import table as data
from milepost.lab.statistics.findings import Tried
from milepost.lab.statistics.intervals import chance, student
from milepost.lab.statistics.measures import measured, paired
from milepost.lab.sweep.recorded import recorded
from milepost.lab.training.model import Shape
from tests.lab.test_compare import refused, text  # noqa: F401

WITHOUT_TORCH = """
import contextlib, io, json, sys
from milepost.cli import main

loaded = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["milepost", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    loaded[" ".join(words)] = [code, [name for name in ("torch", "numpy", "transformers") if name in sys.modules]]
print(json.dumps(loaded))
"""
COMMANDS = ("compare", "report", "diff", "export", "methods", "plan", "extend", "check", "bench", "look", "explore")
HELP = [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
WRONG = [
    ["compar"], ["compare", "--no-such"], ["compare", "--size", "huge"], ["compare", "--set", "steps=0"],
    ["compare", "--steps", "3"], ["compare", "--seeds", "0"], ["compare", "--engine", "slurm"],
    ["compare", "--jobs", "2", "--engine", "ray"], ["compare", "--tasks", ","], ["compare", "--every", "--no-free"],
    ["report", "nowhere"], ["report"], ["diff", "nowhere", "nowhere"], ["export", "nowhere", "rope"], ["plan"],
    ["plan", "x", "--to", "far"], ["extend"], ["check", "a"], ["bench", "--no-such"],
    ["plan", "/nowhere", "--to", "9"], ["check", "/nowhere", "/nowhere"], ["extend", "/nowhere", "--out", "x"],
    ["look", "/nowhere", "--text", __file__], ["explore", "--model", "/nowhere"],
]  # fmt: skip


def test_help_and_errors_that_need_no_tensor_load_no_torch():
    """In one process, one after the other: whoever loads it first is the one that is named."""
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(HELP + WRONG)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found == {" ".join(words): [0, []] for words in HELP} | {" ".join(words): [2, []] for words in WRONG}


# Tables


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    path = tmp_path_factory.mktemp("demo") / "lab.sqlite"
    path.write_bytes(gzip.decompress((Path(__file__).parent / "demo.sqlite.gz").read_bytes()))
    store = Store(path)
    sweep, command = recorded(store)
    found = gather(store, sweep, command)
    store.close()
    return found


def drawn(what: object, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


def left_out(printed: str) -> set[str]:
    """The columns that a table names as left out, its lines joined again."""
    found = re.search(r"left out at \d+ columns: (.*?)(?:;|$)", " ".join(printed.split()))
    return set(found[1].replace(", ", "|").split("|")) if found else set()


@pytest.mark.parametrize("width", [40, 60, 80, 200, PIPE])
def test_no_digit_of_the_table_is_cut_at_any_width(width: int, demo: Findings):
    printed = drawn(table(demo), width)
    sorted_ = data.table(demo)
    hidden = left_out(printed)
    assert max(map(len, printed.splitlines())) <= width
    assert "…" not in printed
    assert (width >= 80) == (not hidden)
    body = printed[: printed.index("bits per byte over")]
    words = body.split()
    for n, length in enumerate(sorted_.lengths):
        if f"{length:,}" not in hidden:
            for line in sorted_.lines:
                assert line.bits[n] is None or data.shown(line.bits[n].mean) in words
    shown = [*(("recall", "of text")[n] for n in range(2)), "Δ"]
    for n, name in enumerate(shown):
        for line in sorted_.lines if name not in hidden else ():
            value = line.against if n == 2 else line.recall[n]
            if value is not None:
                assert (data.signed if n == 2 else data.shown)(value.mean) in words
    # A row is one line where there is room.
    if width >= 200:
        assert [line for line in body.splitlines() if line.startswith("RoPE: window and sinks *")]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_digit_of_a_difference_is_cut_at_any_width(width: int, demo: Findings):
    printed = drawn(differences(demo, replace(demo, rows=demo.rows[:3]), ("one", "other")), width)
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= width
    words = printed.split()
    for row in demo.rows[:3]:
        for measure in row.scores["windows"].values():
            assert set(data.in_words(measure).split()) <= set(words), "values wrap between words"


def test_a_table_folds_names_wraps_values_and_then_leaves_columns_out():
    columns = [Column("name", name=True), Column("low", 0), Column("high", 1)]
    rows = [[Text("Rope(dim, theta=100000.5)"), Text("1.234 ±0.567"), Text("8.901 ±0.234")]]
    wide, wrapped, narrow = (drawn(Fitted(columns, rows, "; see there"), width) for width in (60, 27, 19))
    assert "Rope(dim, theta=100000.5) 1.234 ±0.567 8.901 ±0.234" in wide
    assert not left_out(wide)
    assert not left_out(wrapped)
    assert {"1.234", "±0.567", "8.901", "±0.234"} <= set(wrapped.split())
    assert (
        "".join(line[:12].strip() for line in wrapped.splitlines()[1:]).replace(" ", "") == "Rope(dim,theta=100000.5)"
    )
    assert left_out(narrow) == {"low"}
    assert {"8.901", "±0.234"} <= set(narrow.split())


# What is overwritten


def test_a_folder_with_files_that_are_not_a_sweeps_is_refused_by_name(text: Path, tmp_path: Path):  # noqa: F811
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("<h1>Quarterly results</h1>")
    assert "its report.html is not milepost's and would be overwritten" in refused(text, out, "rope")
    assert (out / "report.html").read_text() == "<h1>Quarterly results</h1>"
    (out / "report.html").unlink()
    (out / "notes.txt").write_text("mine")
    assert "the folder has files and no store of milepost: notes.txt; name a new or an empty folder" in refused(
        text, out, "rope"
    )
    assert [each.name for each in out.iterdir()] == ["notes.txt"]


def test_the_store_of_another_program_is_refused(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "lab.sqlite")) as db:
        db.execute("CREATE TABLE invoices (n INTEGER)")
    with pytest.raises(ValueError, match=r"its lab\.sqlite is another program's, with invoices"):
        check_out(tmp_path, [])


def test_what_a_sweep_left_is_its_own(tmp_path: Path):
    (tmp_path / ".locks").mkdir()
    for name in ("0123456789abcdef.safetensors", "lab.sqlite.damaged", "all.json"):
        (tmp_path / name).touch()
    check_out(tmp_path, [tmp_path / "all.json"])
    check_out(tmp_path / "new", [])


# What is refused, and what is said of a choice


@pytest.mark.parametrize(
    "scheme", ["Rope(dim) + causal + ~causal", "causal & ~window(64)", "[Nope()] + [causal & ~causal]"]
)
def test_a_scheme_that_sees_no_key_is_refused(scheme: str):
    shape = Shape(width=16, layers=2, heads=2)
    with pytest.raises(ValueError, match=r"sees no key in layer [01] \("):
        refuse_blind(build(scheme, shape, 16, 64), scheme, 2, 16, 64)


@pytest.mark.parametrize("scheme", ["rope", "window-rope", "hwfa", "causal & (window(4) | sinks(2))"])
def test_a_scheme_that_sees_some_key_is_not(scheme: str):
    refuse_blind(build(scheme, Shape(width=16, layers=2, heads=2), 16, 64), scheme, 2, 16, 64)


def test_a_choice_at_the_edge_of_what_was_tried_is_named(demo: Findings):
    tried = Tried("rope", "", "0.004", {64: 2.0}, True, 0.004, None, "rate 0.004, the highest")
    found = replace(demo, tried=(tried, replace(tried, name="t5", edge="")))
    assert at_an_edge(found) == [
        "RoPE: the choice, 0.004, is at the edge of those tried (rate 0.004, the highest); the best may lie beyond it."
    ]
    assert at_an_edge(found)[0] in lede(found, data.table(found))
    assert "is at the edge of those tried" in " ".join(drawn(table(found), 80).split())
    assert edge_of("Rope(dim) + LogN({1|2|3})", 1) == ""
    assert edge_of("Rope(dim) + LogN({1|2|3})", 2) == "3, the last of 1, 2, 3"
    assert edge_of("f({a|b|c}, {1|2|3})", 1) == "a, the first of a, b, c"


def test_two_seeds_give_no_verdict(demo: Findings):
    one, other = (measured({0: (m, m + 0.1), 1: (m, m + 0.1)}) for m in (1.0, 2.0))
    difference = paired(one, other)
    assert difference is not None
    assert (difference.mean, difference.sign, difference.half) == (-1.0, 0, None)
    assert not data.saves(one)
    found = replace(demo, ran=replace(demo.ran, seeds=(0, 1)))
    assert lede(found, data.table(found))[-1] == "2 seeds: too few for a verdict; --seeds 3 gives one."


def test_a_p_is_that_of_the_interval():
    """By Student's t, at the edge of the interval .05, and .5 at a mean of nothing more than the median."""
    for freedom in (2, 5, 40):
        assert chance(1.0, 1.0, freedom) == pytest.approx(0.05)
        assert chance(0.0, 1.0, freedom) == 1.0
        assert chance(2.0, 1.0, freedom) < 0.05 < chance(0.5, 1.0, freedom)
    # Two-sided p of t = 3 with one degree of freedom: 1 − (2 / π) · arctan 3.
    assert chance(3.0, student(1), 1) == pytest.approx(0.2048327646991335)


def test_quarters_are_means_over_the_bins_in_them(demo: Findings):
    bins = [(0, 8.0), (1, 4.0), (2, 2.0), (4, 1.0), (6, 0.5)]
    assert quarters(bins, 8) == [6.0, 2.0, 1.0, 0.5]
    assert quarters(bins, 10) == []
    assert "| first quarter | second | third | last quarter | last 256 bytes |" in to_markdown(demo)
