"""KERPLE: learned penalties by the logarithm or a power of distance (Chi et al., 2022, arXiv:2205.09921)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner


class Kerple(Learner):
    """Lower each score by a learned kernel of the distance.

        form="log":    score  ←  score − p_h · ln(1 + a_h · |p − r|)
        form="power":  score  ←  score − a_h · |p − r|^p_h

    p starts in U(0, 2) and a in U(0, 1). Both stay at or above 0.01, and p at or below 2 in the power form, past which
    it is no kernel. The bounds apply in every call and let gradients through, as the authors' projection does; but the
    stored weight is not moved, so one that was pushed past a bound comes back step by step.
    """

    additive = True

    def __init__(self, heads: int, *, form: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.heads, self.form = heads, form
        demand.whole(self, "heads", heads)
        demand.one_of(self, "form", form, ("log", "power"))
        self.p = nn.Parameter(torch.empty(heads).uniform_(0, 2))
        self.a = nn.Parameter(torch.empty(heads).uniform_(0, 1))

    @property
    def constant_past(self) -> tuple[float, float]:
        """The penalty grows for ever."""
        return math.inf, math.inf

    def by_distance(self, distance: Tensor) -> Tensor:
        """Return what is added at each distance [n]: [h n], float32 or better."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        return -self._penalty(distance.abs().to(dtype), (slice(None), None))

    def two_numbers(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The factor and the number that `by_distance` follows from, [h], and its derivative by the second, [h n]."""
        dtype = torch.promote_types(self.a.dtype, torch.float32)
        a, p = _bounded(self.a, None).to(dtype), _bounded(self.p, 2.0 if self.form == "power" else None).to(dtype)
        with torch.no_grad():
            d = distance.abs().to(dtype)
            if self.form == "log":
                return p, a, -p[:, None] * d / (1 + a[:, None] * d)
            # The derivative of d^p is 0 at 0, as d^p is.
            return a, p, -a[:, None] * torch.xlogy(d ** p[:, None], d)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self._penalty((p - r).abs().to(score.dtype), head)

    def _penalty(self, distance: Tensor, head: Any) -> Tensor:
        """head: an index of the heads' weights."""
        a = _bounded(self.a, None)[head].to(distance.dtype)
        if self.form == "log":
            power = _bounded(self.p, None)[head].to(distance.dtype)
            return power * torch.log1p(a * distance)
        power = _bounded(self.p, 2.0)[head].to(distance.dtype)
        # 0^p has no finite gradient in p; distance 0 is handled separately.
        grown = torch.where(distance > 0, distance, 1.0) ** power
        return torch.where(distance > 0, a * grown, 0.0)


def _bounded(value: Tensor, most: float | None) -> Tensor:
    """Clamp, but let the gradient through as if nothing had been clamped."""
    return value + (value.clamp(0.01, most) - value).detach()
