"""A learned flow and its integration: what carries FLOATER's positions from one token to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from milepost.numerics.opaque import opaque
from milepost.numerics.read_weights import Linear
from milepost.refusal import need


class Flow(nn.Module):
    """The direction in which a state [… dim] moves at time τ: two layers, with τ beside the features of each."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = Linear(dim + 1, dim)
        self.outer = Linear(dim + 1, dim)
        for layer in (self.inner, self.outer):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def states(self, start: Tensor, position: Tensor, step: float) -> Tensor:
        """The state at each position [...], as [... *shape of start]."""
        weights = [self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias]
        return _integrate(position, [start, *weights], repr(step))


def _walk(position: Tensor, weights: Sequence[Tensor], step: str) -> Tensor:
    need("Floater", "floater")
    from torchdiffeq import odeint  # pyright: ignore

    start, w1, b1, w2, b2 = weights

    def direction(time: Tensor, state: Tensor) -> Tensor:
        at = time.to(state).expand(*state.shape[:-1], 1)
        hidden = nn.functional.linear(torch.cat((state, at), -1), w1, b1).relu()
        return nn.functional.linear(torch.cat((hidden, at), -1), w2, b2)

    reached, place = cast("tuple[Tensor, Tensor]", position.double().unique(return_inverse=True))
    if not reached.numel() or not reached[-1]:
        return start.expand(*position.shape, *start.shape)
    late = bool(reached[0])
    # The grid ends on a whole step, so that a state does not depend on who is last.
    end = (reached[-1:] * 5).ceil() / 5
    times = torch.cat(([reached.new_zeros(1)] if late else []) + [reached] + ([end] if end > reached[-1] else []))
    options = {"step_size": float(step) / 5, "interp": "cubic"}
    states: Tensor = odeint(direction, start, times * float(step), method="rk4", options=options)  # pyright: ignore
    return states[place + late]


_integrate = opaque("floater", _walk)
