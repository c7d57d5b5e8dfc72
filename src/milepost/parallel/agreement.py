"""Whether all ranks ask the same: one small tensor says it, before anything else is sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from milepost.memory.surroundings import digest
from milepost.parallel.collectives import Group, gather_numbers

MOST = 15
"""How many things can be compared."""


def agree(said: Mapping[str, object], refused: Exception | None, group: Group, device: torch.device) -> None:
    """Raise on every rank if any rank asks something else, or refuses what it was asked.

    said: what must be the same everywhere, by name; the names themselves are. Nothing is read of who refuses.
    """
    digests = [*map(digest, said.values())]
    own = torch.tensor([refused is not None, *digests, *[0] * (MOST - len(digests))], device=device)
    rows: list[list[int]] = gather_numbers(own, group).tolist()  # pyright: ignore[reportUnknownVariableType]
    if refused is not None:
        raise refused
    for rank, row in enumerate(rows):
        if row[0]:
            raise RuntimeError(f"parallel.attend: rank {rank} of the mesh refused its call; its error says why")
    for number, (name, value) in enumerate(said.items(), 1):
        other = next((rank for rank, row in enumerate(rows) if row[number] != rows[0][number]), None)
        if other is not None:
            here = f"{[*value.shape]} of other values" if isinstance(value, Tensor) else str(value)
            raise ValueError(
                f"parallel.attend: {name} differs between the ranks 0 and {other} of the mesh; here, on rank "
                f"{group.rank()}, it is {here}. Give every rank the same"
                + ("; draw it by one seed, or send it from one rank" if isinstance(value, Tensor) else "")
            )
