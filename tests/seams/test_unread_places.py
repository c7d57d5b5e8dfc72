"""A part that moves tokens does nothing where no part reads their positions: that is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, causal
from tests.oracles import inputs


def named(parts: tuple[Any, ...]) -> str:
    return ", ".join(type(part).__name__ for part in parts)


UNREAD: list[tuple[Any, ...]] = [
    (mp.Rerope(4), causal),
    (mp.LeakyRerope(4, 2.0), causal),
    (mp.SelfExtend(2, 4), causal),
    (mp.DualChunk(6, 2), causal),
    (mp.KeepSinks(mp.Rerope(4), sinks=2), causal),
    (mp.Rerope(4), mp.SoftCap(5.0), mp.LogN(8), mp.Scale(1.0), mp.SinkLogit(4), causal),
    (mp.Rerope(4), mp.Cope(8, 6), causal),
    (mp.Rerope(4), mp.Sinusoidal(32), causal),
]


class Own:
    """A bias of the user's own, which may read positions."""

    relative = True

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - (p - r)


READ: list[tuple[Any, ...]] = [
    (mp.Rerope(4), mp.Rope(8), causal),
    (mp.Rerope(4), mp.Alibi(4), causal),
    (mp.Rerope(4), mp.Shaw(8, reach=6, values=False), causal),
    (mp.Rerope(4), Own(), causal),
    (mp.Stream(2, 4),),
    (mp.Pivot(mp.Rerope(4), 5), causal),
    (mp.Dilute(mp.Rerope(4), 6), causal),
]


@pytest.mark.parametrize("parts", UNREAD, ids=named)
def test_places_that_nobody_reads_are_refused(parts: tuple[Any, ...]):
    name, (q, k, v) = type(parts[0]).__name__, inputs(t=12)
    says = rf"attend: {name}\(.* moves tokens, and no part of the scheme reads .* Rope\(dim\)"
    for _ in range(2):
        with pytest.raises(ValueError, match=says):
            mp.attend(q, k, v, Scheme(*parts).attention)


@pytest.mark.parametrize("parts", READ, ids=named)
def test_places_that_somebody_reads_or_that_do_more_are_served(parts: tuple[Any, ...]):
    q, k, v = inputs(t=12)
    kept = Scheme(*(part for part in parts if not hasattr(part, "place")), causal).double()
    assert not torch.allclose(mp.attend(q, k, v, Scheme(*parts).double()), mp.attend(q, k, v, kept))
