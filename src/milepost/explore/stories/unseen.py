"""What breaks past the trained length? Angles that are new, a bound that explodes, and what a real model does."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import numpy as np

from milepost.explore.analyses.angles import angles_seen
from milepost.explore.analyses.scores_by_distance import score_bound
from milepost.explore.controls import Choice, Slider
from milepost.explore.pictures.axes import power
from milepost.explore.scene import Dial, Dials, Line, Lines, Mark, Say, Scene
from milepost.explore.stories.names import DISTANCE, POSITION, numbers, trained_at
from milepost.explore.stories.story import Guess, Story
from milepost.methods.rope import Rope

ROPE = Rope(64, theta=100_000.0)
"""SmolLM2's rotation."""
TRAINED = 8192
BOUND = {"trained": 2048, "length": 4096, "targets": 512, "points": 48}
"""The bound is fitted on shorter texts, which is faster and shows the same."""
CHANGES = {
    "squeezed": Say("turn four times more slowly", "转慢到四分之一"),
    "frozen": Say("do not turn", "不转"),
    "dropped": Say("are left out of the product", "从内积中去掉"),
}
RIDGES = {"1e-10": "10⁻¹⁰", "1e-05": "10⁻⁵", "1": "1"}


def measured() -> dict[str, Any]:
    """Return what was measured on SmolLM2-135M-Instruct: nothing of it is computed here."""
    return json.loads((files("milepost.explore.stories") / "smollm2_unseen.json").read_text(encoding="utf-8"))


def past_training(length: int, change: str, ridge: str) -> Scene:
    """Return new angles at a length, what was measured with some pairs changed, and the bound with a ridge."""
    found = angles_seen(ROPE, trained=TRAINED, length=length)
    bound = score_bound(ROPE, ridge=float(ridge), **BOUND)
    new, pairs = int((found["unseen arc"] > 0).sum()), len(found["turns"])
    data = measured()
    more, those, rest = data["more"], data["unseen pairs"], data["pairs"] - data["unseen pairs"]
    stock, mine, others = (
        "{:+.2f} ± {:.2f}".format(*more[name])
        for name in ("as it is", f"unseen pairs {change}", f"other pairs {change}")
    )
    largest, inside = float(bound["largest past them"]), float(bound["largest at trained distances"])
    reached = f"{largest:.2g}" if largest < 10 else power(round(math.log10(largest)))
    how = CHANGES[change]
    en = (
        f"At {length:,} tokens {new} of {pairs} pairs meet new angles. Measured on SmolLM2-135M at {data['length']:,}, "
        f"nats a token more than a window: {stock} as it is, {mine} if only its {those} unseen pairs {how.en}, "
        f"{others} if only the {rest} others {how.en}. The bound says less: with a ridge of {RIDGES[ridge]} a score "
        f"within {inside:.2g} in training reaches about {reached} past it."
    )
    zh = (
        f"到 {length:,} 个 token，{pairs} 对维度中有 {new} 对会遇到新角度。在 SmolLM2-135M 上实测（{data['length']:,} "
        f"个 token，与窗口注意力相比每个 token 多出的 nat）：不改动 {stock}；"
        f"只让没转满一圈的 {those} 对{how.zh}，{mine}；只让其余 {rest} 对{how.zh}，{others}。"
        f"得分的上界说明不了多少：正则系数取 {RIDGES[ridge]} 时，训练长度内"
        f"不超过 {inside:.2g} 的得分，之后最大约到 {reached}。"
    )
    return Scene(
        (
            _losses(data, change, length),
            _dials(found["turns in training"], found["turns"], length),
            *_bounds(bound, ridge),
        ),
        Say(en, zh),
        f"""\
import milepost as mp
from milepost import explore

rope = mp.Rope(64, theta=100000.0)
found = explore.angles_seen(rope, trained={TRAINED}, length={length})
bound = explore.score_bound(rope, ridge={float(ridge)}, {", ".join(f"{name}={each}" for name, each in BOUND.items())})
print(found.says, bound.says)
# The losses are measured, not computed here: explore.unseen_angles(model, text, tokenizer, length={data["length"]})
""",
    )


