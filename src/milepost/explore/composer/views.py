"""What the composer draws of schemes side by side: scores, weights, maps, distances and angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import milepost as mp
from milepost import Scheme
from milepost.explore.analyses.angles import training_with, turns
from milepost.explore.analyses.distances import seen
from milepost.explore.asked import turning
from milepost.explore.composer.reading import hint_of, read_all, width_of
from milepost.explore.composer.settings import SETTINGS
from milepost.explore.controls import NotPossibleError, read
from milepost.explore.pictures.curves import broken_at_jumps
from milepost.explore.scene import Dial, Dials, Figure, Line, Lines, Map, Mark, Say, Scene
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
Drawn = TypeVar("Drawn")
POINTS = 480
"""At how many distances a curve is computed."""
EDGES, SHORT = 64, 64
"""So many changes of what is visible are sampled, and every key of a visible stretch that is no longer than this."""
CELLS = 128
"""The most cells along a side of a map."""
DIALS = 64
BUDGET = 6_000_000
"""Numbers that one picture of one scheme may cost."""
DISTANCE = Say("distance, in tokens", "距离（token）")
EMPTY = Say("", "")


@dataclass(frozen=True)
class Asked:
    """Schemes, and what is set for all of them."""

    schemes: list[Scheme]
    trained: int
    length: int
    vectors: str
    seed: int
    head: int
    axis: str
    cells: str
    refused: dict[int, Say] = field(default_factory=dict[int, Say])
    """Of each scheme that a view cannot draw, why."""

    def distances(self) -> Tensor:
        """Return the distances at which curves are computed, to the end of the text."""
        last = self.length - 1
        if self.axis == "log":
            found = [max(1, last) ** (n / (POINTS - 1)) for n in range(POINTS)]
        else:
            found = [last * n / (POINTS - 1) for n in range(POINTS)]
        every = {0, *(min(last, round(each)) for each in found), *self._edges()}
        return torch.tensor(sorted(every))

    def _edges(self) -> set[int]:
        """Return where keys come into sight or leave it in the last row, and every key of a short stretch of them."""
        zero, at = torch.zeros((), dtype=torch.long), torch.arange(self.length)
        found: set[int] = set()
        for scheme in self.schemes:
            visible = scheme.see(zero, zero, torch.tensor([[self.length - 1]]), (self.length - 1 - at)[None, :])
            if visible is None:
                continue
            row = visible.broadcast_to(1, self.length)[0]
            ends = cast("list[int]", (torch.nonzero(row[1:] != row[:-1])[:, 0] + 1).tolist())
            for start, end in list(zip([0, *ends], [*ends, self.length], strict=True))[-EDGES:]:
                short = end - start <= SHORT and bool(row[start])
                found.update(range(start, end) if short else (start, end - 1))
        return found

    def marks(self) -> tuple[Mark, ...]:
        """Return the trained length and the length."""
        return (
            Mark(Say(f"trained, {self.trained:,}", f"训练 {self.trained:,}"), self.trained, "trained"),
            Mark(Say(f"length, {self.length:,}", f"长度 {self.length:,}"), self.length, "length"),
        )

    def head_of(self, scheme: Scheme) -> int:
        """Return the head that is drawn: the last one of a scheme that has fewer."""
        return min(self.head, (scheme.heads or 1) - 1)

    def vectors_of(self, scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Return one query [h d] and one key [g d]."""
        heads, width = scheme.heads or 1, width_of(scheme)
        groups = heads if scheme.answering("relate") else 1
        if self.vectors == "nothing":
            return torch.zeros(heads, width), torch.zeros(groups, width)
        if self.vectors == "alike":
            return torch.ones(heads, width), torch.ones(groups, width)
        draw = torch.Generator().manual_seed(self.seed)
        # One draw for every width and head, so that schemes are compared on the same numbers.
        q, k = (torch.randn(512, generator=draw)[:width] for _ in range(2))
        return q.repeat(heads, 1), (q if self.vectors == "own" else k).repeat(groups, 1)


