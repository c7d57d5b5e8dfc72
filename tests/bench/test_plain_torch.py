"""The yardstick of errors computes the same equation: in float64 it is the specification, whatever the scheme."""

from __future__ import annotations

import pytest
import torch

import milepost as mp
from milepost.bench.harness.plain_torch import plain_attention
from tests.oracles import inputs

PLACES = {
    "far keys set off": mp.Pivot(mp.Rerope(4), 6),
    "diluted": mp.Dilute(mp.Pivot(mp.SelfExtend(2, 4), 6), 6),
    "sinks kept": mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(4), sinks=2), 6), 6),
    "chunks, set off": mp.Pivot(mp.DualChunk(6, 2), 5),
}


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_in_float64_it_is_the_specification(name: str):
    given = inputs(t=14)
    scheme = mp.Scheme(mp.Rope(8), PLACES[name], mp.causal)
    # Its softmax is in float32, as plain PyTorch's is.
    torch.testing.assert_close(
        plain_attention(*given, scheme), mp.attend(*given, scheme, backend="reference"), rtol=0, atol=1e-5
    )
