"""NTK-ALiBi: flat heads flattened, steep ones kept (keezen, 2023, github.com/keezen/ntk_alibi)."""

from dataclasses import dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class AlibiNtk:
    """Flatten each slope by a power of the factor that grows from the steepest head to the flattest.

        slope_h  ←  slope_h · factor^(−share_h)
        share_h  =  0 for the steepest … 1 for the flattest, in even steps;   1 for a single head

    The steepest head keeps its slope and the flattest is divided by the factor, exactly. Heads are ranked by slope,
    which for numbers of heads that are not powers of two is not their order.
    """

    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def slopes(self, slope: Tensor, share: Tensor, length: Tensor | None) -> Tensor:
        return slope * self.factor**-share
