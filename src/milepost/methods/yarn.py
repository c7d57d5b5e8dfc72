"""YaRN and its kin: slow pairs interpolated, fast ones kept."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.seams import demand

Ramp = Literal["code", "paper"]


class _Ramp:
    """The share γ of each frequency that is kept, from 1 for the fast pairs to 0 for the slow ones."""

    trained: int
    ramp: Ramp
    fast: float
    slow: float
    truncate: bool
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)
        demand.flag(self, "truncate", self.truncate)
        demand.one_of(self, "ramp", self.ramp, ("code", "paper"))
        demand.finite(self, "slow", self.slow, above=0)
        # Where both ends are the same number the code's ramp is a step (Kimi K2); the paper's would divide by zero.
        if self.ramp == "paper":
            demand.finite(self, "fast", self.fast, above=self.slow)
        else:
            demand.finite(self, "fast", self.fast, least=self.slow)

    def slowed(self, f: Tensor, factor: Tensor | float) -> Tensor:
        """Return the blend of the frequencies f [pairs] and of f/factor."""
        kept = self._share_kept(f)
        return (1 - kept) * f / factor + kept * f

    def _share_kept(self, f: Tensor) -> Tensor:
        if self.ramp == "paper":
            turns = self.trained * f / (2 * math.pi)
            return ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        pairs = f.shape[-1]
        if pairs == 1:
            return torch.ones_like(f)
        n = torch.arange(pairs, dtype=f.dtype, device=f.device)
        # Frequencies fall geometrically: a pair that makes r turns is at ln(trained · θ_0 / 2πr) / fall.
        fall = (f[0].log() - f[-1].log()) / (pairs - 1)
        low = (math.log(self.trained / (2 * math.pi * self.fast)) + f[0].log()) / fall
        high = (math.log(self.trained / (2 * math.pi * self.slow)) + f[0].log()) / fall
        if self.truncate:
            low, high = low.floor(), high.ceil()
        low, high = low.clamp(min=0), high.clamp(max=2 * pairs - 1)
        # A step, as wide as the authors' code makes it.
        high = torch.where(low == high, high + 0.001, high)
        return 1 - ((n - low) / (high - low)).clamp(0, 1)


@dataclass(frozen=True)
class ByParts(_Ramp):
    """Blend interpolation and no change, pair by pair: YaRN without its temperature.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/factor
        ramp="code":   γ_n  =  (high − n)/(high − low), kept within 0 … 1
        ramp="code":   low, high  =  the n with trained · θ_n/2π = fast and slow turns, within 0 … d − 1
        ramp="code", truncate=True:  low, high  ←  ⌊low⌋, ⌈high⌉
        ramp="paper":  γ_n  =  (trained · θ_n/2π − slow)/(fast − slow), kept within 0 … 1

    γ is YaRN's: 1 for pairs that make more than `fast` turns within the trained length, 0 for those that make fewer
    than `slow`. ramp="code" lets it fall evenly over the pairs, "paper" over the number of turns.
    """

    paper = "NTK-by-parts: slow pairs interpolated, fast ones kept (bloc97, 2023; Peng et al., arXiv:2309.00071)."
    factor: float
    trained: int
    _: KW_ONLY
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, least=1)
        super().__post_init__()

    @property
    def times(self) -> float:
        """How many times the trained length it is set to reach."""
        return self.factor

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return self.slowed(f, self.factor)

    def magnitude(self, length: Tensor) -> float:
        return 1.0


@dataclass(frozen=True)
class Yarn(ByParts):
    """Blend interpolation and no change, pair by pair, and sharpen the scores.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/factor
        ramp="code":   γ_n  =  (high − n)/(high − low), kept within 0 … 1
        ramp="code":   low, high  =  the n with trained · θ_n/2π = fast and slow turns, within 0 … d − 1
        ramp="code", truncate=True:  low, high  ←  ⌊low⌋, ⌈high⌉
        ramp="paper":  γ_n  =  (trained · θ_n/2π − slow)/(fast − slow), kept within 0 … 1
        scaled=None:  turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = 0.1 · ln(factor) + 1
        scaled=…:     turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = scaled

    γ runs from 1 for pairs that make more than `fast` turns within the trained length to 0 for those that make fewer
    than `slow`. ramp="code" lets γ fall evenly over the pairs, as the authors' code and every published model do;
    "paper" lets it fall evenly over the number of turns. truncate rounds the ends of the code's ramp to whole pairs;
    with fast equal to slow it is a step. scaled overrides the factor on cos and sin.
    """

    paper = "YaRN: slow pairs interpolated, fast ones kept, and a temperature (Peng et al., 2023, arXiv:2309.00071)."
    _: KW_ONLY
    scaled: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaled is not None:
            demand.finite(self, "scaled", self.scaled, above=0)

    def magnitude(self, length: Tensor) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.scaled is None else self.scaled


@dataclass(frozen=True)
class DynamicYarn(_Ramp):
    """Stretch as Yarn does, by max(1, L/trained) for a text of length L.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/s,   s = max(1, L/trained),   L the length of the text
        ramp="code":   γ_n  =  (high − n)/(high − low), kept within 0 … 1
        ramp="code":   low, high  =  the n with trained · θ_n/2π = fast and slow turns, within 0 … d − 1
        ramp="code", truncate=True:  low, high  ←  ⌊low⌋, ⌈high⌉
        ramp="paper":  γ_n  =  (trained · θ_n/2π − slow)/(fast − slow), kept within 0 … 1
        turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = 0.1 · ln(s) + 1

    Within the trained length nothing changes.
    """

    paper = "Dynamic YaRN: its factor follows the length of a text (Peng et al., 2023, arXiv:2309.00071, section 3.3)."
    trained: int
    _: KW_ONLY
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    by_length = True

    @property
    def times(self) -> float:
        """1: it follows the text."""
        return 1.0

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return self.slowed(f, self._factor(length)[..., None])

    def magnitude(self, length: Tensor) -> Tensor:
        return 0.1 * self._factor(length).log() + 1

    def _factor(self, length: Tensor) -> Tensor:
        return (length / self.trained).clamp(min=1)
