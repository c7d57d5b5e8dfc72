"""Packed documents and given indices in the kernels, against dense float64: outputs and gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.triton.dense import DEVICE, GPU, Case, drawn, off

pytest.importorskip("triton")

from milepost.backends.triton.attention.flash import UNLIMITED, flash
from milepost.backends.triton.decoding.decode import decode
from milepost.backends.triton.packed.block_ranges import Tokens, bounds
from milepost.backends.triton.packed.documents import order_within
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config

T = 70
WALK = Config(128, 128, 4, 1, False)


@pytest.fixture(autouse=True)
def small_tiles(tiles: Iterator[None]):
    """Tiles that are small beside the documents, so that some are seen whole, some in part and some not at all."""
    chosen = {} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1, False)) | {"walk": WALK}
    with configs.override(**chosen):
        yield


def dense(
    q: Tensor, k: Tensor, v: Tensor, *, documents: Tensor | None, key_documents: Tensor | None, index: Tensor,
    key_index: Tensor, ahead: int | None = None, behind: int | None = None, sinks: int = 0,
    slopes: Tensor | None = None, table: Tensor | None = None, first: int = 0, sharpen: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax over the keys of a query's own document, by the indices i and j."""
    h, g = q.shape[1], k.shape[1]
    k, v = k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1)
    i, j = index[:, None, :, None], key_index[:, None, None, :]
    score = q @ k.mT * q.shape[-1] ** -0.5
    if sharpen is not None:
        score = score * sharpen[:, None, :, None]
    if slopes is not None:
        score = score - slopes[:, None, None] * (i - j).abs()
    if table is not None:
        at = (i - j).clamp(first, first + table.shape[1] - 1) - first
        score = score + torch.stack([table[n][at[:, 0]] for n in range(h)], 1)
    if cap is not None:
        score = cap * torch.tanh(score / cap)
    visible = (j - i) <= (math.inf if ahead is None else ahead)
    if behind is not None:
        visible = visible & ((i - j < behind) | (j < sinks))
    if documents is not None and key_documents is not None:
        own, other = documents[:, None, :, None], key_documents[:, None, None, :]
        visible = visible & (own == other) & (own >= 0)
    score = score.masked_fill(~visible, -math.inf)
    blind = ~visible.expand_as(score).any(-1, keepdim=True)
    weights = torch.softmax(score.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    return weights @ v, torch.logsumexp(score.masked_fill(blind, 0.0), -1).masked_fill(blind[..., 0], -math.inf)


def counted(documents: Tensor) -> Tensor:
    """0, 1, 2 … in each document, by a loop."""
    index = torch.zeros_like(documents)
    for row in range(documents.shape[0]):
        seen: dict[int, int] = {}
        for n, document in enumerate(documents[row].tolist()):
            index[row, n] = seen.get(document, 0)
            seen[document] = seen.get(document, 0) + 1
    return index


def rows(*texts: str) -> Tensor:
    """Documents from letters and how often they come: "a40 b30 .5", where a point is padding."""
    made = []
    for text in texts:
        runs = [(each[0], int(each[1:])) for each in text.split()]
        made.append([-1 if letter == "." else ord(letter) - 97 for letter, n in runs for _ in range(n)])
    return torch.tensor(made, device=DEVICE)


PACKED = {
    "packed": rows("a5 b65"),
    "padded": rows("a62 .8", ".21 a49"),
    "rows of their own": rows("a9 b50 c6 .5", ".3 d34 a33"),
    "interleaved": torch.tensor([[n % 3 if n < 60 else -1 for n in range(T)]], device=DEVICE),
    "names out of order": rows("z20 b50"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"ahead": 0},
    "both ways": {},
    "window": {"ahead": 0, "behind": 9, "sinks": 2},
    "slopes": {"ahead": 0, "slopes": True},
    "slopes both ways, capped": {"slopes": True, "cap": 2.0},
    "table": {"ahead": 0, "table": 7, "sharpen": True},
    "long table, window": {"ahead": 3, "table": 90, "first": -20, "behind": 20, "sinks": 3, "slopes": True},
}


def made(name: str, heads: int, b: int, t: int) -> dict[str, Any]:
    options = dict(OPTIONS[name])
    if "slopes" in options:
        options["slopes"] = torch.rand(heads, device=DEVICE) * 0.2
    if "table" in options:
        options["table"] = torch.randn(heads, options["table"], device=DEVICE)
    if "sharpen" in options:
        options["sharpen"] = torch.rand(b, t, device=DEVICE) + 0.5
    return options


def agree(case: Case, tokens: dict[str, Tensor | None], by_place: int | None = None) -> None:
    """out, lse and every gradient; by_place: the indices are left out, and rows start at this offset."""
    ours, exact = case.to(torch.float32, torch.float32), case.to(torch.float64, torch.float64)
    answers: list[dict[str, Tensor]] = []
    for each, attend in ((ours, flash), (exact, dense)):
        given = dict(tokens)
        if attend is flash and by_place is not None:
            given |= {"index": None, "key_index": None, "offset": by_place}
        out, lse = attend(each.q, each.k, each.v, **each.options, **given)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=out.dtype).view_as(out)
        total = (out * weights).sum() + lse.masked_fill(lse.isinf(), 0.0).sum()
        grads = torch.autograd.grad(total, list(each.leaves.values()), materialize_grads=True)
        answers.append({"out": out, "lse": lse, **dict(zip(each.leaves, grads, strict=True))})
    for name, true in answers[1].items():
        assert off(answers[0][name], true) < 5e-6, name


PAIRS = [
    ("packed", "table"), ("padded", "window"), ("rows of their own", "both ways"),
    ("interleaved", "slopes both ways, capped"),
]  # fmt: skip


