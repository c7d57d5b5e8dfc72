"""Squeeze, change the base, or by parts? Three ways to write a longer text in the angles that training met."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from milepost.explore.analyses.angles import angles_seen, wavelengths
from milepost.explore.analyses.radix import odometer
from milepost.explore.analysis import Analysis
from milepost.explore.controls import Choice, Slider
from milepost.explore.pictures.axes import number
from milepost.explore.scene import Dial, Dials, Digits, Line, Lines, Say, Scene
from milepost.explore.stories.names import PAIR, numbers, same
from milepost.explore.stories.story import Guess, Story
from milepost.methods.rope import Rope
from milepost.methods.rope_stretches import Interpolate, Ntk
from milepost.methods.yarn import Yarn

ROPE = Rope(128)
TRAINED, LENGTH = 4096, 32_768
FACTOR = LENGTH // TRAINED
COUNTER, COUNTED = Rope(8), 1000
"""A rotation whose four pairs count in tens, trained on three digits."""
POSITIONS = (7, 999, 1234, 4321, 7999)
METHODS = {
    "direct": Say("as it was (extrapolate)", "直接外推"),
    "pi": Say("squeeze positions (PI)", "位置内插（PI）"),
    "ntk": Say("a larger base (NTK)", "增大底数（NTK）"),
    "yarn": Say("by parts (YaRN)", "分段处理（YaRN）"),
}
SHORT = {"direct": Say("extrapolated", "直接外推"), "pi": same("PI"), "ntk": same("NTK"), "yarn": same("YaRN")}
FORMS = {"direct": "direct", "pi": "interpolated", "ntk": "larger base", "yarn": "YaRN"}
"""Their names among the arrays of the odometer."""


def stretched(method: str, factor: int) -> Scene:
    """Return what a stretch does to every pair at eight times the trained length, and to digits."""
    written: dict[str, str] = {"direct": "None", "pi": f"mp.Interpolate({factor})", "ntk": f"mp.Ntk({factor})"}
    written["yarn"] = f"mp.Yarn({factor}, {TRAINED})"
    stretches: dict[str, Any] = {
        "direct": None,
        "pi": Interpolate(factor),
        "ntk": Ntk(factor),
        "yarn": Yarn(factor, TRAINED),
    }
    ropes = {name: replace(ROPE, stretch=each) for name, each in stretches.items()}
    found = angles_seen(ROPE, trained=TRAINED, length=LENGTH, stretched=ropes[method])
    waves = wavelengths(ropes, trained=TRAINED, length=LENGTH)
    slower = {name: waves[name] / waves["direct"] for name in ropes}
    more = {"YaRN": Yarn(factor, COUNTED)} if method == "yarn" else None
    counted = odometer(COUNTER, trained=COUNTED, factor=factor, positions=POSITIONS, more=more)
    also = f',\n    more={{"YaRN": mp.Yarn({factor}, {COUNTED})}},' if more else ""
    return Scene(
        (_slower(slower, method), _dials(found, method), _digits(counted, method)),
        _says(found, slower[method], method, factor),
        f"""\
import milepost as mp
from milepost import explore

