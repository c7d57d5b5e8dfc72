"""Leaky ReRoPE: distances past a window grow more slowly (Su, 2023, kexue.fm/archives/9708)."""

import math
from dataclasses import dataclass

from torch import Tensor

from milepost.numerics.precision import demand_float64
from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime


@dataclass(frozen=True)
class LeakyRerope:
    """Slow distances down past a window.

        distance  ←  p − r  where |p − r| < window,   ±( window + (|p − r| − window)/factor )  beyond

    factor=1 is plain RoPE; a large one approaches ReRoPE. One below 1 speeds distances up (InvLeaky, for
    training). Keys ahead of the query are treated the same way, with the sign turned.
    """

    window: int
    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "window", self.window)
        demand.finite(self, "factor", self.factor, above=0)

    def place(self) -> tuple[Regime, ...]:
        w, k = self.window, self.factor
        growth = max(1, math.ceil(1 / k))

        def slowed(position: Tensor) -> Tensor:
            demand_float64("LeakyRerope", position.device)
            return position.double() / k

        behind, ahead = Bound(low=w), Bound(low=w, mirrored=True)
        return (
            Regime(bounds=(Bound(high=w), Bound(high=w, mirrored=True))),
            Regime(query=lambda p: slowed(p - w) + w, key=slowed, bounds=(behind,), growth=growth),
            Regime(query=lambda p: slowed(p + w) - w, key=slowed, bounds=(ahead,), growth=growth),
        )
