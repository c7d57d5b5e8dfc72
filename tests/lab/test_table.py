"""The sorted table: what reach is, what is marked, and how it is written down."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from milepost.lab.report import Findings, Measure, Ran, Row, to_csv, to_json
from milepost.lab.schemes.naming import proper
from milepost.lab.statistics.reach import reach
from milepost.lab.statistics.table import (
    Line,
    Table,
    difference_in_words,
    in_words,
    interval_in_words,
    length_in_words,
    signed,
    table,
)  # fmt: skip

LENGTHS = (512, 1024, 2048, 4096)
RAN = Ran(
    trained=512, lengths=LENGTHS, schemes=("rope", "alibi"), seeds=(0,), shape={"width": 384}, recipe={"steps": 1500},
    judging={"total": 1 << 20}, corpus="enwik8", digest="0123", train_bytes=90_000_000, test_bytes=5_000_000, guess=7.9,
    again="milepost compare --size base", versions={"milepost": "0"}, seconds=60.0, cells=2, done=2, made="2026-01-01",
)  # fmt: skip

# The anchors: a RoPE that breaks, an ALiBi that holds, and what is done to the RoPE without training.
BITS = {
    ("rope", ""): (1.5455, 2.352, 3.662, 4.480),
    ("rope", "window"): (1.5455, 1.5066, 1.5044, 1.4840),
    ("rope", "window and sinks"): (1.5455, 1.5060, 1.5040, 1.4835),
    ("rope", "dynamic YaRN"): (1.5455, 1.508, 1.527, 1.567),
    ("rope", "dynamic NTK"): (1.5455, 1.584, 2.097, 2.785),
    ("rope", "ReRoPE, log-n"): (1.5455, 1.4991, 1.4894, 1.4736),
    ("alibi", ""): (1.4947, 1.4477, 1.4371, 1.4152),
}


WINDOWS = 40


def measure(mean: float, own: int, noise: float = 0.002, half: float = 0.01, seeds: int = 1) -> Measure:
    """A score whose windows share the text's ups and downs, and have a little noise of their own."""
    wave, little = np.sin(np.arange(WINDOWS) * 0.7), np.random.default_rng(own).standard_normal(WINDOWS)
    windows = mean + 0.3 * (wave - wave.mean()) + noise * (little - little.mean())
    by_seed = {seed: tuple(map(float, windows + noise * (seed - (seeds - 1) / 2))) for seed in range(seeds)}
    return Measure(mean, half, seeds, 1 << 20, None if seeds == 1 else 4.3 * noise, by_seed)


def row(
    name: str,
    variant: str,
    bits: tuple[float, ...],
    recall: float | None = None,
    seeds: int = 1,
    ends: tuple[float, ...] | None = None,
    noise: float = 0.002,
) -> Row:
    own = sum(f"{name}{variant}".encode())
    scores = {
        protocol: {n: measure(each, own + n, noise, seeds=seeds) for n, each in zip(LENGTHS, given, strict=False)}
        for protocol, given in (("windows", bits), ("ends", ends or bits))
    }
    if recall is not None:
        scores["recall"] = {at: measure(saved, own, half=0.1) for at, saved in ((256, 3.0), (3072, recall))}
    equation = "out_i = Σ_j softmax_j( ⟨q_i, k_j⟩ | see(i, j) ) · v_j\n  see  causal"
    return Row(name, variant, f"{name}()", equation, (0,), 10_817_664, 60.0, scores, whole="window" not in variant)


def anchors() -> Findings:
    recall = {"": 0.4, "window": 0.05, "ReRoPE, log-n": 3.2}
    rows = (row(*names, bits, recall.get(names[1]) if names[0] == "rope" else None) for names, bits in BITS.items())
    return Findings(tuple(rows), RAN)


def made(*rows: Row) -> Findings:
    return Findings(rows, RAN)


def effective_length(found: Findings, of: Row) -> int | None:
    reached = reach(found, of)
    return None if reached is None else reached.length


