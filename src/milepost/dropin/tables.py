"""Tables that depend on the positions alone, and shared checks."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Tabled(nn.Module):
    """A module with one row a position in each of its tables.

    The tables are buffers, so they move with the module, but none is saved. They are built again after every cast or
    move, because a table that has been bfloat16 is imprecise, and one that was made on the meta device is empty.
    """

    def tables(self, position: Tensor) -> dict[str, Tensor]:
        """Each table by its name, with a row for each of the positions."""
        raise NotImplementedError

    def hold(self, rows: int, device: torch.device | str | None = None) -> None:
        """Build the tables with so many rows."""
        self.rows = rows
        # What is made in inference mode could never be part of a backward pass.
        with torch.inference_mode(False):
            for name, table in self.tables(torch.arange(rows, device=device)).items():
                self.register_buffer(name, table, persistent=False)

    def need(self, rows: int, device: torch.device) -> None:
        """Make the tables at least so long, on this device."""
        if rows > self.rows:
            # Twice as many, so that decoding one token at a time does not build them anew each time.
            self.hold(max(rows, 2 * self.rows), device)
        elif self._device != device:
            self.hold(self.rows, device)

    @property
    def _device(self) -> torch.device:
        return next(self.buffers(recurse=False)).device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.hold(self.rows, self._device)
        return self


def count(asked: str, name: str, value: Any) -> int:
    """Return a number of tokens: an int or a tensor that holds one integer, not negative."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{asked}({name}={value!r}): {name} must be an integer, not {type(value).__name__}")
    if number < 0:
        raise ValueError(f"{asked}({name}={number}): {name} must be at least 0")
    return number


def paired(asked: str, **tensors: Tensor) -> None:
    """Raise unless the number of channels is even."""
    for name, x in tensors.items():
        if x.shape[-1] % 2:
            raise ValueError(
                f"{asked}: {name} {list(x.shape)} has {x.shape[-1]} channels; they are rotated in pairs, so their "
                f"number must be even"
            )
