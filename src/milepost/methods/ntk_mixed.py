"""NTK-mixed: slow pairs slowed more than fast ones, by a law with one exponent (Su, 2023, kexue.fm/archives/9706)."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class NtkMixed:
    """Slow pair n by a factor that grows with n, up to `factor` for the last.

        θ_n  ←  θ_n · exp(−a · (n + 1)^b),   a = ln(factor)/(d/2)^b

    b=1 is Su's NTK-fixed, b=0 is position interpolation, and the default lies between. Every pair is slowed a little,
    the first by factor^((2/d)^b).
    """

    factor: float
    _: KW_ONLY
    b: float = 0.625
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.finite(self, "b", self.b, least=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        pairs = f.shape[-1]
        n = torch.arange(1, pairs + 1, dtype=f.dtype, device=f.device)
        return f * self.factor ** -((n / pairs) ** self.b)

    def magnitude(self, length: Tensor) -> float:
        return 1.0
