from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost import Alibi, Rope, Scheme, Stream, attend, causal, window
from tests.oracles import assert_same, inputs, turned

SETTINGS = [(0, 3), (1, 1), (2, 4), (4, 3), (3, 20), (5, 1)]


def rotary(q: Tensor, keys: Tensor) -> Tensor:
    """The last of the cache's slots holds the query's own key, so that is where the query stands."""
    slots = torch.arange(keys.shape[2])
    return (turned(q, slots[-1:]) @ turned(keys, slots).conj().mT).real / math.sqrt(q.shape[3])


def biased(q: Tensor, keys: Tensor) -> Tensor:
    """ALiBi over the slots of the cache, without a gap."""
    slots = torch.arange(keys.shape[2])
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / q.shape[1]) for h in range(q.shape[1])], dtype=torch.float64)
    return q @ keys.mT / math.sqrt(q.shape[3]) - slopes[:, None, None] * (slots[-1] - slots)


def replayed(
    q: Tensor, k: Tensor, v: Tensor, sinks: int, window: int, evict: str, score: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, list[int]]:
    """A real cache of unturned keys, one token at a time; also how many keys each query saw."""
    keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    held_keys, held_values = keys[:, :, :0], values[:, :, :0]
    rows: list[Tensor] = []
    counts: list[int] = []

    def evicted(x: Tensor, coming: int) -> Tensor:
        n = x.shape[2]
        if n + coming <= sinks + window:
            return x
        return torch.cat([x[:, :, :sinks], x[:, :, n - window + coming : n]], 2)

    for i in range(q.shape[2]):
        if evict == "before":
            held_keys, held_values = evicted(held_keys, 1), evicted(held_values, 1)
        held_keys = torch.cat([held_keys, keys[:, :, i : i + 1]], 2)
        held_values = torch.cat([held_values, values[:, :, i : i + 1]], 2)
        rows.append(score(q[:, :, i : i + 1], held_keys).softmax(-1) @ held_values)
        counts.append(held_keys.shape[2])
        if evict == "after":
            held_keys, held_values = evicted(held_keys, 0), evicted(held_values, 0)
    return torch.cat(rows, 2), counts


def seen(method: Stream, t: int) -> Tensor:
    zero = torch.tensor(0)
    return method.see(zero, zero, torch.arange(t)[:, None], torch.arange(t))


@pytest.mark.parametrize("evict", ["before", "after"])
@pytest.mark.parametrize(("sinks", "window"), SETTINGS)
def test_a_rolling_cache_replayed_with_rope(sinks: int, window: int, evict: str):
    q, k, v = inputs(t=16, dv=5)
    expected, counts = replayed(q, k, v, sinks, window, evict, rotary)
    method = Stream(sinks, window, evict=evict)
    assert seen(method, 16).sum(-1).tolist() == counts
    assert_same(attend(q, k, v, Scheme(Rope(8), method)), expected)


@pytest.mark.parametrize("evict", ["before", "after"])
@pytest.mark.parametrize(("sinks", "window"), SETTINGS)
def test_a_rolling_cache_replayed_with_alibi(sinks: int, window: int, evict: str):
    q, k, v = inputs(t=16)
    expected, _ = replayed(q, k, v, sinks, window, evict, biased)
    assert_same(attend(q, k, v, Scheme(Alibi(4), Stream(sinks, window, evict=evict))), expected)


@pytest.mark.parametrize(("evict", "more"), [("before", 0), ("after", 1)])
def test_how_many_keys_a_query_sees_and_where_it_stands(evict: str, more: int):
    """Chat evicts first: S + W keys, the query at S + W − 1. The perplexity script evicts last: one more of each."""
    sinks, window, t = 4, 6, 30
    method = Stream(sinks, window, evict=evict)
    visible = seen(method, t)
    p, r = torch.arange(t)[:, None], torch.arange(t)
    distance = torch.full((t, t), -1)
    for regime in method.place():
        distance = torch.where(regime.holds(p, r) & visible, regime.query(p) - regime.key(r), distance)
    for i in range(sinks + window, t):
        assert int(visible[i].sum()) == sinks + window + more
        # Slots 0 … S + W − 1 (or S + W) of the cache, counted from the query.
        assert distance[i][visible[i]].tolist() == list(range(sinks + window - 1 + more, -1, -1))


@pytest.mark.parametrize("method", [Stream(3, 8), Stream(1, 9, evict="after"), Stream(40, 1)], ids=str)
def test_a_cache_as_long_as_the_text_is_full_attention(method: Stream):
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Rope(8), method)), attend(q, k, v, Scheme(Rope(8), causal)))


@pytest.mark.parametrize(("evict", "keys"), [("before", 4), ("after", 5)])
def test_without_sinks_it_is_a_sliding_window(evict: str, keys: int):
    q, k, v = inputs()
    ours = attend(q, k, v, Scheme(Rope(8), Stream(0, 4, evict=evict)))
    assert_same(ours, attend(q, k, v, Scheme(Rope(8), causal & window(keys))))


def test_it_never_looks_ahead():
    assert Scheme(Stream(2, 4)).is_causal
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(Rope(8), Stream(2, 4))), attend(q, k, v, Scheme(Rope(8), Stream(2, 4), causal)))


def test_the_default_evicts_before():
    assert Stream(4, 8) == Stream(4, 8, evict="before")
    assert Stream(4, 8) != Stream(4, 8, evict="after")


@pytest.mark.parametrize("evict", ["before", "after"])
def test_a_key_is_kept_as_long_as_any_later_query_sees_it(evict: str):
    t = 40
    for sizes in SETTINGS:
        method = Stream(*sizes, evict=evict)
        visible = seen(method, t)
        for i in range(t // 2):
            still = visible[i:].any(0)
            # Keys that have not come yet must be kept too; past the horizon nothing is known.
            assert torch.equal(method.keeps(i, torch.arange(t))[: i + 1], still[: i + 1])
            assert bool(method.keeps(i, torch.arange(i, t)).all())


@pytest.mark.parametrize("evict", ["before", "after"])
def test_what_is_not_kept_may_be_dropped(evict: str):
    q, k, v = inputs(t=20)
    method = Stream(2, 5, evict=evict)
    scheme = Scheme(Rope(8), method)
    kept = torch.arange(20)[method.keeps(18, torch.arange(20))]
    assert len(kept) < 10
    last = attend(q[:, :, 18:], k[:, :, kept], v[:, :, kept], scheme, index=torch.tensor([18, 19]), key_index=kept)
    assert_same(last, attend(q, k, v, scheme)[:, :, 18:])


def test_sizes_are_checked():
    with pytest.raises(ValueError, match=r"Stream\(sinks=-1\): sinks must be at least 0"):
        Stream(-1, 4)
    for wrong in (0, -4):
        with pytest.raises(ValueError, match=rf"Stream\(window={wrong}\): window must be at least 1"):
            Stream(4, wrong)
    with pytest.raises(TypeError, match=r"Stream\(sinks=4.0\): sinks must be an integer, not float"):
        Stream(4.0, 4)
    with pytest.raises(TypeError, match=r"Stream\(window='4'\): window must be an integer, not str"):
        Stream(4, "4")
    with pytest.raises(ValueError, match=r"Stream\(evict='never'\): evict must be one of 'before', 'after'"):
        Stream(4, 4, evict="never")
