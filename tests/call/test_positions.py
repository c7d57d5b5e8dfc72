"""Where tokens stand, and how long the text is: what one side says of the other, and what is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import milepost as mp
from milepost import causal
from milepost.seams.known import exports
from tests.oracles import assert_same, inputs, plain, turned

ROPE = mp.Scheme(mp.Rope(8), causal)


def test_a_position_alone_stands_for_both_sides():
    q, k, v = inputs(t=7)
    at = torch.tensor([0.0, 1.5, 2.0, 7.0, 8.0, 8.5, 20.0])
    here, there = turned(q, at), turned(k, at)

    def score(b: int, h: int, i: int, j: int) -> Any:
        return (here[b, h, i] @ there[b, h // 2, j].conj()).real / math.sqrt(8) if j <= i else -math.inf

    want = plain(q, k, v, score)
    assert_same(mp.attend(q, k, v, ROPE, position=at), want)
    assert_same(mp.attend(q, k, v, ROPE, key_position=at), want)
    # Of fewer queries, they are the last.
    assert_same(mp.attend(q[:, :, 4:], k, v, ROPE, key_position=at), want[:, :, 4:])


def test_a_position_of_fewer_queries_does_not_say_where_keys_stand():
    q, k, v = inputs(t=7)
    with pytest.raises(ValueError, match="position says where 1 queries stand, but not where the 7 keys do"):
        mp.attend(q[:, :, 6:], k, v, ROPE, position=torch.tensor([9]))
    with pytest.raises(ValueError, match="give key_position"):
        mp.attend(q, k, v, ROPE, position=torch.arange(7), index=range(3, 10))
    with pytest.raises(ValueError, match="give position"):
        mp.attend(q, k, v, ROPE, key_position=torch.arange(7), index=range(3, 10))


def test_documents_of_fewer_queries_do_not_say_those_of_keys():
    q, k, v = inputs(t=7)
    with pytest.raises(ValueError, match="documents has 2 entries, but there are 7 keys; give key_documents too"):
        mp.attend(q[:, :, 5:], k, v, ROPE, documents=torch.zeros(2, dtype=torch.long))
    names = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    want = mp.attend(q, k, v, ROPE, documents=names)[:, :, 5:]
    assert_same(mp.attend(q[:, :, 5:], k, v, ROPE, key_documents=names), want)


def test_what_acts_on_embeddings_is_refused_by_the_name_of_what_helps():
    q, k, v = inputs(t=5)
    scheme = mp.Scheme(mp.Sinusoidal(16), mp.Rope(8), causal)
    with pytest.raises(ValueError, match=r"the scheme without it: scheme\.attention") as refusal:
        mp.attend(q, k, v, scheme)
    assert eval(str(refusal.value).split("here ")[1], exports()).same_as(scheme.attention)
    assert_same(mp.attend(q, k, v, scheme.attention), mp.attend(q, k, v, ROPE))


def test_a_name_in_place_of_a_scheme_gets_advice_that_works():
    q, k, v = (torch.randn(1, 2, 5, 64) for _ in range(3))
    with pytest.raises(TypeError, match=r"such as Scheme\(Rope\(64\), causal\)") as refusal:
        mp.attend(q, k, v, "rope")  # pyright: ignore
    advice = str(refusal.value).split("such as ")[1]
    assert mp.attend(q, k, v, eval(advice, exports())).shape == q.shape


BY_LENGTH = {
    "DynamicNtk": mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(5)), causal),
    "LogN": mp.Scheme(mp.Rope(8), mp.LogN(4, count="length"), causal),
    "Alibi": mp.Scheme(mp.Alibi(4, stretch=mp.AlibiDynamicNtk(5)), causal),
}


@pytest.mark.parametrize("name", BY_LENGTH)
def test_shards_of_keys_are_told_the_length_of_the_text(name: str):
    scheme = BY_LENGTH[name]
    q, k, v = inputs(t=12)
    whole = mp.attend(q, k, v, scheme, backend="reference")
    for length in (12, torch.tensor(12), torch.tensor([12, 12]), torch.tensor([[12], [12]])):
        parts = []
        for first, last in ((0, 5), (5, 12)):
            k_, v_ = k[:, :, first:last], v[:, :, first:last]
            parts += mp.attend(
                q, k_, v_, scheme, index=range(12), key_index=range(first, last), length=length, return_lse=True
            )
        assert_same(mp.merge(*parts)[0], whole)
    without = mp.attend(q[:, :, :5], k[:, :, :5], v[:, :, :5], scheme)
    assert not torch.allclose(without, whole[:, :, :5])


@pytest.mark.parametrize("backend", ["flex", "diagonals", "chunked", "reference"])
def test_rows_may_have_lengths_of_their_own(backend: str):
    scheme = BY_LENGTH["Alibi"]
    q, k, v = inputs(t=6)
    both = mp.attend(q, k, v, scheme, length=torch.tensor([16, 40]), backend=backend)
    for row, length in enumerate((16, 40)):
        one = slice(row, row + 1)
        assert_same(both[one], mp.attend(q[one], k[one], v[one], scheme, length=length, backend="reference"))


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "12", torch.tensor(2.5), torch.tensor([1, 2, 3])])
def test_a_length_is_a_whole_number(wrong: Any):
    q, k, v = inputs(t=5)
    with pytest.raises(ValueError, match="length"):
        mp.attend(q, k, v, ROPE, length=wrong)


PARTS = {"rope": mp.Rope(8, stretch=mp.DynamicNtk(4)), "alibi": mp.Alibi(4, stretch=mp.AlibiDynamicNtk(4))}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_each_token_may_be_given_the_length_of_its_own_text(part: object):
    q, k, v = inputs(t=11, s=11)
    documents = torch.tensor([0] * 6 + [1] * 5)
    lengths = torch.tensor([6] * 6 + [5] * 5).expand(q.shape[0], -1)
    scheme = mp.Scheme(part, causal)
    wanted = mp.attend(q, k, v, scheme, documents=documents)
    able = mp.explain(q, k, v, scheme, documents=documents, length=lengths).able
    assert {"reference", "chunked"} <= set(able)
    for backend in able:
        found = mp.attend(q, k, v, scheme, documents=documents, length=lengths, backend=backend)
        assert_same(found, wanted)
        apart = mp.attend(q, k, v, scheme, documents=documents, length=lengths + 9, backend=backend)
        assert (apart - wanted).abs().max() > 1e-4
    with pytest.raises(ValueError, match="one for each of as many queries as keys"):
        mp.attend(q[:, :, 1:], k, v, scheme, length=lengths)


RELATIONS: dict[str, Callable[[], object]] = {
    "Shaw": lambda: mp.Shaw(8, reach=3),
    "Nezha": lambda: mp.Nezha(8, reach=8, count="distance"),
    "TransformerXL": lambda: mp.TransformerXL(8, 4, 8),
    "Deberta": lambda: mp.Deberta(8, 4, 8, reach=5),
}


@pytest.mark.parametrize("name", RELATIONS)
def test_tables_by_whole_distance_refuse_what_lies_between(name: str):
    part, (q, k, v) = RELATIONS[name](), inputs(t=4)
    scheme = mp.Scheme(part).double()
    at = torch.tensor([0.0, 0.5, 1.0, 1.4])
    text = rf"attend: position holds 0\.5, and {name}\(.* has a row for each whole distance, and none between"
    for backend in (None, "reference", "chunked"):
        with pytest.raises(ValueError, match=text):
            mp.attend(q, k, v, scheme, position=at, backend=backend)
    with pytest.raises(ValueError, match=text.replace("position", "key_position")):
        mp.scores(q, k, scheme, position=at.ceil(), key_position=at)
    whole = mp.attend(q, k, v, scheme, position=torch.arange(4) * 2)
    assert torch.equal(mp.attend(q, k, v, scheme, position=torch.arange(4) * 2.0), whole)
    for moves in (mp.LeakyRerope(2, 4.0), mp.Dilute(mp.LeakyRerope(2, 4.0), 4)):
        with pytest.raises(ValueError, match=rf"Scheme: .*moves tokens to fractions of a step, and {name}\("):
            mp.Scheme(part, mp.Rope(8), moves, causal)


def test_no_tokens_have_no_lengths_of_their_own():
    q, k, v = (each[:, :, :0] for each in inputs(t=3))
    assert (
        mp.attend(q, k, v, mp.Scheme(mp.LogN(2, count="length")), length=torch.ones(len(q), 0, dtype=torch.long)).shape[
            2
        ]
        == 0
    )
