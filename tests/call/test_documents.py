"""The documents of a varlen batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from tests.layers import rows_alone
from tests.oracles import assert_same, inputs


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


@pytest.mark.parametrize("index", [{}, {"key_index": range(3), "index": range(3)}, {"key_index": torch.arange(3)}])
def test_no_rows_have_documents_and_a_length_too(index: dict[str, object]):
    q, k, v = (each[:0] for each in inputs(t=3))
    scheme = mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(3)), mp.LogN(2, count="length"), causal)
    documents = torch.zeros(0, 3, dtype=torch.long)
    assert mp.attend(q, k, v, scheme, documents=documents, **index).shape == v.shape[:1] + q.shape[1:3] + v.shape[3:]  # pyright: ignore
    assert mp.scores(q, k, scheme, documents=documents, **index).shape == (0, q.shape[1], 3, 3)  # pyright: ignore


@pytest.mark.parametrize("backend", [None, "sdpa", "diagonals", "chunked", "reference"])
def test_one_query_of_no_rows_attends_to_nothing(backend: str | None):
    q, k, v = (each[:0] for each in inputs(t=3))
    bias = [] if backend == "sdpa" else [mp.Alibi(4)]
    out = mp.attend(q[:, :, -1:], k, v, mp.Scheme(*bias, causal), backend=backend)
    assert out.shape == (0, q.shape[1], 1, v.shape[3])


def test_documents_of_a_varlen_batch_attend_as_each_alone():
    q, k, v = inputs(b=1, t=9)
    scheme = mp.Scheme(mp.Rope(8, theta=100.0, stretch=mp.DynamicNtk(3)), mp.LogN(2), causal)
    cuts = [0, 3, 4, 9]
    documents, index = mp.documents_of(torch.tensor(cuts))
    alone = [rows_alone(scheme, q, k, v, 0, a, b) for a, b in itertools.pairwise(cuts)]
    for told in ({"index": index, "key_index": index}, {}):
        assert_same(mp.attend(q, k, v, scheme, documents=documents, **told), torch.cat(alone, 2))


@pytest.mark.parametrize("backend", [None, "sdpa", "chunked", "reference"])
@pytest.mark.parametrize("name", ["documents", "key_documents"])
def test_an_index_beside_documents_is_that_of_both_sides(name: str, backend: str | None):
    """It counted queries through the row and keys anew in each document, so that later texts saw what was to come."""
    q, k, v = inputs(b=1, t=9)
    scheme = mp.Scheme(mp.Rope(8, theta=100.0), causal & mp.window(3))
    told: dict[str, Any] = {name: torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2])}
    alone = torch.cat([rows_alone(scheme, q, k, v, 0, a, b) for a, b in itertools.pairwise([0, 3, 4, 9])], 2)
    for index in (torch.arange(9), range(9), torch.arange(9)[None] + 2, mp.documents_of(torch.tensor([0, 3, 4, 9]))[1]):
        assert_same(mp.attend(q, k, v, scheme, index=index, backend=backend, **told), alone)


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
