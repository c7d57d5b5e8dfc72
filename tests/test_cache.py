"""The cache of raw keys, values and indices, and the documents of a varlen batch."""

from __future__ import annotations

import copy
import itertools
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
        stores.add(cache.keys.untyped_storage().data_ptr())
        room = cache.keys.untyped_storage().nbytes() // (2 * k.element_size())
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
    assert cache.keys.untyped_storage().nbytes() < k.untyped_storage().nbytes() // 10


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


# Ragged batches: each row has an index of its own


def rows_alone(scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor, row: int, first: int, last: int) -> Tensor:
    """Attention of tokens first … last − 1 of one row, as a text of its own."""
    q, k, v = (each[row : row + 1, :, first:last] for each in (q, k, v))
    return mp.attend(q, k, v, scheme)


RAGGED: dict[str, Callable[[], mp.Scheme]] = {
    "rope": lambda: mp.Scheme(mp.Rope(8), causal),
    "alibi": lambda: mp.Scheme(mp.Alibi(4), causal),
    "dynamic ntk": lambda: mp.Scheme(mp.Rope(8, theta=100.0, stretch=mp.DynamicNtk(3)), causal),
    "rerope, log-n": lambda: mp.Scheme(mp.Rope(8), mp.Rerope(3), mp.LogN(3), causal),
    "window and sinks": lambda: mp.Scheme(mp.Rope(8), causal & (window(3) | sinks(1))),
    "stream": lambda: mp.Scheme(mp.Rope(8), mp.Stream(1, 3)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_left_padded_rows_decode_as_each_would_alone(name: str):
    scheme = RAGGED[name]()
    q, k, v = inputs(t=12)
    pads, prompt = torch.tensor([[0], [3]]), 5
    index = (torch.arange(prompt) - pads).clamp(min=0)
    documents = torch.where(torch.arange(12) >= pads, 0, -1)
    cache = mp.Cache()
    cache.append(k[:, :, :prompt], v[:, :, :prompt], index)
    for i in range(prompt, 12):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        assert cache.index[:, -1].tolist() == [i, i - 3]
        step = mp.attend(
            q[:, :, i : i + 1],
            cache.keys,
            cache.values,
            scheme,
            key_index=cache.index,
            key_documents=documents[:, : i + 1],
        )
        for row, pad in enumerate((0, 3)):
            assert_same(step[row : row + 1], rows_alone(scheme, q, k, v, row, pad, i + 1)[:, :, -1:])


@pytest.mark.parametrize("name", RAGGED)
def test_right_padded_prompts_decode_as_each_would_alone(name: str):
    # Row 1 has a prompt of 2 tokens in a batch of 4; its next token has index 2 and stands after the padding.
    scheme = RAGGED[name]()
    q, k, v = inputs(t=9)
    cache = mp.Cache()
    cache.append(k[:, :, :4], v[:, :, :4], index=torch.tensor([[0, 1, 2, 3], [0, 1, 0, 0]]))
    documents = torch.tensor([[0, 0, 0, 0], [0, 0, -1, -1]])
    cache.append(k[:, :, 4:5], v[:, :, 4:5], index=torch.tensor([[4], [2]]))
    for i in range(5, 9):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        own = torch.cat((documents, torch.zeros(2, i - 3, dtype=torch.long)), 1)
        told = {"key_index": cache.index, "key_documents": own}
        step = mp.attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme, **told)
        assert_same(step[:1], rows_alone(scheme, q, k, v, 0, 0, i + 1)[:, :, -1:])
        kept = [0, 1, *range(4, i + 1)]
        alone = mp.attend(q[1:, :, kept], k[1:, :, kept], v[1:, :, kept], scheme)
        assert_same(step[1:], alone[:, :, -1:])


def test_a_ragged_batch_decodes_the_same_when_it_is_trimmed():
    q, k, v = inputs(t=12)
    scheme = mp.Scheme(mp.Rope(8), causal & (window(3) | sinks(1)))
    index = torch.stack((torch.arange(12), torch.arange(12) + 100))
    whole, trimmed = mp.Cache(), mp.Cache()
    for i in range(12):
        steps: list[Tensor] = []
        for cache in (whole, trimmed):
            cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1], index[:, i : i + 1])
            steps.append(mp.attend(q[:, :, i : i + 1], cache.keys, cache.values, scheme, key_index=cache.index))
        assert_same(steps[1], steps[0])
        trimmed.trim(scheme)


