"""Biases along diagonals: what they stand for, and when they are refused."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, attend, causal
from milepost.backends import diagonals
from tests.oracles import assert_same, inputs
from tests.refusals import refused


@pytest.mark.parametrize("t", [1, 5, 11])
@pytest.mark.parametrize("seen", [(), (causal,), (causal & mp.window(4),), (causal & mp.chunks(3),)])
def test_the_last_rows_of_a_bidirectional_table_meet_their_own_diagonals(t: int, seen: tuple[object, ...]):
    q, k, v = inputs(t=t, s=11)
    scheme = Scheme(mp.T5Bias(4, buckets=8, reach=9, bidirectional=True), *seen).double()
    torch.nn.init.normal_(scheme.parts[0].table)
    assert_same(attend(q, k, v, scheme, backend="diagonals"), attend(q, k, v, scheme, backend="reference"))


def test_a_stretch_by_the_length_is_told_the_length():
    q, k, v = inputs()
    scheme = Scheme(mp.Alibi(4, stretch=mp.AlibiDynamicNtk(5, factor=1.5)), causal)
    assert_same(attend(q, k, v, scheme, backend="diagonals"), attend(q, k, v, scheme, backend="reference"))


def test_sharpening_leaves_the_bias_alone():
    q, k, v = inputs()
    scheme = Scheme(mp.Alibi(4), mp.LogN(3), mp.Rope(8), causal)
    assert_same(attend(q, k, v, scheme, backend="diagonals"), attend(q, k, v, scheme, backend="reference"))


def test_what_is_no_function_of_distance_is_refused():
    q, k, v = inputs()
    told = 'backend "diagonals" cannot run this scheme: '
    for part, why in (
        (mp.SoftCap(5.0), "SoftCap(5) does more to a score than add a number for its distance"),
        (mp.Fire(4).double(), "Fire(4) does more to a score than add a number for its distance"),
        (mp.Cope(8, 4).double(), "Cope(8, 4) modifies whole rows of scores"),
    ):
        scheme = Scheme(part, causal)
        refused(mp.CannotRun, told + why, lambda scheme=scheme: attend(q, k, v, scheme, backend="diagonals"))
    alibi = Scheme(mp.Alibi(4), causal)
    given = torch.arange(11)
    refused(
        mp.CannotRun,
        told + "indices, positions or documents were given",
        lambda: attend(q, k, v, alibi, key_index=given, backend="diagonals"),
    )


class PerSample:
    """A penalty whose strength is known for each sample."""

    relative = additive = True

    def __init__(self, strength: torch.Tensor) -> None:
        self.strength = strength

    def bend(
        self, score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, p: torch.Tensor, r: torch.Tensor
    ) -> torch.Tensor:
        return score - self.strength[batch] * (p - r).abs().to(score.dtype)


def test_a_bend_that_reads_the_batch_has_a_bias_for_each_row():
    q, k, v = inputs()
    scheme = Scheme(PerSample(torch.tensor([0.1, 2.0], dtype=torch.float64)), causal)
    reference = attend(q, k, v, scheme, backend="reference")
    assert_same(attend(q, k, v, scheme, backend="diagonals"), reference)
    assert_same(attend(q, k, v, scheme), reference)
    # Each counts towards what is laid out.
    with mock.patch.object(diagonals, "MOST", 2 * 4 * 11 * 11 - 1):
        refused(
            mp.CannotRun,
            'backend "diagonals" cannot run this scheme: the bias would hold 968 numbers, more than 967',
            lambda: attend(q, k, v, scheme, backend="diagonals"),
        )


def test_a_bias_too_large_to_lay_out_is_refused():
    q, k, v = inputs()
    with mock.patch.object(diagonals, "MOST", 4 * 11 * 11 - 1):
        refused(
            mp.CannotRun,
            'backend "diagonals" cannot run this scheme: the bias would hold 484 numbers, more than 483',
            lambda: attend(q, k, v, Scheme(mp.Alibi(4), causal), backend="diagonals"),
        )


def test_a_bias_that_follows_a_length_for_each_token_is_not_laid_out():
    length = torch.tensor([[4, 4, 4, 4, 40, 40]])
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scheme = mp.Scheme(mp.Alibi(2, stretch=mp.AlibiDynamicNtk(4)), mp.causal)
    slope, share = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    own = slope[:, None] * (length[0].double() / 4).clamp(min=1.0) ** -share[:, None]
    at = torch.arange(6)
    score = q @ k.mT / math.sqrt(8) - own[None, :, :, None] * (at[:, None] - at)
    expected = score.masked_fill(at > at[:, None], -math.inf).softmax(-1) @ v
    assert_same(mp.attend(q, k, v, scheme, length=length), expected)
    with pytest.raises(mp.CannotRun, match="a length was given for each token"):
        mp.attend(q, k, v, scheme, length=length, backend="diagonals")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("make", [mp.T5Bias, mp.Kerple, mp.LearnedAlibi, mp.Alibi], ids=lambda make: make.__name__)
@pytest.mark.parametrize("t", [1, 9])
def test_torch_func_gives_every_gradient(make: Any, t: int):
    scheme, (q, k, v) = mp.Scheme(make(4), mp.causal).double(), inputs(t=9)

    def total(q: Tensor, backend: str | None) -> Tensor:
        return mp.attend(q[:, :, -t:], k, v, scheme, backend=backend).sin().sum()

    want = torch.func.grad(total)(q, "reference")
    assert_same(torch.func.grad(total)(q, None), want)
    each = torch.vmap(torch.func.grad(lambda row: total(row.expand(2, -1, -1, -1), None)))(q)
    assert each.isfinite().all()
    if make is mp.Alibi:
        # A bias that learns nothing may go on.
        assert_same(torch.func.grad(total)(q, "diagonals"), want)
        return
    with pytest.raises(mp.CannotRun, match=r"no gradient under torch\.func"):
        torch.func.grad(total)(q, "diagonals")
