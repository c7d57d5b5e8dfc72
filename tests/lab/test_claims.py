"""The demo: what it is there to show is in its store, interval by interval, and its headline says no more than that."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.lab.cells.store import Store
from milepost.lab.command.compare import DEFAULT
from milepost.lab.report import Findings, Row, gather
from milepost.lab.report.headlines import lede
from milepost.lab.statistics.claims import MUCH, NOTHING, Claim, claims
from milepost.lab.statistics.measures import paired
from milepost.lab.statistics.table import Line, saves, table
from milepost.lab.sweep.recorded import recorded
from tests.lab.test_table import RAN, measure, row

STORE = Path(__file__).parent / "demo.sqlite.gz"
"""The store of `make demo`; after a new one, `python -m tests.lab.record_demo out/demo` makes this anew."""


REPAIRED = "a repaired RoPE holds, with every byte in sight"

# The store of the demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Findings]:
    path = tmp_path_factory.mktemp("demo") / "lab.sqlite"
    path.write_bytes(gzip.decompress(STORE.read_bytes()))
    store = Store(path)
    sweep, command = recorded(store)
    stored = {settings["name"]: key for key, settings in store.cells()}
    for cell in sweep.cells():
        # Where a scheme is spelled out otherwise than when this was recorded, the numbers are still those of the demo.
        if not store.knows(cell.key):
            store.rename(stored[cell.name], cell.key)
    yield gather(store, sweep, command)
    store.close()


@pytest.mark.slow
def test_the_demo_shows_what_the_field_argues_about(demo: Findings):
    assert [(each.says, each.figures) for each in claims(demo) if not each.holds] == []


@pytest.mark.slow
def test_the_recorded_store_is_that_of_the_whole_demo(demo: Findings):
    assert demo.ran.done == demo.ran.cells
    assert max(demo.ran.lengths) == 16 * demo.ran.trained
    assert demo.ran.schemes == DEFAULT


@pytest.mark.slow
def test_the_claims_are_there_in_the_numbers_themselves(demo: Findings):
    """The same once more, without what the claims are made of: bits at the ends, and bits saved."""
    longest, trained = max(demo.ran.lengths), demo.ran.trained
    far = max(demo.lengths("recall"))

    def cost(name: str, variant: str = "") -> tuple[float, float]:
        """What the last bytes cost more than to the checkpoint as trained, cut off at its length: both ends."""
        here, bar = demo.of(name, variant), demo.of(name)
        assert here is not None
        assert bar is not None
        one, other = here.scores["ends"][longest], bar.scores["ends"][trained]
        found = paired(one, other)
        assert found is not None
        assert found.half is not None
        return found.mean - found.half, found.mean + found.half

    assert cost("rope")[0] > MUCH
    for name in ("alibi-steep", "kerple"):
        assert cost(name)[1] < 0.1, name
    assert cost("rope", "window")[1] < 0.1
    window = demo.of("rope", "window")
    assert window is not None
    assert abs(window.scores["recall"][far].mean) < NOTHING
    whole = [each for each in demo.rows if each.name == "rope" and each.variant and each.whole]
    holding = [each for each in whole if cost("rope", each.variant)[1] < 0.1]
    assert any(saves(each.scores["recall"][far]) for each in holding)


@pytest.mark.slow
def test_the_headline_of_the_demo_says_no_more_than_its_intervals(demo: Findings):
    check_headline(demo)


# The headline, whatever it is about


def check_headline(found: Findings) -> None:
    """Every sentence of the headline, against the intervals it speaks of."""
    sorted_ = table(found)
    lines = {line.row.label: line for line in sorted_.lines}
    said = " ".join(lede(found, sorted_))
    trained = [line for line in sorted_.lines if not line.row.variant and line.reach is not None]
    for verb, true in (("holds? to [\\d,]+", surely), ("breaks? before", breaks), ("cannot be placed", unsure)):
        for names in re.findall(f"{verb}: ([^;.]*)", said):
            listed = re.split(", | and ", names)
            assert [line.row.label for line in trained if line.row.base in listed and not true(line)] == [], verb
    best = re.search(r"At [\d,]+ (\S+) reads best", said)
    if best is not None:
        others = [
            line for line in trained if line.row.label != best[1] and line.row.label not in said.split(best[0])[1]
        ]
        for line in others:
            assert apart(line, lines[best[1]]), f"{best[1]} is said to be better than {line.row.label}"
    for variant in re.findall("“([^”]*)” carries it to", said):
        line = next(line for line in lines.values() if line.row.variant == variant)
        assert line.row.whole
        assert line.reach is not None
        assert line.reach.least is not None
    for variant, on in re.findall("recalled best by “([^”]*)” on (\\S+?),", said):
        line = next(line for line in lines.values() if (line.row.variant, line.row.base) == (variant, on))
        assert any(saves(each) for each in line.recall)
    if len(found.ran.seeds) == 1:
        assert "ranks no method" in said


def surely(line: Line) -> bool:
    return line.reach is not None and line.reach.surely


def breaks(line: Line) -> bool:
    return line.reach is not None and line.reach.breaks


def unsure(line: Line) -> bool:
    return not surely(line) and not breaks(line)


def apart(one: Line, other: Line) -> bool:
    a, b = one.bits[-1], other.bits[-1]
    assert a is not None
    assert b is not None
    found = paired(a, b)
    return found is not None and found.sign != 0


# Claims that hold, and claims that do not


def remembers(of: Row, recall: float, half: float = 0.05) -> Row:
    saved = {at: replace(measure(recall, 7, 0.001), half=half, drawn=True) for at in (256, 3072)}
    return replace(of, scores=of.scores | {"recall": saved, "passages": saved})


def shown(**changed: Row) -> list[Claim]:
    """The claims of a sweep that shows everything, but for what is changed in it."""
    flat = (1.5, 1.49, 1.48, 1.48)
    rows = {
        "rope": remembers(row("rope", "", (1.5, 2.0, 2.5, 3.0)), 0.01),
        "window": remembers(row("rope", "window", flat), 0.0, 0.001),
        "repaired": remembers(row("rope", "ReRoPE, pivot", flat), 2.0),
        "alibi": row("alibi", "", flat),
        "kerple": row("kerple", "", flat),
    }
    found = Findings(tuple((rows | changed).values()), replace(RAN, schemes=("rope", "alibi", "kerple")))
    check_headline(found)
    return claims(found)


def failing(found: list[Claim]) -> list[str]:
    return [each.says.split(":")[0] for each in found if not each.holds]


def test_a_sweep_that_shows_everything_is_said_to():
    found = shown()
    assert failing(found) == []
    assert len(found) == 8


@pytest.mark.parametrize(
    ("name", "changed", "fails"),
    [
        ("rope", remembers(row("rope", "", (1.5, 1.5, 1.6, 1.9)), 0.0), "plain RoPE breaks"),
        ("alibi", row("alibi", "", (1.5, 1.5, 1.6, 1.7)), "a fixed bias holds"),
        ("kerple", row("kerple", "", (1.5, 1.5, 1.5, 1.58), noise=0.5), "a learned bias holds"),
        ("window", remembers(row("rope", "window", (1.5, 1.5, 1.5, 1.5)), 0.01, 0.05), "the window forgets"),
        ("repaired", remembers(row("rope", "ReRoPE, pivot", (1.5, 1.5, 1.6, 1.7)), 2.0), REPAIRED),
    ],
)  # fmt: skip
def test_a_claim_fails_where_its_interval_does_not_carry_it(name: str, changed: Row, fails: str):
    assert fails in failing(shown(**{name: changed}))


def test_recall_must_be_clear_of_zero_and_of_the_window():
    flat = (1.5, 1.49, 1.48, 1.48)
    unclear = remembers(row("rope", "ReRoPE, pivot", flat), 0.04, 0.05)
    assert [each for each in failing(shown(repaired=unclear)) if "recalls" in each]
    forgets = replace(remembers(row("rope", "ReRoPE, pivot", flat), 2.0), whole=False)
    assert REPAIRED in failing(shown(repaired=forgets)), "a window is no repair"


def test_what_was_not_judged_is_not_shown():
    found = claims(Findings((row("alibi", "", (1.5,) * 4),), RAN))
    assert [each.holds for each in found] == [False, True, *[False] * 5]
    assert all("not judged" in each.figures for each in (found[0], found[2], found[3], found[4]))
