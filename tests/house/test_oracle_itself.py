"""The oracle agrees with torch where torch has an opinion, so that a wrong oracle cannot excuse wrong code."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from tests.oracles import assert_same, inputs, plain


def test_the_oracle_equals_torch_on_plain_causal_attention():
    q, k, v = inputs()

    def score(b: int, h: int, i: int, j: int):
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) if j <= i else -math.inf

    assert_same(plain(q, k, v, score), F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


def test_assert_same_can_fail():
    ones = torch.ones(3, dtype=torch.float64)
    for wrong in (ones + 1e-11, torch.full((3,), math.nan), torch.ones(4)):
        try:
            assert_same(wrong, ones)
        except AssertionError:
            continue
        raise RuntimeError(f"assert_same let {wrong} pass")
