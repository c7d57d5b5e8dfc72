"""Caches that turn keys when they come: decoding is a fresh pass, and keys know what they are."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, sinks, window
from tests.oracles import assert_same, inputs, plain, turned
from tests.refusals import refused

T = 14
TURNED: dict[str, Callable[[], mp.Scheme]] = {
    "Rope": lambda: mp.Scheme(mp.Rope(8), causal),
    "Yarn": lambda: mp.Scheme(mp.Rope(8, stretch=mp.Yarn(4.0, 16)), causal),
    "Partial": lambda: mp.Scheme(mp.Partial(mp.Rope(4), of=8), causal),
    "FusedRope": lambda: mp.Scheme(mp.FusedRope(8), causal),
    "Rope and Alibi": lambda: mp.Scheme(mp.Rope(8), mp.Alibi(4), causal),
    "Rope and a dynamic Alibi": lambda: mp.Scheme(mp.Rope(8), mp.Alibi(4, stretch=mp.AlibiDynamicNtk(5)), causal),
    "Rope and LogN": lambda: mp.Scheme(mp.Rope(8), mp.LogN(4), causal),
    "Rope, window, sinks": lambda: mp.Scheme(mp.Rope(8), causal & (window(4) | sinks(2))),
}
RAW: dict[str, Callable[[], mp.Scheme]] = {
    "DynamicNtk": lambda: mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(5)), causal),
    "Rerope": lambda: mp.Scheme(mp.Rope(8), mp.Rerope(5), causal),
    "Xpos": lambda: mp.Scheme(mp.Xpos(8), causal),
    "Shaw": lambda: mp.Scheme(mp.Rope(8), mp.Shaw(8, reach=3), causal),
    "Deberta": lambda: mp.Scheme(mp.Deberta(10, 4, 8, reach=5), causal),
    "Cope on keys": lambda: mp.Scheme(mp.Rope(8), mp.Cope(8, 6, gates="keys"), causal),
    "LearnedRope": lambda: mp.Scheme(mp.LearnedRope(8), causal),
    "QkNorm after Rope": lambda: mp.Scheme(mp.Rope(8), mp.QkNorm(8), causal),
    "Alibi": lambda: mp.Scheme(mp.Alibi(4), causal),
}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def decoded(scheme: mp.Scheme, cache: mp.Cache, q: Tensor, k: Tensor, v: Tensor, trim: bool = False) -> Tensor:
    """A prompt of five tokens, then one at a time."""
    outs = []
    for first, last in [(0, 5), *((i, i + 1) for i in range(5, q.shape[2]))]:
        cache.append(k[:, :, first:last], v[:, :, first:last])
        outs.append(mp.attend(q[:, :, first:last], cache.keys, cache.values, scheme, key_index=cache.index))
        if trim:
            cache.trim(scheme)
    return torch.cat(outs, 2)


def fresh(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, each step a pass of its own over all tokens so far."""
    steps = [(0, 5), *((i, i + 1) for i in range(5, q.shape[2]))]
    return torch.cat(
        [mp.attend(q[:, :, a:b], k[:, :, :b], v[:, :, :b], scheme, backend="reference") for a, b in steps], 2
    )


@pytest.mark.parametrize("name", [*TURNED, *RAW])
def test_decoding_through_either_cache_is_a_fresh_pass(name: str):
    scheme = {**TURNED, **RAW}[name]().double()
    q, k, v = inputs(t=T)
    want = fresh(scheme, q, k, v)
    for cache in (mp.Cache(), mp.Cache(scheme)):
        assert_same(decoded(scheme, cache, q, k, v), want)
    assert mp.Cache(scheme).turned == (name in TURNED)
    assert not mp.Cache().turned


