"""Randomized positions: scattered in training, so that long texts have no new ones (Ruoss, 2023, arXiv:2305.16843)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Randomized:
    """Draw positions from a range longer than the text, in order.

        position  =  sort( `length` numbers of 0 … longest − 1, no two alike )

    Draw anew for every training batch, and give them to `attend` as position and key_position; the indices stay the
    true order. At test the authors draw too; Su finds evenly spaced positions better (`evenly`). Do not count
    0, 1, 2 … at test.
    """

    longest: int

    def __post_init__(self) -> None:
        demand.whole(self, "longest", self.longest)

    def sample(
        self, length: int, *, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Draw sorted random positions, int64 [length]; one draw serves a whole batch."""
        self._fits(length)
        drawn = torch.randperm(self.longest, generator=generator, device=device)[:length]
        return drawn.sort().values

    def evenly(self, length: int, *, device: torch.device | str | None = None) -> Tensor:
        """Return positions spread evenly over [0, longest), float64 [length], for testing."""
        self._fits(length)
        return torch.arange(length, dtype=torch.float64, device=device) * (self.longest / max(1, length))

    def equal_mean(self, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw evenly spaced positions up to a random end, exponential with mean `length`, float64 [length].

        Su's form: every text is stretched by a factor of mean one, so that at test the true positions can be used. It
        needs a method defined at fractions.
        """
        demand.whole(self, "length", length)
        end = torch.empty((), dtype=torch.float64).exponential_(1 / length, generator=generator)
        return torch.linspace(0, 1, length, dtype=torch.float64) * end

    def _fits(self, length: int) -> None:
        demand.whole(self, "length", length, least=0)
        if length > self.longest:
            raise ValueError(
                f"Randomized(longest={self.longest}): {length} positions do not fit; longest must be at least the "
                f"longest text at test"
            )
