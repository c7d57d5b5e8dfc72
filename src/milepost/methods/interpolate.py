"""Position interpolation: squeeze positions into the trained range (Chen et al., 2023, arXiv:2306.15595)."""

from dataclasses import dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Interpolate:
    """Slow every frequency by the same factor, as if positions were divided by it.

        θ_n  ←  θ_n / factor

    Every pair slows alike, so near tokens are harder to distinguish; it wants fine-tuning.
    """

    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / self.factor

    def magnitude(self, length: Tensor) -> float:
        return 1.0
