"""The report of a measurement as one HTML file that needs nothing else, in the look of the lab's reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from milepost import __version__
from milepost.hf.attention_mass import Mass
from milepost.hf.intervals import Score, plus_minus
from milepost.hf.scores import LOG2, Scores
from milepost.lab.report.document import document, write_whole
from milepost.lab.report.figure import BOTTOM, INSET, LEFT, RIGHT, TOP, Curve, Panel, Point, drawn, ends_of_bars, finite
from milepost.lab.report.look import COLOURS, MARKERS, Look
from milepost.lab.report.scale import broken, doubling

BITS = "bits per token"
SIDES = LEFT + INSET, RIGHT - INSET


def write(measured: Scores, path: Path) -> Path:
    """Write the report; the file is there wholly or not at all."""
    write_whole(page(measured), path)
    return path


def page(measured: Scores) -> str:
    """The report as HTML."""
    longest = measured.lengths[-1]
    sections = [
        _section("How far each holds", _curves(measured)),
        _section("By length", _lengths(measured)),
        _section("Needles", _needles(measured)),
        _section("Where attention goes", _masses(measured)),
    ]
    asked = (
        f"The same last {measured.last} tokens of {measured.windows} windows at every length; intervals of 95 %, "
        f"which allow for windows of one text being alike; differences paired over the same tokens."
    )
    title = f"Trained at {measured.trained:,}, measured to {longest:,}"
    return document("measure", title, escape(asked), _lede(measured), sections, f"milepost {__version__}")


def _lede(measured: Scores) -> list[str]:
    """What the tables say, in a sentence or two."""
    longest = measured.lengths[-1]
    whole = [row for row in measured.rows if row not in measured.trivial]
    best = min(whole, key=lambda row: measured.nats[row][longest].mean)
    lines = [f"At {longest:,} tokens {best} has a perplexity of {measured.nats[best][longest].perplexity:.4g}."]
    if measured.trained in measured.nats[best] and longest > measured.trained:
        ratio, low, high = measured.grown(best, longest)
        between = f" ({low:.3f} to {high:.3f})" if math.isfinite(low) else ""
        lines.append(f"That is {ratio:.3f} times{between} its own at {measured.trained:,}.")
    if measured.beside:
        more = measured.against(best, measured.beside, longest)
        lines.append(f"Against {measured.beside}: {more.mean:+.3f}{plus_minus(more.half)} nats a token.")
    return lines


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _look(measured: Scores, row: str) -> Look:
    if row in measured.trivial:
        n = measured.trivial.index(row)
        return Look(f"cx d{1 + n % 3}", f"m{n % len(MARKERS)}")
    n = [each for each in measured.rows if each not in measured.trivial].index(row)
    return Look(f"c{n % COLOURS} d{n // COLOURS % 4}", f"m{n % len(MARKERS)}")


def _curves(measured: Scores) -> str:
    recall = {row: {n: each.second for n, each in found.items()} for row, found in measured.recall.items()}
    panels = [
        _panel(measured, "Loss on the same last tokens", measured.nats, "length in tokens", BITS),
        _panel(measured, "Recall: loss on the second copy of a passage", recall, "distance in tokens", BITS),
        _panel(measured, "Entropy of the guess", measured.entropy, "length in tokens", "bits"),
    ]
    return f'<div class="panels">{"".join(panels)}</div>'


def _panel(
    measured: Scores, title: str, by_row: Mapping[str, Mapping[int, Score]], x_name: str, y_name: str
) -> str:  # fmt: skip
    curves = tuple(
        Curve(n, row, _look(measured, row), finite(_points(by_row[row])), row in measured.trivial)
        for n, row in enumerate(measured.rows)
        if row in by_row
    )
    points = [point for curve in curves for point in curve.points]
    if not points:
        return ""
    xs = sorted({point.x for point in points})
    x = doubling(xs, *SIDES)
    firsts = ends_of_bars([point for point in points if point.x == xs[0]])
    y = broken(ends_of_bars(points), firsts, BOTTOM, TOP)
    upright = (float(measured.trained), f"trained length, {measured.trained:,}")
    inside = xs[0] < measured.trained < xs[-1]
    return drawn(Panel(escape(title), curves, x, y, x_name, y_name, upright=upright if inside else None))


def _points(found: Mapping[int, Score]) -> list[Point]:
    def half(score: Score) -> float | None:
        return score.half / LOG2 if math.isfinite(score.half) else None

    return [Point(float(x), score.mean / LOG2, half(score)) for x, score in found.items()]


# Tables


def _lengths(measured: Scores) -> str:
    heads = [f"{length:,}" for length in measured.lengths]
    cells: list[list[str]] = []
    for row in measured.rows:
        line: list[str] = []
        for length in measured.lengths:
            found = measured.nats[row][length]
            more = "" if row == measured.beside or not measured.beside else _more(measured, row, length)
            line.append(f"{found.perplexity:.4g}{more}")
        cells.append(line)
    about = f"Perplexity; small, the nats a token more than {measured.beside}, paired." if measured.beside else ""
    return f'<p class="about">{escape(about)}</p>{_table(heads, measured.rows, cells)}'


def _more(measured: Scores, row: str, length: int) -> str:
    found = measured.against(row, measured.beside, length)
    return f"<i>{found.mean:+.3f}{plus_minus(found.half, space='&nbsp;')}</i>"


def _table(heads: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]], styles: bool = False) -> str:
    top = "".join(f"<th scope=col>{head}</th>" for head in heads)
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(row) if styles else ''.join(f'<td>{c}</td>' for c in row)}</tr>"
        for name, row in zip(names, cells, strict=True)
    )
    inner = f"<thead><tr><th></th>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{inner}</table></div>'


def _needles(measured: Scores) -> str:
    """A heat map for each row: how often the needle was found, by depth and length."""
    maps: list[str] = []
    for row, by_length in measured.needle.items():
        depths = sorted({depth for each in by_length.values() for depth in each})
        cells = [[_shade(by_length[length][depth]) for length in by_length] for depth in depths]
        heads = [f"{length:,}" for length in by_length]
        names = [f"{depth:.0%} of the way" for depth in depths]
        maps.append(
            f"<figure><figcaption>{escape(row)}</figcaption>{_table(heads, names, cells, styles=True)}</figure>"
        )
    return f'<div class="panels">{"".join(maps)}</div>' if maps else ""


def _shade(share: float) -> str:
    """A cell whose green says how often; the number says it too."""
    return f'<td style="background:rgb(31 122 77 / {0.75 * share:.2f})">{100 * share:.0f} %</td>'


def _masses(measured: Scores) -> str:
    items: list[str] = []
    unseen: dict[str, list[str]] = {}
    for row, found in measured.mass.items():
        if isinstance(found, Mass):
            layers = ", ".join(f"{each:.0%}" for each in found.mass)
            bits = ", ".join(f"{each:.2f}" for each in found.entropy)
            words = (
                f"layer by layer {layers} on the first {found.sinks} of {found.length:,} tokens; entropy {bits} bits"
            )
            items.append(f"<dt>{escape(row)}</dt><dd>{escape(words)}</dd>")
        else:
            unseen.setdefault(found, []).append(row)
    for why, rows in unseen.items():
        items.append(f"<dt>{escape(', '.join(rows))}</dt><dd>not to be seen: {escape(why)}</dd>")
    return f'<dl class="meanings">{"".join(items)}</dl>' if items else ""
