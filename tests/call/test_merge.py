"""Parts of one softmax, merged: what attention over all keys at once gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, window
from tests.oracles import assert_same, inputs

SCHEMES = {
    "plain": lambda: mp.Scheme(mp.Rope(8), causal),
    "a window that hides a shard": lambda: mp.Scheme(mp.Rope(8), window(3)),
    "SinkLogit": lambda: mp.Scheme(mp.SinkLogit(4), causal),
    "SoftmaxOne": lambda: mp.Scheme(mp.SoftmaxOne(4), window(3)),
}


def in_shards(q: Tensor, k: Tensor, v: Tensor, scheme: mp.Scheme, ends: tuple[int, ...]) -> list[Tensor]:
    """out, lse, out, lse, … over some of the keys each."""
    parts: list[Tensor] = []
    for first, last in zip((0, *ends), (*ends, k.shape[2]), strict=True):
        shard = slice(first, last)
        index, key_index = range(k.shape[2] - q.shape[2], k.shape[2]), range(first, last)
        parts += mp.attend(q, k[:, :, shard], v[:, :, shard], scheme, index=index, key_index=key_index, return_lse=True)
    return parts


@pytest.mark.parametrize("ends", [(), (4,), (2, 3, 8)])
@pytest.mark.parametrize("name", SCHEMES)
def test_shards_merge_into_the_whole_with_gradients(name: str, ends: tuple[int, ...]):
    scheme = SCHEMES[name]().double()
    tensors = [each.requires_grad_() for each in inputs(t=11)]
    leaves = [*tensors, *scheme.parameters()]
    out, lse = mp.merge(*in_shards(*tensors, scheme, ends), rest=scheme.rest())
    want, sums = mp.attend(*tensors, scheme, return_lse=True, backend="reference")
    assert_same(out, want)
    assert_same(lse, sums)
    ours = torch.autograd.grad((out.square().sum() + lse.sin().sum()), leaves)
    theirs = torch.autograd.grad((want.square().sum() + sums.sin().sum()), leaves)
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other, within=1e-11)


def test_merging_is_the_sum_of_the_docstring():
    outs, lses = torch.randn(3, 2, 4, 5, 8).double(), torch.randn(3, 2, 4, 5).double()
    out, lse = mp.merge(*(each for pair in zip(outs, lses, strict=True) for each in pair))
    weights = lses.exp() / lses.exp().sum(0)
    assert_same(out, (weights[..., None] * outs).sum(0))
    assert_same(lse, lses.exp().sum(0).log())


def test_rows_that_saw_nothing_anywhere_give_zeros_and_a_finite_gradient():
    q, k, v = (each.requires_grad_() for each in inputs(t=6))
    documents = torch.tensor([[0, 0, -1, 0, 0, -1]] * 2)
    one = mp.attend(q, k, v, mp.Scheme(causal), documents=documents, return_lse=True)
    other = mp.attend(q, k, v, mp.Scheme(window(2)), documents=documents, return_lse=True)
    out, lse = mp.merge(*one, *other)
    assert (out[:, :, [2, 5]] == 0).all()
    assert (lse[:, :, [2, 5]] == -torch.inf).all()
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_large_sums_do_not_overflow():
    out, lse = torch.ones(1, 2, 3, 4), torch.full((1, 2, 3), 800.0)
    merged, total = mp.merge(out, lse, 3 * out, lse, rest=torch.tensor([-5.0, 700.0]))
    # float32 keeps a sum of 800 to 6e-5.
    assert_same(merged, 2 * out, within=3e-4)
    assert_same(total, lse + 0.6931472, within=1e-4)


def test_halves_merge_in_their_own_dtype():
    q, k, v = (each.bfloat16() for each in inputs(t=8))
    scheme = mp.Scheme(mp.Rope(8), causal)
    out, lse = mp.merge(*in_shards(q, k, v, scheme, (3,)))
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert_same(out, mp.attend(q.double(), k.double(), v.double(), scheme), within=0.05)


def test_wrong_arguments_say_what_is_wanted():
    out, lse = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="give out and lse of every part"):
        mp.merge()
    with pytest.raises(ValueError, match="given 3 tensors"):
        mp.merge(out, lse, out)
    with pytest.raises(ValueError, match=r"every out is \[b h t dv\] and every lse \[b h t\]"):
        mp.merge(lse, out)
    with pytest.raises(TypeError, match="not tuple; unpack it"):
        mp.merge((out, lse), (out, lse))  # pyright: ignore


class Softer:
    """A user's own part: each score less the mean of its row."""

    def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None, **tokens: Tensor) -> Tensor:
        seen = scores > -torch.inf
        return scores - scores.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)


WHOLE_ROWS = {
    r"Cope\(8, 6\)": lambda: mp.Scheme(mp.Cope(8, 6), causal),
    r"Pivot\(.*\)": lambda: mp.Scheme(mp.Rope(8), mp.Pivot(mp.Rerope(3), 4), causal),
    r"Dilute\(Pivot\(.*\)": lambda: mp.Scheme(mp.Rope(8), mp.Dilute(mp.Pivot(mp.Rerope(3), 4), 5), causal),
    r"Softer\(\)": lambda: mp.Scheme(Softer(), causal),
}


@pytest.mark.parametrize("backend", [None, "reference", "chunked"])
@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_parts_that_need_whole_rows_have_no_sums_over_some_keys(name: str, backend: str | None):
    scheme, (q, k, v) = WHOLE_ROWS[name]().double(), inputs(t=8)
    says = rf"attend\(return_lse=True\): {name} .* whole rows .* cannot be merged"
    half = slice(0, 4)
    for options in (
        {"index": range(8), "key_index": range(4)},
        {"index": torch.arange(8), "key_index": torch.arange(4)},
        {"index": range(4, 12), "key_index": range(4)},
    ):
        with pytest.raises(ValueError, match=says):
            mp.attend(q, k[:, :, half], v[:, :, half], scheme, backend=backend, return_lse=True, **options)
        mp.attend(q, k[:, :, half], v[:, :, half], scheme, backend=backend, **options)
    # A step may be over a shard of the keys, though nothing was said of it.
    for _ in range(2):
        with pytest.raises(ValueError, match=says):
            mp.attend(q[:, :, :1], k[:, :, half], v[:, :, half], scheme, backend=backend, return_lse=True)
    for options in ({"length": 20}, {"documents": torch.zeros(8, dtype=torch.long)}):
        with pytest.raises(ValueError, match=says):
            mp.attend(q, k, v, scheme, backend=backend, return_lse=True, **options)


@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_a_pass_over_a_whole_text_gives_the_sums_of_whole_rows(name: str):
    scheme, (q, k, v) = WHOLE_ROWS[name]().double(), inputs(t=8)
    want, sums = mp.attend(q, k, v, scheme, backend="reference", return_lse=True)
    for backend in (None, "chunked"):
        out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True)
        assert_same(out, want)
        assert_same(lse, sums)