def asked(given: dict[str, Any]) -> Asked:
    """Return what a page asks for."""
    state = read(SETTINGS, given.get("state", {}))
    whole: dict[str, Any] = {name: int(state[name]) for name in ("trained", "length", "seed", "head")}
    state = state | whole
    return Asked(read_all(given.get("schemes"), state["trained"], state["length"]), **state)


def numbers(values: Tensor) -> list[float]:
    """Return the numbers of a tensor."""
    return cast("list[float]", values.tolist())


def name_of(number: int) -> Say:
    """Return what the page calls a scheme."""
    letter = "ABCD"[number]
    return Say(letter, letter)


# What a picture costs


def demand_cheap(asked: Asked, scheme: Scheme, numbers: float, what: Say) -> None:
    """Refuse a picture that takes too long, with what it costs."""
    # A table with a row for every distance is projected whole.
    for part in scheme.answering("relate"):
        if getattr(part, "reach", 0) is None:
            numbers += 4 * asked.length * getattr(part, "model_dim", 512) / 8
    if numbers > BUDGET:
        raise NotPossibleError(
            "length",
            Say(
                f"{what.en} of {_named(scheme)} over {asked.length:,} tokens: {numbers / 1e6:,.1f} million numbers, "
                f"and at most {BUDGET / 1e6:g} million are computed; choose a shorter text",
                f"{_named(scheme)} 在 {asked.length:,} 个 token 上的{what.zh}需要 {numbers / 1e6:,.1f} 百万个数，"
                f"最多计算 {BUDGET / 1e6:g} 百万个：请缩短文本",
            ),
        )


def _named(scheme: Scheme) -> str:
    return " + ".join(type(part).__name__ for part in scheme.parts if not isinstance(part, type(mp.causal))) or "NoPE"


def whole_rows(scheme: Scheme) -> Say | None:
    """Return why a scheme has no curve, by the name of the part; None where it has one."""
    part = scheme.needs_whole_rows
    if part is None:
        return None
    return Say(
        f"{spell(part)} changes a score by the other keys of its row, so that one key has no score of its own: it is "
        f"in the maps, and has no curve.",
        f"{spell(part)} 会根据同一行的其他键改变分数，单个键没有自己的分数：它只出现在热图里，没有曲线。",
    )


# Curves


def score(asked: Asked) -> Scene:
    """Return the score of one query and one key by distance."""
    at = asked.distances()
    return _lines(
        asked,
        at,
        Say("Score against distance", "分数随距离的变化"),
        Say("score before the softmax", "softmax 之前的分数"),
        lambda scheme: scheme.curve(*asked.vectors_of(scheme), at, asked.length)[asked.head_of(scheme)],
    )


def weights(asked: Asked) -> Scene:
    """Return the attention weight of each key, for the last query of the text."""
    at = asked.distances()
    said: list[str] = []

    def one(scheme: Scheme) -> Tensor:
        demand_cheap(asked, scheme, asked.length * (scheme.heads or 1), Say("the weights", "权重"))
        shares, within = _shares(scheme, asked.vectors, asked.seed, asked.head, asked.length)
        said.append(f"{within:,}")
        return shares[at]

    scene = _lines(
        asked,
        at,
        Say("Attention weight against distance", "注意力权重随距离的变化"),
        Say("weight of one key", "单个键的权重"),
        one,
        log=True,
    )
    if not said:
        return scene
    listed = ", ".join(f"{'ABCD'[n]} {each}" for n, each in zip(_drawn(asked), said, strict=True))
    more = Say(
        f"90 % of the weight lies within so many tokens: {listed}.", f"90 % 的权重落在这么多 token 以内：{listed}。"
    )
    return Scene(scene.figures, Say(f"{more.en} {scene.says.en}".strip(), f"{more.zh}{scene.says.zh}"))