def line_of(found: Table, label: str) -> Line:
    return next(line for line in found.lines if line.row.label == label)


def test_the_reach_of_the_anchors():
    reaches = {line.row.label: line.effective_length for line in table(anchors()).lines}
    assert reaches == {
        "ALiBi": 4096,
        "RoPE: ReRoPE, log-n": 4096,
        "RoPE: window and sinks": 4096,
        "RoPE: window": 4096,
        "RoPE: dynamic YaRN": 4096,
        "RoPE: dynamic NTK": 1024,
        "RoPE": 512,
    }


def test_lines_are_sorted_by_reach_then_by_bits_at_the_longest_length():
    assert [line.row.short for line in table(anchors()).lines] == [
        "ALiBi", "ReRoPE, log-n", "window and sinks", "window", "dynamic YaRN", "dynamic NTK", "RoPE",
    ]  # fmt: skip


def test_a_longer_reach_comes_before_fewer_bits():
    lost, holds = row("rope", "", (1.5, 1.9, 1.9, 1.4)), row("alibi", "", (1.5, 1.5, 1.5, 1.5))
    assert [line.row for line in table(made(lost, holds)).lines] == [holds, lost]


def test_what_breaks_and_recovers_reaches_only_to_where_it_broke():
    found = made(row("rope", "", (1.5, 1.55, 1.7, 1.5)))
    assert effective_length(found, found.rows[0]) == 1024


def test_reach_is_judged_on_the_same_bytes_and_not_over_windows_that_differ():
    """Over windows of each length, which are other bytes, the bits fall; on the same bytes they rise."""
    found = made(row("rope", "", (1.7, 1.6, 1.5, 1.4), ends=(1.5, 1.55, 1.65, 1.9)))
    assert effective_length(found, found.rows[0]) == 1024


def test_one_rule_serves_all_rows_what_the_text_cut_off_costs_the_checkpoint_as_trained():
    plain = row("rope", "", (1.5, 3.0, 4.0, 5.0))
    near, static = row("rope", "near", (1.55, 1.58, 1.59, 1.65)), row("rope", "static", (1.7, 1.6, 1.5, 1.5))
    found = made(plain, near, static)
    assert [effective_length(found, each) for each in found.rows] == [512, 2048, None]
    assert length_in_words(line_of(table(found), "RoPE: static")) == "none"
    # A window beside it changes nothing.
    window = row("rope", "window", (1.5, 1.45, 1.40, 1.35))
    assert effective_length(made(plain, near, window), near) == 2048


def test_a_reach_has_an_interval():
    found = made(row("rope", "", (1.5, 1.55, 1.59, 1.9), noise=0.2))
    reached = reach(found, found.rows[0])
    assert reached is not None
    assert (reached.least, reached.length, reached.most) == (512, 2048, 2048)
    assert (reached.to_the_end, reached.surely, reached.breaks) == (False, False, True)
    assert interval_in_words(reached) == "512 … 2,048"
    sure = reach(anchors(), anchors().rows[-1])
    assert sure is not None
    assert sure.surely
    assert interval_in_words(sure) == ""


def test_over_seeds_a_reach_is_no_more_certain_than_they_are():
    one, three = (made(row("rope", "", (1.5, 1.55, 1.59, 1.59), noise=0.02, seeds=seeds)) for seeds in (1, 3))
    assert [effective_length(found, found.rows[0]) for found in (one, three)] == [4096, 4096]


@pytest.mark.parametrize(("pairs", "learned"), [(3.0, True), (1.505, False), (1.4, False)])
def test_a_model_that_reads_no_better_than_byte_pairs_has_no_reach(pairs: float, learned: bool):
    """1.500 ±0.010 is surely better than 3.0, and not than 1.505."""
    found = Findings((row("rope", "", (1.5,) * 4), row("rope", "near", (1.5,) * 4)), replace(RAN, pairs=pairs))
    assert [line.effective_length for line in table(found).lines] == [4096 if learned else None] * 2
    assert [line.learned for line in table(found).lines] == [learned] * 2
    assert length_in_words(table(found).lines[0]) == ("≥ 4,096" if learned else "not learned")


