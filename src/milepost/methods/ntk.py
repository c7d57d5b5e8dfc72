"""NTK-aware scaling: a larger base, which interpolates slow pairs and nearly keeps fast ones (bloc97, 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Ntk:
    """Raise the base θ to θ · factor^(d/(d − 2)).

        θ_n  ←  base^(−2n/d),   base = θ · factor^(d/(d − 2))

    The first pair keeps its frequency and the last is divided by factor, exactly. Pairs between are divided by less
    than factor, so it must exceed the ratio of lengths.
    """

    factor: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f * raised(torch.as_tensor(self.factor, dtype=f.dtype, device=f.device), f)

    def magnitude(self, length: Tensor) -> float:
        return 1.0


def raised(factor: Tensor, f: Tensor) -> Tensor:
    """factor^(−n/(pairs − 1)) for every pair n: [...] → [... pairs]."""
    pairs = f.shape[-1]
    if pairs < 2:
        raise ValueError("NTK-aware stretching needs at least two pairs of channels: the exponent divides by d − 2")
    n = torch.arange(pairs, dtype=f.dtype, device=f.device)
    return factor[..., None] ** (-n / (pairs - 1))
