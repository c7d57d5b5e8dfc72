"""Does attention know order? A sentence is shuffled, and every word's output is compared with what it was."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.attend import attend
from milepost.explore.controls import NotPossibleError, Slider, Switch, Words
from milepost.explore.pictures.axes import number
from milepost.explore.scene import Map, Say, Scene, Table
from milepost.explore.stories.names import numbers, same
from milepost.explore.stories.story import Guess, Story
from milepost.methods.nope import Nope
from milepost.methods.rope import Rope
from milepost.scheme import Scheme
from milepost.scores import weights
from milepost.seams.visible import causal as hides_ahead

SENTENCE = "Enhanced Transformer with Rotary Position Embedding"
WIDTH = 32
MOST = 16
"""How many words a sentence may have."""


def shuffled(sentence: str, shuffle: int, causal: bool) -> Scene:
    """Attend to a sentence and to the same words in another order, and put the outputs back in place."""
    words = _words(sentence)
    ids = torch.tensor([sorted(set(words)).index(each) for each in words])
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, len(set(words)), WIDTH, generator=draw, dtype=torch.float64)[:, :, :, ids]
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(shuffle))
    # An order that changes nothing is no shuffle.
    order = order.roll(1) if torch.equal(order, torch.arange(len(words))) else order
    back = order.argsort()
    ahead = (hides_ahead,) if causal else ()
    schemes = {"NoPE": Scheme(Nope(), *ahead), "RoPE": Scheme(Rope(WIDTH), *ahead)}
    moved: dict[str, list[float]] = {}
    maps: list[Map] = []
    for name, scheme in schemes.items():
        was = attend(q, k, v, scheme, backend="reference")[0, 0]
        now = attend(q[:, :, order], k[:, :, order], v[:, :, order], scheme, backend="reference")[0, 0]
        moved[name] = numbers((now[back] - was).abs().amax(-1))
        before = weights(q, k, scheme)[0, 0]
        after = weights(q[:, :, order], k[:, :, order], scheme)[0, 0][back][:, back]
        maps += [
            _map(words, before, Say(f"{name}: weights in the sentence", f"{name}：原句的注意力权重")),
            _map(words, after, Say(f"{name}: shuffled, put back in place", f"{name}：打乱后，按原位放回")),
        ]
    largest = {name: max(each) for name, each in moved.items()}
    rows = tuple((word, *(moved[name][n] for name in schemes)) for n, word in enumerate(words))
    table = Table(
        Say("How far the output of each word moves", "每个词的输出变了多少"),
        (Say("word", "词"), same("NoPE"), same("RoPE")),
        (*rows, (Say("largest", "最大"), largest["NoPE"], largest["RoPE"])),
    )
    mask = ", causal" if causal else ""
    schemes_to_try = (f"Nope(){mask}", f"Rope({WIDTH}){mask}")
    return Scene((table, *maps), _says(largest, causal), _code(words, shuffle, causal), schemes_to_try)


def _words(sentence: str) -> list[str]:
    """Return the words of a sentence; its letters where it has no spaces, as in Chinese."""
    words = sentence.split()
    words = list(words[0]) if len(words) == 1 else words
    if len(words) < 2:
        raise NotPossibleError("sentence", Say("write at least two words", "请至少写两个词"))
    if len(words) > MOST:
        many = Say(f"write at most {MOST} words; these are {len(words)}", f"最多 {MOST} 个词，现有 {len(words)} 个")
        raise NotPossibleError("sentence", many)
    if len(set(words)) < 2:
        raise NotPossibleError("sentence", Say("write two words that differ", "请至少写两个不同的词"))
    return words


def _map(words: list[str], shares: Tensor, title: Say) -> Map:
    """Return weights as a map; a key that is hidden has none."""
    shown = [numbers(row) for row in shares.masked_fill(shares == 0, torch.nan)]
    return Map(title, Say("key", "键"), Say("query", "查询"), shown, words, words, Say("weight", "权重"))


def _says(largest: dict[str, float], causal: bool) -> Say:
    nope, rope = largest["NoPE"], largest["RoPE"]
    if causal:
        return Say(
            f"With the causal mask the outputs move by up to {nope:.2g} without any positions: each word sees those "
            f"before it, and these are others now. The mask alone tells a NoPE layer the order. With RoPE: {rope:.2g}.",
            f"加上因果掩码，即使没有位置编码，输出也变了 {nope:.2g}：每个词只看得到前面的词，打乱后前面的词就不同了。"
            f"因果掩码本身就泄漏了顺序，所以 NoPE 层也能工作。RoPE 则变了 {rope:.2g}。",
        )
    return Say(
        f"Without positions the outputs move along with their words: they differ by {number(nope)} at most, which is "
        f"rounding. With RoPE they change by up to {rope:.2g}.",
        f"没有位置编码时，输出只是跟着词一起换了位置：最大相差 {number(nope)}，只是舍入误差。"
        f"加上 RoPE，输出最多变了 {rope:.2g}。",
    )


def _code(words: list[str], shuffle: int, causal: bool) -> str:
    ahead = ", mp.causal" if causal else ""
    return f"""\
import torch
import milepost as mp

words = {words!r}
ids = torch.tensor([sorted(set(words)).index(each) for each in words])
draw = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 1, 1, len(set(words)), {WIDTH}, generator=draw, dtype=torch.float64)[:, :, :, ids]
order = torch.randperm(len(words), generator=torch.Generator().manual_seed({shuffle}))
if torch.equal(order, torch.arange(len(words))):
    order = order.roll(1)
moved = {{}}
for name, part in {{"NoPE": mp.Nope(), "RoPE": mp.Rope({WIDTH})}}.items():
    scheme = mp.Scheme(part{ahead})
    was = mp.attend(q, k, v, scheme, backend="reference")[0, 0]
    now = mp.attend(q[:, :, order], k[:, :, order], v[:, :, order], scheme, backend="reference")[0, 0]
    moved[name] = (now[order.argsort()] - was).abs().amax(-1)
print(moved)
"""


STORY = Story(
    name="order",
    question=Say("Does attention know order?", "注意力知道顺序吗？"),
    lead=Say(
        "Every word gets a random query, key and value. Attention runs over the sentence, then over the same words "
        "shuffled, and each word's two outputs are compared.",
        "给每个词随机取一组 q、k、v。先对原句做一次注意力，再把词打乱做一次，然后比较每个词前后的输出。",
    ),
    look_for=Say(
        "NoPE's two maps are the same picture. Then switch the causal mask on: now its maps differ as well, though it "
        "still has no positions.",
        "NoPE 的两张图一模一样。再打开因果掩码：它依然没有位置编码，两张图却不同了。",
    ),
    controls=(
        Words("sentence", Say("sentence", "句子"), SENTENCE, most=120),
        Slider("shuffle", Say("which shuffle", "第几种打乱"), 1, 12, 1),
        Switch("causal", Say("causal mask", "因果掩码")),
    ),
    guess=Guess(
        Say(
            "The words are shuffled, with no positions and no mask. What becomes of a word's output?",
            "没有位置编码，也没有掩码。把词打乱，一个词的输出会怎样？",
        ),
        figure=0,
        answers=(
            Say("It stays the same, at the word's new place", "不变，只是跟着词换了位置"),
            Say("It changes a little, for far words more", "略有变化，离得远的词变得更多"),
            Say("It becomes something else", "变成完全不同的输出"),
        ),
        right=0,
    ),
    compute=shuffled,
    try_own=("Nope()", "Nope(), causal", "Rope(64)", "Rope(64), causal"),
    try_trained=256,
    try_length=512,
    grid=12,
)

__all__ = ["STORY"]
