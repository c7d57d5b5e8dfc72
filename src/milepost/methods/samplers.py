"""Positions drawn for training, so that long texts have no new ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.seams import demand


@dataclass(frozen=True)
class Pose:
    """Cut a text in two and shift the positions of the second part by a random skip.

        position  =  0 … r − 1,  then  r + s … length − 1 + s
        r ~ U{1 … ⌊(length + 1)/2⌋},   s ~ U{0 … target − length}

    Training covers all distances up to the target, at the cost of the short length. Give the positions to `attend`,
    and scale RoPE as it will be at the target: Rope(128, stretch=Yarn(target/trained, trained)).
    """

    paper = "PoSE: skipped positions, so that short texts cover long distances (Zhu et al., 2023, arXiv:2309.10400)."
    target: int

    def __post_init__(self) -> None:
        demand.whole(self, "target", self.target, least=2)

    def sample(self, length: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw the positions of one example, int64 [length]."""
        return self._skipped(length, self._cut(length, generator), generator)

    def cut(self, text: int, length: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw `length` tokens of a text of `text` tokens to train on, and their positions, both int64.

        The first part opens the text; the second ends anywhere in the rest of it, so that the content skips too.
        """
        demand.whole(self, "text", text)
        length = min(text, length)
        r = self._cut(length, generator)
        end = _draw(length, text, generator)
        taken = torch.cat((torch.arange(r), torch.arange(end - (length - r), end)))
        return taken, self._skipped(length, r, generator)

    def _cut(self, length: int, generator: torch.Generator | None) -> int:
        demand.whole(self, "length", length)
        if length > self.target:
            raise ValueError(f"Pose(target={self.target}): a text of {length} tokens is longer than the target already")
        return _draw(1, (length + 1) // 2, generator)

    def _skipped(self, length: int, r: int, generator: torch.Generator | None) -> Tensor:
        skip = _draw(0, self.target - length, generator)
        at = torch.arange(length)
        return torch.where(at < r, at, at + skip)


def _draw(first: int, last: int, generator: torch.Generator | None) -> int:
    """Draw an integer from first to last, both included."""
    return int(torch.randint(first, last + 1, (), generator=generator))


@dataclass(frozen=True)
class Randomized:
    """Draw positions from a range longer than the text, in order.

        position  =  sort( `length` numbers of 0 … longest − 1, no two alike )

    Draw anew for every training batch, and give them to `attend` as position and key_position; the indices stay the
    true order. At test the authors draw too; Su finds evenly spaced positions better (`evenly`). Do not count
    0, 1, 2 … at test.
    """

    paper = "Randomized positions: scattered in training, none new in long texts (Ruoss, 2023, arXiv:2305.16843)."
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
