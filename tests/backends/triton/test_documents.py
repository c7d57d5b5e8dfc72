"""Packed documents and given indices in the kernels, against dense float64: outputs and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.triton.dense import DEVICE, GPU, Case, drawn, off

pytest.importorskip("triton")

from milepost.backends.triton import configs
from milepost.backends.triton.configs import Config
from milepost.backends.triton.decode import decode
from milepost.backends.triton.flash import flash

T = 70


@pytest.fixture(autouse=True)
def small_tiles(tiles: Iterator[None]):
    """Tiles that are small beside the documents, so that some are seen whole, some in part and some not at all."""
    chosen = {} if GPU else dict.fromkeys(configs.KERNELS, Config(16, 16, 4, 1, False))
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


INTERLEAVED = torch.tensor([[n % 3 for n in range(T)], [(n // 7) % 2 for n in range(T)]], device=DEVICE)
PACKED = {
    "packed": rows("a5 b50 c15"),
    "one text and padding": rows("a62 .8", ".21 a49"),
    "rows of their own": rows("a5 b50 c10 .5", ".9 d33 a28"),
    "interleaved": INTERLEAVED,
    "names out of order": rows("z20 b30 q20", "c70"),
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


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("packed", PACKED)
def test_documents_agree_with_float64(packed: str, option: str):
    torch.manual_seed(0)
    documents = PACKED[packed]
    b, heads = len(documents), 2
    index = counted(documents)
    case = Case(*drawn(b, heads, 1, T, T, 16, 16), made(option, heads, b, T))
    agree(case, {"documents": documents, "key_documents": documents, "index": index, "key_index": index})
