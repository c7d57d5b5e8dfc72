"""Dual chunk attention: positions that start over in every chunk (An et al., 2024, arXiv:2402.17463)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime


@dataclass(frozen=True)
class DualChunk:
    """Place keys within chunks of ℓ = chunk − local, and queries by how many chunks lie between.

        key at  r mod ℓ,   ℓ = chunk − local
        query at  p mod ℓ for keys of its own ℓ tokens,   min(p mod ℓ + ℓ, chunk) for those of the ℓ before,
            min(2·ℓ − 1, chunk) for older ones

    ChunkLlama sets chunk to 3/4 of the trained length and local to 1/8. No distance exceeds chunk, and those up to
    min(local + 1, ℓ) are exact. The paper's figures end one lower than the authors' code, which is followed here. A key
    that is visible, because it comes earlier in the text, and has a position ahead of the query is placed the same way,
    mirrored.
    """

    chunk: int
    local: int
    relative = False
    needs_causal = True

    def __post_init__(self) -> None:
        demand.whole(self, "chunk", self.chunk, least=2)
        demand.whole(self, "local", self.local, least=0)
        if self.local >= self.chunk:
            raise ValueError(f"DualChunk(chunk={self.chunk}, local={self.local}): local must be smaller than chunk")

    def place(self) -> tuple[Regime, ...]:
        size, c = self.chunk - self.local, self.chunk
        oldest = min(2 * size - 1, c)

        def chunk_of(position: Tensor) -> Tensor:
            return position // size

        def within(position: Tensor) -> Tensor:
            return position % size

        def following(position: Tensor) -> Tensor:
            return (position % size + size).clamp(max=c)

        def furthest(position: Tensor) -> Tensor:
            return torch.full_like(position, oldest)

        # The distances that the number of chunks between implies let a backend skip whole blocks, and regimes.
        same_chunk = (
            Bound(0, 1, measure=chunk_of),
            Bound(high=size, implied=True),
            Bound(high=size, mirrored=True, implied=True),
        )
        next_chunk = Bound(1, 2, measure=chunk_of), Bound(0, 2 * size, implied=True)
        older = Bound(2, measure=chunk_of), Bound(size, implied=True)
        ahead, further_ahead = (
            tuple(replace(bound, mirrored=True) for bound in bounds) for bounds in (next_chunk, older)
        )
        return (
            Regime(within, within, bounds=same_chunk),
            Regime(following, within, bounds=next_chunk),
            Regime(furthest, within, bounds=older),
            Regime(within, following, bounds=ahead),
            Regime(within, furthest, bounds=further_ahead),
        )