def test_what_is_not_told_apart_from_the_best_is_marked_too():
    best, near = row("rope", "", (1.5,) * 4), row("alibi", "", (1.503, 1.503, 1.503, 1.6))
    lines = {line.row.name: line.best for line in table(made(best, near)).lines}
    assert lines == {"rope": (True,) * 4, "alibi": (False, False, False, False)}
    # With twenty times the noise in each window, three thousandths are nothing.
    noisy = row("alibi", "", (1.503, 1.503, 1.503, 1.6), noise=0.04)
    lines = {line.row.name: line.best for line in table(made(best, noisy)).lines}
    assert lines == {"rope": (True,) * 4, "alibi": (True, True, True, False)}


def test_without_its_windows_nothing_is_said_to_be_as_good_as_the_best():
    bare = Row("alibi", "", "", "", (0,), 0, 0.0, {"windows": {512: Measure(1.5001, 5.0, 1, 8)}})
    lines = {line.row.name: line.best[0] for line in table(made(row("rope", "", (1.5,)), bare)).lines}
    assert lines == {"rope": True, "alibi": False}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_does_not_hold(bad: float):
    found = made(row("rope", "", (1.5, bad, 1.5, 1.5)), row("nope", "", (bad,) * 4))
    assert [effective_length(found, each) for each in found.rows] == [512, None]
    assert [line.row.name for line in table(found).lines] == ["rope", "nope"]


def test_the_tolerance_is_the_findings_own():
    rows = (row("rope", "", (1.5, 1.55, 1.65, 1.9)),)
    assert [effective_length(Findings(rows, RAN, tolerance), rows[0]) for tolerance in (0.01, 0.1, 0.2, 1.0)] == [
        512, 1024, 2048, 4096,
    ]  # fmt: skip


def test_a_row_not_judged_yet_at_a_length_reaches_to_the_one_before():
    found = made(row("alibi", "", (1.5, 1.5, 1.5, 1.5)), row("rope", "", (1.5, 1.5)))
    assert effective_length(found, found.rows[1]) == 1024


def test_the_best_of_each_column_is_marked_and_what_repeats_its_checkpoint_is_not():
    found = made(*(row(*names, bits) for names, bits in BITS.items() if names[0] == "rope"))
    marks = {line.row.short: line.best for line in table(found).lines}
    assert marks["RoPE"] == (True, False, False, False)
    assert marks["ReRoPE, log-n"] == (False, True, True, True)
    assert not any(any(best) for name, best in marks.items() if name not in ("RoPE", "ReRoPE, log-n"))
    assert line_of(table(found), "RoPE: window").same == (True, False, False, False)


def test_the_best_recall_is_marked_at_the_longest_distance():
    found = table(anchors())
    assert found.distance == 3072
    assert [line.row.short for line in found.lines if any(line.best_recall)] == ["ReRoPE, log-n"]


def test_every_row_of_a_checkpoint_is_set_against_its_window():
    differences = {(line.row.name, line.row.variant): line.against for line in table(anchors()).lines}
    bar = BITS["rope", "window"][-1]
    assert differences.pop(("alibi", "")) is None
    assert differences.pop(("rope", "window")) is None
    means = {names: None if each is None else each.mean for names, each in differences.items()}
    assert means == {names: pytest.approx(BITS[names][-1] - bar) for names in differences}
    # Each score has ±0.01 by itself, and more for the text's ups and downs; the differences are far more certain.
    assert all(each is not None and each.windows is not None and each.windows < 0.002 for each in differences.values())


def test_every_line_is_set_against_the_best():
    lines = table(anchors()).lines
    assert [line.row.label for line in lines if line.behind is None] == ["ALiBi"]
    behind = next(line.behind for line in lines if line.row.label == "RoPE: window")
    assert behind is not None
    assert behind.mean == pytest.approx(1.4840 - 1.4152)
    assert behind.sign == 1


