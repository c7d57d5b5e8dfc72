"""ReRoPE: distances past a window count as the window (Su, 2023, kexue.fm/archives/9708)."""

from dataclasses import KW_ONLY, dataclass

import torch

from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime


@dataclass(frozen=True)
class Rerope:
    """Limit distances to a window.

        at=None:  distance  ←  p − r  where |p − r| < window,   ±window  beyond
        at=…:     distance  ←  p − r  where |p − r| < window,   ±at  beyond

    Needs no training. A window of a quarter to a half of the trained length works; the whole of it does not.
    Keys ahead of the query stay at −window. at: the distance of far keys instead (milepost's own, 2026): a model that
    finds near tokens more reliably than far ones can be given far keys as near, such as at an eighth of its length.
    """

    window: int
    _: KW_ONLY
    at: int | None = None
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "window", self.window)
        if self.at is not None:
            demand.whole(self, "at", self.at)

    def place(self) -> tuple[Regime, ...]:
        w, at = self.window, self.window if self.at is None else self.at
        behind, ahead = Bound(low=w), Bound(low=w, mirrored=True)
        return (
            Regime(bounds=(Bound(high=w), Bound(high=w, mirrored=True))),
            Regime(query=lambda p: torch.full_like(p, at), key=torch.zeros_like, bounds=(behind,)),
            Regime(query=torch.zeros_like, key=lambda r: torch.full_like(r, at), bounds=(ahead,)),
        )
