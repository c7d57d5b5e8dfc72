"""Facets: what a method also says about itself, so that a kernel can do its work faster than verb by verb.

A verb is always there and always right; a facet is there for whoever can use it. What a backend computes from a facet
is what the reference computes from the verb, and a law in `tests/facets.py` checks that for every method. None of them
looks at a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from milepost.numerics.rotation import Pairs
from milepost.seams.band import Band
from milepost.seams.verbs import Places, Relates, Relation, Side, verbs_of


@runtime_checkable
class Rotates(Protocol):
    """Turns pairs of channels by cosines and sines, and does nothing else. `turn` is what these make of x.

        (a, b)  ←  (a·cos − b·sin, b·cos + a·sin)  for every pair of the first `width` channels,   x · beyond  past them

    pairs: which channels make a pair. width: how many channels are turned, the first ones of the head_dim that a head
    has. blocks: into how many equal parts those channels fall, pairs being formed within each (1 but for ChatGLM's
    two); the cosines of the first part come first. Values are left alone, unless `for_values` names what turns them.
    """

    @property
    def pairs(self) -> Pairs: ...

    @property
    def width(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    def cos_sin(
        self,
        position: Tensor,
        length: Tensor | int | None = None,
        side: Side = "query",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines [… t width/2] of every angle, times the magnitude that rides on them."""
        ...

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        """The angle of every pair at position 1, float64 [width/2], and the magnitude of all.

        At position p the angle is p times that, at any length. None where that is not all there is to say.
        """
        ...

    def beyond(self, position: Tensor, length: Tensor | int | None = None) -> Tensor | float | None:
        """What the channels past `width` of queries and keys are multiplied by, [b|1 t|1], [1] or a number.

        None where they are left alone.
        """
        ...

    def for_values(self, width: int) -> Rotates | None:
        """What turns the first channels of values that have `width` of them; None where they are left alone."""
        ...


@dataclass(frozen=True)
class Slopes:
    """A penalty that is linear in the distance d = p − r; each is [h].

    added(d)  =  step − behind · d  for d > 0,   0 at d = 0,   −ahead · |d|  for d < 0
    """

    behind: Tensor
    ahead: Tensor
    step: Tensor | None = None
    """What every key behind the query gains, in the offset form; None for nothing."""


@runtime_checkable
class HasSlopes(Protocol):
    """Adds to a score a number that is linear in the distance, with a slope for each head and side."""

    def slopes(self, length: Tensor | int | None = None) -> Slopes:
        """The slopes of every head, float32 or better, with gradients where they are learned.

        length: how many tokens there are, for slopes that follow it; each of the answers is then [… h].
        """
        ...


@runtime_checkable
class ByDistance(Protocol):
    """Adds to a score a number that depends on the distance alone.

    constant_past: (behind, ahead). From the distance `behind` on, and from −`ahead` on in the other direction, there is
    one value; math.inf where there is no end.
    """

    @property
    def constant_past(self) -> tuple[float, float]: ...

    def by_distance(self, distance: Tensor) -> Tensor:
        """What is added at each distance [n] of either sign: [h|1, n], float32 or better, with gradients."""
        ...


