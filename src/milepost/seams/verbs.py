"""The seams of attention: where a position can act, and what acts there.

One equation carries every method of this library:

    out_i = Σ_j softmax_j( scale · sharpen(i) · ( ⟨turn(q_i, p_i), turn(k_j, r_j)⟩ + relate(q_i, k_j, p_i − r_j) ),
                           bent by bend(h, p_i, r_j) | see(i, j) ) · v_j

`i` and `j` are indices, the true order of the tokens; `p` and `r` are the positions of the query and of the key, which
are the indices unless they are given. Distance is p − r everywhere: positive is behind. The order is fixed:

    place → turn → dot, plus relate → × scale × sharpen → bend → see (−∞) → bend_rows → softmax (with rest) → values

A method is a noun that answers one or more of the verbs below; a backend reads the verbs, never the noun.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Protocol, TypedDict, runtime_checkable

from torch import Tensor

Side = Literal["query", "key", "value"]


def same(position: Tensor) -> Tensor:
    """Leave the positions as they are."""
    return position


@dataclass(frozen=True)
class Bound:
    """The pairs for which a measure of the query's position less that of the key's lies in a range.

        low  ≤  measure(p) − key_measure(r)  <  high;   mirrored:  low  ≤  key_measure(r) − measure(p)  <  high

    Left out, both measures are the position itself, and a key's is the query's. They are whole for whole positions, and
    never fall where these rise. `by_index`: indices are measured in place of positions, as `see` does. `implied`: it
    follows from the regime's other bounds, for those who skip by distance.
    """

    low: float = -math.inf
    high: float = math.inf
    _: KW_ONLY
    measure: Callable[[Tensor], Tensor] = same
    key_measure: Callable[[Tensor], Tensor] | None = None
    mirrored: bool = False
    implied: bool = False
    by_index: bool = False

    def difference(self, p: Tensor, r: Tensor) -> Tensor:
        """What lies between low and high."""
        query, key = self.measure(p), (self.key_measure or self.measure)(r)
        return key - query if self.mirrored else query - key

    def holds(self, p: Tensor, r: Tensor) -> Tensor:
        """Which of the pairs p, r lie within: a boolean of their broadcast shape."""
        found = self.difference(p, r)
        if self.low == -math.inf:
            return found < self.high
        return found >= self.low if self.high == math.inf else (found >= self.low) & (found < self.high)

    @property
    def by_distance(self) -> bool:
        """Whether both measures are the position itself."""
        return self.measure is same and self.key_measure in (None, same)

    def distances(self) -> tuple[float, float]:
        """Return the least and the largest whole distance that can lie within.

        Of another measure, which never falls, the sign alone is known: where it is larger, so is the position.
        """
        low, high = (self.low, self.high) if self.by_distance else (-math.inf, math.inf)
        if not self.by_distance and self.key_measure is None and self.low > 0:
            low = 1
        low = low if low == -math.inf else math.ceil(low)
        high = high if high == math.inf else math.ceil(high) - 1
        return (-high, -low) if self.mirrored else (low, high)


@dataclass(frozen=True)
class Regime:
    """A region of (query, key) pairs, and the positions of its tokens.

    The region is every pair that lies within all of the `bounds`; without any, every pair there is. Inside it a query
    at p is moved to query(p) and a key at r to key(r); `by_index`: both are given the index in place of the position.
    The regimes of one method do not overlap and share one softmax. No distance inside becomes more than `growth` times
    as large. `contrast(index, length)` is how strongly a query's scores are set off against the log-sum-exp of those of
    the regimes before the first that has a contrast, `shift(index, length)` what is then added to them all; `spared`
    asks those who give either not to.
    """

    query: Callable[[Tensor], Tensor] = same
    key: Callable[[Tensor], Tensor] = same
    _: KW_ONLY
    bounds: tuple[Bound, ...] = ()
    growth: int = 1
    contrast: Callable[[Tensor, Tensor], Tensor] | None = None
    shift: Callable[[Tensor, Tensor], Tensor] | None = None
    spared: bool = False
    by_index: bool = False

    def holds(self, p: Tensor, r: Tensor, i: Tensor | None = None, j: Tensor | None = None) -> Tensor | None:
        """Return which pairs lie in the region: a boolean of their broadcast shape, or None for all.

        p and r are positions, i and j indices, which may be left out where positions are indices.
        """
        region: Tensor | None = None
        for bound in self.bounds:
            one = bound.holds(i, j) if bound.by_index and i is not None and j is not None else bound.holds(p, r)
            region = one if region is None else region & one
        return region

    def distances(self) -> tuple[float, float]:
        """The least and the largest whole distance p − r that can occur in the region."""
        least, most = -math.inf, math.inf
        for bound in self.bounds:
            low, high = bound.distances()
            least, most = max(least, low), min(most, high)
        return least, most


@dataclass(frozen=True)
class Table:
    """Rows looked up by distance.

    rows: [h|1, n, d]. row: int32 [m], the number of the row for each whole distance p − r from `first` on; what is
    nearer or further than any of them has the first or the last.
    """

    rows: Tensor
    row: Tensor
    first: int

    def find(self, distance: Tensor) -> Tensor:
        """The row numbers of distances of any shape, as int64; distances are whole, in any dtype."""
        last = self.first + len(self.row) - 1
        row = self.row.to(distance.device)
        return row[distance.round().long().clamp(self.first, last) - self.first].long()


@dataclass(frozen=True)
class Relation:
    """What a pair of tokens gains from its distance alone.

    keys:    (q_i + shift) · keys[p − r] joins the dot product (content to position); shift is [h, d].
    queries: k_j · queries[p − r] joins the dot product (position to content).
    values:  values[p − r] joins v_j.

    q and k are raw here: a relation sees them before they are turned.
    """

    keys: Table | None = None
    _: KW_ONLY
    queries: Table | None = None
    values: Table | None = None
    shift: Tensor | None = None


@runtime_checkable
class Embeds(Protocol):
    """Acts on the token embeddings."""

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """Give the token embeddings x [b t D] their positions; index is [t] or [b t], 0 … t − 1 if None."""
        ...


@runtime_checkable
class Places(Protocol):
    """Acts on the positions."""

    def place(self) -> tuple[Regime, ...]:
        """Say where tokens stand, region by region. What lies in no region is not visible."""
        ...


@runtime_checkable
class Turns(Protocol):
    """Acts on queries, keys or values, before the dot product."""

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Change queries, keys or values x [b h t d] before the dot product.

        position: [t], [b t] or [b t axes]; length: how many tokens there are, an int or [b|1 t|1].
        """
        ...


