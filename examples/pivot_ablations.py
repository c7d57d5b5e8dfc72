"""Ablate Pivot: a method for `milepost compare --methods examples/pivot_ablations.py`.

Pivot changes the scores of far keys relative to the log-sum-exp of the near ones. Here that can be a fixed number, and
all keys can be changed. `docs/pivot.md` has the commands and the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turned:
    """Turn the scores of far keys about a number, for causal texts without padding.

        score  ←  score + strength · ln max(1, n/trained) · (score − pivot)   for keys `window` back or further
        n  =  i + 1
        pivot = None:   ln Σ exp(score) over the other keys, as Pivot has it

    With window 0 all keys are turned; then a fixed pivot is the same for a whole row, a softmax does not see it, and
    this is log-n with a strength.
    """

    window: int
    trained: int
    strength: float
    pivot: float | None = None
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.window < 1 and self.pivot is None:
            raise ValueError(f"{self!r}: with window 0 no key is near, to turn the others about; give a pivot")

    def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None, **tokens: Tensor) -> Tensor:
        n = (scores > -torch.inf).sum(-1, keepdim=True)
        far = n - 1 - torch.arange(scores.shape[-1], device=scores.device) >= self.window
        more = self.strength * (n.to(scores.dtype).log() - math.log(self.trained)).clamp(min=0)
        about = scores.masked_fill(far, -torch.inf).logsumexp(-1, keepdim=True) if self.pivot is None else self.pivot
        return torch.where(far & (scores > -torch.inf), scores + more * (scores - about), scores)
