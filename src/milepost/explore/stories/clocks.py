"""Fast and slow hands: each pair of channels is a clock, and only some have gone all the way round in training."""

from __future__ import annotations

import math

from milepost.explore.analyses.angles import angles_seen
from milepost.explore.controls import Choice, Slider
from milepost.explore.scene import Dial, Dials, Line, Lines, Mark, Say, Scene
from milepost.explore.stories.names import PAIR, numbers
from milepost.explore.stories.story import Guess, Story
from milepost.methods.rope import Rope

TRAINED = 4096
SHORTEST = 64
"""The composer draws no shorter text."""
BASES = {
    "10000": Say("10,000 (as Llama 2)", "10,000（同 Llama 2）"),
    "500000": Say("500,000 (as Llama 3)", "500,000（同 Llama 3）"),
    "1000000": Say("1,000,000 (as Code Llama)", "1,000,000（同 Code Llama）"),
}


def read_clocks(position: int, base: str) -> Scene:
    """Read every clock of a head at a position, beside what training showed of it."""
    theta = float(base)
    found = angles_seen(Rope(128, theta=theta), trained=TRAINED, length=position)
    seen, hands = found["turns in training"], found["turns"]
    pairs, full = len(seen), int((seen >= 1 - 1e-9).sum())
    new, step = int((found["unseen arc"] > 0).sum()), float(hands[0] / position * math.tau)
    # A hand that has passed a new arc may stand in a known one again.
    standing = int((hands % 1 > seen + 1e-9).sum())
    slowest = float(seen[-1])
    return Scene(
        (
            Lines(
                Say(f"Turns of each pair within {TRAINED:,} tokens", f"每一对在 {TRAINED:,} 个 token 内转了几圈"),
                PAIR,
                Say("turns", "圈数"),
                list(range(pairs)),
                (
                    Line(Say("in training", "训练时"), numbers(seen)),
                    Line(Say("one whole turn", "正好一圈"), [1.0] * pairs, quiet=True),
                ),
                (Mark(Say(f"{full} pairs turn fully", f"{full} 对转满一圈"), full - 0.5),),
                y_scale="log",
            ),
            Dials(
                Say(f"The {pairs} clocks at position {position:,}", f"位置 {position:,} 处的 {pairs} 个表盘"),
                tuple(
                    Dial(f"{n}", min(float(seen[n]), 1.0), float(hands[n]), float(hands[n] % 1)) for n in range(pairs)
                ),
            ),
        ),
        Say(
            f"{full} of {pairs} pairs turn fully within {TRAINED:,} tokens; the fastest takes {step:.3f} radians a "
            f"token, the slowest makes {slowest:.2g} of a turn in all. "
            + (
                f"At {position:,} tokens {new} pairs have passed through arcs that training never reached; {standing} "
                "stand in one there."
                if new
                else f"Up to {position:,} token{'s' * (position > 1)} no hand leaves what training showed."
            ),
            f"{pairs} 对维度中，有 {full} 对在 {TRAINED:,} 个 token 内转满一圈；最快的每个 token 转 {step:.3f} 弧度，"
            f"最慢的总共只转了 {slowest:.2g} 圈。"
            + (
                f"到位置 {position:,} 为止，有 {new} 对经过了训练时从未到过的弧段；此刻停在其中的有 {standing} 对。"
                if new
                else f"直到 {position:,}，没有一对离开训练时见过的范围。"
            ),
        ),
        f"""\
import milepost as mp
from milepost import explore

found = explore.angles_seen(mp.Rope(128, theta={theta}), trained={TRAINED}, length={position})
print(found["turns in training"], found["turns"] % 1)
""",
        tuple(f"Rope(128, theta={float(each)}), causal" for each in (base, *(each for each in BASES if each != base))),
        (("length", max(position, SHORTEST)),),
    )


STORY = Story(
    name="clocks",
    question=Say("Which clocks has the model seen all of?", "哪些表盘，模型看全了？"),
    lead=Say(
        "RoPE turns every pair of channels at a rate of its own, as the hands of many clocks. A position is where all "
        f"hands stand. This head has 128 channels and was trained on {TRAINED:,} tokens.",
        "RoPE 让每一对维度以各自的速度旋转，就像许多表盘上的指针。所有指针合起来就表示一个位置。"
        f"这个头有 128 维，训练长度是 {TRAINED:,}。",
    ),
    look_for=Say(
        "Fast hands have pointed everywhere; slow ones have shown an arc and no more. Past the trained length only "
        "the slow ones go where they never were. A larger base leaves more of them at the same trained length; here it "
        "alone changes. Models with a larger base were trained on longer texts, Llama 3 at 8,192 tokens and Code Llama "
        "at 16,384, where slower pairs tell far positions apart. Question 5 raises the base after training, which "
        "slows pairs towards angles that they know.",
        "快的指针每个方向都指过，慢的只走过一小段弧。超过训练长度后，只有慢的那些会走到没去过的地方。"
        "训练长度不变时，底数越大，这样的指针越多；这里只改底数。底数更大的模型是用更长的文本训练的"
        "（Llama 3 为 8,192，Code Llama 为 16,384），更慢的维度可以区分远处的位置。"
        "第 5 个问题是在训练之后增大底数，让各对转慢，回到见过的角度。",
    ),
    controls=(
        Slider("position", Say("position", "位置"), 1, 32_768, 4 * TRAINED, 0.5, "doubling"),
        Choice("base", Say("base", "底数"), tuple(BASES.items()), "10000"),
    ),
    guess=Guess(
        Say(
            f"The base is 10,000: pair n of 64 turns by 10,000^(−n/64) radians a token, the fastest first. How often "
            f"does each turn within {TRAINED:,} tokens? Draw it.",
            f"底数是 10,000：64 对中的第 n 对每个 token 转 10,000^(−n/64) 弧度，最快的在前。"
            f"{TRAINED:,} 个 token 内各转多少圈？把曲线画出来。",
        ),
        bare=True,
    ),
    compute=read_clocks,
    try_own=(
        "Rope(128), causal",
        "Rope(128, theta=500000.0), causal",
        "Rope(128, theta=1000000.0), causal",
    ),
    grid=9,
)

__all__ = ["STORY"]