@runtime_checkable
class ByTwoNumbers(ByDistance, Protocol):
    """Adds by distance what follows from two numbers of each head, of which the first is a factor.

    by_distance(d)  =  factor · f(number, d)

    Whoever knows that needs no gradient of every distance to learn the two.
    """

    def two_numbers(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The factor [h], never 0, and the number [h], with gradients; the derivative of by_distance by the number at
        each distance [n], [h n], without: all float32 or better.
        """
        ...


@runtime_checkable
class ByBucket(ByDistance, Protocol):
    """Adds by distance one of few numbers: distances fall into buckets, and a table has a row for each.

    by_distance(d)  =  table[bucket of d]
    """

    def by_bucket(self, first: int, end: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the table [rows h], with gradients, and the row of each distance first … end − 1, [n], int64."""
        ...


@runtime_checkable
class ByShare(Protocol):
    """Adds to a score a function of the distance as a share of the query's position."""

    def share(self, distance: Tensor, p: Tensor) -> Tensor:
        """The share that each distance is, of the shape that distance and p broadcast to."""
        ...

    def by_share(self, share: Tensor) -> Tensor:
        """What is added at each share [...]: [h ...], with gradients."""
        ...


@runtime_checkable
class ByCount(Protocol):
    """Adds to a score a number that is looked up by a count of open gates.

        count_ij  =  min(n − 1, Σ σ(gate_im)),   m from j to the last key that i sees

    gates: what a gate is; "scores" for the key's score as it was before, elsewhere `bend_rows` alone knows.
    """

    @property
    def gates(self) -> str: ...

    def by_count(self, q: Tensor) -> Tensor:
        """What is added at the counts 0 … n − 1, and linearly between: [b h t n] for raw queries [b h t d]."""
        ...


@runtime_checkable
class Caps(Protocol):
    """Squashes scores into ±cap: cap · tanh(score / cap)."""

    @property
    def cap(self) -> float: ...


@runtime_checkable
class SeesBand(Protocol):
    """Sees the keys that four numbers say.

    `see` is what they make of (i, j), whatever the batch and the head.
    """

    def normal(self) -> Band | None:
        """How far behind and ahead, how many first keys and which chunk; None where that is not all there is to say."""
        ...


@runtime_checkable
class HasTables(Relates, Protocol):
    """Looks vectors up in tables by a row number for each whole distance."""


@runtime_checkable
class RelatesAt(Relates, Protocol):
    """Makes the rows of its tables for some distances alone, where a table has a row for every distance there is."""

    def relate_at(self, distances: Tensor) -> Relation:
        """Return what `relate` does, with rows for rising whole distances [n] alone; any row will do for others."""
        ...


@runtime_checkable
class HasBounds(Places, Protocol):
    """Places tokens region by region, each given by bounds on what separates a query from a key."""


FACETS: dict[str, type] = {
    "cos_sin": Rotates,
    "slopes": HasSlopes,
    "by_distance": ByDistance,
    "two_numbers": ByTwoNumbers,
    "by_bucket": ByBucket,
    "by_share": ByShare,
    "by_count": ByCount,
    "cap": Caps,
    "tables": HasTables,
    "relate_at": RelatesAt,
    "bounds": HasBounds,
    "normal": SeesBand,
}
"""What a part of a scheme may answer besides its verbs. A `Table` and a `Regime` are facets by themselves, so whoever
relates has tables and whoever places has bounds."""

SAY_THE_SAME: dict[str, tuple[str, ...]] = {
    "cos_sin": ("turn",),
    "slopes": ("bend",),
    "by_distance": ("bend",),
    "two_numbers": ("bend", "by_distance"),
    "by_bucket": ("bend", "by_distance"),
    "by_share": ("bend",),
    "by_count": ("bend_rows",),
    "cap": ("bend",),
    "relate_at": ("relate",),
}
"""A subclass that has one of these of its own, and not the facet, does not answer the facet.

Not so `normal`: what visible expressions have in common is made from what each of them says.
"""
SHOWN_BY = {"tables": "relate", "bounds": "place"}
"""The verb that is a facet by itself; every other facet is an attribute of its own name."""


def facets_of(part: object) -> tuple[str, ...]:
    """The facets that a method (or its class) answers; what only stretches another has none of its own."""
    return tuple(facet for facet in FACETS if has_facet(part, facet)) if verbs_of(part) else ()


def has_facet(part: object, facet: str) -> bool:
    """Whether a method (or its class) answers a facet."""
    kind = part if isinstance(part, type) else type(part)
    redefined = any(_redefined(kind, verb, facet) for verb in SAY_THE_SAME.get(facet, ()))
    return _answers(part, SHOWN_BY.get(facet, facet)) and not redefined


def _redefined(kind: type, verb: str, facet: str) -> bool:
    """Whether a subclass has a verb of its own and inherits the facet, which then says what the verb no longer does."""
    for each in kind.__mro__:
        own = vars(each)
        if facet in own or facet in own.get("__annotations__", ()):
            return False
        if verb in own:
            return True
    return False


def _answers(part: object, asked: str) -> bool:
    # A class does not have the fields of its instances as attributes.
    field = isinstance(part, type) and asked in getattr(part, "__dataclass_fields__", {})
    return field or getattr(part, asked, None) is not None
