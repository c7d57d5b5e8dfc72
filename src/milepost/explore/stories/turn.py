"""How does a rotation become a distance? Two arrows turn; their product knows the angle between."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from milepost.explore.controls import Slider
from milepost.explore.pictures.axes import number
from milepost.explore.scene import Arrow, Arrows, Line, Lines, Mark, Say, Scene
from milepost.explore.stories.names import SCORE, numbers
from milepost.explore.stories.story import Guess, Story
from milepost.methods.rope import Rope

ROPE = Rope(8, pairs="neighbours")
PAIR = slice(2, 4)
"""The channels of its second pair, which turns by a tenth of a radian a token."""
LAST = 63


def turned(m: int, n: int) -> Scene:
    """Turn a query to position m and a key to position n, move them, and return their products."""
    q, k = torch.zeros(2, 8, dtype=torch.float64)
    q[2] = 1
    k[2], k[3] = 0.8, 0.6
    steps, apart = torch.arange(LAST + 1), torch.arange(-LAST, LAST + 1)
    query, key = _at(q, torch.tensor([m])), _at(k, torch.tensor([n]))
    product = float((query * key).sum())
    both = (_at(q, m + steps) * _at(k, n + steps)).sum(-1)
    alone = (_at(q, m + steps) * key).sum(-1)
    by_distance = (_at(q, apart) * _at(k, torch.zeros_like(apart))).sum(-1)
    step = float(ROPE.angles(torch.ones(1, dtype=torch.float64))[0, 1]) / math.tau
    spread = float((both - product).abs().max())
    return Scene(
        (
            Lines(
                Say("The product, moved on together and alone", "内积：一起移动，或只移动一个"),
                Say("moved on by, in tokens", "移动了多少（token）"),
                Say("product of query and key", "q 与 k 的内积"),
                numbers(steps),
                (
                    Line(Say("both move", "两个一起移动"), numbers(both)),
                    Line(Say("only the query moves", "只移动 q"), numbers(alone), quiet=True),
                ),
                y_range=(-1, 1),
            ),
            Arrows(
                Say(f"One pair of channels: q at {m}, k at {n}", f"一对维度：q 在位置 {m}，k 在位置 {n}"),
                (
                    Arrow(Say("query at m", "位置 m 的 q"), _turns(query[0]), "m", step),
                    Arrow(Say("key at n", "位置 n 的 k"), _turns(key[0]), "n", step),
                ),
            ),
            Lines(
                Say("The product by distance", "内积随相对距离的变化"),
                Say("m − n, in tokens", "m − n（token）"),
                SCORE,
                numbers(apart),
                (Line(Say("product", "内积"), numbers(by_distance)),),
                (Mark(Say(f"m − n = {m - n}", f"m − n = {m - n}"), m - n),),
                y_range=(-1, 1),
            ),
        ),
        Say(
            f"At m = {m} and n = {n} the product is {product:.3f}. Moved on together by up to {LAST} tokens it changes "
            f"by {number(spread)}, which is rounding: it depends on m − n = {m - n} alone.",
            f"m = {m}、n = {n} 时内积是 {product:.3f}。两者一起移动，最多 {LAST} 个 token，内积只变了 "
            f"{number(spread)}，"
            f"是舍入误差：它只依赖于相对距离 m − n = {m - n}。",
        ),
        f"""\
import torch
import milepost as mp

rope = mp.Rope(8, pairs="neighbours")
q, k = torch.zeros(2, 1, 1, 1, 8, dtype=torch.float64)
q[..., 2] = 1
k[..., 2], k[..., 3] = 0.8, 0.6

def product(m, n):
    return float((rope.turn(q, torch.tensor([m])) * rope.turn(k, torch.tensor([n]))).sum())

print([product({m} + s, {n} + s) for s in range({LAST + 1})])
""",
    )


def _at(x: Tensor, positions: Tensor) -> Tensor:
    """Return a vector at several positions, [positions channels]."""
    return ROPE.turn(x.expand(1, 1, len(positions), -1), positions)[0, 0]


def _turns(x: Tensor) -> float:
    """Return the angle of an arrow, in turns."""
    one, other = numbers(x[PAIR])
    return math.atan2(other, one) / math.tau % 1


STORY = Story(
    name="turn",
    question=Say("How does a rotation become a distance?", "旋转怎么就成了相对距离？"),
    lead=Say(
        "RoPE turns the query by m steps and the key by n steps: each knows only its own position. Attention takes "
        "their product.",
        "RoPE 把 q 转 m 步，把 k 转 n 步：各自只用到自己的绝对位置。注意力取的是它们的内积。",
    ),
    look_for=Say(
        "Drag one arrow: the product follows the curve. Drag both by as much: the angle between them stays, and so "
        "does the product.",
        "拖动一个箭头，内积沿着曲线变化。两个箭头转过同样的角度，夹角不变，内积也不变。",
    ),
    controls=(
        Slider("m", Say("position of the query, m", "q 的位置 m"), 0, LAST, 20),
        Slider("n", Say("position of the key, n", "k 的位置 n"), 0, LAST, 8),
    ),
    guess=Guess(
        Say(
            "Query and key both move on by the same number of tokens. Draw their product.",
            "q 和 k 一起往后移动同样多的 token。画出它们的内积。",
        )
    ),
    compute=turned,
    try_own=(
        "Rope(8, pairs='neighbours'), causal",
        "Rope(64), causal",
        "Rope(64, theta=100.0), causal",
        "Xpos(64), causal",
    ),
    try_trained=256,
    try_length=512,
    grid=7,
)

__all__ = ["STORY"]