@pytest.mark.parametrize(("packed", "option"), list(itertools.product(PACKED, OPTIONS)) if GPU else PAIRS)
def test_documents_agree_with_float64(packed: str, option: str):
    torch.manual_seed(0)
    documents = PACKED[packed]
    b, heads = len(documents), 2 if GPU or packed == "rows of their own" else 1
    index = counted(documents)
    case = Case(*drawn(b, heads, 1, T, T, 16, 16), made(option, heads, b, T))
    agree(case, {"documents": documents, "key_documents": documents, "index": index, "key_index": index})


def test_documents_of_a_text_that_counts_on_agree_with_float64():
    # Indices run through the row, and the queries are its last tokens: nothing but the documents is read.
    torch.manual_seed(1)
    documents, index = rows("a20 b50"), torch.arange(T, device=DEVICE)[None]
    options = made("long table, window", 1, 1, 40)
    tokens = {"documents": documents[:, 30:], "key_documents": documents, "index": index[:, 30:], "key_index": index}
    agree(Case(*drawn(1, 1, 1, 40, T, 16, 16), options), tokens, by_place=30)


@pytest.mark.parametrize("option", ["window", "slopes"] if GPU else ["window"])
def test_indices_of_their_own_agree_with_float64(option: str):
    # Tokens are gone, inside a tile and between two; the third row is in no order.
    torch.manual_seed(2)
    index = torch.arange(T, device=DEVICE) + torch.tensor([[0], [9], [0]], device=DEVICE)
    index[0, 10:] += 5
    index[1, 32:] += 13
    index[2] = torch.randperm(T, device=DEVICE)
    own = index[:, T - 33 :] + 1
    tokens = {"documents": None, "key_documents": None, "index": own.int(), "key_index": index}
    agree(Case(*drawn(3, 1, 1, 33, T, 16, 16), made(option, 1, 3, 33)), tokens)


@pytest.mark.parametrize("option", ["window", "table", "slopes both ways, capped"][: 3 if GPU else 2])
def test_steps_agree_with_float64(option: str):
    torch.manual_seed(3)
    b, t, s = 3, 3, 150
    documents = torch.stack([rows("a150")[0], rows(".90 a60")[0], rows("a30 b70 a50")[0]])
    index = counted(documents)
    case = Case(*drawn(b, 4, 2, t, s, 16, 16), made(option, 4, b, t)).to(torch.float32, torch.float32)
    tokens = {
        "documents": documents[:, s - t :], "key_documents": documents, "index": index[:, s - t :], "key_index": index,
    }  # fmt: skip
    wide = case.to(torch.float64, torch.float64)
    options = {name: each.detach() if isinstance(each, Tensor) else each for name, each in case.options.items()}
    ours = decode(case.q.detach(), case.k.detach(), case.v.detach(), **{"ahead": None} | options, **tokens)
    for mine, true in zip(ours, dense(wide.q, wide.k, wide.v, **wide.options, **tokens), strict=True):
        assert off(mine, true) < 5e-6


def test_blocks_that_nobody_sees_are_left_out():
    documents = rows("a32 b64 .32 c32").to(torch.int32)
    counts = (160, 160, 1, 0, UNLIMITED, 0, 0, 0, 0)
    index = counted(documents)
    tokens = Tokens(documents, documents, index, index)
    found, _ = bounds(tokens, counts, 32, 32, True, {"BEHIND": False, "AHEAD": True})
    # start, full, edge, end of each block of rows: its own document, behind it, the block on the diagonal masked.
    assert found[0, :, 2:6].tolist() == [
        [0, 32, 32, 32],
        [32, 64, 64, 64],
        [32, 32, 64, 96],
        [0, 0, 0, 0],
        [128, 160, 160, 160],
    ]
    found, _ = bounds(tokens, counts, 32, 32, False, {"BEHIND": False, "AHEAD": True})
    assert found[0, :, 2:6].tolist() == [
        [0, 32, 32, 32],
        [32, 64, 96, 96],
        [64, 96, 96, 96],
        [0, 0, 0, 0],
        [128, 160, 160, 160],
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"documents": rows("a8")}, "flash: documents and key_documents come together; give both or neither"),
        ({"index": rows("a8")}, "flash: index and key_index come together; give both or neither"),
        ({"documents": rows("a7"), "key_documents": rows("a8")}, "documents is [1, 7] in torch.int64; give [1, 8] in"),
        ({"index": rows("a8").float(), "key_index": rows("a8")}, "index is [1, 8] in torch.float32; give"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_say_what_to_give(given: dict[str, Tensor], says: str):
    with pytest.raises(ValueError) as error:
        flash(*drawn(1, 1, 1, 8, 8, 16, 16), **given)
    assert says in str(error.value)


def test_a_table_that_learns_wants_documents_beside_an_index():
    q, k, v = drawn(1, 1, 1, 8, 8, 16, 16)
    index = torch.arange(8, device=DEVICE)[None]
    with pytest.raises(ValueError, match="with an index it needs documents"):
        flash(q, k, v, table=torch.randn(1, 4, device=DEVICE, requires_grad=True), index=index, key_index=index)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("b", "t"), [(1, 1), (2, 530)])
def test_tokens_are_numbered_within_their_documents(b: int, t: int, dtype: torch.dtype):
    documents = torch.randint(-1, 4, (b, t), dtype=dtype, device=DEVICE)
    documents[0] = documents[0].sort().values
    documents[-1, t // 2 :] = 1 << 30
    want = [[row[:i].count(row[i]) for i in range(t)] for row in documents.tolist()]
    assert order_within(documents).tolist() == want
    assert order_within(documents.mT.contiguous().mT).tolist() == want
    assert order_within(documents[:1].expand(4, t)).tolist() == [want[0]] * 4
