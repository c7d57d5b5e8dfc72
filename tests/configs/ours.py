"""Rotations of ours, read off what they do to a vector, and compared with transformers'."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from milepost import Partial
from tests.configs import theirs
from tests.oracles import assert_same, in_complex, inputs


def width_of(turn: Any) -> int:
    return turn.of if isinstance(turn, Partial) else turn.head_dim


def whole(turn: Any) -> Any:
    return turn.method if isinstance(turn, Partial) else turn


def read(turn: Any, length: int = 1) -> tuple[Tensor, float]:
    """Frequencies and magnitude, from what becomes of the first channel of every pair at position 1."""
    rope = whole(turn)
    real = torch.ones(rope.head_dim // 2, dtype=torch.float64), torch.zeros(rope.head_dim // 2, dtype=torch.float64)
    x = torch.cat(real) if rope.pairs == "halves" else torch.stack(real, -1).flatten()
    x = torch.cat((x, torch.ones(width_of(turn) - rope.head_dim, dtype=torch.float64)))[None, None, None]
    out = turn.turn(x, torch.ones(1, dtype=torch.float64), length=length)[0, 0, 0]
    assert torch.equal(out[rope.head_dim :], x[0, 0, 0, rope.head_dim :])
    pairs = in_complex(out[: rope.head_dim], rope.pairs)
    sizes = pairs.abs()
    assert_same(sizes, sizes[:1].expand_as(sizes))
    return pairs.angle(), float(sizes[0])


def bound(turn: Any) -> float:
    """The rounding of transformers' frequencies, as theirs.rounding derives it."""
    rope, stretch = whole(turn), getattr(whole(turn), "stretch", None)
    factor = getattr(stretch, "factor", 1.0)
    # Llama 3's blend reads the number of turns, up to high, over high − low; a step blends nothing.
    steep = stretch.high / (stretch.high - stretch.low) if getattr(stretch, "high", 0) > 1.5 else 1.0
    return theirs.rounding(rope.theta, max(1.0, factor * steep), rope.head_dim if hasattr(stretch, "truncate") else 0)


def scores_agree(turn: Any, config: Any, layer: int = 0, t: int = 24) -> None:
    """Demand transformers' scores of turned queries and keys; they do not care how a turned vector is laid out."""
    index = torch.arange(t)
    q, k, _ = (x.float() for x in inputs(b=1, h=1, g=1, t=t, d=width_of(turn)))
    a, b = theirs.turned(config, q, k, index, layer)
    # An angle errs by its own rounding, a product of float32 by a few units; both weigh |q|·|k|.
    size = read(turn)[1] ** 2 * float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    ours = turn.turn(q.double(), index) @ turn.turn(k.double(), index, "key").mT
    assert_same(ours, a.double() @ b.double().mT, size * (t * bound(turn) + 2.0**-21))