def test_a_key_that_one_row_needs_is_kept_for_all():
    _, k, v = inputs(t=4)
    cache = mp.Cache()
    cache.append(k, v, index=torch.tensor([[0, 1, 2, 3], [0, 10, 20, 30]]))
    cache.trim(mp.Scheme(causal & window(3)))
    assert cache.index.tolist() == [[2, 3], [20, 30]]


def test_a_key_goes_when_no_row_needs_it_though_the_rows_stand_apart():
    _, k, v = inputs(t=6)
    cache = mp.Cache()
    cache.append(k, v, index=torch.stack((torch.arange(6), torch.arange(6) + 100)))
    cache.trim(mp.Scheme(causal & window(3)))
    assert cache.index.tolist() == [[4, 5], [104, 105]]


# What does not fit


def filled() -> tuple[mp.Cache, Tensor, Tensor]:
    _, k, v = inputs(t=3)
    cache = mp.Cache()
    cache.append(k, v)
    return cache, k, v


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda k, v: (k[:1], v[:1]), r"k \[1, 2, 3, 8\]"),
        (lambda k, v: (k[:, :1], v[:, :1]), r"k \[2, 1, 3, 8\]"),
        (lambda k, v: (k[..., :4], v), r"k \[2, 2, 3, 4\]"),
        (lambda k, v: (k, v[..., :4]), r"v \[2, 2, 3, 4\]"),
        (lambda k, v: (k.float(), v.float()), r"k \[2, 2, 3, 8\] torch.float32"),
    ],
    ids=["batch", "heads", "width", "width of values", "dtype"],
)
def test_keys_that_do_not_continue_what_is_held_are_refused(change, named: str):
    cache, k, v = filled()
    with pytest.raises(ValueError, match=rf"Cache\.append: {named}.* does not continue .*8\] torch.float64"):
        cache.append(*change(k, v))
    assert len(cache) == 3


def test_keys_on_another_device_are_refused():
    cache, k, v = filled()
    with pytest.raises(ValueError, match=r"Cache\.append: k .*meta.* cpu"):
        cache.append(k.to("meta"), v.to("meta"))
    assert len(cache) == 3
    with pytest.raises(ValueError, match=r"Cache\.append: .*cpu.*meta"):
        mp.Cache().append(k, v.to("meta"))


def test_keys_and_values_of_different_dtypes_are_refused():
    _, k, v = inputs(t=3)
    with pytest.raises((TypeError, ValueError), match=r"Cache\.append: .*float64.*float32"):
        mp.Cache().append(k, v.float())


def test_keys_and_values_must_fit_together():
    _, k, v = inputs(t=3)
    for one, other in ((k[0], v[0]), (k, v[:, :, :2]), (k[:1], v), (k, v[:, :1])):
        with pytest.raises(ValueError, match=r"Cache\.append: k is \[b g n d\] and v \[b g n dv\]; given \["):
            mp.Cache().append(one, other)


def test_a_cache_keeps_no_gradients_and_says_what_to_do():
    _, k, v = inputs(t=3)
    k.requires_grad_()
    with pytest.raises(ValueError, match=r"Cache\.append: a cache keeps no gradients; decode under torch.no_grad\(\)"):
        mp.Cache().append(k, v)
    cache = mp.Cache()
    with torch.no_grad():
        cache.append(k, v)
    assert not cache.keys.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_an_index_of_a_cache_is_integers(dtype: torch.dtype):
    _, k, v = inputs(t=3)
    with pytest.raises(TypeError, match=r"Cache\.append: index must be integers, given torch\.(float32|bool)"):
        mp.Cache().append(k, v, index=torch.arange(3).to(dtype))


