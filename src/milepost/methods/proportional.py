"""p-RoPE: only a share of the pairs rotates, the fast ones (Barbero et al., 2024, arXiv:2410.06205; "proportional")."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Proportional:
    """Keep the frequencies of the first pairs and set those of the others to zero.

        θ_n  ←  θ_n/factor  for n < ⌊share · (d/2)⌋,   0  beyond

    Unlike `Partial`, exponents count over the whole width, so the pairs that rotate are RoPE's fastest; the others
    carry content without position. share=1 is RoPE, share=0 is no position at all.
    """

    share: float
    _: KW_ONLY
    factor: float = 1.0
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "share", self.share, least=0)
        if self.share > 1:
            raise ValueError(f"Proportional(share={self.share}): share is a part of the pairs, at most 1")
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        n = torch.arange(f.shape[-1], device=f.device)
        return torch.where(n < int(self.share * 2 * f.shape[-1] // 2), f / self.factor, 0.0)

    def magnitude(self, length: Tensor) -> float:
        return 1.0
