"""A softmax scale of one's own, in place of 1/√d."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milepost.seams import demand


@dataclass(frozen=True)
class Scale:
    """Multiply dot products by a fixed number.

        scale  =  value  instead of  1/√d

    T5 uses 1.0.
    """

    value: float
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.finite(self, "value", self.value)

    def scale(self, dim: int) -> float:
        return float(self.value)
