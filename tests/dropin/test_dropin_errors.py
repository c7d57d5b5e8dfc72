"""What the drop-ins refuse, and in what words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import dropin
from milepost.dropin import PositionalEncoding, RotaryAttention
from tests.refusals import INF, refused


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (
            lambda: dropin.sinusoidal_embedding(-1, 8),
            ValueError,
            "sinusoidal_embedding(n_channels=-1): n_channels must",
        ),
        (lambda: dropin.sinusoidal_embedding(4, 0), ValueError, "sinusoidal_embedding(dim=0): dim must be at least 1"),
        (
            lambda: dropin.sinusoidal_embedding(4, 8.0),
            TypeError,
            "sinusoidal_embedding(dim=8.0): dim must be an integer",
        ),
        (lambda: PositionalEncoding(0, 0.1), ValueError, "PositionalEncoding(d_model=0): d_model must be at least 1"),
        (
            lambda: PositionalEncoding(8, 0.1, 0),
            ValueError,
            "PositionalEncoding(max_len=0): max_len must be at least 1",
        ),
        (
            lambda: PositionalEncoding(8, 0.1)(zeros(5, 8)),
            ValueError,
            "PositionalEncoding: x is [b, t, 8]; given [5, 8]",
        ),
        (
            lambda: PositionalEncoding(8, 0.1)(zeros(2, 5, 6)),
            ValueError,
            "PositionalEncoding: x is [b, t, 8]; given [2",
        ),
        (
            lambda: PositionalEncoding(8, 0.1)(zeros(2, 5, 8), -1),
            ValueError,
            "PositionalEncoding(start=-1): start must",
        ),
        (
            lambda: PositionalEncoding(8, 0.1)(zeros(2, 5, 8), 1.5),
            TypeError,
            "PositionalEncoding(start=1.5): start must",
        ),
    ],
)
def test_waves(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda: dropin.get_slopes(0), ValueError, "get_slopes(n=0): n must be at least 1"),
        (lambda: dropin.get_slopes(2.0), TypeError, "get_slopes(n=2.0): n must be an integer, not float"),
        (
            lambda: dropin.build_alibi_tensor(zeros(2, 4), 0, torch.float32),
            ValueError,
            "build_alibi_tensor(num_heads=0): num_heads must be at least 1",
        ),
        (
            lambda: dropin.build_alibi_tensor(zeros(2, 1, 4, 4), 2, torch.float32),
            ValueError,
            "build_alibi_tensor: attention_mask is [b s]; given [2, 1, 4, 4]",
        ),
        (
            lambda: dropin.build_alibi_tensor(torch.tensor([[0.0, -INF]]), 2, torch.float32),
            ValueError,
            "build_alibi_tensor: attention_mask has -inf; it is 1 for a token and 0 for padding",
        ),
        (lambda: dropin.gen_alibi_mask(0, 4), ValueError, "gen_alibi_mask(n_head=0): n_head must be at least 1"),
        (lambda: dropin.gen_alibi_mask(2, 4.0), TypeError, "gen_alibi_mask(max_pos=4.0): max_pos must be an integer"),
        (
            lambda: dropin.gen_alibi_mask(2, 4, queries=5),
            ValueError,
            "gen_alibi_mask(queries=5): queries are the last of max_pos=4 tokens, so not more",
        ),
    ],
)
def test_linear_biases(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda: RotaryAttention(16.0, 2), TypeError, "RotaryAttention(d_model=16.0): d_model must be an integer"),
        (lambda: RotaryAttention(16, 0), ValueError, "RotaryAttention(n_heads=0): n_heads must be at least 1"),
        (
            lambda: RotaryAttention(12, 4),
            ValueError,
            "RotaryAttention(d_model=12, n_heads=4): d_model must be a multiple of 8, because each head turns",
        ),
        (lambda: RotaryAttention(16, 2, causal=1), TypeError, "RotaryAttention(causal=1): causal is True or False"),
        (lambda: RotaryAttention(16, 2)(zeros(5, 16)), ValueError, "RotaryAttention: x is [b, t, 16]; given [5, 16]"),
        (
            lambda: RotaryAttention(16, 2)(zeros(2, 5, 8)),
            ValueError,
            "RotaryAttention: x is [b, t, 16]; given [2, 5, 8]",
        ),
    ],
)
def test_the_layer(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)
