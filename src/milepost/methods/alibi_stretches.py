"""Stretches of ALiBi: flatter slopes, to look further than in training."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class AlibiInterpolate:
    """Flatten every slope by the same factor, as if distances were divided by it.

        slope_h  ←  slope_h / factor

    The steepest heads lose as much as the flattest, so near tokens are harder to distinguish.
    """

    paper = "Interpolated ALiBi: every slope divided by the same factor (after Chen et al., 2023, arXiv:2306.15595)."
    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        return slope / self.factor


@dataclass(frozen=True)
class AlibiNtk:
    """Flatten each slope by a power of the factor that grows from the steepest head to the flattest.

        slope_h  ←  slope_h · factor^(−share_h)
        share_h  =  0 for the steepest … 1 for the flattest, in even steps;   1 for a single head

    The steepest head keeps its slope and the flattest is divided by the factor, exactly. Heads are ranked by slope,
    which for numbers of heads that are not powers of two is not their order.
    """

    paper = "NTK-ALiBi: flat heads flattened, steep ones kept (keezen, 2023, github.com/keezen/ntk_alibi)."
    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        return slope * self.factor**-share


@dataclass(frozen=True)
class AlibiDynamicNtk:
    """Flatten the slopes as AlibiNtk does, by a factor that follows the length L of each text.

        slope_h  ←  slope_h · a^(−share_h),   a = max(1, factor · L/trained),   L the length of the text
        share_h  =  0 for the steepest … 1 for the flattest, in even steps;   1 for a single head

    L counts the tokens of each text without its padding. A factor between 1 and 2 flattens a little ahead of need.
    """

    paper = "Dynamic NTK-ALiBi: the stretch of the slopes follows the text (keezen, 2023, github.com/keezen/ntk_alibi)."
    trained: int
    _: KW_ONLY
    factor: float = 1.0
    relative = True
    by_length = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "factor", self.factor, above=0)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        if length is None:
            raise ValueError("AlibiDynamicNtk: the slopes follow the length of the text; pass length=")
        return slope * (self.factor * length.to(slope.dtype) / self.trained).clamp(min=1) ** -share