@pytest.mark.parametrize("shape", [(4,), (1,), (), (3, 3), (2, 4), (1, 2, 3)], ids=str)
def test_an_index_of_a_cache_has_the_shape_of_its_keys(shape: tuple[int, ...]):
    _, k, v = inputs(t=3)
    with pytest.raises(ValueError, match=r"Cache\.append: index must be \[3\] or \[2, 3\], given \["):
        mp.Cache().append(k, v, index=torch.zeros(shape, dtype=torch.long))


def test_trim_wants_a_scheme():
    cache, _, _ = filled()
    with pytest.raises(TypeError, match=r"Cache\.trim: .*Scheme.*given Stream"):
        cache.trim(mp.Stream(2, 4))
    schedule = mp.Schedule([mp.Scheme(causal & window(3))])
    with pytest.raises(TypeError, match=r"Cache\.trim: .*Scheme.*given Schedule"):
        cache.trim(schedule)


# The documents of a varlen batch


def test_documents_of_counts_each_document_from_zero():
    documents, index = mp.documents_of(torch.tensor([0, 3, 5, 9]))
    assert documents.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert index.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]


def test_documents_of_takes_the_int32_of_flash_attention():
    documents, index = mp.documents_of(torch.tensor([0, 2, 3], dtype=torch.int32))
    assert documents.tolist() == [0, 0, 1]
    assert index.tolist() == [0, 1, 0]
    assert documents.dtype == index.dtype == torch.int64


def test_an_empty_document_has_no_tokens():
    documents, index = mp.documents_of(torch.tensor([0, 2, 2, 3]))
    assert documents.tolist() == [0, 0, 2]
    assert index.tolist() == [0, 1, 0]
    assert mp.documents_of(torch.tensor([0, 0]))[0].tolist() == []


def test_documents_of_a_varlen_batch_attend_as_each_alone():
    q, k, v = inputs(b=1, t=9)
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=mp.DynamicNtk(3)), mp.LogN(2), causal)
    cuts = [0, 3, 4, 9]
    documents, index = mp.documents_of(torch.tensor(cuts))
    alone = [rows_alone(scheme, q, k, v, 0, a, b) for a, b in itertools.pairwise(cuts)]
    for told in ({"index": index, "key_index": index}, {}):
        assert_same(mp.attend(q, k, v, scheme, documents=documents, **told), torch.cat(alone, 2))


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        (torch.tensor([0.0, 3.0]), r"torch.float32 of shape \(2,\)"),
        (torch.tensor([[0, 3]]), r"torch.int64 of shape \(1, 2\)"),
        (torch.tensor([0]), r"torch.int64 of shape \(1,\)"),
        (torch.tensor([False, True]), r"torch.bool of shape \(2,\)"),
        (torch.tensor([0, 1]).cfloat(), r"torch.complex64 of shape \(2,\)"),
    ],
    ids=["float", "two axes", "one number", "bool", "complex"],
)
def test_documents_of_wants_cumulative_lengths(wrong: Tensor, given: str):
    with pytest.raises(ValueError, match=rf"documents_of\(cu_seqlens\): expected integers .*\[0, 3, 5\].*{given}"):
        mp.documents_of(wrong)


def test_documents_of_shows_lengths_that_are_not_cumulative():
    for wrong in ([1, 3], [0, 3, 2], [3, 2, 4]):
        with pytest.raises(ValueError, match=r"cumulative lengths start at 0 and never fall") as error:
            mp.documents_of(torch.tensor(wrong))
        assert f"documents_of({wrong})" in str(error.value)


def test_documents_of_a_list_says_that_a_tensor_is_wanted():
    with pytest.raises(TypeError, match=r"documents_of\(\[0, 3, 5\]\): .*tensor"):
        mp.documents_of([0, 3, 5])