now = mp.Rope(128, stretch={written[method]})
found = explore.angles_seen(mp.Rope(128), trained={TRAINED}, length={LENGTH}, stretched=now)
waves = explore.wavelengths({{"before": mp.Rope(128), "now": now}}, trained={TRAINED}, length={LENGTH})
slower = waves["now"] / waves["before"]
toy = explore.odometer(
    mp.Rope(8), trained={COUNTED}, factor={factor}, positions={POSITIONS}{also}
)
digits = toy["digit, {FORMS[method]}"][:, ::-1]
print(found.says, slower, digits)
""",
        (
            "Rope(128), causal",
            f"Rope(128, stretch=Interpolate({factor})), causal",
            f"Rope(128, stretch=Ntk({factor})), causal",
            f"Rope(128, stretch=Yarn({factor}, {TRAINED})), causal",
        ),
    )


def _slower(slower: dict[str, Any], method: str) -> Lines:
    """Return by how much each pair turns more slowly, the chosen way first."""
    lines = [Line(SHORT[method], numbers(slower[method]), list(SHORT).index(method))]
    lines += [
        Line(SHORT[name], numbers(each), number, quiet=True)
        for number, (name, each) in enumerate(slower.items())
        if name not in ("direct", method)
    ]
    return Lines(
        Say("How much more slowly each pair turns", "每一对慢了多少倍"),
        PAIR,
        Say("times slower", "慢的倍数"),
        list(range(len(slower[method]))),
        tuple(lines),
        y_scale="log",
        y_range=(0.8, 40),
    )


def _dials(found: Analysis, method: str) -> Dials:
    seen, turns = found["turns in training"], found["turns"]
    return Dials(
        Say(
            f"Angles up to {LENGTH:,} tokens, trained at {TRAINED:,}: {SHORT[method].en}",
            f"到 {LENGTH:,} 为止的角度，训练长度 {TRAINED:,}：{SHORT[method].zh}",
        ),
        tuple(Dial(f"{n}", min(float(each), 1.0), float(turns[n])) for n, each in enumerate(seen)),
    )


def _digits(counted: Analysis, method: str) -> Digits:
    """Return positions as digits, the first place first; marked where a pair stands at an angle it never met."""
    name = FORMS[method]
    digits, angles, seen = counted[f"digit, {name}"], counted[f"angle, {name}"], counted["turns in training"]
    new = (angles > seen * math.tau + 1e-9) & (seen < 1)
    base = float(counted[f"base, {name}"] if method != "yarn" else counted["base, direct"])
    # A digit counts so many tokens: its pair turns by a radian in as many.
    units = [number(float(f"{1 / each:.4g}")) for each in counted[f"step, {name}"][::-1]]
    last = len(units) - 1
    rows = tuple(
        (same(f"{position:,}"), tuple(numbers(digits[row][::-1])), tuple(bool(each) for each in new[row][::-1]))
        for row, position in enumerate(POSITIONS)
    )
    # Pair by pair slowed by another factor, YaRN counts in no one base.
    columns = {
        "direct": Say(f"its digits in base {base:.3g}", f"写成 {base:.3g} 进制的各位数字"),
        "pi": Say(f"position / factor, its digits in base {base:.3g}", f"位置除以倍数，写成 {base:.3g} 进制的各位数字"),
        "ntk": Say(f"its digits in base {base:.3g}", f"写成 {base:.3g} 进制的各位数字"),
        "yarn": Say(
            "of each pair the whole radians of its angle, counted modulo 10 (in no one base, as pairs are slowed "
            "unequally)",
            "每一对角度的整数弧度，按模 10 计（各对放慢的倍数不同，不是任何一种进制）",
        ),
    }[method]
    return Digits(
        Say(
            f"A toy of four pairs, trained up to {COUNTED - 1}, not the head above. Columns: the position, then "
            f"{columns.en}, from the slowest pair to the fastest",
            f"只有四对维度的示意，训练时只到 {COUNTED - 1}，不是上面那个头。"
            f"各列：位置；{columns.zh}，从最慢的一对到最快的一对",
        ),
        rows,
        base,
        (
            Say("position", "位置"),
            *(Say(f"pair {last - n}: × {unit}", f"第 {last - n} 对：× {unit}") for n, unit in enumerate(units)),
        ),
    )


def _says(found: Analysis, slower: Any, method: str, factor: int) -> Say:
    arc = found["unseen arc"]
    new, widest, pairs = int((arc > 0).sum()), float(arc.max()), len(arc)
    step, kept = 1 / float(slower[0]), int((np.abs(slower - 1) < 1e-9).sum())
    by = Say("", "") if method == "direct" else Say(f" by {factor}", f" {factor} 倍")
    met_en = (
        f"{new} of {pairs} pairs meet new angles, the widest arc {widest:.2f} of a turn" if new else "no angle is new"
    )
    met_zh = f"{pairs} 对中有 {new} 对遇到新角度，最宽的弧有 {widest:.2f} 圈" if new else "没有新角度"
    sharper = Yarn(factor, TRAINED).magnitude(torch.tensor(LENGTH)) ** 2
    warm = (
        Say(
            f" YaRN also multiplies every score by {sharper:.2f}, its temperature, which no angle shows: it sharpens "
            "the softmax, which more keys spread.",
            f"YaRN 还把每个分数乘以 {sharper:.2f}（它的温度），这在角度上看不出来："
            "键越多 softmax 越分散，这使它更集中。",
        )
        if method == "yarn"
        else Say("", "")
    )
    return Say(
        f"{SHORT[method].en}{by.en}: at {LENGTH:,} tokens {met_en}. From one token to the next the fastest pair turns "
        f"by {step:.3f} radians; {kept} of {pairs} pairs turn as in training.{warm.en}",
        f"{SHORT[method].zh}{by.zh}：到 {LENGTH:,} 个 token，{met_zh}。相邻两个 token 之间，最快的一对转 "
        f"{step:.3f} 弧度；{pairs} 对中有 {kept} 对的转速与训练时相同。{warm.zh}",
    )


STORY = Story(
    name="stretches",
    question=Say("Squeeze, change the base, or by parts?", "内插、换底数，还是分段？"),
    lead=Say(
        f"A model trained on {TRAINED:,} tokens is to read {LENGTH:,}. Slow pairs would meet new angles. All "
        "three ways slow them down; they differ in what they do to the fast ones, which tell neighbours apart.",
        f"模型的训练长度是 {TRAINED:,}，现在要读 {LENGTH:,}。慢的维度会遇到新角度，三种办法都让它们转得更慢；"
        "区别在于怎样对待快的维度，而相邻的 token 正是靠它们区分的。",
    ),
    look_for=Say(
        "A larger base (NTK) leaves the fastest pair alone and slows the last by the whole factor; of the pairs that "
        "made no full turn in training, 46 to 63, all but the last still meet new angles at factor 8. Then change the "
        "way. PI slows every pair by the whole factor, the fastest too. YaRN leaves pairs that turn more than 32 times "
        "in training, 0 to 20, slows those that turn less than once by the whole factor, and blends between. In the "
        "authors' code, as here, the blend falls evenly over the pairs' numbers; by the paper's formula "
        '(ramp="paper") evenly over their turns, which slows most pairs between more. In the toy a digit counts whole '
        "radians, the last with its fraction: it wraps at its base, the angle at 2π = 6.28 radians, so a digit that is "
        "new can stand for an angle that is known, and has no ring. No loss is measured here.",
        "增大底数（NTK）让最快的不变，最慢的正好内插；训练时没转满一圈的 46 到 63 对中，"
        "倍数为 8 时除最后一对外仍会遇到新角度。再换别的方法。PI 让每一对都慢整个倍数，最快的也不例外。"
        "YaRN 不动训练时转过 32 圈以上的 0 到 20 对，"
        "不到一圈的按整个倍数放慢，中间过渡。作者的代码（此处相同）按维度对的序号均匀过渡；"
        '论文的公式（ramp="paper"）按圈数均匀过渡，中间的维度大多放慢得更多。'
        "示意图中的数字是整数弧度（最后一位带小数）：数字到底数归零，角度到 2π = 6.28 弧度归零，"
        "所以新的数字可能是见过的角度，就不圈出。这里没有测损失。",
    ),
    controls=(
        Choice("method", Say("way", "方法"), tuple(METHODS.items()), "ntk"),
        Slider("factor", Say("factor", "倍数"), 2, 32, FACTOR, 1, "doubling"),
    ),
    guess=Guess(
        Say(
            f"A larger base leaves the fastest pair as it is and slows the slowest by the whole factor, here {FACTOR}. "
            "Draw the pairs between.",
            f"增大底数后，最快的一对不变，最慢的一对慢了整整 {FACTOR} 倍。画出中间各对慢了多少。",
        )
    ),
    compute=stretched,
    try_own=(
        "Rope(128), causal",
        "Rope(128, stretch=Interpolate(8)), causal",
        "Rope(128, stretch=Ntk(8)), causal",
        "Rope(128, stretch=Yarn(8, 4096)), causal",
    ),
    try_trained=TRAINED,
    try_length=LENGTH,
    grid=5,
)

__all__ = ["STORY"]
