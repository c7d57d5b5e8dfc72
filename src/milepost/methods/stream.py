"""StreamingLLM: the first tokens and the last, as if nothing lay between (Xiao et al., 2023, arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.band import Band
from milepost.seams.verbs import Bound, Regime, same


@dataclass(frozen=True)
class Stream:
    """See the first `sinks` keys and the last `window`, at the places they have in a cache of just those.

        see(i, j)  =  j ≤ i and ( j < sinks or i − j < w )
        distance  ←  p − r  where p − r < w,   min(p, sinks + w − 1) − r  to a sink further away
        evict="before":  w  =  window
        evict="after":   w  =  window + 1

    Runs forever at constant cost (`Cache.trim` drops the rest), but what left the window is forgotten. evict="before"
    drops the oldest key before the new one comes, as the authors' chat does; "after", as their perplexity script does,
    lets a query see one key more.
    """

    sinks: int
    window: int
    evict: Literal["before", "after"] = "before"
    relative: ClassVar[bool] = False
    is_causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.whole(self, "sinks", self.sinks, least=0)
        demand.whole(self, "window", self.window)
        demand.one_of(self, "evict", self.evict, ("before", "after"))

    @property
    def reach(self) -> int:
        """How many of the last keys a query sees, its own included."""
        return self.window + (self.evict == "after")

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j < self.reach) | (j < self.sinks))

    def keeps(self, i: int, j: Tensor) -> Tensor:
        """Whether a query at index i or later may still see the key at index j."""
        return (j > i - self.reach) | (j < self.sinks)

    def normal(self) -> Band:
        """What is seen, as four numbers."""
        return Band(self.reach, 0, self.sinks, None)

    def place(self) -> tuple[Regime, ...]:
        last = self.sinks + self.reach - 1
        near = Regime(bounds=(Bound(high=self.reach),))
        if self.sinks == 0:
            return (near,)
        # Keys that are no sinks are not in this region; clamped to a sink, they stretch no table of distances.
        return near, Regime(
            query=lambda p: p.clamp(max=last),
            key=lambda r: r.clamp(max=self.sinks - 1),
            # The second bound measures the key alone: r < sinks.
            bounds=(
                Bound(self.reach),
                Bound(high=self.sinks, measure=torch.zeros_like, key_measure=same, mirrored=True),
            ),
        )
