"""Dynamic NTK-ALiBi: the stretch of the slopes follows the text (keezen, 2023, github.com/keezen/ntk_alibi)."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class AlibiDynamicNtk:
    """Flatten the slopes as AlibiNtk does, by a factor that follows the length L of each text.

        slope_h  ←  slope_h · a^(−share_h),   a = max(1, factor · L/trained),   L the length of the text
        share_h  =  0 for the steepest … 1 for the flattest, in even steps;   1 for a single head

    L counts the tokens of each text without its padding. A factor between 1 and 2 flattens a little ahead of need.
    """

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
