"""What a report says in sentences: what was found, and what each way of judging means."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.lab.findings import Findings, Row
from milepost.lab.naming import WINDOW, proper
from milepost.lab.table import SAME, Line, Table, shown

MEANS = {
    "windows": (
        "Windows",
        "The text is cut into windows of each length that do not overlap, and every byte counts. The first bytes of a "
        "window have little before them to go by, so longer windows score better for that reason alone (the "
        "early-token effect): compare rows at one length, rather than lengths of one row.",
    ),
    "ends": (
        "Last bytes at fixed ends",
        "The same bytes, the last 256 at most before fixed places in the text, are judged at every length; only how "
        "far back the model may look changes. So the early-token effect is gone: a curve that falls uses what stands "
        "farther back, a level one gains nothing from it, a rising one is hurt by it.",
    ),
    "recall": (
        "Recall by distance",
        "128 bytes, drawn one by one from the text, come twice, and the second copy is judged by how far back the "
        "first began. Nothing but looking back helps. A window shorter than the distance may keep its bits low on "
        "text, but it cannot fake this: it pays what a guess costs, the dotted line.",
    ),
    "sliding": (
        "Sliding",
        "Windows overlap, and only the last quarter of each counts, so every byte has at least three quarters of the "
        "window before it. It scores better than windows that do not overlap, for the same model.",
    ),
    "alone": (
        "Each byte alone",
        "Every byte is judged by itself, on exactly the window that ends before it. That costs one reading for each "
        "byte, so few are judged and the interval is wide.",
    ),
}
"""By protocol: what it is called and what it means."""

RECALLED = 0.5
"""A row that saves fewer bits than this has recalled nothing to speak of."""

ABOUT_TASKS = (
    "The share of right tokens in answers, by length, with 95 % intervals: higher is better, and a guess draws at "
    "random from the tokens that answers are made of. Each scheme has a model of its own for each task, trained on "
    "examples of every length that fits into the trained one, and judged on the longest that fit into each. Depth "
    "is where in the text a hidden number stands, from 0, its start, to 1, its end. Tasks whose tokens look ahead "
    "have no training-free rows."
)
ABOUT_TRAINING = (
    "Left, bits per byte while training, each point a mean of some steps. Right, the trained models at their own "
    "length under each way of judging: the numbers differ though the models do not, so a number without its protocol "
    "says little."
)


def lede(findings: Findings, table: Table) -> list[str]:
    """The findings in a few sentences."""
    if not table.lengths:
        return []
    longest = table.lengths[-1]
    trained = [line for line in table.lines if not line.row.variant]
    sentences = _trained(trained, table.trained, longest)
    for name in dict.fromkeys(line.row.name for line in table.lines if line.row.variant):
        sentences += _changed([line for line in table.lines if line.row.name == name], proper(name), longest)
    return sentences + _recall(table, findings.ran.guess)


def about_table(findings: Findings) -> str:
    """How to read the sorted table, as HTML."""
    over = "seeds (Student’s t)" if len(findings.ran.seeds) > 1 else "windows"
    bits = f"{findings.tolerance:g} bits"
    return (
        f"<b>Reach</b> is the longest length up to which a row’s score over windows stays within {bits} of its own at "
        f"the trained length, and within {bits} of the trivial window on the same checkpoint, where there is one; "
        f'scores past it are set in <span class="past">this colour</span>. Lower is better; the best of each column is '
        f'<strong>strong</strong>, and what only repeats its checkpoint is <span class="same">faint</span>. Intervals '
        f"are 95 %, over {over}. “Against window” is the difference at the longest length: above zero, it would have "
        f"been better to forget all but the last {findings.ran.trained:,} bytes. What is "
        f'<em class="tag">trivial</em> needs no method; what <em class="tag">forgets</em> hides earlier bytes, as a '
        f"window does."
    )


def about_positions(longest: int) -> str:
    """How to read the bits by position."""
    return (
        f"The mean bits of each byte by its position in windows of {longest:,}. Every row begins high, because the "
        f"first bytes of a window have nothing before them. Past the trained length a row that holds stays level or "
        f"goes on falling; one that breaks shows where."
    )


def _trained(lines: Sequence[Line], trained: int, longest: int) -> list[str]:
    if not lines:
        return []
    holding = [line for line in lines if line.to_the_end]
    begun = f"Of {len(lines)} schemes trained at {trained:,} bytes"
    if not holding:
        first = lines[0]
        length = "no length at all" if first.effective_length is None else f"{first.effective_length:,}"
        if len(lines) == 1:
            return [f"{first.row.label}, trained at {trained:,} bytes, does not hold to {longest:,}, but to {length}."]
        return [f"{begun}, none holds to {longest:,}; {first.row.label} holds farthest, to {length}."]
    best = min(holding, key=lambda line: line.bits[-1].mean if line.bits[-1] else float("inf"))
    bits = shown(best.bits[-1].mean) if best.bits[-1] else ""
    names = _listed([line.row.label for line in holding])
    if len(lines) == 1:
        return [f"{names}, trained at {trained:,} bytes, holds to {longest:,}, at {bits} bits per byte."]
    if len(holding) == 1:
        return [f"{begun}, {names} alone holds to {longest:,}, at {bits} bits per byte."]
    return [
        f"{begun}, {len(holding)} hold to {longest:,}: {names}. {best.row.label} reads best there, at {bits} bits per "
        f"byte."
    ]


def _changed(lines: Sequence[Line], base: str, longest: int) -> list[str]:
    """What the training-free rows do for a checkpoint that does not hold by itself."""
    plain = next((line for line in lines if not line.row.variant), None)
    # What forgets is a window by another name, and is not asked how far it carries.
    changed = [line for line in lines if line.row.variant and line.row.whole]
    if plain is None or plain.to_the_end or plain.effective_length is None or not changed:
        return []
    best = changed[0]
    if best.effective_length is None or best.effective_length <= plain.effective_length:
        return [f"{base} breaks past {plain.effective_length:,}, and nothing tried without training helps."]
    sentence = (
        f"{base} breaks past {plain.effective_length:,}; without training and with every earlier byte in sight, "
        f"{_called(best.row)} carries it to {best.effective_length:,}"
    )
    if best.against is None:
        return [f"{sentence}."]
    by = f"{abs(best.against):.3f} bits {'better' if best.against < 0 else 'worse'} than"
    side = "level with" if abs(best.against) < SAME else by
    return [f"{sentence}, and at {longest:,} is {side} the trivial window."]


def _recall(table: Table, guess: float) -> list[str]:
    best = next((line for line in table.lines if line.best_recall), None)
    if best is None or best.recall is None or table.distance is None:
        return []
    far = f"What came {table.distance:,} bytes before"
    if best.recall.mean > guess - RECALLED:
        return [f"{far} is recalled by none: none needs many fewer bits for it than a guess, {guess:.2f} a byte."]
    window = next((line for line in table.lines if (line.row.name, line.row.variant) == (best.row.name, WINDOW)), None)
    bar = None if window is None or window is best else window.recall
    beside = "" if bar is None else f", where the window on the same checkpoint needs {shown(bar.mean)}"
    return [
        f"{far} is best recalled by {_called(best.row, on=True)}, with {shown(best.recall.mean)} bits per byte"
        f"{beside}; a guess costs {guess:.2f}."
    ]


def _called(row: Row, on: bool = False) -> str:
    """A row within a sentence, since names of training-free rows have commas of their own."""
    return f"“{row.variant}”{f' on {row.base}' if on else ''}" if row.variant else row.base


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