def _losses(data: dict[str, Any], change: str, length: int) -> Lines:
    loss: dict[str, list[float]] = data["loss"]
    those, rest = data["unseen pairs"], data["pairs"] - data["unseen pairs"]
    return Lines(
        Say(
            "Measured on SmolLM2-135M-Instruct, not computed here: loss by position",
            "SmolLM2-135M-Instruct 实测，非此处计算：各位置的损失",
        ),
        POSITION,
        Say("loss in nats", "损失（nat）"),
        data["position"],
        (
            Line(
                Say(
                    f"only the {those} unseen pairs {CHANGES[change].en}",
                    f"只让没转满一圈的 {those} 对{CHANGES[change].zh}",
                ),
                loss[f"unseen pairs {change}"],
            ),
            Line(
                Say(f"only the {rest} others {CHANGES[change].en}", f"只让其余 {rest} 对{CHANGES[change].zh}"),
                loss[f"other pairs {change}"],
                scheme=1,
            ),
            Line(Say("as it is", "不改动"), loss["as it is"], scheme=2, quiet=True),
            Line(Say("with a window", "窗口注意力"), loss["window"], scheme=3, quiet=True),
        ),
        (trained_at(data["trained"]), Mark(Say("the chosen length", "所选长度"), length, "length")),
        link="position",
    )


def _dials(seen: Any, turns: Any, length: int) -> Dials:
    return Dials(
        Say(f"The angles of its {len(seen)} pairs up to {length:,}", f"到 {length:,} 为止 {len(seen)} 对维度的角度"),
        tuple(Dial(f"{n}", min(float(each), 1.0), float(turns[n])) for n, each in enumerate(seen)),
    )


def _bounds(bound: Any, ridge: str) -> tuple[Lines, Lines]:
    """Return the fitted score by distance, and how large it gets by the ridge of the fit."""
    size = np.abs(bound["score"])
    trained = BOUND["trained"]
    return (
        Lines(
            Say(f"A score fitted up to {trained:,}, read further", f"在 {trained:,} 以内拟合的得分，往外看"),
            DISTANCE,
            Say("size of the score", "得分的绝对值"),
            numbers(bound["distance"]),
            (Line(Say(f"ridge {RIDGES[ridge]}", f"正则系数 {RIDGES[ridge]}"), numbers(np.maximum(size, 1e-6))),),
            (trained_at(trained),),
            y_scale="log",
            y_range=(1e-4, 1e6),
            link="distance",
        ),
        Lines(
            Say("How large it gets is a matter of the ridge", "能涨到多大，取决于正则系数"),
            Say("ridge of the fit", "正则系数"),
            Say("largest score", "最大得分"),
            numbers(bound["ridge"]),
            (
                Line(Say("past the trained length", "训练长度之外"), numbers(bound["outside, by ridge"])),
                Line(Say("within it", "训练长度之内"), numbers(bound["inside, by ridge"]), quiet=True),
            ),
            (Mark(Say("the chosen ridge", "所选系数"), float(ridge)),),
            x_scale="log",
            y_scale="log",
            y_range=(0.1, 1e7),
        ),
    )


STORY = Story(
    name="unseen",
    question=Say("What breaks past the trained length?", "超过训练长度，坏的是什么？"),
    lead=Say(
        "Past its trained length a RoPE model fails. Two accounts are given: slow pairs meet angles they have never "
        "seen, or scores could grow without bound. A real model was changed to find out: only the pairs that meet new "
        "angles, then only the others.",
        "超过训练长度，RoPE 模型就不行了。常见的解释有两种：转得慢的维度遇到了没见过的角度；或者得分可能无限增大。"
        "为了弄清楚，我们在真实模型上只改会遇到新角度的那些维度，再只改其余的维度。",
    ),
    look_for=Say(
        "Slow the unseen pairs alone and the loss stays down; slow the others and nothing is mended. Then change the "
        "ridge: the bound moves by six orders of magnitude, and the model does not.",
        "只放慢没转满一圈的那些对，损失就稳住了；只放慢其余的，毫无改善。再改正则系数：上界能差六个数量级，"
        "而模型还是那个模型。",
    ),
    controls=(
        Slider("length", Say("length of the text", "文本长度"), TRAINED, 65_536, 32_768, 1, "doubling"),
        Choice("change", Say("the changed pairs", "被改动的维度"), tuple(CHANGES.items()), "squeezed"),
        Choice(
            "ridge",
            Say("ridge of the bound", "上界的正则系数"),
            tuple((value, Say(shown, shown)) for value, shown in RIDGES.items()),
            "1e-10",
        ),
    ),
    guess=Guess(
        Say(
            "Only the pairs that meet new angles turn more slowly, so that they meet none. Draw the model's loss by "
            f"position; it was trained at {TRAINED:,}.",
            f"只放慢会遇到新角度的那些对，让它们不再遇到。画出模型在各位置的损失；训练长度是 {TRAINED:,}。",
        )
    ),
    compute=past_training,
    try_own=(
        "Rope(64, theta=100000.0), causal",
        "Rope(64, theta=100000.0, stretch=Yarn(4, 8192)), causal",
        "Rope(64, theta=100000.0), Rerope(4096), causal",
    ),
    try_trained=TRAINED,
    grid=4,
)

__all__ = ["STORY", "measured"]
