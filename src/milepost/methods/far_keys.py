"""What is done to the scores of the far keys that another method moves."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from milepost.methods.regions import first_keys
from milepost.numerics.precision import float64, returned
from milepost.seams import demand
from milepost.seams.verbs import Regime

MOST = 1 << 30
"""More than that, compared with an index of 32 bits, would wrap around."""


@dataclass(frozen=True)
class Pivot:
    """Scale the scores of the keys that a method moves about the log-sum-exp of all others.

        score  ←  score + strength · ln max(1, n/trained) · (score − near)   for the keys that method moves
        near  =  ln Σ exp(score) over the other keys
        count="index":   n  =  i + 1
        count="length":  n  =  the length of the text

    The more keys there are, the more of them are similar by chance, and a softmax over all of them blurs. Here a far
    key that weighs less than the near ones together is lowered, and one that weighs more is raised. Where a query sees
    no near key, near is 0: nothing visible has no log-sum-exp, and a far score is then compared with a key of score 0.
    Within the trained length the method is as without it, and no training is needed. n is the query's index + 1
    (count="index", causal models) or the length of the text (count="length", encoders).
    """

    paper = "Pivot: in long texts, far keys count only if they outweigh all near ones (milepost's own, 2026)."
    method: Any
    trained: int
    _: KW_ONLY
    strength: float = 0.5
    count: Literal["index", "length"] = "index"
    contrasts = True

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "strength", self.strength, least=0)
        demand.one_of(self, "count", self.count, ("index", "length"))

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def needs_causal(self) -> bool:
        """True if keys ahead of the query have no position."""
        return getattr(self.method, "needs_causal", False)

    @property
    def by_length(self) -> bool:
        """True if the strength depends on the number of tokens."""
        return self.count == "length" or getattr(self.method, "by_length", False)

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        return near, *(each if each.spared else replace(each, contrast=self._strength) for each in far)

    def _strength(self, index: Tensor, length: Tensor) -> Tensor:
        """Return the strength for the scores of each query: index [b|1 t], length [b|1 t|1]."""
        n = float64(index + 1 if self.count == "index" else length)
        strength = self.strength * (torch.log(n.clamp(min=1)) - math.log(self.trained)).clamp(min=0)
        return returned(strength, index.device)


@dataclass(frozen=True)
class Dilute:
    """Lower the scores of the keys that a method moves, by the logarithm of how many more there are than in training.

        score  ←  score − strength · ln max(1, (i + 1 − near)/(trained − near))   for the keys that method moves
        near  =  how many keys it leaves where they are

    A head that attends broadly, or prefers far keys, gave its far keys a share of its attention
    that grew with their number; past the trained length that share swallows the near ones. With strength 1 all far keys
    together weigh what an average of them weighed in training; a larger one trusts them less. Every key is still seen,
    within the trained length the method is as without it, and no training is needed. For causal models.
    """

    paper = "Dilute: far keys together weigh no more than in training, however many there are (milepost's own, 2026)."
    method: Any
    trained: int
    _: KW_ONLY
    strength: float = 1.0
    needs_causal = True

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "strength", self.strength, least=0)
        if self.near >= self.trained:
            raise ValueError(
                f"Dilute({self.method!r}, trained={self.trained}): {self.near} keys are near, so that none was far in "
                f"training; give the length of the training, or a method that moves keys closer by"
            )

    @property
    def near(self) -> float:
        """The number of keys that are not moved."""
        return self.method.place()[0].distances()[1] + 1

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def contrasts(self) -> bool:
        """True if far keys are compared with near ones, as by a Pivot inside."""
        return getattr(self.method, "contrasts", False)

    @property
    def by_length(self) -> bool:
        """True if something inside depends on the number of tokens."""
        return getattr(self.method, "by_length", False)

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        return near, *(each if each.spared else replace(each, shift=self._shift) for each in far)

    def _shift(self, index: Tensor, length: Tensor) -> Tensor:
        """Return what is added to the far scores of each query: index [b|1 t]."""
        more = torch.log(float64((index + 1 - self.near).clamp(min=1))) - math.log(self.trained - self.near)
        return returned(-self.strength * more.clamp(min=0), index.device)


@dataclass(frozen=True)
class KeepSinks:
    """Exclude the first `sinks` keys from what a Pivot or a Dilute around this does to the far keys of a method.

        j < sinks:   where the method puts it, its score as it is; near and not far for a Pivot
        j ≥ sinks:   as without this

    A trained model rests attention that it has no use for on the first tokens of a text (Xiao et al., 2023,
    arXiv:2309.17453). Lowered with all other far keys, they no longer take it, and it goes to near keys that mean
    nothing to the head: Dilute(KeepSinks(Rerope(4096)), 8192) lowers the others alone. Needs no training.
    """

    paper = "KeepSinks: attention sinks excluded from what is done to far keys (milepost's own, 2026)."
    method: Any
    _: KW_ONLY
    sinks: int = 4

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        if any(each.contrast or each.shift for each in self.method.place()):
            around: list[str] = []
            inner = self.method
            while hasattr(inner, "method"):
                around.append(type(inner).__name__)
                inner = inner.method
            instead = f"KeepSinks({inner!r})"
            for name in reversed(around):
                instead = f"{name}({instead}, …)"
            raise ValueError(f"KeepSinks({self.method!r}): what comes around it spares the sinks; write {instead}")
        demand.whole(self, "sinks", self.sinks)
        if self.sinks > MOST:
            raise ValueError(f"KeepSinks(sinks={self.sinks}): no text is that long")

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def needs_causal(self) -> bool:
        """True if keys ahead of the query have no position."""
        return getattr(self.method, "needs_causal", False)

    @property
    def by_length(self) -> bool:
        """True if something inside depends on the number of tokens."""
        return getattr(self.method, "by_length", False)

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        first = first_keys(self.sinks)
        later = replace(first, low=self.sinks, high=math.inf)
        return (
            near,
            *(replace(each, bounds=(*each.bounds, first), spared=True) for each in far),
            *(replace(each, bounds=(*each.bounds, later)) for each in far),
        )
