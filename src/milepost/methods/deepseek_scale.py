"""DeepSeek's half of YaRN's temperature: the half that sharpens the softmax (DeepSeek-AI, 2024, arXiv:2405.04434)."""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.numerics.precision import float_type
from milepost.seams import demand


@dataclass(frozen=True)
class DeepseekScale:
    """Sharpen every query by the square of YaRN's magnitude.

        sharpen(i)  =  (0.1 · weight · ln(max(1, factor)) + 1)²

    DeepSeek rotates part of each head only, so it puts the temperature on the whole score and takes it off the angles:
    Partial(Rope(64, stretch=Yarn(40, 4096, scaled=1.0)), of=192) next to DeepseekScale(40, weight=0.707). weight is its
    mscale_all_dim; where mscale differs, scaled is (0.1 · mscale · ln(factor) + 1) over the same with weight.
    """

    factor: float
    _: KW_ONLY
    weight: float = 1.0
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.finite(self, "weight", self.weight, least=0)

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        size = 0.1 * self.weight * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return torch.full((1, 1), size**2, dtype=float_type(index.device), device=index.device)
