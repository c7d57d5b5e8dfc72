"""NoPE: no position at all; a causal mask alone tells order (Kazemnejad et al., 2023, arXiv:2305.19466)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Nope:
    """Add nothing.

        score  ←  score

    A part that says out loud that there is no position encoding.
    """

    relative: ClassVar[bool] = True
