"""The cache of raw keys, values and indices: what it keeps, and what trimming leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, chunks, sinks, window
from tests.oracles import assert_same, inputs

# Keeping


def test_keys_come_back_as_they_came():
    _, k, v = inputs(t=9, dv=5)
    cache = mp.Cache()
    assert len(cache) == 0
    for first, last in ((0, 4), (4, 5), (5, 5), (5, 9)):
        cache.append(k[:, :, first:last], v[:, :, first:last])
        assert len(cache) == last
        assert torch.equal(cache.keys, k[:, :, :last])
        assert torch.equal(cache.values, v[:, :, :last])
        assert cache.index.tolist() == [list(range(last))] * 2


def test_a_cache_holds_copies():
    _, k, v = inputs(t=3)
    cache = mp.Cache()
    cache.append(k, v)
    before = k.clone()
    k.zero_()
    assert torch.equal(cache.keys, before)


def test_keys_handed_out_do_not_change_when_more_come():
    _, k, v = inputs(t=8)
    cache = mp.Cache()
    cache.append(k[:, :, :3], v[:, :, :3])
    held, held_index = cache.keys, cache.index
    for i in range(3, 8):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    assert torch.equal(held, k[:, :, :3])
    assert held_index.tolist() == [[0, 1, 2]] * 2


def test_appending_rarely_moves_what_is_held():
    _, k, v = inputs(b=1, h=1, g=1, t=1, d=2)
    cache = mp.Cache()
    stores = set()
    for _ in range(200):
        cache.append(k, v)
        stores.add(cache.keys.plain.untyped_storage().data_ptr())
        room = cache.keys.plain.untyped_storage().nbytes() // (2 * k.element_size())
        assert room <= 2 * len(cache)
    # 1, 2, 4, … 256: a store for every doubling, and never more than twice what is needed.
    assert len(stores) <= 9


def test_an_index_of_ones_own_is_kept_and_gone_on_from():
    _, k, v = inputs(t=5)
    cache = mp.Cache()
    cache.append(k[:, :, :2], v[:, :, :2], index=torch.tensor([7, 8]))
    cache.append(k[:, :, 2:4], v[:, :, 2:4])
    cache.append(k[:, :, 4:], v[:, :, 4:], index=torch.tensor([[20], [30]]))
    cache.append(k[:, :, :1], v[:, :, :1])
    assert cache.index.tolist() == [[7, 8, 9, 10, 20, 21], [7, 8, 9, 10, 30, 31]]


def test_an_append_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch):
    """What ran out of memory, or met a store that inference mode made, can be tried again: nothing was counted yet."""
    _, k, v = inputs(t=5)
    cache = mp.Cache()
    with torch.inference_mode():
        cache.append(k[:, :, :3], v[:, :, :3], index=torch.tensor([[0, 1, 2], [4, 5, 6]]))
        cache.append(k[:, :, 3:4], v[:, :, 3:4])
    with pytest.raises(RuntimeError, match="inference"):
        cache.append(k[:, :, 4:], v[:, :, 4:])
    with torch.inference_mode():
        cache.append(k[:, :, 4:], v[:, :, 4:])
    assert cache.index.tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]

    class Full(RuntimeError):
        pass

    def full(*_: object) -> None:
        raise Full

    def fails(cache: mp.Cache, first: int) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Tensor, "new_empty", full)
            cache.append(k, v, index=range(first, first + 5))

    fresh = mp.Cache(mp.Scheme(mp.Rope(8), causal))
    with pytest.raises(Full):
        fails(fresh, 7)
    fresh.append(k, v)
    assert fresh.index.tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(Full):
        fails(fresh, 20)
    fresh.append(k[:, :, :1], v[:, :, :1])
    assert fresh.index.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_the_index_is_int64_whatever_it_came_as():
    _, k, v = inputs(t=4)
    cache = mp.Cache()
    for first, last in ((0, 2), (2, 3)):
        index = torch.arange(first, last, dtype=torch.int32)
        cache.append(k[:, :, first:last], v[:, :, first:last], index=index)
    cache.append(k[:, :, 3:], v[:, :, 3:])
    assert cache.index.dtype == torch.int64
    assert cache.index.tolist() == [[0, 1, 2, 3]] * 2


def test_a_cache_keeps_the_dtype_it_was_given():
    for dtype in (torch.bfloat16, torch.float32):
        _, k, v = (each.to(dtype) for each in inputs(t=3))
        cache = mp.Cache()
        cache.append(k, v)
        assert cache.keys.dtype == cache.values.dtype == dtype


def test_an_empty_cache_says_so():
    for held in ("keys", "values", "index"):
        with pytest.raises(ValueError, match=r"Cache is empty; append keys and values first"):
            getattr(mp.Cache(), held)


def test_trimming_an_empty_cache_is_nothing():
    cache = mp.Cache()
    cache.trim(mp.Scheme(causal & window(3)))
    assert len(cache) == 0


# Decoding with what is left


def decoded(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor, prompt: int, trim: bool) -> tuple[Tensor, list[int]]:
    """Attend to a prompt at once, then one token at a time; also the number of keys held at each step."""
    cache, outs, sizes = mp.Cache(), [], []
    for first, last in [(0, prompt), *((i, i + 1) for i in range(prompt, q.shape[2]))]:
        cache.append(k[:, :, first:last], v[:, :, first:last])
        outs.append(mp.attend(q[:, :, first:last], cache.keys, cache.values, scheme, key_index=cache.index))
        sizes.append(len(cache))
        if trim:
            cache.trim(scheme)
    return torch.cat(outs, 2), sizes


TRIMMED: dict[str, tuple[Callable[[], mp.Scheme], int]] = {
    # The scheme, and the most keys that a step may have to hold: those its query sees, or one block of them.
    "window": (lambda: mp.Scheme(mp.Rope(8), causal & window(5)), 5),
    "window and sinks": (lambda: mp.Scheme(mp.Rope(8), causal & (window(4) | sinks(2))), 6),
    "window, no causal": (lambda: mp.Scheme(mp.Alibi(4), window(4)), 4),
    "two windows": (lambda: mp.Scheme(mp.Alibi(4), causal & window(9), window(4)), 4),
    "chunks": (lambda: mp.Scheme(mp.Rope(8), causal & chunks(4)), 4),
    "chunks and sinks": (lambda: mp.Scheme(mp.Rope(8), causal & (chunks(4) | sinks(1))), 5),
    "stream": (lambda: mp.Scheme(mp.Rope(8), mp.Stream(2, 4)), 6),
    "stream, evicting after": (lambda: mp.Scheme(mp.Rope(8), mp.Stream(2, 4, evict="after")), 7),
    "stream without sinks": (lambda: mp.Scheme(mp.Rope(8), mp.Stream(0, 4)), 4),
    "stream with alibi": (lambda: mp.Scheme(mp.Alibi(4), mp.Stream(2, 4)), 6),
    "dynamic ntk in a window": (lambda: mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(4)), causal & window(5)), 5),
    "xpos in a window": (lambda: mp.Scheme(mp.Xpos(8), causal & window(5)), 5),
    "log-n by length in a window": (lambda: mp.Scheme(mp.LogN(3, count="length"), causal & window(5)), 5),
    "cope in a window": (lambda: mp.Scheme(mp.Cope(8, 4), causal & window(5)), 5),
    "transformer-xl in a window": (lambda: mp.Scheme(mp.TransformerXL(6, 4, 8), causal & window(5)), 5),
}


@pytest.mark.parametrize("prompt", [1, 7])
@pytest.mark.parametrize("name", TRIMMED)
def test_decoding_with_a_trimmed_cache_equals_decoding_with_the_whole_one(name: str, prompt: int):
    make, most = TRIMMED[name]
    scheme = make().double()
    for weight in scheme.parameters():
        torch.nn.init.normal_(weight)
    q, k, v = inputs(t=19)
    whole, _ = decoded(scheme, q, k, v, prompt, trim=False)
    trimmed, sizes = decoded(scheme, q, k, v, prompt, trim=True)
    assert_same(trimmed, whole)
    assert max(sizes[1:]) <= most, f"{max(sizes[1:])} keys held where {most} can be seen"


NEVER_TRIMMED: dict[str, Callable[[], mp.Scheme]] = {
    "causal": lambda: mp.Scheme(mp.Rope(8), causal),
    "no visible part": lambda: mp.Scheme(mp.Rope(8)),
    "all but a window": lambda: mp.Scheme(mp.Rope(8), causal & ~window(3)),
    "everything": lambda: mp.Scheme(mp.everything),
    "causal or window": lambda: mp.Scheme(causal | window(3)),
    "dual chunk": lambda: mp.Scheme(mp.Rope(8), mp.DualChunk(6, 2), causal),
    "heads that look left": lambda: mp.Scheme(mp.SplitAlibi(4)),
}


@pytest.mark.parametrize("name", NEVER_TRIMMED)
def test_keys_that_may_still_be_seen_are_kept(name: str):
    _, k, v = inputs(t=19)
    cache = mp.Cache()
    cache.append(k, v)
    cache.trim(NEVER_TRIMMED[name]())
    assert len(cache) == 19
    assert torch.equal(cache.keys, k)


def test_trimming_keeps_exactly_the_keys_that_the_next_query_sees():
    _, k, v = inputs(t=10)
    for visible, kept in (
        (causal & window(4), [7, 8, 9]),
        (causal & (window(3) | sinks(2)), [0, 1, 8, 9]),
        (causal & chunks(4), [8, 9]),
        (causal & chunks(5), []),
        (causal & (chunks(5) | sinks(3)), [0, 1, 2]),
    ):
        cache = mp.Cache()
        cache.append(k, v)
        cache.trim(mp.Scheme(visible))
        assert cache.index.tolist() == [kept, kept]
        assert torch.equal(cache.keys, k[:, :, kept])
        assert torch.equal(cache.values, v[:, :, kept])


def test_a_cache_trimmed_to_nothing_goes_on_counting():
    q, k, v = inputs(t=11)
    scheme = mp.Scheme(mp.Rope(8), causal & chunks(5))
    cache = mp.Cache()
    cache.append(k[:, :, :10], v[:, :, :10])
    cache.trim(scheme)
    assert len(cache) == 0
    cache.append(k[:, :, 10:], v[:, :, 10:])
    assert cache.index.tolist() == [[10], [10]]
    out = mp.attend(q[:, :, 10:], cache.keys, cache.values, scheme, key_index=cache.index)
    assert_same(out, mp.attend(q, k, v, scheme)[:, :, 10:])


def test_trimming_twice_is_trimming_once():
    _, k, v = inputs(t=10)
    cache = mp.Cache()
    cache.append(k, v)
    scheme = mp.Scheme(causal & (window(3) | sinks(2)))
    cache.trim(scheme)
    once = cache.keys.clone()
    cache.trim(scheme)
    assert torch.equal(cache.keys, once)


def test_trimming_gives_the_memory_back():
    _, k, v = inputs(t=100)
    cache = mp.Cache()
    cache.append(k, v)
    cache.trim(mp.Scheme(causal & window(3)))
    assert cache.keys.plain.untyped_storage().nbytes() < k.untyped_storage().nbytes() // 10


def test_a_cache_can_be_copied_to_try_two_ways_on():
    q, k, v = inputs(t=6)
    scheme = mp.Scheme(mp.Rope(8), causal)
    cache = mp.Cache()
    for i in range(3):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    other = copy.deepcopy(cache)
    cache.append(k[:, :, 3:4], v[:, :, 3:4])
    other.append(k[:, :, 5:], v[:, :, 5:])
    one = mp.attend(q[:, :, 3:4], cache.keys, cache.values, scheme, key_index=cache.index)
    assert_same(one, mp.attend(q, k, v, scheme)[:, :, 3:4])
    assert torch.equal(other.keys, k[:, :, [0, 1, 2, 5]])
