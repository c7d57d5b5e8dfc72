"""A softmax scale in place of 1/√d."""

from dataclasses import dataclass

from milepost.seams import demand


@dataclass(frozen=True)
class Scale:
    """Multiply dot products by a fixed number.

        scale  =  value  instead of  1/√d

    T5 uses 1.0.
    """

    value: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "value", self.value)

    def scale(self, dim: int) -> float:
        return float(self.value)
