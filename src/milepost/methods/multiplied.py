"""Multiplied positions: embeddings scaled, not shifted, by their positions (Su, 2020, bert4keras)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from milepost.seams.arguments import spell
from milepost.seams.verbs import verbs_of


@dataclass(frozen=True)
class Multiplied:
    """Multiply each token embedding by one plus what another method would have added.

        x_i  ←  x_i · (1 + p_i),   p_i what method adds to x_i

    The one keeps the signal alive where p is small or zero at first, as learned tables are.
    """

    method: Any
    relative = False

    def __post_init__(self) -> None:
        if isinstance(self.method, type) or verbs_of(self.method) != ("embed",) or hasattr(self.method, "vocabulary"):
            given = self.method.__name__ if isinstance(self.method, type) else repr(self.method)
            raise TypeError(
                f"Multiplied({given}): the method must add to token embeddings, such as Learned(512, 768) or "
                f"Sinusoidal(768)"
            )
        if isinstance(self.method, Multiplied):
            raise TypeError(f"{spell(self)}: a product of products; give Multiplied what adds to embeddings")

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        return x * self.method.embed(torch.ones_like(x), index)
