"""Falcon's slopes: rounded to bfloat16, and divided by √d with the scores, as transformers runs them."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.verbs import SlopeStretch


@dataclass(frozen=True)
class FalconSlopes:
    """Round every slope to bfloat16, stretch it, and divide it by the root of the width of a head.

    slope_h  ←  stretch( bfloat16(slope_h) ) / √dim
    """

    dim: int
    stretch: SlopeStretch | None = None
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.whole(self, "dim", self.dim)
        demand.stretch(self, "stretch", self.stretch, SlopeStretch, "AlibiNtk(factor=2)")

    @property
    def by_length(self) -> bool:
        """True if the slopes depend on the number of tokens."""
        return getattr(self.stretch, "by_length", False)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        """Return the slopes that Falcon adds to scores before it scales them."""
        slope = slope.to(torch.bfloat16).to(slope.dtype)
        slope = slope if self.stretch is None else self.stretch.slopes(slope, share, length)
        return slope / math.sqrt(self.dim)