def test_the_table_in_words():
    found = table(anchors())
    assert (found.lengths, found.recalls, found.distance) == ((512, 1024, 2048, 4096), ("recall",), 3072)
    window, repaired, alibi = (line_of(found, name) for name in ("RoPE: window", "RoPE: ReRoPE, log-n", "ALiBi"))
    assert length_in_words(window) == "≥ 4,096"
    assert [in_words(each) for each in (*window.bits, *window.recall)] == [
        "1.546 ±0.010", "1.507 ±0.010", "1.504 ±0.010", "1.484 ±0.010", "0.050 ±0.100",
    ]  # fmt: skip
    assert window.against is None
    assert repaired.against is not None
    assert difference_in_words(repaired.against).startswith("−0.010 ±0.00")
    assert [in_words(each) for each in alibi.recall] == [""]
    assert alibi.against is None
    assert [signed(value) for value in (0.0004, -0.0004, 0.05, -1.25)] == ["0.000", "0.000", "+0.050", "−1.250"]


def test_rows_are_called_as_in_their_papers_and_expressions_as_they_are():
    names = ["rope", "t5", "alibi-rope", "transformer-xl", "p-rope", "sinusoidal", "Rope(dim, theta=1e5) - 1"]
    assert [proper(name) for name in names] == [
        "RoPE", "T5", "ALiBi-RoPE", "Transformer-XL", "p-RoPE", "sinusoidal", "Rope(dim, theta=1e5) - 1",
    ]  # fmt: skip


def test_the_trivial_baselines_stand_first_beside_every_training_free_row():
    groups = {name: [each.variant for each in rows] for name, rows in anchors().groups()}
    assert groups == {
        "": ["", ""],
        "rope": ["", "window", "window and sinks", "dynamic YaRN", "dynamic NTK", "ReRoPE, log-n"],
    }
    assert [each.variant for each in anchors().rows if each.trivial] == ["window", "window and sinks"]


def test_json_holds_every_score_and_the_reach_in_the_order_of_the_table():
    found = json.loads(to_json(anchors()))
    assert [each["label"] for each in found["rows"]] == [line.row.label for line in table(anchors()).lines]
    rope = next(each for each in found["rows"] if each["label"] == "RoPE")
    assert rope["reach"] == 512
    assert rope["against_window"]["mean"] == pytest.approx(4.480 - 1.4840)
    assert rope["against_window"]["half_over_seeds"] is None
    assert (rope["learned"], rope["reach_at_least"], rope["reach_at_most"]) == (True, 512, 512)
    assert rope["scores"]["windows"]["1024"] == {
        "mean": 2.352, "half_over_windows": 0.01, "half_over_seeds": None, "seeds": 1, "judged": 1 << 20,
    }  # fmt: skip
    assert found["ran"]["again"] == "milepost compare --size base"
    assert found["tolerance"] == 0.1


def test_json_tells_what_is_no_number_as_null():
    found = json.loads(to_json(made(row("rope", "", (1.5, math.inf, math.nan, 1.5)))))
    assert [each["mean"] for each in found["rows"][0]["scores"]["windows"].values()] == [1.5, None, None, 1.5]


def test_csv_holds_one_score_a_line_to_the_last_digit():
    found = list(csv.DictReader(io.StringIO(to_csv(anchors()))))
    assert len(found) == 7 * 2 * len(LENGTHS) + 3 * 2
    by_row = {
        (each["scheme"], each["variant"], int(each["length"])): each for each in found if each["protocol"] == "windows"
    }
    for (name, variant), bits in BITS.items():
        assert [float(by_row[name, variant, length]["mean"]) for length in LENGTHS] == list(bits)
    assert by_row["rope", "window", 512]["trivial"] == "1"
    assert by_row["rope", "", 512]["reach"] == "512"