def test_turned_keys_are_those_of_the_formula():
    q, k, v = inputs(b=1, t=7)
    cache = mp.Cache(mp.Scheme(mp.Rope(8), causal))
    cache.append(k[:, :, :3], v[:, :, :3])
    cache.append(k[:, :, 3:], v[:, :, 3:])
    at = turned(k, torch.arange(7))
    assert_same(cache.keys.plain, torch.cat((at.real, at.imag), -1))
    here = turned(q, torch.arange(7))

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return (here[b, h, i] @ at[b, h // 2, j].conj()).real / math.sqrt(8) if j <= i else -math.inf

    want = plain(q, k, v, score)
    assert_same(mp.attend(q, cache.keys, cache.values, mp.Scheme(mp.Rope(8), causal)), want)


@pytest.mark.parametrize("turn", [True, False])
def test_a_trimmed_cache_needs_no_index(turn: bool):
    scheme = mp.Scheme(mp.Rope(8), mp.LogN(4), causal & (window(4) | sinks(2)))
    q, k, v = inputs(t=T)
    cache = mp.Cache(scheme) if turn else mp.Cache()
    assert_same(
        decoded(scheme, cache, q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], trim=True), fresh(scheme, q, k, v)[:, :, :-1]
    )
    assert len(cache) == 5
    cache.append(k[:, :, -1:], v[:, :, -1:])
    assert cache.index[0].tolist() == [0, 1, 10, 11, 12, 13]
    last = fresh(scheme, q, k, v)[:, :, -1:]
    assert_same(mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme), last)
    # Copies know their tokens as well.
    for same in (cache.keys.contiguous(), cache.keys.clone(), cache.keys.to(torch.float64), copy.deepcopy(cache.keys)):
        assert_same(mp.attend(q[:, :, -1:], same, cache.values, scheme), last)


def test_positions_of_several_axes_travel_with_the_keys():
    scheme = mp.Scheme(mp.AxialRope(8, (2, 1, 1)), causal)
    q, k, v = inputs(t=T)
    at = torch.stack((torch.arange(T), torch.arange(T) // 3, torch.arange(T) % 3), -1)[None].expand(2, -1, -1)
    want = mp.attend(q, k, v, scheme, position=at, key_position=at, backend="reference")
    for cache in (mp.Cache(), mp.Cache(scheme)):
        for i in range(T):
            cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1], position=at[:, i : i + 1])
            out = mp.attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme)
            assert_same(out, want[:, :, i : i + 1])
        with pytest.raises(ValueError, match="the keys before these were given positions"):
            cache.append(k[:, :, :1], v[:, :, :1])


def test_rows_whose_indices_differ_decode_as_each_would_alone():
    scheme = mp.Scheme(mp.Rope(8), mp.Alibi(4), causal)
    q, k, v = inputs(t=6)
    cache = mp.Cache(scheme)
    cache.append(k[:, :, :5], v[:, :, :5], index=torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]))
    cache.append(k[:, :, 5:], v[:, :, 5:])
    assert cache.index.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, -1, -1, 3]]
    documents = torch.where(cache.index < 0, -1, 0)
    out = mp.attend(q[:, :, 5:], cache.keys, cache.values, scheme, key_documents=documents)
    kept = [0, 1, 2, 5]
    assert_same(out[:1], mp.attend(q, k, v, scheme)[:1, :, 5:])
    assert_same(out[1:], mp.attend(q[1:, :, 5:], k[1:, :, kept], v[1:, :, kept], scheme))


def test_other_schemes_are_refused_and_equal_ones_are_not():
    q, k, v = inputs(t=4)
    cache = mp.Cache(mp.Scheme(mp.Rope(8), causal))
    cache.append(k, v)
    for other in (
        mp.Scheme(mp.Rope(8, theta=500.0), causal),
        mp.Scheme(causal),
        mp.Scheme(mp.Rope(8), mp.Rerope(2), causal),
    ):
        with pytest.raises(ValueError, match="were turned by Cache"):
            mp.attend(q, cache.keys, cache.values, other)
    again = mp.Scheme(mp.Rope(8), mp.Alibi(4), causal)
    assert_same(mp.attend(q, cache.keys, cache.values, again), mp.attend(q, k, v, again))


def test_a_part_of_turned_keys_knows_its_tokens():
    scheme = mp.Scheme(mp.Rope(8), mp.LogN(2), causal)
    q, k, v = inputs(t=9)
    cache = mp.Cache(scheme)
    cache.append(k, v)
    part, values = cache.keys[:, :, 4:], cache.values[:, :, 4:]
    want = mp.attend(q[:, :, 8:], k[:, :, 4:], v[:, :, 4:], scheme, key_index=range(4, 9))
    for given in (None, range(4, 9), cache.index[:, 4:]):
        assert_same(mp.attend(q[:, :, 8:], part, values, scheme, key_index=given), want)


