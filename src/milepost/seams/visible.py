"""Which keys a query may see, as a small expression tree: `causal & (window(4096) | sinks(4))`.

`i` is the index of the query and `j` that of the key. Besides saying yes or no to a pair, an expression answers for
whole ranges of queries, so that a backend can leave out keys that nobody sees and masks that hide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.band import Band, Strip, Strips, both, either, fitted, outside

Range = tuple[float, float]
"""Keys from the first to the second number, both included; empty where the first is larger."""

ALL: Range = (float("-inf"), float("inf"))
NONE: Range = (float("inf"), float("-inf"))

OF_RANGES = ("is_causal", "within", "surely", "keeps", "strips", "normal")
"""What an expression answers besides `see`, pair by pair the same."""


class Visible:
    """An expression over (i, j). Combine with `&`, `|` and `~`."""

    # Visibility reads indices, which a shift of positions leaves alone.
    relative: ClassVar[bool] = True
    is_causal: bool = False
    """True where no key ahead of the query is ever seen."""

    def __init_subclass__(cls) -> None:
        """Let a class that sees anew answer for no ranges until it says them: its base's are those of another `see`."""
        super().__init_subclass__()
        for name in OF_RANGES:
            # A strip says all of them but one.
            says = {name} if name == "is_causal" else {name, "strip"}
            nearest = next(each for each in cls.__mro__ if (says | {"see"}) & vars(each).keys())
            if not says & vars(nearest).keys():
                setattr(cls, name, vars(Visible)[name])

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Say whether the query at index i may see the key at index j."""
        raise NotImplementedError

    def within(self, first: int, last: int) -> Range:
        """A range of j that holds every key seen by any of the queries first … last."""
        return ALL

    def surely(self, first: int, last: int) -> Range:
        """A range of j in which every key is seen by all of the queries first … last."""
        return NONE

    def keeps(self, i: int, j: Tensor) -> Tensor:
        """Whether a query at index i or later may still see the key at index j."""
        return torch.ones_like(j, dtype=torch.bool)

    def strips(self) -> Strips:
        """The strips of pairs that are seen, or None where there are none such."""
        return None

    def normal(self) -> Band | None:
        """The expression as four numbers: how far behind and ahead, how many first keys, which chunk; or None."""
        return fitted(self.strips())

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} is neither true nor false; combine what is visible with &, | and ~, not with and, or, not"
        )

    def __and__(self, other: Visible) -> Visible:
        return Both(self, other) if isinstance(other, Visible) else NotImplemented

    def __or__(self, other: Visible) -> Visible:
        return Either(self, other) if isinstance(other, Visible) else NotImplemented

    def __invert__(self) -> Visible:
        return Hidden(self)


class Leaf(Visible):
    """An expression that is one strip of pairs: what it answers for ranges follows from the limits of the strip."""

    @property
    def strip(self) -> Strip:
        """The pairs that are seen."""
        raise NotImplementedError

    def within(self, first: int, last: int) -> Range:
        strip = self.strip
        low, high = max(first - strip.behind + 1, 0), min(last + strip.ahead, strip.first - 1)
        if strip.chunk is None:
            return low, high
        return max(low, first // strip.chunk * strip.chunk), min(high, (last // strip.chunk + 1) * strip.chunk - 1)

    def surely(self, first: int, last: int) -> Range:
        # Of all the queries the last sees least behind, and the first sees least ahead.
        return self.within(last, first)

    def keeps(self, i: int, j: Tensor) -> Tensor:
        strip = self.strip
        kept = (j > i - strip.behind) & (j < strip.first)
        return kept if strip.chunk is None else kept & (j >= i // strip.chunk * strip.chunk)

    def strips(self) -> Strips:
        return [self.strip]


@dataclass(frozen=True, repr=False)
class Everything(Leaf):
    """Every key is seen."""

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i == i) & (j == j)

    @property
    def strip(self) -> Strip:
        return Strip()

    def __repr__(self) -> str:
        return "everything"


@dataclass(frozen=True, repr=False)
class Causal(Leaf):
    """Keys 0 … i, the query's own included."""

    is_causal = True

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    @property
    def strip(self) -> Strip:
        return Strip(ahead=0)

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, repr=False)
class Window(Leaf):
    """Keys i − n + 1 … i, n of them, and `ahead` more after the query."""

    called: ClassVar[str] = "window"
    n: int
    ahead: int = 0

    def __post_init__(self) -> None:
        demand.whole(self, "n", self.n)
        demand.whole(self, "ahead", self.ahead, least=0)

    @property
    def is_causal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.ahead == 0

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j > i - self.n) & (j <= i + self.ahead)

    @property
    def strip(self) -> Strip:
        return Strip(self.n, self.ahead)

    def __repr__(self) -> str:
        return f"window({self.n})" if self.ahead == 0 else f"window({self.n}, ahead={self.ahead})"


