"""Interpolated ALiBi: every slope divided by the same factor (after Chen et al., 2023, arXiv:2306.15595)."""

from dataclasses import dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class AlibiInterpolate:
    """Flatten every slope by the same factor, as if distances were divided by it.

        slope_h  ←  slope_h / factor

    The steepest heads lose as much as the flattest, so near tokens are harder to distinguish.
    """

    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        return slope / self.factor
