"""Where tokens are placed, region by region: near distances kept, far ones changed."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from milepost.numerics.precision import demand_float64
from milepost.seams import demand
from milepost.seams.band import Band
from milepost.seams.verbs import Bound, Regime, same

Moved = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""New positions of queries and of keys."""


def _past(window: int, behind: Moved, ahead: Moved, growth: int = 1) -> tuple[Regime, ...]:
    """Return the regimes that leave distances below a window as they are and move keys behind and ahead of it."""
    return (
        Regime(bounds=(Bound(high=window), Bound(high=window, mirrored=True))),
        Regime(*behind, bounds=(Bound(low=window),), growth=growth),
        Regime(*ahead, bounds=(Bound(low=window, mirrored=True),), growth=growth),
    )


def first_keys(n: int) -> Bound:
    """Return the bound of the first n keys of a text, which measures the key alone."""
    return Bound(high=n, measure=torch.zeros_like, key_measure=same, mirrored=True, by_index=True)


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

        growth = math.ceil(max(at, self.window) / self.window)
        return _past(self.window, (limited, torch.zeros_like), (torch.zeros_like, limited), growth)


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


@dataclass(frozen=True)
class DualChunk:
    """Place keys within chunks of ℓ = chunk − local, and queries by how many chunks lie between.

        key at  r mod ℓ,   ℓ = chunk − local
        query at  p mod ℓ for keys of its own ℓ tokens,   min(p mod ℓ + ℓ, chunk) for those of the ℓ before,
            min(2·ℓ − 1, chunk) for older ones

    ChunkLlama sets chunk to 3/4 of the trained length and local to 1/8. No distance exceeds chunk, and those up to
    min(local + 1, ℓ) are exact. The paper's figures end one lower than the authors' code, which is followed here. A key
    that is visible, because it comes earlier in the text, and has a position ahead of the query is placed the same way,
    mirrored.
    """

    paper = "Dual chunk attention: positions that start over in every chunk (An et al., 2024, arXiv:2402.17463)."
    chunk: int
    local: int
    relative = False
    needs_causal = True

    def __post_init__(self) -> None:
        demand.whole(self, "chunk", self.chunk, least=2)
        demand.whole(self, "local", self.local, least=0)
        if self.local >= self.chunk:
            raise ValueError(f"DualChunk(chunk={self.chunk}, local={self.local}): local must be smaller than chunk")

    def place(self) -> tuple[Regime, ...]:
        size, c = self.chunk - self.local, self.chunk
        oldest = min(2 * size - 1, c)

        def chunk_of(position: Tensor) -> Tensor:
            return position // size

        def within(position: Tensor) -> Tensor:
            return position % size

        def following(position: Tensor) -> Tensor:
            return (position % size + size).clamp(max=c)

        def furthest(position: Tensor) -> Tensor:
            return torch.full_like(position, oldest)

        # The distances that the number of chunks between implies let a backend skip whole blocks, and regimes.
        same_chunk = (
            Bound(0, 1, measure=chunk_of),
            Bound(high=size, implied=True),
            Bound(high=size, mirrored=True, implied=True),
        )
        next_chunk = Bound(1, 2, measure=chunk_of), Bound(0, 2 * size, implied=True)
        older = Bound(2, measure=chunk_of), Bound(size, implied=True)
        ahead, further_ahead = (
            tuple(replace(bound, mirrored=True) for bound in bounds) for bounds in (next_chunk, older)
        )
        return (
            Regime(within, within, bounds=same_chunk),
            Regime(following, within, bounds=next_chunk),
            Regime(furthest, within, bounds=older),
            Regime(within, following, bounds=ahead),
            Regime(within, furthest, bounds=further_ahead),
        )


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

    paper = "StreamingLLM: sinks and a window, at their positions in the cache (Xiao et al., 2023, arXiv:2309.17453)."
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
            bounds=(Bound(self.reach, by_index=True), first_keys(self.sinks)),
        )
