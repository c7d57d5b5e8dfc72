"""LongRoPE: a searched factor for every pair, for short texts and for long (Ding et al., 2024, arXiv:2402.13753)."""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class LongRope:
    """Divide each frequency by its own factor, chosen by the length L of the text.

        θ_n  ←  θ_n/short[n]  for texts of up to trained tokens,   θ_n/long[n]  for longer ones
        scaled=None:  turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = √(1 + ln(max(1, factor))/ln trained)
        scaled=…:     turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = scaled

    factor is the longest length over the trained one; it sets the magnitude, which rides on short texts too, as in
    Phi-3. scaled overrides the magnitude. Crossing the trained length while decoding changes the angles of every key;
    `attend` is given raw keys, so nothing has to be thrown away.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    trained: int
    _: KW_ONLY
    factor: float = 1.0
    scaled: float | None = None
    relative = True
    by_length = True

    def __post_init__(self) -> None:
        for name in ("short", "long"):
            demand.several(self, name, getattr(self, name))
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for value in getattr(self, name):
                demand.finite(self, name, value, above=0)
        if len(self.short) != len(self.long):
            raise ValueError(
                f"LongRope: {len(self.short)} short factors but {len(self.long)} long ones; one of each for every pair"
            )
        demand.whole(self, "trained", self.trained, least=2)
        demand.finite(self, "factor", self.factor, above=0)
        if self.scaled is not None:
            demand.finite(self, "scaled", self.scaled, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        if len(self.short) != f.shape[-1]:
            raise ValueError(
                f"LongRope: {len(self.short)} factors for {f.shape[-1]} pairs of channels; give one for every pair"
            )
        short, long = (torch.tensor(each, dtype=f.dtype, device=f.device) for each in (self.short, self.long))
        return f / torch.where(length[..., None] > self.trained, long, short)

    def magnitude(self, length: Tensor) -> float:
        if self.scaled is not None:
            return self.scaled
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.trained))
