"""ReRoPE: distances past a window count as the window (Su, 2023, kexue.fm/archives/9708)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime


@dataclass(frozen=True)
class Rerope:
    """Let no two tokens stand further apart than a window.

        distance  ←  p − r  where |p − r| < window,   ±window  beyond

    Needs no training. A window of a quarter to a half of the trained length works; the whole of it does not.
    Keys ahead of the query stay at −window.
    """

    window: int
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.whole(self, "window", self.window)

    def place(self) -> tuple[Regime, ...]:
        w = self.window
        behind, ahead = Bound(low=w), Bound(low=w, mirrored=True)
        return (
            Regime(bounds=(Bound(high=w), Bound(high=w, mirrored=True))),
            Regime(query=lambda p: torch.full_like(p, w), key=torch.zeros_like, bounds=(behind,)),
            Regime(query=torch.zeros_like, key=lambda r: torch.full_like(r, w), bounds=(ahead,)),
        )