@runtime_checkable
class Relates(Protocol):
    """Adds to dot products and values by distance."""

    def relate(self, span: int) -> Relation:
        """Answer the tables to look up by whole distances; `attend` refuses positions between them.

        No distance that counts exceeds span in size; one that does belongs to a pair nobody sees, and any row will do.
        """
        ...


@runtime_checkable
class Sharpens(Protocol):
    """Acts on the softmax scale, query by query, and head by head where it likes."""

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        """Return a factor on the softmax scale for each query: index [b|1 t], length [b|1 t|1].

        The factor is a number, [t] or [b|1 t|1]; one for each head as well is [b|1 h t|1].
        """
        ...


@runtime_checkable
class Bends(Protocol):
    """Acts on one score."""

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        """Change one score; every argument broadcasts against score, so this serves tiles and single scores alike.

        A method that declares by_length is given `length=` as well: how many tokens the query's text has.
        """
        ...


@runtime_checkable
class BendsRows(Protocol):
    """Acts on whole rows of scores."""

    def bend_rows(
        self, scores: Tensor, q: Tensor, x: Tensor | None, index: Tensor, key_index: Tensor, position: Tensor,
        key_position: Tensor,
    ) -> Tensor:  # fmt: skip
        """Change whole rows of masked scores [b h t s], a text's keys in the order of their index; q is raw.

        The rows may be some of a call's. index and key_index are the order of their queries [b|1 t] and of the keys
        [b|1 s], position and key_position their positions, [b|1 n] or [b|1 n axes]. These four are given by name: a
        part that reads none of them takes **tokens.
        """
        ...


@runtime_checkable
class Sees(Protocol):
    """Decides which keys are visible."""

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Say whether the query at index i may see the key at index j; every argument broadcasts."""
        ...


@runtime_checkable
class Rests(Protocol):
    """Lets a query attend to nothing."""

    def rest(self) -> Tensor:
        """Answer the logit of attending to nothing, one for each head: [h]."""
        ...


@runtime_checkable
class Scales(Protocol):
    """Sets the softmax scale."""

    def scale(self, dim: int) -> float:
        """Answer the softmax scale for queries of width dim, in place of 1/√dim."""
        ...


@runtime_checkable
class Stretch(Protocol):
    """What a rotation holds to reach past its trained length. It is not a part of a scheme."""

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        """Change the frequencies f [n]; length is [...] and the answer [... n] or [n]."""
        ...

    def magnitude(self, length: Tensor) -> Tensor | float:
        """Answer the factor that rides on cos and sin: a number or [...]."""
        ...


@runtime_checkable
class SlopeStretch(Protocol):
    """What ALiBi holds to look further than it was trained to. It is not a part of a scheme."""

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        """Change the slope of each head.

        share runs from 0 for the steepest head to 1 for the flattest; length is how many tokens there are, where known.
        """
        ...


class OfRows(TypedDict):
    """What `bend_rows` is given by name."""

    index: Tensor
    key_index: Tensor
    position: Tensor
    key_position: Tensor


VERBS: dict[str, type] = {
    "embed": Embeds,
    "place": Places,
    "turn": Turns,
    "relate": Relates,
    "scale": Scales,
    "sharpen": Sharpens,
    "bend": Bends,
    "see": Sees,
    "bend_rows": BendsRows,
    "rest": Rests,
}


def answers(part: object, asked: str) -> bool:
    """Whether a method (or its class) answers a verb, or whether a facet such as `adds_values` holds for it."""
    if asked == "bends_freely":
        return answers(part, "bend") and not (answers(part, "additive") and answers(part, "relative"))
    if asked == "bends_unread":
        # A field without a default is no attribute of a class yet.
        fields = getattr(part, "__dataclass_fields__", {})
        read = any(hasattr(part, facet) or facet in fields for facet in ("slopes", "by_distance", "cap"))
        return answers(part, "bend") and not read
    found = getattr(part, asked, None)
    return callable(found) if asked in VERBS else bool(found)


def verbs_of(part: object) -> tuple[str, ...]:
    """The verbs that a method (or its class) answers, in the order of the equation."""
    return tuple(verb for verb in VERBS if answers(part, verb))
