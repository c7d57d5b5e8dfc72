"""Indices and positions out of a cache: read-only, exact in every dtype, and right after beams are reordered."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import milepost as mp
from milepost import causal, sinks, window
from tests.oracles import assert_same, inputs

ROPE = mp.Scheme(mp.Rope(8), causal)


def filled(given: str, turn: bool = True) -> tuple[mp.Cache, Tensor, Tensor, Tensor]:
    """A cache of one row and six tokens, which count up, or do not, or stand elsewhere."""
    q, k, v = inputs(b=1, t=6)
    cache = mp.Cache(ROPE if turn else None)
    index = torch.tensor([[0, 1, 2, 5, 6, 9]]) if given == "gaps" else None
    cache.append(k, v, index, torch.arange(6) * 2.5 if given == "positions" else None)
    return cache, q, k, v


def plus_equals(index: Tensor) -> None:
    index += 100


def put(index: Tensor) -> None:
    index[0, 0] = 7


def replace(index: Tensor) -> None:
    index.data = torch.zeros_like(index)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "+=": plus_equals,
    "[…] =": put,
    "data =": replace,
    "add_": lambda x: x.add_(1),
    "torch.neg_": torch.neg_,
    "out=": lambda x: torch.add(x, 1, out=x),
    "inplace=True": lambda x: F.relu(x, inplace=True),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "resize_": lambda x: x.resize_(1, 3),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("given", ["counting", "gaps", "positions"])
def test_numbers_of_a_cache_are_read_only(given: str, name: str):
    for inference in (False, True):
        with torch.inference_mode(inference):
            cache, q, _, _ = filled(given)
            want = mp.attend(q, cache.keys, cache.values, ROPE)
            numbers = cache.position if given == "positions" else cache.index
            assert numbers is not None
            before = numbers.tolist()
            with pytest.raises(ValueError, match=r"of a Cache are read-only.*cache\.index\.clone\(\)"):
                WRITES[name](numbers)
            now = cache.position if given == "positions" else cache.index
            assert now is not None
            assert numbers.tolist() == now.tolist() == before
            assert_same(mp.attend(q, cache.keys, cache.values, ROPE), want)


def test_what_is_computed_from_indices_is_an_ordinary_tensor():
    cache, q, k, v = filled("counting", turn=False)
    moved = cache.index + 100
    assert type(moved) is type(cache.index[:, 1:]) is type(cache.index.clone()) is Tensor
    moved += 1
    shifted = mp.attend(q, cache.keys, cache.values, ROPE, key_index=moved)
    assert_same(shifted, mp.attend(q, k, v, ROPE, key_index=range(101, 107)))
    part = cache.index[:, 2:]
    part += 100
    cache.index.numpy()[:] = 0
    assert cache.index.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert {cache.index.dtype, cache.index.device.type} == {torch.int64, "cpu"}
    for same in (copy.deepcopy(cache.index), pickle.loads(pickle.dumps(cache.index))):
        assert same.tolist() == cache.index.tolist()
    index = cache.index
    assert {index: 1}[index] == 1


def test_indices_of_one_cache_serve_another():
    cache, _, k, v = filled("counting")
    other = mp.Cache()
    other.append(k[:, :, 2:], v[:, :, 2:], index=cache.keys[:, :, 2:].token_index)
    assert other.index.first == 2
    again = mp.Cache()
    again.append(k[:, :, 2:], v[:, :, 2:], index=other.index)
    assert again.index.first == 2
    gaps = filled("gaps")[0].index
    again = mp.Cache()
    again.append(k, v, index=gaps)
    assert again.index.tolist() == gaps.tolist()


# Beams


@pytest.mark.parametrize("given", ["counting", "rows", "positions"])
@pytest.mark.parametrize("turn", [True, False], ids=["turned", "raw"])
def test_beams_go_on_from_the_rows_they_were_chosen_from(turn: bool, given: str):
    scheme = mp.Scheme(mp.Rope(8), mp.LogN(3), causal & (window(4) | sinks(1)))
    q, k, v = inputs(b=2, t=9)
    index = torch.stack((torch.arange(9), torch.arange(9) + (3 if given == "rows" else 0)))
    at = index * 1.5 + torch.tensor([[0.0], [1.0]]) if given == "positions" else index
    beams = torch.tensor([1, 0, 1])
    cache = mp.Cache(scheme if turn else None)

    def append(k: Tensor, v: Tensor, index: Tensor, at: Tensor) -> None:
        cache.append(k, v, None if given == "counting" else index, at if given == "positions" else None)

    append(k[:, :, :7], v[:, :, :7], index[:, :7], at[:, :7])
    cache.trim(scheme)
    cache.reorder(beams)
    k, v, q, index, at = (each[beams] for each in (k, v, q, index, at))
    for n in (7, 8):
        append(k[:, :, n : n + 1], v[:, :, n : n + 1], index[:, n : n + 1], at[:, n : n + 1])
        out = mp.attend(q[:, :, n : n + 1], cache.keys, cache.values, scheme)
        told = {"key_index": index[:, : n + 1], "key_position": at[:, : n + 1]}
        want = mp.attend(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], scheme, **told, backend="reference")
        assert_same(out, want)
        cache.trim(scheme)


def test_wrong_rows_are_refused():
    cache, *_ = filled("counting")
    with pytest.raises(TypeError, match=r"Cache\.reorder: rows must be integers, given torch\.float32"):
        cache.reorder(torch.zeros(1))
    with pytest.raises(ValueError, match=r"Cache\.reorder: rows must be \[b\], given \[1, 1\]"):
        cache.reorder(torch.zeros(1, 1, dtype=torch.long))
    mp.Cache().reorder(torch.tensor([0]))


# Dtypes

SMALL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
SCHEMES = {
    "Rope": ROPE,
    "Alibi": mp.Scheme(mp.Alibi(4), causal),
    "Rerope": mp.Scheme(mp.Rope(8), mp.Rerope(3), causal),
    "Xpos": mp.Scheme(mp.Xpos(8), causal),
    "LogN, length": mp.Scheme(mp.LogN(3, count="length"), causal & window(5)),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_small_integers_count_as_large_ones_do(name: str):
    scheme = SCHEMES[name]
    q, k, v = inputs(b=1, t=6)
    # Past the middle of int8, and down, so that differences are negative.
    index = torch.tensor([120, 3, 121, 5, 126, 127])
    for told in ({"index": index, "key_index": index}, {"position": index, "key_position": index}):
        want = mp.attend(q, k, v, scheme, **told, backend="reference")
        for dtype in SMALL:
            small = {which: each.to(dtype) for which, each in told.items()}
            for backend in (None, "reference", "chunked"):
                assert_same(mp.attend(q, k, v, scheme, **small, backend=backend), want)
    documents = torch.tensor([0, 0, 1, 1, 0, 1])
    want = mp.attend(q, k, v, scheme, documents=documents)
    for dtype in SMALL:
        assert_same(mp.attend(q, k, v, scheme, documents=documents.to(dtype)), want)
        assert_same(mp.attend(q, k, v, scheme, documents=documents.to(dtype), key_documents=documents), want)
        told = {"length": torch.tensor([200]).to(dtype)} if dtype != torch.int8 else {}
        assert_same(mp.attend(q, k, v, scheme, **told), mp.attend(q, k, v, scheme, length=200 if told else None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_in_half_precision_are_refused(dtype: torch.dtype):
    q, k, v = inputs(t=6)
    half = (torch.arange(6) + 3000).to(dtype)
    for name in ("position", "key_position"):
        with pytest.raises(TypeError, match=rf"attend: {name} is {dtype}, which lacks whole numbers.*give float32"):
            mp.attend(q, k, v, ROPE, **{name: half})  # pyright: ignore
    with pytest.raises(TypeError, match=rf"Cache\.append: position is {dtype}, which lacks whole numbers"):
        mp.Cache().append(k, v, position=half)
    with pytest.raises(TypeError, match=rf"Rope\.turn: position is {dtype}, which lacks whole numbers"):
        mp.Rope(8).turn(q, half)
    with pytest.raises(TypeError, match=rf"Rope\.turn: position is {dtype}, which lacks whole numbers"):
        mp.Partial(mp.Rope(4), of=8).turn(q, half)
    with pytest.raises(TypeError, match=rf"Sinusoidal: index is {dtype}, which lacks whole numbers"):
        mp.Sinusoidal(8).embed(torch.zeros(1, 6, 8), half)


def test_small_integers_embed_and_bias_as_large_ones_do():
    index = torch.tensor([250, 3, 251])
    x = torch.zeros(1, 3, 8)
    for method in (mp.Learned(300, 8), mp.Sinusoidal(8)):
        for dtype in (torch.uint8, torch.int16):
            assert torch.equal(method.embed(x, index.to(dtype)), method.embed(x, index))
    bias = mp.Scheme(mp.Alibi(4)).bias(index, index)
    assert torch.equal(mp.Scheme(mp.Alibi(4)).bias(index.to(torch.uint8), index.to(torch.uint8)), bias)


def test_unsigned_64_bit_indices_are_refused():
    q, k, v = inputs(t=3)
    with pytest.raises(TypeError, match=r"attend: index must be integers, given torch\.uint64"):
        mp.attend(q, k, v, ROPE, index=torch.arange(3).to(torch.uint64))


def test_fractions_after_whole_positions_are_kept():
    _, k, v = inputs(b=1, t=3)
    for turn in (ROPE, None):
        cache = mp.Cache(turn)
        cache.append(k[:, :, :2], v[:, :, :2], position=torch.tensor([2**24 + 1, 3]))
        cache.append(k[:, :, 2:], v[:, :, 2:], position=torch.tensor([3.5]))
        assert cache.position is not None
        assert cache.position.tolist() == [[2**24 + 1, 3.0, 3.5]]
        with pytest.raises(ValueError, match="give the same number of axes with every append"):
            cache.append(k[:, :, 2:], v[:, :, 2:], position=torch.zeros(1, 1, 2))
        assert len(cache) == 3


@pytest.mark.parametrize("name", ["Rope", "Alibi", "Rerope"])
def test_an_index_past_2_to_the_31_is_exact(name: str):
    q, k, v = inputs(b=1, t=6)
    index = torch.tensor([0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 5])
    near = index.clone()
    near[2:] -= 2**31 - 100
    # Two texts, so that distances are small; the later one begins elsewhere.
    documents, scheme = torch.tensor([0, 0, 1, 1, 1, 1]), SCHEMES[name]
    told = {"documents": documents, "key_documents": documents}
    want = mp.attend(q, k, v, scheme, index=near, key_index=near, **told, backend="reference")
    for backend in (None, "reference", "chunked", "flex"):
        ours = mp.attend(q, k, v, scheme, index=index, key_index=index, **told, backend=backend)
        assert_same(ours, want, within=1e-8)


RESTARTED: dict[str, list[object]] = {
    "rope": [mp.Rope(8), causal],
    "sinks": [mp.Rope(8), causal & (mp.window(4) | mp.sinks(2))],
    "log-n": [mp.Rope(8), mp.LogN(4), causal],
    "dynamic": [mp.Rope(8, stretch=mp.DynamicNtk(5, factor=2.0)), causal],
    "chunks": [mp.Rope(8), causal & mp.chunks(4)],
    "pivot": [mp.Rope(8), mp.Pivot(mp.Rerope(3), 4), causal],
    "self-extend": [mp.Rope(8), mp.SelfExtend(2, 4), causal],
    "stream": [mp.Rope(8), mp.Stream(2, 4)],
    "alibi": [mp.Alibi(4), causal],
}


@pytest.mark.parametrize("turned", [True, False], ids=["turned", "raw"])
@pytest.mark.parametrize("name", RESTARTED)
def test_an_index_restarts_in_each_document_of_a_cache_as_in_one_pass(name: str, turned: bool):
    q, k, v = inputs(t=14)
    scheme, documents = mp.Scheme(*RESTARTED[name]), torch.tensor([[0] * 6 + [3] * 8, [-1] * 5 + [0] * 9])
    cache = mp.Cache(scheme) if turned else mp.Cache()
    for part in (slice(0, 9), slice(9, 12), slice(12, 14)):
        cache.append(k[:, :, part], v[:, :, part])
    for t in (1, 2):
        found = mp.attend(q[:, :, -t:], cache.keys, cache.values, scheme, key_documents=documents)
        for row, first in ((0, 6), (1, 5)):
            text = [each[row : row + 1, :, first:] for each in (q, k, v)]
            assert_same(found[row : row + 1], mp.attend(*text, scheme)[:, :, -t:])


def test_documents_of_a_trimmed_cache_need_an_index():
    q, k, v = inputs(t=14)
    scheme = mp.Scheme(mp.Rope(8), causal & window(4))
    cache = mp.Cache(scheme)
    cache.append(k, v)
    cache.trim(scheme)
    first, documents = (
        cache.index[0, 0],
        torch.tensor([[0] * 6 + [3] * 8, [-1] * 5 + [0] * 9])[:, -cache.keys.shape[2] :],
    )
    assert first > 0
    with pytest.raises(ValueError, match=r"the first \d+ tokens of this cache are gone.*append keys with their index"):
        mp.attend(q[:, :, -1:], cache.keys, cache.values, scheme, key_documents=documents)