CONTRADICTIONS = {
    "a range": {"key_index": range(1, 10)},
    "a tensor": {"key_index": torch.arange(9) + 1},
    "rows": {"key_index": torch.stack((torch.arange(9), torch.arange(9) * 2))},
    "backwards": {"key_index": range(8, -1, -1)},
    "positions": {"key_position": torch.arange(9) * 0.5},
    "axes": {"key_position": torch.zeros(2, 9, 2)},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("given", ["counting", "rows", "positions"])
def test_what_contradicts_turned_keys_is_refused(name: str, given: str):
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, v = inputs(t=9)
    cache = mp.Cache(scheme)
    index = torch.stack((torch.arange(9), torch.arange(9) + 3)) if given == "rows" else None
    cache.append(k, v, index, torch.arange(9) * 3 if given == "positions" else None)
    said: dict[str, Any] = CONTRADICTIONS[name]
    with pytest.raises(ValueError, match=rf"attend: {next(iter(said))} is not known to be that of these keys"):
        mp.attend(q, cache.keys, cache.values, scheme, **said)
    # What agrees is welcome, in any form.
    own = cache.index if cache.position is None else cache.position
    want = mp.attend(q, cache.keys, cache.values, scheme)
    for told in ({"key_index": cache.index}, {"key_index": cache.index.clone()}, {"key_position": own.double()}):
        assert_same(mp.attend(q, cache.keys, cache.values, scheme, **told), want)


def test_turned_keys_are_joined_with_turned_keys_only():
    _, k, v = inputs(t=9)
    for cache in (mp.Cache(mp.Scheme(mp.Rope(8), causal)), mp.Cache()):
        cache.append(k[:, :, :8], v[:, :, :8])
        for join in (torch.cat, torch.concat):
            with pytest.raises(ValueError, match=r"cache.append\(k, v\)"):
                join([cache.keys, k[:, :, 8:]], dim=2)
            with pytest.raises(ValueError, match=r"cache.append\(k, v\)"):
                join((k[:, :, 8:], cache.keys), 2)
        other = mp.Cache(mp.Scheme(mp.Rope(8, theta=500.0), causal))
        other.append(k, v)
        with pytest.raises(ValueError, match="turned otherwise"):
            torch.cat((cache.keys, other.keys), 2)


def test_queries_may_stand_elsewhere_while_turned_keys_stand_at_their_indices():
    scheme = mp.Scheme(mp.Rope(8), mp.Alibi(4), causal)
    q, k, v = inputs(t=3)
    cache = mp.Cache(scheme)
    cache.append(k, v)
    at, own = torch.tensor([2.5, 7.0, 9.0]), torch.arange(3)
    want = mp.attend(q, k, v, scheme, position=at, key_position=own)
    assert_same(mp.attend(q, cache.keys, cache.values, scheme, position=at, key_position=own), want)
    assert_same(mp.attend(q[:, :, 1:], cache.keys, cache.values, scheme, position=at[1:]), want[:, :, 1:])


@pytest.mark.parametrize("first", [0, 5])
def test_a_position_that_stands_for_both_sides_is_refused_for_turned_keys_that_stand_elsewhere(first: int):
    # Raw keys would stand there too.
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, v = inputs(t=3)
    cache = mp.Cache(scheme)
    cache.append(k, v, index=range(first, first + 3))
    text = "attend: position would say where queries and keys stand, but these keys were turned by their cache at"
    for at in (torch.tensor([2.5, 7.0, 9.0]), torch.arange(3) + first + 1):
        refused(ValueError, text, lambda at=at: mp.attend(q, cache.keys, cache.values, scheme, position=at))
    own = torch.arange(first, first + 3)
    want = mp.attend(q, k, v, scheme)
    assert_same(mp.attend(q, cache.keys, cache.values, scheme, position=own), want)
    assert_same(mp.attend(q, cache.keys, cache.values, scheme, position=cache.index), want)


def test_a_cache_is_copied_and_pickled():
    q, k, v = inputs(t=6)
    for make in (TURNED["Rope"], RAW["LearnedRope"]):
        scheme = make().double()
        cache = mp.Cache(scheme)
        cache.append(k[:, :, :5], v[:, :, :5])
        twin = copy.deepcopy(cache)
        twin.append(k[:, :, 5:], v[:, :, 5:])
        assert (len(cache), len(twin)) == (5, 6)
        assert_same(mp.attend(q[:, :, 5:], twin.keys, twin.values, scheme), mp.attend(q, k, v, scheme)[:, :, 5:])
    stored = mp.Cache(mp.Scheme(mp.Rope(8), causal))
    stored.append(k, v)
    loaded = pickle.loads(pickle.dumps(stored))
    assert torch.equal(loaded.keys, stored.keys)
    assert loaded.turned
    assert_same(mp.attend(q, loaded.keys, loaded.values, TURNED["Rope"]()), mp.attend(q, k, v, TURNED["Rope"]()))
    assert (
        pickle.loads(pickle.dumps(stored.index)).tolist() == copy.deepcopy(stored.index).tolist() == [[*range(6)]] * 2
    )


def test_keys_of_a_learned_turn_follow_its_weights():
    q, k, v = inputs(t=3)
    rope, norm = mp.LearnedRope(8), mp.QkNorm(8)
    scheme = mp.Scheme(rope, norm, causal).double()
    cache = mp.Cache(scheme)
    with torch.enable_grad():
        # Gradients of weights are none of a cache's business: it keeps keys as they came.
        cache.append(k, v)
    assert torch.equal(cache.keys.plain, k)
    assert not cache.keys.requires_grad
    before = mp.attend(q, cache.keys, cache.values, scheme)
    assert_same(before, fresh(scheme, q, k, v))
    rope.offset.add_(0.3)
    norm.key_weight.mul_(torch.arange(1, 9))
    after = mp.attend(q, cache.keys, cache.values, scheme)
    assert_same(after, fresh(scheme, q, k, v))
    assert (after - before).abs().max() > 0.01


@dataclass(frozen=True)
class Widened:
    """Two waves beside each channel: twice as many channels come out."""

    relative = True

    def turn(self, x: Tensor, position: Tensor, side: str = "query", length: Tensor | int | None = None) -> Tensor:
        if side == "value":
            return x
        angle = (position if position.dim() == 2 else position[None]).double()[:, None, :, None]
        return torch.cat((x * angle.cos(), x * angle.sin()), -1)


def test_a_turn_that_widens_keys_leaves_them_raw():
    scheme = mp.Scheme(Widened(), causal)
    q, k, v = inputs(t=T)
    p = torch.arange(T).double()

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        return q[b, h, i] @ k[b, h // 2, j] * (p[i] - p[j]).cos() / math.sqrt(8) if j <= i else -math.inf

    cache = mp.Cache(scheme)
    out = decoded(scheme, cache, q, k, v)
    assert not cache.turned
    assert_same(out, plain(q, k, v, score))


class Marked(mp.Rope):
    """Turns as its base does, but by an attribute that takes no part in comparisons."""

    def __init__(self, dim: int, faster: float) -> None:
        super().__init__(dim)
        object.__setattr__(self, "faster", faster)

    def angles(self, position: Tensor, length: Any = None) -> Tensor:
        return super().angles(position, length) * self.faster


class MarkedForGood(Marked):
    fixed = True


@pytest.mark.parametrize("kind", [Marked, MarkedForGood])
def test_rotations_that_only_look_equal_are_not_taken_for_each_other(kind: type[Marked]):
    q, k, v = inputs(t=4)
    assert kind(8, 1.0) == kind(8, 2.0)
    slow, fast, again = (mp.Scheme(kind(8, faster), causal) for faster in (1.0, 2.0, 1.0))
    cache = mp.Cache(slow)
    cache.append(k, v)
    assert cache.turned == (kind is MarkedForGood)
    for scheme in (slow, again):
        assert_same(mp.attend(q, cache.keys, cache.values, scheme), mp.attend(q, k, v, slow, backend="reference"))
    if cache.turned:
        with pytest.raises(ValueError, match="were turned by Cache"):
            mp.attend(q, cache.keys, cache.values, fast)
    else:
        # Of a user's class nothing is remembered, so its keys stay raw.
        assert_same(mp.attend(q, cache.keys, cache.values, fast), mp.attend(q, k, v, fast, backend="reference"))


def test_raw_keys_may_be_values_and_turned_ones_may_not():
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, _ = inputs(t=5)
    for cache in (mp.Cache(scheme), mp.Cache()):
        cache.append(k, k)
        keys = cache.keys
        assert mp.explain(q, keys, keys, scheme).backend in mp.explain(q, k, k, scheme).able
        if not cache.turned:
            assert_same(mp.attend(q, keys, keys, scheme), mp.attend(q, k, k, scheme))
            continue
        for backend in (None, "reference", "chunked", "sdpa", "flex"):
            with pytest.raises((ValueError, NotImplementedError), match=r"keys out of a Cache|CachedKeys"):
                mp.attend(q, keys, keys, scheme, backend=backend)


def test_linear_attention_reads_raw_keys():
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, v = inputs(t=5)
    turned_cache, raw = mp.Cache(scheme), mp.Cache()
    for cache in (turned_cache, raw):
        cache.append(k, v)
    with pytest.raises(ValueError, match=r"linear_attend: k was turned by its Cache.*use Cache\(\)"):
        mp.linear_attend(q, turned_cache.keys, v, scheme)
    assert_same(mp.linear_attend(q, raw.keys, v, scheme), mp.linear_attend(q, k, v, scheme))


def test_bfloat16_keys_are_as_near_as_bfloat16_is():
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, v = (each.bfloat16() for each in inputs(t=T))
    cache = mp.Cache(scheme)
    out = decoded(scheme, cache, q, k, v)
    assert cache.keys.dtype == out.dtype == torch.bfloat16
    assert_same(out, fresh(scheme, q.double(), k.double(), v.double()), within=0.05)


def test_counting_goes_on_however_keys_came():
    _, k, v = inputs(t=6)
    cache = mp.Cache(mp.Scheme(mp.Rope(8), window(3)))
    cache.append(k[:, :, :0], v[:, :, :0])
    assert cache.index.shape == (2, 0)
    cache.append(k[:, :, :4], v[:, :, :4])
    cache.append(k[:, :, :0], v[:, :, :0], index=range(0))
    cache.trim(mp.Scheme(window(3)))
    assert cache.index.tolist() == [[2, 3]] * 2
    assert cache.index.first == 2
    cache.append(k[:, :, 4:5], v[:, :, 4:5])
    cache.append(k[:, :, 5:], v[:, :, 5:], index=torch.tensor([9]))
    cache.append(k[:, :, :1], v[:, :, :1])
    assert cache.index.tolist() == [[2, 3, 4, 9, 10]] * 2
    assert cache.index.first is None


def test_a_cache_trimmed_to_nothing_goes_on_without_positions():
    _, k, v = inputs(t=3)
    scheme = mp.Scheme(mp.Rope(8), window(1))
    cache = mp.Cache(scheme)
    cache.append(k, v, position=torch.arange(3) * 2)
    cache.trim(scheme)
    assert len(cache) == 0
    cache.append(k[:, :, :1], v[:, :, :1])
    assert cache.position is None
    assert cache.index.tolist() == [[3]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_decoding_traces_whole(indexed: bool):
    torch._dynamo.reset()
    scheme = mp.Scheme(mp.Rope(8), causal)
    q, k, v = inputs(t=T)
    cache = mp.Cache(scheme)
    cache.append(k, v)

    def step(q: Tensor, keys: Tensor, values: Tensor, index: Tensor) -> Tensor:
        return mp.attend(q, keys, values, scheme, key_index=index if indexed else None)

    out = torch.compile(step, backend="eager", fullgraph=True)(q[:, :, -1:], cache.keys, cache.values, cache.index)
    assert_same(out, mp.attend(q, k, v, scheme)[:, :, -1:])


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy])
def test_a_cache_and_its_copy_grow_apart(twin_of: Callable[[mp.Cache], mp.Cache]):
    cache, (_, k, v) = mp.Cache(), inputs(t=4)
    for n in range(3):
        cache.append(k[:, :, n : n + 1], v[:, :, n : n + 1])
    twin = twin_of(cache)
    cache.append(k[:, :, 3:], v[:, :, 3:])
    twin.append(-k[:, :, 3:], -v[:, :, 3:])
    assert_same(cache.keys.plain, k)
    assert_same(twin.values, torch.cat((v[:, :, :3], -v[:, :, 3:]), 2))


@pytest.mark.parametrize("part", [mp.FusedRope(8), mp.Fire(2, trained=2)])
def test_documents_over_keys_that_were_turned_as_counted_are_for_relative_schemes(part: object):
    scheme = mp.Scheme(*([part] if isinstance(part, mp.FusedRope) else [mp.Rope(8), part]), mp.causal).double()
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    alone = mp.attend(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], scheme)[:, :, -1:]
    for cache, index in ((mp.Cache(), None), (mp.Cache(scheme), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))):
        cache.append(k, v, index)
        with torch.no_grad():
            found = mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=documents)
        assert_same(found, alone, within=1e-12)
    cache = mp.Cache(scheme)
    cache.append(k, v)
    if cache.turned:
        with pytest.raises(ValueError, match="reads more than distances"):
            mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=documents)
