"""Texts read out of pages, in chunks and together, are attended to as in one pass over each."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.serving.pages import Texts, attend_in_pages, gather, write
from tests.oracles import assert_same

SIZE, HEADS, GROUPS, WIDE = 4, 4, 2, 8
ROPE, TRAINED = mp.Rope(WIDE), 12
METHODS = {
    "dual chunk": (mp.DualChunk(8, 2),),
    "ReRoPE": (mp.Rerope(5),),
    "Self-Extend, log-n": (mp.SelfExtend(2, 4), mp.LogN(TRAINED)),
    "Pivot": (mp.Pivot(mp.Rerope(5), TRAINED),),
    "Dilute, Pivot, sinks kept": (mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(5)), TRAINED, strength=0.25), TRAINED),),
    "StreamingLLM": (mp.Stream(2, 6),),
}
LENGTHS = (39, 5, 34)
CHUNKS = ((9, 3, 1), (0, 0, 30), (27, 0, 1), (1, 0, 0), (1, 1, 1), (1, 1, 1))
"""How many new tokens each text has in each step: chunks of prompts beside single tokens."""


def drawn(seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Raw queries, keys and values [t heads channels] of each text, in float64."""
    of = torch.Generator().manual_seed(seed)

    def some(t: int, heads: int) -> Tensor:
        return torch.randn(t, heads, WIDE, generator=of, dtype=torch.float64)

    return [(some(t, HEADS), some(t, GROUPS), some(t, GROUPS)) for t in LENGTHS]


def tables(seed: int = 0) -> Tensor:
    """Pages of each text in no order, of 40."""
    return torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:30].view(3, 10)


def slots(table: Tensor, first: int, end: int) -> Tensor:
    """Where the tokens of a text lie."""
    at = torch.arange(first, end)
    return table[at // SIZE] * SIZE + at % SIZE


def served(scheme: mp.Scheme, by_heads: bool, rotate: mp.Rope | None = None) -> list[Tensor]:
    """The outputs of each text, step by step out of pages that lie by heads or by tokens.

    rotate: by what keys are rotated before they come there, which they are not to be.
    """
    given, table, done = drawn(), tables(), [0, 0, 0]
    shape = (40, GROUPS, SIZE, 2 * WIDE) if by_heads else (40, SIZE, GROUPS, 2 * WIDE)
    pages = torch.full(shape, torch.nan, dtype=torch.float64)
    pages = pages if by_heads else pages.transpose(1, 2)
    outs: list[list[Tensor]] = [[], [], []]
    for news in CHUNKS:
        spans = [(at, at + new) for at, new in zip(done, news, strict=True)]
        q, k, v = (torch.cat([each[n][a:b] for each, (a, b) in zip(given, spans, strict=True)]) for n in range(3))
        at = torch.cat([torch.arange(a, b) for a, b in spans])
        if rotate is not None:
            k = rotate.turn(k.transpose(0, 1)[None], at, "key")[0].transpose(0, 1)
        # A server pads a step: with tokens that go nowhere.
        k, v = (torch.cat((each, torch.full_like(each[:1], torch.nan))) for each in (k, v))
        where = [slots(row, a, b) for row, (a, b) in zip(table, spans, strict=True)]
        write(pages, k, v, torch.cat((*where, torch.tensor([-1]))))
        done = [end for _, end in spans]
        starts = [0, *torch.tensor(news).cumsum(0).tolist()]
        out = torch.full((len(at) + 1, HEADS, WIDE), 7.0, dtype=torch.float64)
        attend_in_pages(q, pages, Texts(starts, done, table), scheme, out)
        assert (out[-1] == 7).all()
        for n, (a, b) in enumerate(pairwise(starts)):
            outs[n].append(out[a:b])
    return [torch.cat(each) for each in outs]


def at_once(scheme: mp.Scheme) -> list[Tensor]:
    """The outputs of each text in one pass."""
    return [mp.attend(*(x.transpose(0, 1)[None] for x in each), scheme)[0].transpose(0, 1) for each in drawn()]


@pytest.mark.parametrize("by_heads", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_texts_in_pages_are_attended_to_as_in_one_pass(method: str, by_heads: bool):
    scheme = mp.Scheme(ROPE, *METHODS[method], mp.causal)
    for ours, whole in zip(served(scheme, by_heads), at_once(scheme), strict=True):
        assert_same(ours, whole)


def test_keys_that_were_rotated_before_would_be_noticed():
    scheme = mp.Scheme(ROPE, *METHODS["ReRoPE"], mp.causal)
    twice = served(scheme, True, ROPE)
    assert max(float((one - other).abs().max()) for one, other in zip(twice, at_once(scheme), strict=True)) > 0.1


def test_texts_share_the_pages_of_a_prefix():
    scheme = mp.Scheme(ROPE, *METHODS["Self-Extend, log-n"], mp.causal)
    (q, k, v), *_ = drawn()
    pages = torch.zeros(40, GROUPS, SIZE, 2 * WIDE, dtype=torch.float64)
    table = torch.tensor([[5, 9, 2], [5, 9, 7]])
    write(pages, k[:10], v[:10], slots(table[0], 0, 10))
    write(pages, k[20:24], v[20:24], slots(table[1], 8, 12))
    out = torch.empty(4, HEADS, WIDE, dtype=torch.float64)
    attend_in_pages(q[20:24], pages, Texts([0, 4], [12], table[1:]), scheme, out)
    keys, values = (torch.cat((x[:8], x[20:24])).transpose(0, 1)[None] for x in (k, v))
    assert_same(out, mp.attend(q[20:24].transpose(0, 1)[None], keys, values, scheme)[0].transpose(0, 1))


def test_values_may_be_wider_than_keys():
    pages = torch.zeros(3, 1, 2, 5)
    write(pages, torch.ones(3, 1, 2), torch.full((3, 1, 3), 2.0), torch.tensor([4, 5, 2]))
    keys, values = gather(pages, torch.tensor([2, 1]), 3, 2)
    assert keys.shape == (1, 1, 3, 2)
    assert values.shape == (1, 1, 3, 3)
    assert (keys == 1).all()
    assert (values == 2).all()


def test_more_new_tokens_than_tokens_are_refused():
    with pytest.raises(ValueError, match=r"^Texts: \[3\] new tokens and \[2\] tokens in all do not fit"):
        Texts([0, 3], [2], torch.zeros(1, 1, dtype=torch.int64))