@dataclass(frozen=True, repr=False)
class Sinks(Leaf):
    """The first n keys, wherever the query stands."""

    called: ClassVar[str] = "sinks"
    n: int

    def __post_init__(self) -> None:
        demand.whole(self, "n", self.n)

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.n) & (i == i)

    @property
    def strip(self) -> Strip:
        return Strip(first=self.n)

    def __repr__(self) -> str:
        return f"sinks({self.n})"


@dataclass(frozen=True, repr=False)
class Chunks(Leaf):
    """Keys of the query's own block of n: ⌊i/n⌋ = ⌊j/n⌋."""

    called: ClassVar[str] = "chunks"
    n: int

    def __post_init__(self) -> None:
        demand.whole(self, "n", self.n)

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i // self.n == j // self.n

    @property
    def strip(self) -> Strip:
        return Strip(chunk=self.n)

    def __repr__(self) -> str:
        return f"chunks({self.n})"


@dataclass(frozen=True, repr=False)
class Both(Visible):
    """Seen by a and by b."""

    a: Visible
    b: Visible

    @property
    def is_causal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.a.is_causal or self.b.is_causal

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.a.see(batch, head, i, j) & self.b.see(batch, head, i, j)

    def within(self, first: int, last: int) -> Range:
        a, b = self.a.within(first, last), self.b.within(first, last)
        return max(a[0], b[0]), min(a[1], b[1])

    def surely(self, first: int, last: int) -> Range:
        a, b = self.a.surely(first, last), self.b.surely(first, last)
        return max(a[0], b[0]), min(a[1], b[1])

    def keeps(self, i: int, j: Tensor) -> Tensor:
        return self.a.keeps(i, j) & self.b.keeps(i, j)

    def strips(self) -> Strips:
        return both(self.a.strips(), self.b.strips())

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Either) else repr(part) for part in (self.a, self.b))


@dataclass(frozen=True, repr=False)
class Either(Visible):
    """Seen by a or by b."""

    a: Visible
    b: Visible

    @property
    def is_causal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.a.is_causal and self.b.is_causal

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.a.see(batch, head, i, j) | self.b.see(batch, head, i, j)

    def within(self, first: int, last: int) -> Range:
        a, b = self.a.within(first, last), self.b.within(first, last)
        return min(a[0], b[0]), max(a[1], b[1])

    def surely(self, first: int, last: int) -> Range:
        # The wider of the two; their union need not be one range.
        return max(self.a.surely(first, last), self.b.surely(first, last), key=lambda r: r[1] - r[0])

    def keeps(self, i: int, j: Tensor) -> Tensor:
        return self.a.keeps(i, j) | self.b.keeps(i, j)

    def strips(self) -> Strips:
        return either(self.a.strips(), self.b.strips())

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"


@dataclass(frozen=True, repr=False)
class Hidden(Visible):
    """Seen where `a` is not."""

    a: Visible

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~self.a.see(batch, head, i, j)

    def strips(self) -> Strips:
        return outside(self.a.strips())

    def __repr__(self) -> str:
        return f"~({self.a!r})" if isinstance(self.a, (Both, Either)) else f"~{self.a!r}"


causal: Visible = Causal()
everything: Visible = Everything()


def window(n: int, *, ahead: int = 0) -> Visible:
    """Keys i − n + 1 … i, n of them, the query's own included; `ahead` adds that many keys after the query."""
    return Window(n, ahead)


def sinks(n: int) -> Visible:
    """The first n keys, wherever the query stands. Combine: `causal & (window(1020) | sinks(4))`."""
    return Sinks(n)


def chunks(n: int) -> Visible:
    """Keys of the query's own block of n tokens."""
    return Chunks(n)
