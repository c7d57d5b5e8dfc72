"""A cache of ragged batches: each row has an index of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, sinks, window
from tests.layers import rows_alone
from tests.oracles import assert_same, inputs

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
