"""The page of a report: whole without a script or a network, true to its numbers, and at ease in a browser."""

from __future__ import annotations

import html.parser
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.lab.report import Findings, Measure, page, write
from tests.lab.test_table import BITS, RAN, anchors, row


class Reader(html.parser.HTMLParser):
    """Notes what a page is made of, and whether every tag is closed."""

    ALONE = ("meta", "link", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_every_tag_is_closed_and_no_name_is_given_twice():
    read = Reader(page(anchors()))
    assert (read.open, read.wrong) == ([], [])
    names = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_the_page_asks_for_nothing_but_itself():
    text = page(anchors())
    read = Reader(text)
    outward = ("src", "href", "srcset", "data")
    links = [value for _, each in read.tags for name, value in each.items() if name in outward]
    assert [value for value in links if value is None or not value.startswith(("#", "data:"))] == []
    assert re.findall(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text) == []
    # And the browser is told to refuse what we might overlook.
    assert "default-src 'none'" in text


def test_the_pictures_are_there_without_a_script():
    text = re.sub(r"<script>.*?</script>", "", page(anchors()), flags=re.S)
    curves = re.findall(r'data-values="([^"]*)"', text)
    values = [each.split("|") for each in curves]
    # By length, twice: two trained rows, and six on the checkpoint of RoPE, and once less the window, which is not less
    # than itself; by distance: one and three.
    assert [len(each) for each in values].count(4) == 16 + 7
    assert [len(each) for each in values].count(2) == 4
    assert ["1.546 ±0.010", "2.352 ±0.010", "3.662 ±0.010", "4.480 ±0.010"] in values
    assert text.count("display: none !important") == 1, "only the names beside a picture give way, on a phone"


def test_a_curve_is_drawn_where_its_values_are():
    text = page(made_of(("rope", (2.0, 2.1, 2.2, 2.3)), ("alibi", (2.0, 2.0, 2.0, 2.0))))
    lines = re.findall(r'data-name="(\w+)" data-values="[^"]*">.*?<path class="line" d="([^"]*)"', text, re.S)
    places = {name: [tuple(map(float, each.split())) for each in re.split("[ML]", path)[1:]] for name, path in lines}
    rope, alibi = places["RoPE"], places["ALiBi"]
    steps = [after[0] - before[0] for before, after in itertools.pairwise(rope)]
    rises = [before[1] - after[1] for before, after in itertools.pairwise(rope)]
    assert max(steps) - min(steps) < 0.2, "every doubling is as wide"
    assert max(rises) - min(rises) < 0.2, "every tenth of a bit is as high"
    assert min(rises) > 20
    assert len({y for _, y in alibi}) == 1


def made_of(*rows: tuple[str, tuple[float, ...]]) -> Findings:
    return Findings(tuple(row(name, "", bits) for name, bits in rows), RAN)


def test_the_page_says_what_was_found():
    text = page(anchors())
    assert "Of 2 schemes trained at 512 bytes, one holds to 4,096: ALiBi; one breaks before: RoPE." in text
    assert "At 4,096 ALiBi reads best, at 1.415 bits per byte." in text
    assert re.search(
        "RoPE breaks past 512; without training and with every earlier byte in sight, “ReRoPE, log-n” carries it to "
        r"4,096, and at 4,096 is significantly better than the trivial window, by 0.010 ±0.00\d bits, "
        r"p (=|&lt;) \.\d+\.",
        text,
    )
    assert (
        "Random bytes that came 3,072 bytes before are recalled best by “ReRoPE, log-n” on RoPE, which saves 3.200 "
        "±0.100 bits per byte; the window on the same checkpoint saves 0.050 ±0.100."
    ) in text
    assert "One seed: it ranks no method" in text


def test_nothing_is_said_that_its_interval_does_not_carry():
    """The same means as in the anchors, with more noise: a hundredth of a bit is nothing then."""
    found = anchors()
    noisy = tuple(row(each.name, each.variant, BITS[each.name, each.variant], noise=0.05) for each in found.rows)
    text = page(Findings(noisy, RAN))
    assert "not significantly different from the trivial window (" in text
    assert "better than the trivial window" not in text
    near = made_of(("rope", (1.5,) * 4), ("alibi", (1.501,) * 4), ("t5", (1.502,) * 4))
    noisy = tuple(row(each.name, "", (each.scores["windows"][512].mean,) * 4, noise=0.5) for each in near.rows)
    text = page(Findings(noisy, RAN))
    assert "At 4,096 no scheme differs significantly from the best, RoPE, at 1.500 bits per byte." in text
    assert "three cannot be placed: " in text
    assert "hold to 4,096" not in text


def test_what_diverged_is_not_advised_to_train_longer():
    rows = (row("rope", "", (math.nan,) * 4), row("alibi", "", (1.3,) * 4))
    text = page(Findings(rows, replace(RAN, pairs=1.4)))
    assert "RoPE diverged: lower the learning rate (--set rate=…), or let --search choose one." in text
    assert "has not learned to read" not in text


def test_what_has_not_learned_is_said_to_be_so_and_nothing_else_is_said_of_it():
    rows = (row("rope", "", (1.5,) * 4), row("alibi", "", (1.3,) * 4))
    text = page(Findings(rows, replace(RAN, pairs=1.4)))
    assert "RoPE has not learned to read: a table of byte pairs, which knows one byte back, needs 1.40 bits" in text
    assert "ALiBi, trained at 512 bytes, holds to 4,096." in text
    assert "reads best" not in text
    assert '<td class="holds">not learned' in text


def test_what_was_still_learning_is_said_to_be_undertrained():
    gains = {"rope": (0.3, 0.1), "alibi": (0.3, 0.4), "t5": (0.01, 0.001)}
    rows = tuple(replace(row(name, "", (1.5,) * 4), gained=Measure(*each, 1, 0)) for name, each in gains.items())
    text = page(Findings(rows, RAN))
    assert "RoPE was still learning when training ended (0.300 ±0.100 bits in its last fifth of steps)" in text
    assert "undertrained" not in page(Findings(rows[1:], RAN))


def test_several_seeds_have_two_intervals_and_both_must_be_clear():
    ran = replace(RAN, seeds=(0, 1, 2))
    rows = [row("rope", label, (1.5, 1.5, 1.5, bits), seeds=3) for label, bits in (("", 1.5), ("window", 1.49))]
    text = page(Findings(tuple(rows), ran))
    assert text.count('<th scope="col">over windows</th><th scope="col">over seeds</th>') == 2
    assert "ranks no method" not in text
    assert "over seeds (Student’s t)" in text
    assert '<th scope="col">over seeds</th>' not in page(anchors())


@pytest.mark.parametrize(
    ("bits", "sentence"),
    [
        (
            (1.5, 1.5, 3.0, 3.0),
            "does not hold to 4,096: past 1,024 it surely loses more than 0.1 bits",
        ),
        ((1.5, 1.5, 1.5, 1.45), "RoPE, trained at 512 bytes, holds to 4,096."),
    ],
)
def test_one_scheme_alone_is_not_spoken_of_as_several(bits: tuple[float, ...], sentence: str):
    text = page(replace(made_of(("rope", bits)), ran=replace(RAN, schemes=("rope",))))
    assert sentence in text
    assert "One small byte model, trained on" in text


def test_a_window_by_another_name_is_not_said_to_carry_a_model_far():
    plain, window = row("rope", "", (1.5, 3.0, 4.0, 5.0)), row("rope", "window", (1.5, 1.4, 1.4, 1.4))
    whole = row("rope", "ReRoPE", (1.5, 1.45, 1.45, 1.45))
    forgets = replace(row("rope", "streaming", (1.5, 1.3, 1.3, 1.3)), whole=False)
    text = page(Findings((plain, window, forgets, whole), RAN))
    carried = r"“ReRoPE” carries it to 4,096, and at 4,096 is significantly worse than the trivial window, by "
    carried += r"0.050 ±0.00\d bits, p (=|&lt;) \.\d+\."
    assert re.search(carried, text)
    assert text.count('<em class="tag">forgets</em>') == 4, "explained, in both tables, and by its equation"


def test_nothing_is_said_to_be_recalled_that_does_not_surely_save():
    text = page(Findings((row("rope", "", (1.5, 1.5, 1.5, 1.5), recall=0.09),), RAN))
    assert "are recalled by none" in text


def test_what_saves_more_on_average_but_perhaps_nothing_is_not_passed_over():
    sure, unsure = row("rope", "", (1.5,) * 4, recall=0.5), row("rope", "ReRoPE", (1.5,) * 4, recall=2.0)
    saved = {at: replace(each, half=3.0) for at, each in unsure.scores["recall"].items()}
    text = page(Findings((sure, replace(unsure, scores=unsure.scores | {"recall": saved})), RAN))
    assert (
        "are recalled by RoPE, which saves 0.500 ±0.100 bits per byte. “ReRoPE” on RoPE saves more on average "
        "(2.000 ±3.000), but not surely anything."
    ) in text


def test_a_page_of_hardly_anything_is_still_a_page():
    for findings in (Findings((), RAN), made_of(("rope", (math.nan,) * 4)), made_of(("rope", (1.5,)))):
        read = Reader(page(findings))
        assert (read.open, read.wrong) == ([], [])
    headings = re.findall(r"<h2>(.*?)</h2>", page(Findings((), RAN)))
    assert headings == ["What was run, and how to run it again"]


def test_a_page_as_large_as_a_demonstration_stays_small():
    lengths = tuple(128 << n for n in range(5))
    rows = [row(name, variant, (2.0,) * 4) for name in ("rope", *"abcde") for variant in ("", *"fghi")][:24]
    for each in rows:
        for protocol in ("windows", "ends", "recall"):
            each.scores[protocol] = {length: Measure(2.0, 0.01, 1, 9) for length in lengths}
        each.positions[2048] = [(n, 2.0) for n in range(24)]
        each.losses.extend((n, 2.0) for n in range(80))
    assert len(page(Findings(tuple(rows), RAN)).encode()) < 300_000


def test_a_written_report_is_there_wholly_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "new" / "report.html"
    write(anchors(), path)
    assert path.read_text(encoding="utf-8") == page(anchors())
    assert list(path.parent.iterdir()) == [path]

    def half(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text.encode(encoding)[:100])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="no space left"):
        write(Findings((), RAN), path)
    assert path.read_text(encoding="utf-8") == page(anchors())
    assert list(path.parent.iterdir()) == [path]


