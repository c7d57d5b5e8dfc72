"""Distances past a window: constant, slowed or counted in groups."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.numerics.precision import demand_float64
from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime

Moved = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""New positions of queries and of keys."""


def _past(window: int, behind: Moved, ahead: Moved, growth: int = 1) -> tuple[Regime, ...]:
    """Return the regimes that leave distances below a window as they are and move keys behind and ahead of it."""
    return (
        Regime(bounds=(Bound(high=window), Bound(high=window, mirrored=True))),
        Regime(*behind, bounds=(Bound(low=window),), growth=growth),
        Regime(*ahead, bounds=(Bound(low=window, mirrored=True),), growth=growth),
    )


@dataclass(frozen=True)
class Rerope:
    """Limit distances to a window.

        at=None:  distance  ←  p − r  where |p − r| < window,   ±window  beyond
        at=…:     distance  ←  p − r  where |p − r| < window,   ±at  beyond

    Needs no training. A window of a quarter to a half of the trained length works; the whole of it does not.
    Keys ahead of the query stay at −window. at: the distance of far keys instead (milepost's own, 2026): a model that
    finds near tokens more reliably than far ones can be given far keys as near, such as at an eighth of its length.
    """

    paper = "ReRoPE: distances past a window count as the window (Su, 2023, kexue.fm/archives/9708)."
    window: int
    _: KW_ONLY
    at: int | None = None
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "window", self.window)
        if self.at is not None:
            demand.whole(self, "at", self.at)

    def place(self) -> tuple[Regime, ...]:
        at = self.window if self.at is None else self.at

        def limited(position: Tensor) -> Tensor:
            return torch.full_like(position, at)

        return _past(self.window, (limited, torch.zeros_like), (torch.zeros_like, limited))


@dataclass(frozen=True)
class LeakyRerope:
    """Slow distances down past a window.

        distance  ←  p − r  where |p − r| < window,   ±( window + (|p − r| − window)/factor )  beyond

    factor=1 is plain RoPE; a large one approaches ReRoPE. One below 1 speeds distances up (InvLeaky, for
    training). Keys ahead of the query are treated the same way, with the sign turned.
    """

    paper = "Leaky ReRoPE: distances past a window grow more slowly (Su, 2023, kexue.fm/archives/9708)."
    window: int
    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "window", self.window)
        demand.finite(self, "factor", self.factor, above=0)

    def place(self) -> tuple[Regime, ...]:
        w, k = self.window, self.factor

        def slowed(position: Tensor) -> Tensor:
            demand_float64("LeakyRerope", position.device)
            return position.double() / k

        growth = max(1, math.ceil(1 / k))
        return _past(w, (lambda p: slowed(p - w) + w, slowed), (lambda p: slowed(p + w) - w, slowed), growth)


@dataclass(frozen=True)
class SelfExtend:
    """Keep near distances and count far ones in groups.

        distance  ←  p − r  where |p − r| < neighbours
        distance  ←  ⌊p/group⌋ − ⌊r/group⌋ ± (neighbours − neighbours/group)  beyond

    Needs no training; reaches group · (trained − neighbours) + neighbours tokens. The group must divide neighbours:
    otherwise the authors' two code paths disagree about the shift. Keys ahead are placed the same way, mirrored.
    """

    paper = "Self-Extend: far tokens share positions in groups (Jin et al., 2024, arXiv:2401.01325)."
    group: int
    neighbours: int
    relative = False

    def __post_init__(self) -> None:
        demand.whole(self, "group", self.group)
        demand.whole(self, "neighbours", self.neighbours)
        if self.neighbours % self.group:
            raise ValueError(
                f"SelfExtend(group={self.group}, neighbours={self.neighbours}): group must divide neighbours; "
                f"try neighbours={self.neighbours // self.group * self.group or self.group}"
            )

    def place(self) -> tuple[Regime, ...]:
        w, g = self.neighbours, self.group
        shift = w - w // g

        def grouped(position: Tensor) -> Tensor:
            return position // g

        return _past(w, (lambda p: grouped(p) + shift, grouped), (lambda p: grouped(p) - shift, grouped))
