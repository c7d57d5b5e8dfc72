"""Too many keys: attention spreads over them, whatever the positions are."""

from __future__ import annotations

import math
from typing import Any

from milepost.explore.analyses.entropy import attention_entropy
from milepost.explore.controls import Choice, Slider
from milepost.explore.scene import Line, Lines, Say, Scene, Table
from milepost.explore.stories.names import numbers, trained_at
from milepost.explore.stories.story import Guess, Story
from milepost.methods.far_keys import Pivot
from milepost.methods.nope import Nope
from milepost.methods.regions import Rerope, Stream
from milepost.methods.rope import Rope
from milepost.methods.softmax import LogN, Scale
from milepost.scheme import Scheme
from milepost.seams.visible import causal

LENGTHS = tuple(2**n for n in range(6, 13))
HEADS, WIDTH = 8, 64
METHODS = {
    "log_n": Say("log-n scaling", "log-n 缩放"),
    "log_n_trained": Say("log-n, shorter texts too", "log-n，短文本也缩放"),
    "pivot": Say("ReRoPE with Pivot", "ReRoPE 加 Pivot"),
    "stream": Say("4 sinks and a window", "4 个 sink 加窗口"),
}


def spread(method: str, trained: int, sharp: float) -> Scene:
    """Return the entropy of attention by the number of keys, plain and with a method."""
    scale = sharp / math.sqrt(WIDTH)
    made = {
        "log_n": (Nope(), LogN(trained)),
        "log_n_trained": (Nope(), LogN(trained, clip=False)),
        "pivot": (Rope(WIDTH), Pivot(Rerope(trained // 2), trained)),
        "stream": (Rope(WIDTH), Stream(4, trained - 4)),
    }
    written = {
        "log_n": f"mp.Nope(), mp.LogN({trained})",
        "log_n_trained": f"mp.Nope(), mp.LogN({trained}, clip=False)",
        "pivot": f"mp.Rope({WIDTH}), mp.Pivot(mp.Rerope({trained // 2}), {trained})",
        "stream": f"mp.Rope({WIDTH}), mp.Stream(4, {trained - 4})",
    }
    schemes = {"plain": Scheme(Nope(), Scale(scale), causal), "now": Scheme(*made[method], Scale(scale), causal)}
    lengths = tuple(sorted({*LENGTHS, trained}))
    found = attention_entropy(schemes, trained=trained, lengths=lengths, head_dim=WIDTH, heads=HEADS)
    keys, plain, now, even = (numbers(found[name]) for name in ("keys", "plain", "now", "even weights"))
    name = METHODS[method]
    at = lengths.index(trained)
    return Scene(
        (
            Lines(
                Say("Entropy of the last token's weights", "最后一个 token 的注意力熵"),
                Say("number of keys", "键的个数"),
                Say("entropy in nats", "熵（nat）"),
                keys,
                (
                    Line(name, now),
                    Line(Say("plain attention", "普通注意力"), plain, 1, quiet=True),
                    Line(Say("even weights, ln n", "均匀权重，ln n"), even, 2, quiet=True),
                ),
                (trained_at(trained, "trained"),),
                x_scale="log",
            ),
            Table(
                Say("How many keys that is, as e to the entropy", "相当于多少个键（e 的熵次方）"),
                (Say("keys", "键"), Say("plain attention", "普通注意力"), name),
                tuple((n, math.exp(one), math.exp(other)) for n, one, other in zip(keys, plain, now, strict=True)),
            ),
        ),
        _says(name, keys, plain, now, at),
        f"""\
import milepost as mp
from milepost import explore

scale = mp.Scale({scale})
schemes = {{
    "plain": mp.Scheme(mp.Nope(), scale, mp.causal),
    "now": mp.Scheme({written[method]}, scale, mp.causal),
}}
lengths = {lengths}
found = explore.attention_entropy(schemes, lengths=lengths, head_dim={WIDTH}, heads={HEADS})
print(found["plain"], found["now"])
""",
        (
            f"Nope(), Scale({scale}), causal",
            f"{written[method].replace('mp.', '')}, Scale({scale}), causal",
        ),
        (("trained", trained), ("vectors", "apart")),
    )


def _says(name: Say, keys: Any, plain: Any, now: Any, at: int) -> Say:
    grown, slower = plain[-1] - plain[at], now[-1] - now[at]
    first, last, most = int(keys[at]), int(keys[-1]), math.log(keys[-1] / keys[at])
    return Say(
        f"From {first:,} keys, the trained length, to {last:,} the entropy grows from {plain[at]:.2f} to "
        f"{plain[-1]:.2f} nats, by {grown:.2f}; ln n grows by {most:.2f}. With {name.en} it changes by {slower:+.2f}, "
        f"to {now[-1]:.2f}.",
        f"从训练长度 {first:,} 个键到 {last:,} 个键，熵从 {plain[at]:.2f} 增加到 {plain[-1]:.2f} nat，增加了 "
        f"{grown:.2f}；"
        f"ln n 增加 {most:.2f}。用 {name.zh}，变化为 {slower:+.2f}，到 {now[-1]:.2f}。",
    )


STORY = Story(
    name="keys",
    question=Say("Do too many keys blur attention?", "键太多，注意力会分散吗？"),
    lead=Say(
        "Positions are not the only thing that is new in a long text: there are more keys. Queries and keys here are "
        "random, so that nothing stands out; the last token attends to all of them.",
        "文本变长，新的不只是位置，键也变多了。这里的 q、k 都是随机的，没有哪个键特别突出；最后一个 token "
        "对所有键做注意力。",
    ),
    look_for=Say(
        "Plain attention grows like ln n: each doubling spreads it over twice as many keys. log-n slows that down and "
        "does not stop it. Pivot and a window with sinks hold it. Sharper scores spread less from the start.",
        "普通注意力的熵像 ln n 一样增长：键多一倍，就分散到多一倍的键上。log-n 只能让它慢一些，不能让它停下。"
        "Pivot、窗口加 sink 能稳住它。分数越尖锐，一开始就越集中。",
    ),
    controls=(
        Choice("method", Say("method", "方法"), tuple(METHODS.items()), "log_n"),
        Slider("trained", Say("trained length", "训练长度"), 128, 2048, 512, 1, "doubling"),
        Slider("sharp", Say("scores times", "分数乘以"), 0.5, 4, 1, 1, "doubling"),
    ),
    guess=Guess(
        Say(
            "Past the trained length L log-n multiplies every score by ln n / ln L. Draw the entropy by the number of "
            "keys.",
            "超过训练长度 L 后，log-n 把每个分数乘以 ln n / ln L。画出熵随键的个数的变化。",
        )
    ),
    compute=spread,
    try_own=(
        "Rope(64), causal",
        "Rope(64), LogN(512), causal",
        "Rope(64), Pivot(Rerope(256), 512), causal",
        "Rope(64), Stream(4, 508)",
    ),
    try_trained=512,
    try_length=4096,
    grid=5,
)

__all__ = ["STORY"]
