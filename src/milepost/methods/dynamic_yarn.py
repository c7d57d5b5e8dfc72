"""Dynamic YaRN: YaRN whose factor follows the length of the text (Peng et al., 2023, arXiv:2309.00071, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from milepost.methods.yarn import Ramp, check_ramp, share_kept
from milepost.seams import demand


@dataclass(frozen=True)
class DynamicYarn:
    """Stretch as Yarn does, by max(1, L/trained) for a text of length L.

        θ_n  ←  (1 − γ_n) · θ_n/s + γ_n · θ_n,   cos and sin × 0.1 · ln(s) + 1,   s = max(1, L/trained)

    Within the trained length nothing changes.
    """

    trained: int
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    relative: ClassVar[bool] = True
    by_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        demand.flag(self, "truncate", self.truncate)
        check_ramp(self, self.trained, self.ramp, self.fast, self.slow)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        kept = share_kept(f, self.trained, self.ramp, self.fast, self.slow, self.truncate)
        return (1 - kept) * f / self._factor(length)[..., None] + kept * f

    def magnitude(self, length: Tensor) -> Tensor:
        return 0.1 * self._factor(length).log() + 1

    def _factor(self, length: Tensor) -> Tensor:
        return (length / self.trained).clamp(min=1)
