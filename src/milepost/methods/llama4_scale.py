"""Llama 4's temperature: queries grow sharper with every chunk behind them (Meta, 2025; transformers' Llama 4)."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.numerics.precision import float64, returned
from milepost.seams import demand


@dataclass(frozen=True)
class Llama4Scale:
    """Sharpen a query by the logarithm of how many chunks lie behind it.

        sharpen(i)  =  1 + weight · ln(1 + ⌊(i + offset)/chunk⌋)

    i is the index of the query, so padding does not count. Llama 4 uses it on the layers without positions, with
    offset=1; Ministral 3 on every layer, with offset=0.
    """

    chunk: int = 8192
    _: KW_ONLY
    weight: float = 0.1
    offset: int = 1
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "chunk", self.chunk)
        demand.finite(self, "weight", self.weight, least=0)
        demand.whole(self, "offset", self.offset, least=0)

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        # Padding may have negative indices, which have no logarithm; it is hidden, but its gradient counts.
        counted = (index.clamp(min=0) + self.offset) // self.chunk
        return returned(1 + self.weight * float64(counted).log1p(), index.device)
