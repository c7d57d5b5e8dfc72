"""NoPE: no position at all; a causal mask alone tells order (Kazemnejad et al., 2023, arXiv:2305.19466)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Nope:
    """Add nothing.

        score  ←  score

    A part that states that there is no position encoding.
    """

    relative = True
