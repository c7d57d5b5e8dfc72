"""What breaks past the trained length? Angles that are new, a fit that explodes, and what a real model does."""

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
MEASURED = 32_768
"""The length of the texts that the losses were measured on."""
TEXTS = 8
LOSS = 2.4
"""The mean loss of the model as it is at trained positions."""
BOUND = {"trained": 2048, "length": 4096, "targets": 512, "points": 48}
"""The score is fitted on shorter texts, which is faster and shows the same."""
CHANGES = {
    "slowed": Say("turn four times more slowly", "转慢到四分之一"),
    "frozen": Say("do not turn", "不转"),
    "dropped": Say("are left out of the product", "从内积中去掉"),
}
RIDGES = {"1e-10": "10⁻¹⁰", "1e-05": "10⁻⁵", "1": "1"}


def measured() -> dict[str, Any]:
    """Return what was measured on SmolLM2-135M-Instruct: nothing of it is computed here."""
    return json.loads((files("milepost.explore.stories") / "smollm2_unseen.json").read_text(encoding="utf-8"))


def past_training(length: int, change: str, ridge: str) -> Scene:
    """Return new angles at a length, what was measured with some pairs changed, and the fit with a ridge."""
    found = angles_seen(ROPE, trained=TRAINED, length=length)
    bound = score_bound(ROPE, ridge=float(ridge), **BOUND)
    new, pairs = int((found["unseen arc"] > 0).sum()), len(found["turns"])
    data = measured()
    more, those, rest = data["more"], data["unseen pairs"], data["pairs"] - data["unseen pairs"]
    stock, mine, others = (
        "{:+.2f} ± {:.2f}".format(*more[name])
        for name in ("unchanged", f"unseen pairs {change}", f"other pairs {change}")
    )
    within = np.array(data["position"]) < data["trained"]
    loss = {name: float(np.array(each)[within].mean()) for name, each in data["loss"].items()}
    mine_within, others_within = (
        f"{loss[f'{which} pairs {change}'] - loss['unchanged']:+.2f}" for which in ("unseen", "other")
    )
    largest, inside = float(bound["largest past them"]), float(bound["largest at trained distances"])
    reached = f"{largest:.2g}" if largest < 10 else power(round(math.log10(largest)))
    how = CHANGES[change]
    en = (
        f"At {length:,} tokens {new} of {pairs} pairs meet new angles. The losses were measured once, on "
        f"{TEXTS} texts of {data['length']:,} tokens, and do not follow the length set here. Mean over positions "
        f"{data['trained']:,} to {data['length']:,}, in nats a token above the same model with a window of "
        f"{data['trained']:,}, ± 95 % over texts: {stock} unchanged, {mine} if only its {those} "
        f"unseen pairs {how.en}, {others} if only the {rest} others {how.en}. Mean over positions 0 to "
        f"{data['trained']:,}, above the model unchanged: {mine_within} for the {those}, {others_within} for the "
        f"{rest}. The fit: with a ridge of {RIDGES[ridge]} a score within {inside:.2g} up to "
        f"{BOUND['trained']:,} reaches about {reached} past it."
    )
    zh = (
        f"到 {length:,} 个 token，{pairs} 对维度中有 {new} 对会遇到新角度。损失只测过一次，用了 {TEXTS} 段 "
        f"{data['length']:,} 个 token 的文本，不随这里所设的长度变化。位置 {data['trained']:,} 到 {data['length']:,} "
        f"的平均值，比同一模型加 {data['trained']:,} 的窗口注意力每个 token 多出的 nat，± 为各文本间的 95 % 区间："
        f"不改动 {stock}；只让没转满一圈的 {those} 对{how.zh}，{mine}；只让其余 {rest} 对{how.zh}，{others}。"
        f"位置 0 到 {data['trained']:,} 的平均值，与不改动相比：改那 {those} 对 {mine_within}，改其余 {rest} 对 "
        f"{others_within}。拟合：正则系数取 {RIDGES[ridge]} 时，{BOUND['trained']:,} 以内"
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
            Line(Say("unchanged", "不改动"), loss["unchanged"], scheme=2),
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
        "seen, or scores grow without limit. For the first, one small model, SmolLM2-135M, was measured with only the "
        "pairs changed that meet new angles, then with only the others changed. For the second there is a drawing in "
        "the paper on position interpolation (PI): a score, which is a sum of turning pairs, is fitted to random "
        f"values at distances up to {BOUND['trained']:,} (a quarter of this model's training, to be quick) and "
        "continued past them.",
        "超过训练长度，RoPE 模型就不行了。常见的解释有两种：转得慢的维度遇到了没见过的角度；或者分数无限增大。"
        "对第一种，我们测了一个很小的模型 SmolLM2-135M：先只改会遇到新角度的那些维度，再只改其余的。"
        "对第二种，位置内插（PI）的论文画过一张图：分数是各对旋转之和，在距离 "
        f"{BOUND['trained']:,} 以内（为了快，取该模型训练长度的四分之一）对随机值做拟合，再延伸到外面。",
    ),
    look_for=Say(
        "Slow the unseen pairs alone and the loss stays down. Stop them or leave them out and it does not: the model "
        "needs these pairs, only at angles they know. Changing the others gains little on average, but read that with "
        f"care: it ruins the model within {TRAINED:,} as well. Angles are new from {TRAINED + 1:,} on, yet the model "
        "as it is fails only from about 11,000 on; why it holds so long was not measured. The window's loss jumps at "
        f"{TRAINED:,}, where it begins to lose the first tokens. This tells which pairs break the model. It does not "
        "refute the second account: slowing these pairs would keep scores small, too. Then change the ridge, the "
        "penalty on large coefficients of the fit. It is ours to choose, and past the fitted distances the largest "
        "score moves with it by six orders of magnitude over the last plot. So the fit does not tell how large the "
        "scores of a real model become, and they were not measured here.",
        "只放慢没转满一圈的那些对，损失就稳住了；让它们不转或去掉则不行：模型需要这些维度，只是角度要是见过的。"
        f"改其余的平均几乎没有改善，但这一点要小心看：{TRAINED:,} 以内模型也已经坏了。从 {TRAINED + 1:,} 起就有新角度，"
        "而不改动的模型大约到 11,000 才开始变坏；为什么能撑这么久，没有测过。"
        f"窗口注意力的损失在 {TRAINED:,} 处跳升，窗口从那里起看不到开头的 token。这说明了是哪些维度弄坏了模型，"
        "但没有否定第二种解释：放慢这些维度，分数也会变小。再改正则系数（对拟合中大系数的惩罚）："
        "这个数由我们选，拟合范围之外的最大分数随它变化，在最后一张图上差六个数量级。"
        "所以拟合说明不了真实模型的分数会有多大，这里也没有测。",
    ),
    controls=(
        Slider(
            "length",
            Say("length of the text, for the clocks", "文本长度（表盘用）"),
            TRAINED,
            MEASURED,
            MEASURED,
            1,
            "doubling",
        ),
        Choice("change", Say("the changed pairs", "被改动的维度"), tuple(CHANGES.items()), "slowed"),
        Choice(
            "ridge",
            Say("ridge of the fit: its regularisation", "拟合的正则系数"),
            tuple((value, Say(shown, shown)) for value, shown in RIDGES.items()),
            "1e-10",
        ),
    ),
    guess=Guess(
        Say(
            "Only the pairs that meet new angles turn more slowly, so that they meet none. Draw the model's loss by "
            f"position. It was trained at {TRAINED:,}; up to there its loss as it is, with no pair changed, is "
            f"about {LOSS} nats.",
            f"只放慢会遇到新角度的那些对，让它们不再遇到。画出模型在各位置的损失。训练长度是 {TRAINED:,}；"
            f"不作改动时，在此以内的损失约为 {LOSS} nat。",
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
