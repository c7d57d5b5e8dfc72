"""Dual chunk attention: positions that start over in every chunk (An et al., 2024, arXiv:2402.17463)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    min(local + 1, ℓ) are exact. The paper's figures end one lower than the authors' code, which is followed here.
    """

    chunk: int
    local: int
    relative: ClassVar[bool] = False
    needs_causal: ClassVar[bool] = True

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

        # What the number of chunks between says about the distance lets a backend skip whole blocks.
        ahead = Bound(high=size, mirrored=True, implied=True)
        same_chunk = Bound(0, 1, chunk_of), Bound(high=size, implied=True), ahead
        next_chunk = Bound(1, 2, chunk_of), Bound(0, 2 * size, implied=True)
        older = Bound(2, measure=chunk_of), Bound(size, implied=True)
        return (
            Regime(within, within, same_chunk),
            Regime(lambda p: (p % size + size).clamp(max=c), within, next_chunk),
            Regime(lambda p: torch.full_like(p, oldest), within, older),
        )
