"""What turns pairs of channels: one rotation, by the angles and sizes that each method says."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from milepost.numerics.precision import exact_device, float64, has_float64
from milepost.numerics.rotation import Pairs, rotate, waves
from milepost.seams import demand
from milepost.seams.verbs import Side, Stretch


class Rotary:
    """Turn pairs of channels by angles, and let each pair grow or shrink.

        turn(x, p)[n]  =  x[n] · size_n · e^(i · angle_n)

    A method answers `angles`, and `sizes` where they are not 1. It has an attribute `head_dim`, how many channels it
    turns, and one `pairs`, which of them make a pair. `milepost.seams.facets.Rotates` says what a kernel reads.
    """

    head_dim: int
    pairs: Pairs
    rotary: ClassVar[bool] = True
    blocks: ClassVar[int] = 1

    @property
    def width(self) -> int:
        """How many channels are turned."""
        return self.head_dim

    def angles(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """The angle of every pair at every position: float64 [… t dim/2]."""
        raise NotImplementedError

    def sizes(
        self, position: Tensor, length: Tensor | int | None = None, side: Side = "query"
    ) -> Tensor | float | None:
        """What every pair is multiplied by: float64, broadcasting against the angles, or a number; None for 1."""
        return None

    def cos_sin(
        self,
        position: Tensor,
        length: Tensor | int | None = None,
        side: Side = "query",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines [… t dim/2] of every angle, times its size.

        Angles are formed in float64, whatever the dtype asked for: at position 10⁶ a float32 angle has lost its way.
        Where the device has no float64, that is done on the CPU.
        """
        device = position.device
        if not has_float64(device):
            position, length = position.cpu(), length.cpu() if isinstance(length, Tensor) else length
        cos, sin = waves(self.angles(position, length))
        size = self.sizes(position, length, side)
        if size is not None:
            cos, sin = cos * size, sin * size
        # First the dtype: a device without float64 takes no copy of it either.
        return cos.to(dtype).to(device), sin.to(dtype).to(device)

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        """The angle of every pair at position 1, float64 [dim/2], and the size of all: at p it is p times that.

        None where angles are not p times anything, or sizes differ.
        """
        return None

    def beyond(self, position: Tensor, length: Tensor | int | None = None) -> Tensor | float | None:
        """What the channels past `width` are multiplied by; None where they are left alone."""
        return None

    def for_values(self, width: int) -> Rotary | None:
        """What turns values of so many channels; None where they are left alone."""
        return None

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Turn queries and keys, and values where they are turned.

        x: [b h t d], position: [t] or [b t], with several coordinates [b t axes]; returns [b h t d] in the dtype of x.
        """
        position = demand.exact(f"{type(self).__name__}.turn: position", position, fractions=True)
        if side == "value":
            by = self.for_values(x.shape[-1])
            return x if by is None else by._turned(x, position, side, length)
        demand.width(self, x, self.head_dim, partly=True)
        return self._turned(x, position, side, length)

    def _turned(self, x: Tensor, position: Tensor, side: Side, length: Tensor | int | None) -> Tensor:
        # Cosines and sines are float32 or better, whatever x is.
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = (over_heads(each) for each in self.cos_sin(position, length, side, wide))
        if self.blocks == 1:
            return rotate(x, cos, sin, pairs=self.pairs)
        return rotate(*(_parted(each, self.blocks) for each in (x, cos, sin)), pairs=self.pairs).flatten(-2)


class Stretched(Rotary):
    """A rotation by RoPE's frequencies, which a stretch may change (`Rope`, `AxialRope`)."""

    head_dim: int
    theta: float
    stretch: Stretch | None

    @property
    def by_length(self) -> bool:
        """True if the angles depend on the number of tokens."""
        return getattr(self.stretch, "by_length", False)

    def paced(self, position: Tensor, length: Tensor | int | None = None) -> Tensor:
        """Return the frequency of each pair in a text with these positions [b|1 t], float64 [… d/2]."""
        f = powers(self.theta, self.head_dim, position.device)
        return f if self.stretch is None else self.stretch.frequencies(f, reached(position, length))

    def sizes(
        self, position: Tensor, length: Tensor | int | None = None, side: Side = "query"
    ) -> Tensor | float | None:
        if self.stretch is None:
            return None
        size = self.magnitude(reached(position, length))
        return size[..., None] if isinstance(size, Tensor) else size

    def magnitude(self, length: Tensor) -> Tensor | float:
        """Return the factor on cos and sin: 1, or that of the stretch."""
        return 1.0 if self.stretch is None else self.stretch.magnitude(length)


def _parted(x: Tensor, blocks: int) -> Tensor:
    """The last axis in so many equal blocks: [… d] → [… blocks d/blocks]."""
    return x.reshape(*x.shape[:-1], blocks, x.shape[-1] // blocks)


def reached(position: Tensor, length: Tensor | int | None) -> Tensor:
    """The length as float64 [b|1 t|1]; where none is given, one past the last position of each row."""
    if length is None:
        return float64(position).amax(-1, keepdim=True) + 1
    if isinstance(length, Tensor):
        return float64(length)
    return torch.full((1,), length, dtype=torch.float64, device=exact_device(position.device))


def over_heads(table: Tensor) -> Tensor:
    """Let a table [t n] or [b t n] broadcast over the heads of [b h t n]."""
    return table[:, None] if table.dim() == 3 else table


def powers(theta: float, dim: int, device: torch.device) -> Tensor:
    """RoPE's frequencies θ^(−2n/dim), float64 [dim/2]."""
    n = torch.arange(dim // 2, dtype=torch.float64, device=device)
    return theta ** (-2 * n / dim)
