"""Dynamic linear scaling: interpolation by as much as the text needs (emozilla, 2023; the YaRN authors' code)."""

from dataclasses import dataclass

from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class DynamicLinear:
    """Interpolate the positions of a text of length L into the trained range.

        θ_n  ←  θ_n / max(1, L/trained),   L the length of the text

    Within the trained length nothing changes. Every token's angles depend on L; `attend` is given raw keys, so a cache
    stays exact.
    """

    trained: int
    relative = True
    by_length = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / (length / self.trained).clamp(min=1)[..., None]

    def magnitude(self, length: Tensor) -> float:
        return 1.0