@lru_cache(maxsize=8)
def _shares(scheme: Scheme, vectors: str, seed: int, head: int, length: int) -> tuple[Tensor, int]:
    """Return the weight of every key, nearest first, and how many have 90 % of it.

    Kept for a few schemes: of several side by side a slider changes one.
    """
    asked = Asked([scheme], 0, length, vectors, seed, head, "", "")
    found = scheme.curve(*asked.vectors_of(scheme), torch.arange(length), length)[asked.head_of(scheme)].double()
    rest = scheme.rest()
    total = found.logsumexp(0)
    if rest is not None:
        total = torch.logaddexp(total, rest.double()[asked.head_of(scheme)])
    shares = (found - total).exp()
    return shares, int((shares.cumsum(0) < 0.9 * shares.sum()).sum()) + 1


def distances(asked: Asked) -> Scene:
    """Return the distance at which the rotation sees each key."""
    at = asked.distances()

    def one(scheme: Scheme) -> Tensor:
        found = seen(scheme, torch.tensor([asked.length - 1]), asked.length - 1 - at)[0]
        return torch.from_numpy(broken_at_jumps(found))

    title = Say("Where the rotation sees each key", "旋转所见的距离")
    scene = _lines(asked, at, title, Say("distance as seen", "所见距离"), one, rows=True)
    scene = replace(scene, figures=tuple(_both_log(each) for each in scene.figures))
    notes = [scene.says]
    for number, scheme in enumerate(asked.schemes):
        found = _stretched(scheme)
        if found is not None:
            stretch = spell(found.stretch)
            notes.append(
                Say(
                    f"{name_of(number).en}: {stretch} changes angles and not distances; see the angles.",
                    f"{name_of(number).zh}：{stretch} 改变的是角度，不是距离；请看角度。",
                )
            )
    return Scene(scene.figures, _together(notes))


def _stretched(scheme: Scheme) -> Any:
    """Return the rotation of a scheme, if that is stretched."""
    found = turning(scheme)
    return None if getattr(found, "stretch", None) is None else found


def _together(notes: Sequence[Say]) -> Say:
    """Return what is said, one after another."""
    kept = [each for each in notes if each.en]
    return Say(" ".join(each.en for each in kept), "".join(each.zh for each in kept))


def _drawn(asked: Asked) -> list[int]:
    return [n for n in range(len(asked.schemes)) if n not in asked.refused]


def _lines(
    asked: Asked,
    at: Tensor,
    title: Say,
    y: Say,
    compute: Callable[[Scheme], Tensor],
    *,
    log: bool = False,
    rows: bool = False,
) -> Scene:
    """Return a curve of each scheme; rows: also of one that needs whole rows."""
    lines: list[Line] = []
    for number, scheme in enumerate(asked.schemes):
        why = None if rows else whole_rows(scheme)
        if why is None:
            why, found = _tried(compute, scheme)
            if found is not None:
                values = np.where(found.isfinite().numpy(), found.double().numpy(), np.nan)
                lines.append(Line(name_of(number), values.tolist(), number))
        if why is not None:
            asked.refused[number] = why
    figure = Lines(
        title,
        DISTANCE,
        y,
        numbers(at),
        tuple(lines),
        asked.marks(),
        "log" if asked.axis == "log" else "even",
        "log" if log else "even",
        link="distance",
    )
    return Scene((figure,) if lines else (), _refusals(asked))


def _tried(compute: Callable[[Scheme], Drawn], scheme: Scheme) -> tuple[Say | None, Drawn | None]:
    """Return what is computed, or why one of several schemes cannot be drawn: the others are."""
    try:
        return None, compute(scheme)
    except NotPossibleError as error:
        return error.why, None
    except (ValueError, TypeError, NotImplementedError, RuntimeError, ArithmeticError) as error:
        words = " ".join(str(error).split())[:400]
        return Say(words, words), None