# Colours


def colours(text: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text))


def contrast(a: str, b: str) -> float:
    """The contrast of two colours, by the Web Content Accessibility Guidelines."""

    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_everything_written_stands_out_from_the_paper_by_day_and_by_night():
    style = re.search(r"<style>(.*?)</style>", page(anchors()), re.S)
    assert style is not None
    day, night = style[1].split("prefers-color-scheme: dark", 1)
    for palette in (colours(day), colours(night)):
        inks = {name: ink for name, ink in palette.items() if re.fullmatch(r"ink|soft|accent|lost|c.", name)}
        assert len(inks) == 14
        assert {name: ink for name, ink in inks.items() if contrast(ink, palette["paper"]) < 4.5} == {}


@pytest.mark.parametrize(("trained", "said"), [(128, "(Here the last 64, half of what was trained at.)"), (512, None)])
def test_the_page_says_how_many_last_bytes_are_judged(trained: int, said: str | None):
    found = anchors()
    scores = {"windows": {trained: Measure(2.0, None, 1, 8)}, "ends": {trained: Measure(1.9, None, 1, 8)}}
    short = replace(found, ran=replace(RAN, trained=trained), rows=(replace(found.rows[0], scores=scores),))
    assert re.findall(r"\(Here the last [^)]*\)", page(short)) == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("shared", "said"),
    [(0.0, "none stand"), (0.0016, "0.2 % stand"), (0.7, "70.0 % stand"), (None, None), (math.nan, None)],
)
def test_the_page_says_how_much_of_the_judged_text_was_trained_on(shared: float | None, said: str | None):
    text = page(replace(anchors(), ran=replace(RAN, shared=shared)))
    found = re.findall(r"; of the judged stretches of 32 bytes (.*?) in the training text", text)
    assert found == ([] if said is None else [said])
    assert "trained on enwik8, at 512 bytes, and judged to 4,096, 8 times as far" in text
