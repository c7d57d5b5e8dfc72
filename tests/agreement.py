"""Asking two backends the same question, outputs and gradients, and comparing what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import milepost as mp
from milepost.backends import blocks, chunked
from milepost.call.call import Call
from milepost.memory.table import MEMORY
from tests.layers import T, embedded, project, tokens
from tests.oracles import assert_same


@contextlib.contextmanager
def small_blocks() -> Iterator[None]:
    """Cut even a dozen rows into several blocks, and look tokens up plainly."""
    # Imported here, because torch's compiler brings Triton along, before its interpreter could be asked for.
    from torch._dynamo import _trace_wrapped_higher_order_op as flex_indexing

    MEMORY.forget()
    with (
        mock.patch.object(chunked, "BLOCK", 1),
        mock.patch.object(chunked, "LEAST_ROWS", 5),
        mock.patch.object(blocks, "LEAST_ROWS", 3),
        mock.patch.object(blocks, "ROWS", 4),
        # FlexAttention looks tokens up by a function with a gradient, which it has not on the CPU: half of its time.
        mock.patch.object(flex_indexing, "mod_index", torch.ops.aten.index),
    ):
        yield
    MEMORY.forget()


def sums_of_any_rows() -> Any:
    """Give the log-sum-exps of rows that may not be whole, which `attend` refuses: backends are compared by them."""
    return mock.patch.object(Call, "is_whole", True)


def calls() -> list[dict[str, Any]]:
    """Ways to call attend that a backend must get right: plain, ragged and packed, fewer queries than keys, runs."""
    index = torch.stack([torch.arange(T), (torch.arange(T) * 2)])
    documents = torch.tensor([[0] * 5 + [1] * 6 + [-1] * 2, [-1] * 3 + [4] * 10])
    return [
        {},
        {"key_index": index},
        {"documents": documents},
        {"rows": 4},
        {"key_index": range(3, 3 + T)},
        {"rows": 4, "index": range(9, 13), "key_index": range(2, 2 + T)},
        {"position": index * 0.5, "key_position": index * 0.5},
    ]


class Asked:
    """One way of calling attend on one scheme."""

    def __init__(self, scheme: mp.Scheme, options: dict[str, Any]) -> None:
        options = dict(options)
        rows = options.pop("rows", T)
        if scheme.answering("relate") or scheme.answering("place"):
            # Tables and groups count whole positions.
            options = {name: each.long() if isinstance(each, Tensor) else each for name, each in options.items()}
        q, k, v = project(embedded(scheme, tokens()))
        self.scheme, self.options = scheme.attention, options
        self.tensors = [each.detach().requires_grad_() for each in (q[:, :, T - rows :], k, v)]
        self.leaves = [*self.tensors, *scheme.parameters()]

    def answers(self, backend: str) -> tuple[Tensor, list[Tensor | None]]:
        """The output, and the gradients of every tensor and weight."""
        out = mp.attend(*self.tensors, self.scheme, backend=backend, **self.options)
        return out, list(torch.autograd.grad(out.square().sum(), self.leaves, allow_unused=True))

    def forward(self, backend: str) -> tuple[Tensor, Tensor]:
        """The output and log-sum-exp, without gradients."""
        with torch.no_grad(), sums_of_any_rows():
            return mp.attend(*self.tensors, self.scheme, backend=backend, return_lse=True, **self.options)

    @cached_property
    def sums(self) -> Tensor:
        """The log-sum-exp of the reference."""
        return self.forward("reference")[1]


def compare(asked: Asked, backend: str, want: tuple[Tensor, list[Tensor | None]]) -> None:
    """One backend against the reference; refusals must be spoken."""
    try:
        out, grads = asked.answers(backend)
        assert_same(out, want[0])
        for ours, theirs in zip(grads, want[1], strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                # Long sums of large terms are rounded in proportion to their size.
                assert_same(
                    ours, theirs, within=max(1e-11, 1e-13 * float(theirs.abs().max())) if theirs.numel() else 0.0
                )
    except mp.CannotRun as refusal:
        assert f'"{backend}" cannot run this scheme' in str(refusal)
    try:
        out, lse = asked.forward(backend)
    except mp.CannotRun as refusal:
        assert f'"{backend}" cannot run this scheme' in str(refusal)
        return
    assert_same(out, want[0])
    sums = asked.sums
    assert torch.equal(lse.isinf(), sums.isinf())
    assert_same(lse.masked_fill(lse.isinf(), 0), sums.masked_fill(sums.isinf(), 0))
