"""Leave distances alone: methods that show the rotation none that it has not met."""

from __future__ import annotations

from typing import Any

import numpy as np

from milepost.explore.analyses.distances import distance_map
from milepost.explore.controls import Choice, Slider
from milepost.explore.scene import Line, Lines, Map, Mark, Say, Scene, Table
from milepost.explore.stories.names import DISTANCE, numbers, same, trained_at
from milepost.explore.stories.story import Guess, Story
from milepost.methods.regions import DualChunk, Rerope, SelfExtend
from milepost.methods.rope import Rope
from milepost.scheme import Scheme
from milepost.seams.visible import causal

TRAINED, LENGTH = 2048, 8192
GROUP = 8
CELLS = 32
"""Cells along a side of the map: every fourth of the analysis."""
EVERY = 64
"""Tokens between two places of the curve, which divides every w."""
NAMES = {
    "rerope": same("ReRoPE"),
    "self_extend": same("Self-Extend"),
    "dual_chunk": Say("dual chunks", "双块注意力"),
}
METHODS = {
    "rerope": Say("ReRoPE: far keys at one distance", "ReRoPE：远处都算同一个距离"),
    "self_extend": Say(f"Self-Extend: far keys in groups of {GROUP}", f"Self-Extend：远处每 {GROUP} 个一组"),
    "dual_chunk": Say("dual chunks: start over in every chunk", "双块注意力：每一块重新计数"),
}


