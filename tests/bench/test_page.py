"""The JSON, the page, and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from milepost.bench.harness.page import page as page_of
from milepost.bench.harness.report import Agreement, Measure, Report, Row, Table, joined, read
from milepost.bench.suites.groups import GROUPS
from milepost.cli import app

TITLES = [(name, each.title, each.note) for name, each in GROUPS.items()]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def report() -> Report:
    """Numbers made up for this test."""
    limit = {"forward": Measure(2.0, "ms", 1.9, 2.25, 15, 12.4, 1.0)}
    own = {"forward": Measure(3.0, "ms", 2.95, 3.5, 15, 45.6, 1.5, 1.4)}
    slow = {"forward": Measure(3676.0, "ms", 3676.0, 3676.0, 1, None, 1838.0)}
    agreement = Agreement(2e-3, 1e-3, 6e-3, 4e-3, True)
    attention = Table("attention", "A, b4 h16", "plain causal SDPA", "times", ["forward"], [
        Row("plain causal SDPA", "limit", "torch", limit),
        Row("T5", "milepost", "triton", own, agreement),
        Row("FlexAttention, T5", "FlexAttention", "compiled", slow, agreement),
        Row("CoPE", "milepost", "chunked", failed="forward: out of memory"),
    ])  # fmt: skip
    copied = {"graph": Measure(0.08, "ms", 0.08, 0.08, 15, None, 1.0)}
    turned = {"graph": Measure(0.1, "ms", 0.1, 0.1, 15, None, 0.8, 0.95)}
    rotary = Table("rotary", "q and k", "copy", "share", ["graph"], [
        Row("copy", "limit", measures=copied), Row("milepost", "milepost", measures=turned)
    ])  # fmt: skip
    peak = {"forward": Measure(3 * 2**20, "bytes", 0, 0, 1, None, 1.0, 2.0)}
    memory = Table("memory", "C", "SDPA", "times", ["forward"], [Row("SDPA", "limit", "torch", peak)])
    accuracy = Table("accuracy", "small", "", "times", [], [Row("T5", "milepost", "triton", {}, agreement)])
    known = {"device": "NVIDIA Made Up", "torch": "2.11", "triton": "3.6", "command": "milepost bench"}
    return Report(known, [rotary, attention, memory, accuracy])


def test_json_is_read_back_as_it_was_written(tmp_path: Path):
    report().write(tmp_path / "deep" / "bench.json")
    assert read(tmp_path / "deep" / "bench.json") == report()
    row = json.loads((tmp_path / "deep" / "bench.json").read_text())["tables"][1]["rows"][3]
    assert (row["name"], row["failed"]) == ("CoPE", "forward: out of memory")


def test_the_page_has_every_table_in_the_order_of_the_groups():
    written = page_of(report(), TITLES)
    assert "Measured on one NVIDIA Made Up, torch 2.11, triton 3.6, by\n\n```\nmilepost bench\n```\n" in written
    assert [line for line in written.splitlines() if line.startswith("## ")] == [
        "## Attention", "## The rotation of q and k alone", "## Memory", "## Accuracy",
    ]  # fmt: skip
    for line in (
        "**A, b4 h16**; the limit is plain causal SDPA.",
        "|  | by | forward, ms | × limit | host, µs | error ÷ plain torch's |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| plain causal SDPA | torch | 2.00 (1.90–2.25) | 1.00 | 12 | – |",
        "| T5 | triton | 3.00 (2.95–3.50) | **1.50** (≤ 1.40) | 46 | 2.00 |",
        "| FlexAttention, T5 | compiled | 3,676 (one call) | 1838.00 | – | 2.00 |",
        "| CoPE | chunked | – | – | – | – |",
        "- CoPE: forward: out of memory",
        "|  | by | graph, µs | of its speed |",
        "| milepost | milepost | 100 | **80%** (≥ 95%) |",
        "| SDPA | torch | 3.00 | 1.00 (≤ 2.00) |",
        "|  | by | output | gradients | ÷ plain torch's |",
        "| T5 | triton | 2.0e-03 | 6.0e-03 | 2.00 |",
    ):
        assert line in written.splitlines(), line


def test_later_runs_replace_tables_of_the_same_title():
    other = Report(
        {"command": "milepost bench cpu"},
        [Table("memory", "C", "SDPA", "times", []), Table("cpu", "new", "", "times", [])],
    )
    both = joined([report(), other])
    assert [(table.group, len(table.rows)) for table in both.tables] == [
        ("rotary", 2), ("attention", 4), ("memory", 0), ("accuracy", 1), ("cpu", 0),
    ]  # fmt: skip
    # The page is of the first run; tables of others say so.
    assert both.machine["command"] == "milepost bench"
    assert [bool(table.apart) for table in both.tables] == [False, False, True, False, True]
    assert "The next table is from another run: Another day, by `milepost bench cpu`." in page_of(both, TITLES)


def test_the_command_writes_the_page_from_a_stored_run(tmp_path: Path):
    report().write(tmp_path / "bench.json")
    words = ["bench", "--from", str(tmp_path / "bench.json"), "--markdown", str(tmp_path / "docs" / "speed.md")]
    done = CliRunner().invoke(app(), words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "docs" / "speed.md").read_text(encoding="utf-8") == page_of(report(), TITLES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["atention"],
            "bench atention: no group is called that; there are attention, packed, encoder, host, rotary, decoding, "
            "memory, models, accuracy, cpu, compiled; did you mean attention?",
        ),
        (
            ["--from", "nowhere.json"],
            "bench --from: nothing is measured, so give no group, and --markdown FILE for the page to write",
        ),
        (
            ["--from", "nowhere.json", "--markdown", "speed.md"],
            "bench --from nowhere.json: there is no such file; `milepost bench` writes out/bench/bench.json",
        ),
        pytest.param(
            ["memory"],
            "bench memory: needs a CUDA GPU, and there is none here; `milepost bench cpu` needs none",
            marks=NO_GPU,
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(words: list[str], said: str):
    done = CliRunner().invoke(app(), ["bench", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"milepost: {said}\n"
