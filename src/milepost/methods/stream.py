"""StreamingLLM: sinks and a window, at their positions in the cache (Xiao et al., 2023, arXiv:2309.17453)."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.band import Band
from milepost.seams.verbs import Bound, Regime, same


@dataclass(frozen=True)
class Stream:
    """See the first `sinks` keys and the last `window`, at the positions they have in a cache of just those.

        see(i, j)  =  j ≤ i and ( j < sinks or i − j < w )
        distance  ←  p − r  where i − j < w,   min(i, sinks + w − 1) − j  to a sink further away
        evict="before":  w  =  window
        evict="after":   w  =  window + 1

    Runs at constant cost (`Cache.trim` drops the rest), but what left the window is lost. evict="before"
    drops the oldest key before the new one comes, as the authors' chat does; "after", as their perplexity script does,
    lets a query see one key more. Sinks and slots of the cache count tokens, whatever positions are given.
    """

    sinks: int
    window: int
    _: KW_ONLY
    evict: Literal["before", "after"] = "before"
    relative = True
    is_causal = True

    def __post_init__(self) -> None:
        demand.whole(self, "sinks", self.sinks, least=0)
        demand.whole(self, "window", self.window)
        demand.one_of(self, "evict", self.evict, ("before", "after"))

    @property
    def reach(self) -> int:
        """The number of last keys that a query sees, its own included."""
        return self.window + (self.evict == "after")

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j < self.reach) | (j < self.sinks))

    def keeps(self, i: int, j: Tensor) -> Tensor:
        """True if a query at index i or later may still see the key at index j."""
        return (j > i - self.reach) | (j < self.sinks)

    def normal(self) -> Band:
        """Return the visible keys as four numbers."""
        return Band(self.reach, 0, self.sinks, None)

    def place(self) -> tuple[Regime, ...]:
        last = self.sinks + self.reach - 1
        near = Regime(bounds=(Bound(high=self.reach, by_index=True),))
        if self.sinks == 0:
            return (near,)
        # Keys that are no sinks are not in this region; clamped to a sink, they stretch no table of distances.
        return near, Regime(
            query=lambda i: i.clamp(max=last),
            key=lambda j: j.clamp(max=self.sinks - 1),
            by_index=True,
            # The second bound measures the key alone: j < sinks.
            bounds=(
                Bound(self.reach, by_index=True),
                Bound(high=self.sinks, measure=torch.zeros_like, key_measure=same, mirrored=True, by_index=True),
            ),
        )
