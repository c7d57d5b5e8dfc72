"""ALiBi and its kin: what is taken off a score by distance, and how far each head sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from milepost.explore.analyses.alibi import alibi_view
from milepost.explore.analyses.bias_curves import bias_curves
from milepost.explore.controls import Choice, Slider
from milepost.explore.scene import Line, Lines, Mark, Say, Scene
from milepost.explore.stories.names import DISTANCE, numbers, same
from milepost.explore.stories.story import Guess, Story
from milepost.methods.alibi import Alibi

LENGTH, LEFT = 2048, 0.01
"""LEFT is the share of a key's weight that is left at the end of the field of view."""
POINTS = 64
RANKS = {
    "steepest": Say("the steepest", "斜率最大的"),
    "middle": Say("the middle one", "居中的"),
    "flattest": Say("the flattest", "斜率最小的"),
}


def penalised(heads: str, head: str, factor: int) -> Scene:
    """Return how far the heads of ALiBi see, stretched too, and what it and its kin take off in one of them."""
    count = int(heads)
    found = alibi_view(Alibi(count), factor=factor, length=2, left=LEFT)
    slopes = found["slope, ALiBi"]
    steep = np.argsort(-slopes, kind="stable")
    rank = {"steepest": 0, "middle": (count - 1) // 2, "flattest": count - 1}[head]
    chosen = int(steep[rank])
    curves = bias_curves(length=LENGTH, heads=count, head=chosen, points=POINTS)
    views: dict[str, Any] = {
        name: found[f"field of view, {name}"][steep]
        for name in ("ALiBi", f"AlibiInterpolate({factor})", f"AlibiNtk({factor})")
    }
    own, squeezed, ntk = views.values()
    view, slope = float(own[rank]), float(slopes[chosen])
    return Scene(
        (
            Lines(
                Say(f"Distance at which {LEFT:.0%} of a weight is left", f"权重只剩 {LEFT:.0%} 时的距离"),
                Say("head, the steepest first", "第几个头（从斜率最大的数起）"),
                Say("field of view in tokens", "视野（token）"),
                list(range(count)),
                (
                    Line(same("ALiBi"), numbers(own)),
                    Line(Say(f"interpolated by {factor}", f"内插 {factor} 倍"), numbers(squeezed), 1, quiet=True),
                    Line(Say(f"NTK by {factor}", f"NTK {factor} 倍"), numbers(ntk), 2, quiet=True),
                ),
                (Mark(Say("the chosen head", "所选的头"), rank),),
                y_scale="log",
            ),
            *_by_distance(curves),
        ),
        Say(
            f"{RANKS[head].en.capitalize()} of {count} heads has slope {slope:.3g}: {LEFT:.0%} of a weight is left at "
            f"{view:,.0f} tokens. The heads see from {own.min():,.1f} to {own.max():,.0f} tokens; NTK by {factor} "
            f"keeps the first ({ntk.min():,.1f}) and widens the last to {ntk.max():,.0f}. At {LENGTH - 1:,} tokens "
            f"ALiBi takes off {-curves['ALiBi'][-1]:,.3g}, KERPLE {-curves['KERPLE, log'][-1]:.3g}.",
            f"{count} 个头中{RANKS[head].zh}头斜率为 {slope:.3g}：到 {view:,.0f} 个 token 处，权重只剩 {LEFT:.0%}。"
            f"各个头的视野从 {own.min():,.1f} 到 {own.max():,.0f}；NTK {factor} 倍保持最小的不变（{ntk.min():,.1f}），"
            f"把最大的扩到 {ntk.max():,.0f}。距离 {LENGTH - 1:,} 处，ALiBi 减去 {-curves['ALiBi'][-1]:,.3g}，"
            f"KERPLE 减去 {-curves['KERPLE, log'][-1]:.3g}。",
        ),
        f"""\
import milepost as mp
from milepost import explore

found = explore.alibi_view(mp.Alibi({count}), factor={factor}, length=2, left={LEFT})
curves = explore.bias_curves(length={LENGTH}, heads={count}, head={chosen}, points={POINTS})
print(found["field of view, ALiBi"], curves["ALiBi"])
""",
        (
            f"Alibi({count}), causal",
            f"Alibi({count}, stretch=AlibiInterpolate({factor})), causal",
            f"Alibi({count}, stretch=AlibiNtk({factor})), causal",
            f"Kerple({count}), causal",
        ),
        # What position adds by itself, as the curves have it.
        (("head", chosen), ("vectors", "nothing")),
    )


def _by_distance(curves: Any) -> tuple[Lines, Lines]:
    """Return what is added by distance, and how the score of an equal key fades."""
    added = ("ALiBi", "KERPLE, log", "FIRE", "Sandwich")
    at = numbers(curves["distance"])
    return (
        Lines(
            Say("What is added to a score", "给分数加上多少"),
            DISTANCE,
            Say("added, in nats", "所加的量（nat）"),
            at,
            tuple(Line(same(name.removesuffix(", log")), numbers(curves[name]), n) for n, name in enumerate(added)),
            y_range=(-12, 1),
            link="distance",
        ),
        Lines(
            Say("What is left of the score of an equal key", "与 q 相同的键，分数还剩多少"),
            DISTANCE,
            Say("share of the score at 0", "与距离 0 处之比"),
            at,
            (
                Line(same("RoPE"), numbers(curves["RoPE"]), len(added), quiet=True),
                Line(same("xPos"), numbers(curves["xPos"]), len(added) + 1),
            ),
            link="distance",
        ),
    )


STORY = Story(
    name="penalties",
    question=Say("What if distance simply costs?", "如果距离直接扣分呢？"),
    lead=Say(
        "ALiBi rotates nothing: it takes slope times distance off every score, with a slope of its own for each head. "
        "That is defined at every distance, so nothing is new past the trained length.",
        "ALiBi 不做旋转：它从每个分数里减去“斜率 × 距离”，每个头有自己的斜率。任何距离都有定义，"
        "所以超过训练长度也没有新东西。",
    ),
    look_for=Say(
        "The fields of view grow by one factor from head to head: most see very near. Choose a steep head and look at "
        "its penalty. ALiBi falls for ever, KERPLE by a logarithm, FIRE stays between two numbers.",
        "从一个头到下一个头，视野按固定的倍数增大，大多数头只看得到很近的地方。选一个斜率大的头，再看它的惩罚："
        "ALiBi 一直下降，KERPLE 按对数下降，FIRE 始终在两个数之间。",
    ),
    controls=(
        Choice("heads", Say("heads", "头数"), tuple((n, same(n)) for n in ("8", "12", "32")), "8"),
        Choice("head", Say("head", "哪个头"), tuple(RANKS.items()), "flattest"),
        Slider("factor", Say("stretched by", "扩展倍数"), 1, 16, 4, 1, "doubling"),
    ),
    guess=Guess(
        Say(
            f"Where has a key lost all but {LEFT:.0%} of its weight? Draw that distance for each head, the steepest "
            "first.",
            f"键的权重在多远处只剩 {LEFT:.0%}？从斜率最大的头开始，画出每个头的这个距离。",
        )
    ),
    compute=penalised,
    try_own=("Alibi(8), causal", "Kerple(8), causal", "Fire(8), causal", "Sandwich(8, 128), causal"),
    try_trained=512,
    try_length=2048,
    grid=5,
)

__all__ = ["STORY"]
