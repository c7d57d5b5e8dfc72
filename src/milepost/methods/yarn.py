"""YaRN: slow pairs interpolated, fast ones kept, and a temperature (Peng et al., 2023, arXiv:2309.00071)."""

import math
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.methods.by_parts import ByParts
from milepost.seams import demand


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

    _: KW_ONLY
    scaled: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaled is not None:
            demand.finite(self, "scaled", self.scaled, above=0)

    def magnitude(self, length: Tensor) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.scaled is None else self.scaled
