"""The forms in which ALiBi is in use, each written from its description, and what Alibi makes of each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Alibi, AlibiInterpolate, Scheme, SoftmaxOne, attend, causal, window
from tests.oracles import assert_same, hidden_future, inputs

T = 10


def slopes(heads: int) -> Tensor:
    """The authors' rule, [h 1 1]: the nearest power of two below, then every second slope of the next finer list."""
    below = 2 ** math.floor(math.log2(heads))
    coarse = [2.0 ** (-8 * h / below) for h in range(1, below + 1)]
    fine = [2.0 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)]
    return torch.tensor(coarse + fine[: heads - below], dtype=torch.float64).view(-1, 1, 1)


def official(heads: int, real: Tensor) -> Tensor:
    """The authors and fairseq: m·j on top of a causal mask of −∞, whatever is padding."""
    return slopes(heads) * torch.arange(real.shape[1]) + hidden_future(real.shape[1])


def mpt(heads: int, real: Tensor) -> Tensor:
    """m·(j − (L − 1)): one row, 1 − L … 0, for all queries."""
    length = real.shape[1]
    return slopes(heads) * (torch.arange(length) - (length - 1)) + hidden_future(length)


def baichuan(heads: int, real: Tensor, longest: int = 16) -> Tensor:
    """One table [h, longest, longest] of triu(−∞) + m·j, cut to the text."""
    table = hidden_future(longest) + slopes(heads) * torch.arange(longest)
    return table[:, : real.shape[1], : real.shape[1]]


def bloom(heads: int, real: Tensor) -> Tensor:
    """m·position, position = (cumsum(mask) − 1)·mask: padding stands at 0, so every text starts there."""
    position = (real.cumsum(-1) - 1) * real
    return slopes(heads) * position[:, None, None, :] + hidden_future(real.shape[1])


FORMS = {"official": official, "MPT": mpt, "Baichuan": baichuan, "BLOOM": bloom}


def dense(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention with a bias added to scaled scores."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[3]) + bias, -1) @ v


def padded(side: str) -> Tensor:
    """Which tokens are real: all in the first row, seven and one in the others."""
    real = torch.zeros(3, T, dtype=torch.long)
    for row, length in enumerate((T, 7, 1)):
        real[row, slice(T - length, T) if side == "left" else slice(0, length)] = 1
    return real


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (4, 2), (6, 2), (12, 4)])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_use_is_alibi_after_the_softmax_padding_included(form, heads, groups, side):
    q, k, v = inputs(b=3, h=heads, g=groups, t=T, dv=5)
    real = padded(side)
    hidden = torch.where(real[:, None, None, :] == 1, 0.0, -math.inf)
    peer = dense(q, k, v, FORMS[form](heads, real) + hidden)
    ours = attend(q, k, v, Scheme(Alibi(heads), causal), documents=real - 1)
    seen = real.bool()[:, None, :, None].expand_as(ours)
    assert_same(ours[seen], peer[seen])
    assert not ours[~seen].any()


@pytest.mark.parametrize("form", FORMS)
def test_decoding_with_the_last_row_of_a_form_is_decoding_with_alibi(form):
    q, k, v = inputs(b=3, t=T)
    real = padded("left")
    bias = FORMS[form](4, real) + torch.where(real[:, None, None, :] == 1, 0.0, -math.inf)
    peer = dense(q[:, :, -1:], k, v, bias[..., -1:, :])
    ours = attend(q[:, :, -1:], k, v, Scheme(Alibi(4), causal), key_documents=real - 1)
    assert_same(ours, peer)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_differs_from_alibi_by_a_constant_of_the_row(form):
    index = torch.arange(T)
    ours = Scheme(Alibi(6), causal).bias(index, index, dtype=torch.float64)
    apart = FORMS[form](6, torch.ones(1, T, dtype=torch.long)) - ours
    apart = torch.where(torch.isinf(ours), 0.0, apart)
    for i in range(T):
        assert_same(apart[..., i, : i + 1], apart[..., i, :1].expand_as(apart[..., i, : i + 1]), within=1e-14)


def test_a_window_changes_nothing_about_that():
    q, k, v = inputs(t=T)
    behind = torch.arange(T)[:, None] - torch.arange(T)
    bias = official(4, torch.ones(1, T)).masked_fill(behind >= 4, -math.inf)
    assert_same(attend(q, k, v, Scheme(Alibi(4), causal & window(4))), dense(q, k, v, bias))


# Where the forms are not ALiBi


def test_without_a_causal_mask_the_growing_form_is_another_bias():
    q, k, v = inputs(t=T)
    peer = dense(q, k, v, slopes(4) * torch.arange(T))
    assert float((attend(q, k, v, Scheme(Alibi(4))) - peer).abs().max()) > 1e-2


def test_a_sink_sees_the_constant_that_the_softmax_does_not():
    # Beside a logit of nothing the growing forms crowd it out; ALiBi itself does not.
    q, k, v = inputs(t=T, g=4)
    nothing = torch.zeros(2, 4, 1, 8, dtype=torch.float64)
    longer = [torch.cat([x, nothing], 2) for x in (k, v)]
    ours = attend(q, k, v, Scheme(Alibi(4), SoftmaxOne(4), causal))
    paper = slopes(4) * (torch.arange(T) - torch.arange(T)[:, None]) + hidden_future(T)
    growing = official(4, torch.ones(1, T))
    biases = [torch.cat([bias, torch.zeros(4, T, 1)], -1) for bias in (paper, growing)]
    assert_same(ours, dense(q, *longer, biases[0]))
    assert float((ours - dense(q, *longer, biases[1])).abs().max()) > 1e-2


def test_the_penalty_is_not_divided_by_the_root_of_the_width():
    q, k, v = inputs(t=T)
    bias = official(4, torch.ones(1, T))
    divided = dense(q, k, v, torch.where(torch.isinf(bias), bias, bias / math.sqrt(8)))
    assert float((attend(q, k, v, Scheme(Alibi(4), causal)) - divided).abs().max()) > 1e-3
    # Falcon divides it, which is ALiBi interpolated by √d.
    assert_same(attend(q, k, v, Scheme(Alibi(4, stretch=AlibiInterpolate(math.sqrt(8))), causal)), divided)


@pytest.mark.parametrize("name", ["bloom", "falcon", "mpt"])
def test_the_forms_are_those_of_transformers(name):
    theirs = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    real = padded("left")
    if name == "mpt":
        found, written = theirs.build_mpt_alibi_tensor(8, T), mpt(8, real)
    else:
        found = theirs.build_alibi_tensor(real, 8, torch.float64).view(3, 8, 1, T)
        written = bloom(8, real)
    # The last row of each is not masked; slopes of eight heads are powers of two, exact in every dtype.
    assert_same(found.double()[..., -1, :], written[..., -1, :])