def _refusals(asked: Asked) -> Say:
    """Return what could not be drawn, and why."""
    return Say(
        " ".join(f"{name_of(n).en}: {why.en}" for n, why in asked.refused.items()),
        "".join(f"{name_of(n).zh}：{why.zh}" for n, why in asked.refused.items()),
    )


def _both_log(figure: Figure) -> Figure:
    """Return a figure of distances with both axes of one kind: on one log axis a straight line looks like a blow-up."""
    assert isinstance(figure, Lines)
    shown = (y for line in figure.lines for x, y in zip(figure.at, line.values, strict=True) if x > 0)
    # A log axis has no 0, which is all that a scheme without positions sees.
    return replace(figure, y_scale="log") if figure.x_scale == "log" and not any(y <= 0 for y in shown) else figure


# Maps


def maps(asked: Asked) -> Scene:
    """Return a map for each scheme: every query and key, or so many of them as fit."""
    size = min(CELLS, asked.length)
    index = torch.tensor(sorted({round(n * (asked.length - 1) / max(1, size - 1)) for n in range(size)}))
    title, unit = {
        "score": (Say("Scores", "分数"), Say("score", "分数")),
        "weight": (Say("Weights", "权重"), Say("weight", "权重")),
        "distance": (Say("Distances as seen", "所见距离"), Say("tokens", "token")),
    }[asked.cells]
    figures: list[Map] = []
    for number, scheme in enumerate(asked.schemes):
        why, found = _tried(lambda scheme: _cells(asked, scheme, index), scheme)
        if found is None:
            assert why is not None
            asked.refused[number] = why
            continue
        rows = index[:: max(1, len(index) // len(found))][: len(found)]
        cells = np.where(found.isfinite().numpy(), found.double().numpy(), np.nan)
        figures.append(
            Map(
                Say(f"{name_of(number).en}: {title.en}", f"{name_of(number).zh}：{title.zh}"),
                Say("key", "键"),
                Say("query", "查询"),
                cells.tolist(),
                numbers(index),
                numbers(rows),
                unit,
                "distance",
                of=name_of(number).en,
            )
        )
    return Scene(_on_one_scale(figures), _refusals(asked))


def _on_one_scale(figures: list[Map]) -> tuple[Figure, ...]:
    """Return maps whose shades stand for the same numbers, so that they can be compared."""
    cells = [np.array(each.values, dtype=np.float64).ravel() for each in figures]
    found = np.concatenate(cells) if cells else np.zeros(0)
    found = found[np.isfinite(found)]
    limits = (float(found.min()), float(found.max())) if found.size else None
    return tuple(replace(each, limits=limits) for each in figures)


def _cells(asked: Asked, scheme: Scheme, index: Tensor) -> Tensor:
    """Return [rows columns] of one scheme; fewer rows where whole rows have to be formed."""
    if asked.cells == "distance":
        return torch.from_numpy(seen(scheme, index, index))
    heads, whole = scheme.heads or 1, asked.cells == "weight" or scheme.needs_whole_rows is not None
    what = Say("a map", "热图")
    q, k = asked.vectors_of(scheme)
    if not whole:
        demand_cheap(asked, scheme, len(index) ** 2 * heads, what)
        spread = (each[None, :, None].expand(1, -1, len(index), -1) for each in (q, k))
        tokens: Any = {"index": index, "key_index": index, "length": asked.length}
        query, keys = spread
        return mp.scores(query, keys, scheme, **tokens)[0, asked.head_of(scheme)]
    # Softmax and counts read every key: as many rows as can be had, evenly.
    step = 1
    while len(index[::step]) > 16 and len(index[::step]) * asked.length * heads > BUDGET:
        step *= 2
    rows = index[::step]
    demand_cheap(asked, scheme, len(rows) * asked.length * heads, what)
    query = q[None, :, None].expand(1, -1, len(rows), -1)
    keys = k[None, :, None].expand(1, -1, asked.length, -1)
    among: Any = {"index": rows, "key_index": torch.arange(asked.length), "length": asked.length}
    values: Any = {"v": keys} if getattr(scheme.needs_whole_rows, "gates", "") == "values" else {}
    form: Any = mp.weights if asked.cells == "weight" else mp.scores
    found: Tensor = form(query, keys, scheme, **among, **values)[0, asked.head_of(scheme)][:, index]
    if asked.cells == "weight":
        # A key that is hidden has no weight, and one that is seen may have hardly any.
        zero = torch.zeros((), dtype=torch.long)
        visible = scheme.see(zero, zero, rows[:, None], index[None, :])
        found = found if visible is None else found.masked_fill(~visible, math.nan)
    return found


# Angles


def angles(asked: Asked) -> Scene:
    """Return the clocks of every scheme that rotates: what training met, and what the text meets."""
    figures: list[Figure] = []
    for number, scheme in enumerate(asked.schemes):
        why, found = _tried(lambda scheme, number=number: _clocks(asked, scheme, number), scheme)
        if why is not None:
            asked.refused[number] = why
        elif found is not None:
            figures.append(found)
    return Scene(tuple(figures), _together([_refusals(asked), *_counted(asked)]))


def _counted(asked: Asked) -> Iterator[Say]:
    """Return what counts as training where a rotation is stretched, and where a stretch names another length."""
    for number, scheme in enumerate(asked.schemes):
        found = _stretched(scheme)
        if found is not None:
            said, other = training_with(_plain(found), asked.trained), hint_of(scheme, asked.trained) or EMPTY
            yield Say(
                f"{name_of(number).en}: {said.en} {other.en}".strip(), f"{name_of(number).zh}：{said.zh}{other.zh}"
            )


def _plain(rope: Any) -> Any:
    """Return a rotation as it was before it was stretched."""
    if getattr(rope, "stretch", None) is None:
        return rope
    return type(rope)(rope.head_dim, theta=rope.theta, pairs=rope.pairs)


def _clocks(asked: Asked, scheme: Scheme, number: int) -> Dials:
    """Return the clocks of one scheme."""
    own = turning(scheme)
    if own is None:
        raise NotPossibleError(f"scheme-{number}", Say("no pair of channels is rotated.", "没有旋转任何通道对。"))
    before = turns(_plain(own), asked.trained)
    furthest = _furthest(asked, scheme)
    after = turns(own, asked.length) * furthest / asked.length
    count = min(DIALS, len(before))
    shown = sorted({round(n * (len(before) - 1) / max(1, count - 1)) for n in range(count)})
    dials = tuple(Dial(str(n), float(before[n]), float(after[n])) for n in shown)
    arcs = np.minimum(after, 1) - before
    new, widest = int((arcs > 1e-9).sum()), float(arcs.max())
    # A dial hardly shows a degree.
    thin = Say(", by less than a degree", "，不到一度") if new and widest < 1 / 360 else EMPTY
    title = Say(
        f"{name_of(number).en}: {new} of {len(before)} pairs meet new angles{thin.en}",
        f"{name_of(number).zh}：{len(before)} 对通道中有 {new} 对遇到新角度{thin.zh}",
    )
    return Dials(title, dials, name_of(number).en)


def _furthest(asked: Asked, scheme: Scheme) -> float:
    """Return the largest distance that the rotation is given in the last row of the text."""
    if not scheme.answering("place") and not scheme.answering("see"):
        return asked.length
    at = torch.arange(asked.length) if asked.length <= 16_384 else asked.distances()
    found = seen(scheme, torch.tensor([asked.length - 1]), asked.length - 1 - at)
    return float(np.nanmax(np.abs(found), initial=0)) + 1 if np.isfinite(found).any() else 1.0


VIEWS: dict[str, Callable[[Asked], Scene]] = {
    "score": score,
    "weights": weights,
    "distances": distances,
    "maps": maps,
    "angles": angles,
}
"""What a page may ask for, by name."""

__all__ = ["VIEWS", "Asked", "asked", "name_of", "numbers", "whole_rows"]
