"""xPos: RoPE whose pairs also fade with distance (Sun et al., 2022, arXiv:2212.10554)."""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.numerics.rotation import PAIRS, Pairs
from milepost.seams import demand
from milepost.seams.rotary import Rotary, powers
from milepost.seams.verbs import Side


@dataclass(frozen=True)
class Xpos(Rotary):
    """Rotate as RoPE does, and let pair n of a score fade as ζ_n^(distance/fade).

        turn(x, p)[n]  =  x[n] rotated by the angle p · θ_n, times ζ_n^(p/fade) for queries,   ζ_n^(−p/fade) for keys
        θ_n  =  θ^(−2n/d),   ζ_n = (2n/d + 0.4)/1.4
        pairs="halves":      x[n]  =  channels n and n + d/2
        pairs="neighbours":  x[n]  =  channels 2n and 2n + 1

    Each factor alone grows without bound with the position; only their product is bounded. `attend` therefore
    counts positions from the middle of the keys, which changes no distance, and refuses spans that would overflow.
    """

    head_dim: int
    _: KW_ONLY
    theta: float = 10000.0
    fade: float = 512.0
    pairs: Pairs = "neighbours"
    relative = True
    centred = True

    def __post_init__(self) -> None:
        demand.even(self, "head_dim", self.head_dim, "channels are turned in pairs")
        demand.finite(self, "theta", self.theta, above=1)
        demand.finite(self, "fade", self.fade, above=0)
        demand.one_of(self, "pairs", self.pairs, PAIRS)

    def widest(self, dtype: torch.dtype) -> float:
        """Return the span of positions across which no factor overflows: about 36,000 in float32."""
        return self.fade * math.log(torch.finfo(dtype).max) / math.log(1.4 / 0.4)

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        return position.double()[..., None] * powers(self.theta, self.head_dim, position.device)

    def sizes(self, position: Tensor, length: Tensor | int | None = None, side: Side = "query") -> Tensor:
        """Queries grow as keys shrink."""
        n = torch.arange(self.head_dim // 2, dtype=torch.float64, device=position.device)
        at = position.double()[..., None]
        return ((2 * n / self.head_dim + 0.4) / 1.4) ** ((at if side == "query" else -at) / self.fade)
