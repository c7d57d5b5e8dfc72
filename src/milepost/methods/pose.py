"""PoSE: skip positions, so that short training texts cover long distances (Zhu et al., 2023, arXiv:2309.10400)."""

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
