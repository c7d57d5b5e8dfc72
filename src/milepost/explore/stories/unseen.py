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
    within = np.array(data["position"]) < data["trained"]
    loss = {name: float(np.array(each)[within].mean()) for name, each in data["loss"].items()}
    mine_within, others_within = (
        f"{loss[f'{which} pairs {change}'] - loss['as it is']:+.2f}" for which in ("unseen", "other")
    )
    largest, inside = float(bound["largest past them"]), float(bound["largest at trained distances"])
    reached = f"{largest:.2g}" if largest < 10 else power(round(math.log10(largest)))
    how = CHANGES[change]
    en = (
        f"At {length:,} tokens {new} of {pairs} pairs meet new angles. Measured on SmolLM2-135M at {data['length']:,}, "
        f"nats a token more than with a window of {data['trained']:,}: {stock} as it is, {mine} if only its {those} "
        f"unseen pairs {how.en}, {others} if only the {rest} others {how.en}. Within {data['trained']:,} already, "
        f"against the model as it is, that costs {mine_within} for the {those} and {others_within} for the {rest}. "
        f"The bound says less: with a ridge of {RIDGES[ridge]} a score "
        f"within {inside:.2g} up to {BOUND['trained']:,} reaches about {reached} past it."
    )
    zh = (
        f"到 {length:,} 个 token，{pairs} 对维度中有 {new} 对会遇到新角度。在 SmolLM2-135M 上实测（{data['length']:,} "
        f"个 token，与 {data['trained']:,} 的窗口注意力相比每个 token 多出的 nat）：不改动 {stock}；"
        f"只让没转满一圈的 {those} 对{how.zh}，{mine}；只让其余 {rest} 对{how.zh}，{others}。"
        f"在 {data['trained']:,} 以内与不改动相比，这已分别多出 {mine_within} 和 {others_within}。"
        f"分数的上界说明不了多少：正则系数取 {RIDGES[ridge]} 时，{BOUND['trained']:,} 以内"
        f"不超过 {inside:.2g} 的分数，之后最大约到 {reached}。"
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
        (
            "Rope(64, theta=100000.0), causal",
            f"Rope(64, theta=100000.0, stretch=Yarn({max(1, math.ceil(length / TRAINED))}, {TRAINED})), causal",
            "Rope(64, theta=100000.0), Rerope(4096), causal",
        ),
        (("length", length),),
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
            Line(
                Say(f"with a window of {data['trained']:,}", f"{data['trained']:,} 的窗口注意力"),
                loss["window"],
                scheme=3,
                quiet=True,
            ),
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
            Say(f"A score fitted up to {trained:,}, read further", f"在 {trained:,} 以内拟合的分数，往外看"),
            DISTANCE,
            Say("size of the score", "分数的绝对值"),
            numbers(bound["distance"]),
            (Line(Say(f"ridge {RIDGES[ridge]}", f"正则系数 {RIDGES[ridge]}"), numbers(np.maximum(size, 1e-6))),),
            (Mark(Say(f"fitted up to {trained:,}", f"拟合到 {trained:,}"), trained),),
            y_scale="log",
            y_range=(1e-4, 1e6),
            link="distance",
        ),
        Lines(
            Say("How large it gets is a matter of the ridge", "能涨到多大，取决于正则系数"),
            Say("ridge of the fit (its regularisation)", "拟合的正则系数"),
            Say("largest score", "最大分数"),
            numbers(bound["ridge"]),
            (
                Line(Say("past the fitted distances", "拟合范围之外"), numbers(bound["outside, by ridge"])),
                Line(Say("within them", "拟合范围之内"), numbers(bound["inside, by ridge"]), quiet=True),
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
        "angles, then only the others. One model stands here, SmolLM2-135M, which is small. Of the second account "
        "there is a bound, as PI's paper draws it: a score as a sum of turning pairs is fitted to random values within "
        f"{BOUND['trained']:,} tokens, a quarter of the trained length to be fast, and read further.",
        "超过训练长度，RoPE 模型就不行了。常见的解释有两种：转得慢的维度遇到了没见过的角度；或者分数可能无限增大。"
        "为了弄清楚，我们在真实模型上只改会遇到新角度的那些维度，再只改其余的维度。这里只测了一个模型，"
        "SmolLM2-135M，而且很小。第二种解释有一个上界，画法同 PI 论文：把分数写成各对旋转之和，"
        f"在 {BOUND['trained']:,} 以内（为了快，取训练长度的四分之一）对随机值做拟合，再往外看。",
    ),
    look_for=Say(
        "Slow the unseen pairs alone and the loss stays down. Stop them or leave them out and it does not: the model "
        "needs these pairs, only at angles they know. Changing the others mends nothing, but read that with care: it "
        f"ruins the model within {TRAINED:,} as well. Angles are new from {TRAINED + 1:,} on, yet the model as it is "
        "fails only from about 11,000 on; why it holds so long was not measured. The window's loss jumps at "
        f"{TRAINED:,}, where it begins to lose the first tokens. Then change the ridge, which regularises the fit: we "
        "choose that number, and the bound outside moves with it by six orders of magnitude. The model's loss does "
        "not depend on it.",
        "只放慢没转满一圈的那些对，损失就稳住了；让它们不转或去掉则不行：模型需要这些维度，只是角度要是见过的。"
        f"改其余的毫无改善，但这一点要小心看：{TRAINED:,} 以内模型也已经坏了。从 {TRAINED + 1:,} 起就有新角度，"
        "而不改动的模型大约到 11,000 才开始变坏；为什么能撑这么久，没有测过。"
        f"窗口注意力的损失在 {TRAINED:,} 处跳升，窗口从那里起看不到开头的 token。再改正则系数（拟合的正则化强度）："
        "这个数由我们选，外面的上界随它能差六个数量级，而模型的损失与它无关。",
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
        ),
        measured=True,
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