def windowed(method: str, w: int) -> Scene:
    """Return the distance at which the rotation sees every key, for a window of w."""
    parts = {"rerope": Rerope(w), "self_extend": SelfExtend(GROUP, w), "dual_chunk": DualChunk(w, w // 4)}
    rope = Rope(64)
    found = distance_map({name: Scheme(rope, part, causal) for name, part in parts.items()}, length=LENGTH)
    far = {name: float(np.nanmax(found[f"{name}, last token"])) for name in parts}
    exact = {name: _exact(found[f"{name}, last token"]) for name in parts}
    written = {"rerope": f"mp.Rerope({w})", "self_extend": f"mp.SelfExtend({GROUP}, {w})"}
    written["dual_chunk"] = f"mp.DualChunk({w}, {w // 4})"
    name, most = NAMES[method], far[method]
    over = most >= TRAINED
    chunks = (
        Say(
            f" Its chunk is w and its local part w/4: tokens count anew every w − w/4 = {w - w // 4:,}, and the "
            f"nearest w/4 + 1 = {w // 4 + 1:,} keys at least keep their distance; how many more depends on where "
            "in its chunk the last token is.",
            f"这里 chunk = w，local = w/4：每 w − w/4 = {w - w // 4:,} 个 token 重新计数，"
            f"最近的 w/4 + 1 = {w // 4 + 1:,} 个键至少保持原距离；还能多几个，取决于最后一个 token 在块中的位置。",
        )
        if method == "dual_chunk"
        else Say("", "")
    )
    return Scene(
        (
            _last_token(found, method, w),
            _map(found, method),
            Table(
                Say("What the last token sees", "最后一个 token 看到的"),
                (
                    Say("method", "方法"),
                    Say("farthest distance", "最远距离"),
                    Say("keys at their own distance", "距离不变的键"),
                    Say(f"met in training (up to {TRAINED - 1:,})", f"训练时见过（至多 {TRAINED - 1:,}）"),
                ),
                tuple(
                    (NAMES[each], far[each], exact[each], Say("no", "否") if far[each] >= TRAINED else Say("yes", "是"))
                    for each in parts
                ),
            ),
        ),
        Say(
            f"{name.en} with w = {w:,}: of {LENGTH:,} keys the last token sees none further than {most:,.0f}, "
            + (
                f"which training never showed: its farthest is {TRAINED - 1:,}"
                if over
                else f"which training showed: its farthest is {TRAINED - 1:,}"
            )
            + f". The nearest {exact[method]:,} stand at their own distance; the others share distances.{chunks.en}",
            f"{name.zh}，w = {w:,}：在 {LENGTH:,} 个键中，最后一个 token 看到的最远距离是 {most:,.0f}，"
            + (f"训练时没有见过：训练时最远是 {TRAINED - 1:,}" if over else f"训练时见过：训练时最远是 {TRAINED - 1:,}")
            + f"。最近的 {exact[method]:,} 个距离保持原样，更远的共用一些距离。{chunks.zh}",
        ),
        f"""\
import milepost as mp
from milepost import explore

scheme = mp.Scheme(mp.Rope(64), {written[method]}, mp.causal)
found = explore.distance_map(scheme, length={LENGTH}, trained={TRAINED})
print(found.says)
""",
        ("Rope(64), causal", *(f"Rope(64), {each.replace('mp.', '')}, causal" for each in written.values())),
    )


def _exact(row: Any) -> int:
    """Return how many of the nearest keys stand at their own distance."""
    moved = np.flatnonzero(row != np.arange(len(row)))
    return int(moved[0]) if moved.size else len(row)


def _last_token(found: Any, method: str, w: int) -> Lines:
    """Return distances as the last token sees them, the chosen way first."""
    anew = {name: _anew(found[f"{name}, last token"]) for name in NAMES}
    # Where distances start again the curve is drawn up to the last key before, and from the first key after.
    ends = {key for each in anew.values() for key in each}
    shown = sorted(
        {*range(0, LENGTH, EVERY), LENGTH - 1, *ends, *(key - 1 for key in ends), *(key + 1 for key in ends)}
    )
    behind = found["distance"][shown]

    def seen(name: str) -> list[float]:
        return numbers(np.where(np.isin(shown, anew[name]), np.nan, found[f"{name}, last token"][shown]))

    order = list(NAMES)
    lines = [
        Line(NAMES[name], seen(name), order.index(name), quiet=name != method)
        for name in sorted(NAMES, key=lambda each: each != method)
    ]
    lines += [
        Line(same("RoPE"), numbers(behind), len(NAMES), quiet=True),
        Line(Say("trained length", "训练长度"), [float(TRAINED)] * len(shown), len(NAMES) + 1, quiet=True),
    ]
    return Lines(
        Say("The distance that the rotation sees", "旋转看到的距离"),
        DISTANCE,
        Say("distance as seen, in tokens", "看到的距离（token）"),
        numbers(behind),
        tuple(lines),
        (Mark(same(f"w = {w:,}"), w, "w"), trained_at(TRAINED)),
        y_range=(0, 2 * TRAINED),
        link="distance",
    )


def _anew(row: Any) -> list[int]:
    """Return the keys at which distances start again, where a chunk begins."""
    return [int(key) + 1 for key in np.flatnonzero(np.diff(row) < 0)]


def _map(found: Any, method: str) -> Map:
    step = len(found["query"]) // CELLS
    tokens = numbers(found["query"][::step])
    return Map(
        Say(f"{NAMES[method].en}: what every query sees", f"{NAMES[method].zh}：每个查询看到的距离"),
        Say("key", "键"),
        Say("query", "查询"),
        [numbers(row) for row in found[method][::step, ::step]],
        tokens,
        tokens,
        Say("tokens", "token"),
        link="distance",
    )


STORY = Story(
    name="windows",
    question=Say("What if no distance were ever new?", "如果距离永远不会超出训练长度呢？"),
    lead=Say(
        f"The rotation is left alone. Instead a text of {LENGTH:,} tokens is shown to a model trained at {TRAINED:,} "
        "with other distances: near keys where they are, far keys closer than they are.",
        f"旋转本身不动。模型的训练长度是 {TRAINED:,}，读 {LENGTH:,} 个 token 时，改的是距离：近处的键不动，"
        "远处的键算得近一些。",
    ),
    look_for=Say(
        f"Drag w. ReRoPE never passes w; Self-Extend climbs by one for every group of {GROUP}, and passes the trained "
        "length if w is too large. Where the curve is flat, keys share a distance and their order is lost. Dual chunks "
        "draw a saw-tooth: keys count anew in every chunk, so back through a chunk the distance climbs, to w at most, "
        "and drops where the next one begins. No quality is measured here.",
        f"拖动 w。ReRoPE 永远不超过 w；Self-Extend 每组（{GROUP} 个）只加一，w 太大就会超出训练长度。曲线平的地方，"
        "几个键共用一个距离，它们之间的顺序就丢了。双块注意力画出锯齿：键在每一块里重新计数，"
        "所以往回看时，距离在一块之内上升，最多到 w，到下一块又落回来。这里没有测质量。",
    ),
    controls=(
        Choice("method", Say("method", "方法"), tuple(METHODS.items()), "rerope"),
        Slider("w", Say("window w", "窗口 w"), 128, TRAINED, 1024, 128),
    ),
    guess=Guess(
        Say(
            f"ReRoPE keeps distances below w = 1,024. Draw what the last of {LENGTH:,} tokens sees.",
            f"ReRoPE 在 w = 1,024 以内保持原来的距离。画出 {LENGTH:,} 个 token 中最后一个看到的距离。",
        )
    ),
    compute=windowed,
    try_own=(
        "Rope(64), causal",
        "Rope(64), Rerope(1024), causal",
        "Rope(64), SelfExtend(8, 1024), causal",
        "Rope(64), DualChunk(1536, 256), causal",
    ),
    try_trained=TRAINED,
    try_length=LENGTH,
    grid=9,
)

__all__ = ["STORY"]
