"""What a rotation does, found out by turning unit vectors: no name or setting is believed.

At position p a rotary function is a matrix, M_p. Which channels it mixes are the pairs; the sign below the diagonal is
the sense of the rotation; the size of a column is the magnitude; the angle at p = 1 is the frequency; and whether the
angle at p is p times that says in which precision phases were formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rotary = Callable[[Tensor, Tensor], Tensor]
"""x [b h t d] and position [t] to x turned, [b h t d]."""

POSITIONS = (0, 1, 2, 3, 7, 19, 64, 127, 255, 257, 513, 771, 1029, 2049, 3077, 4099, 6151, 8191)
"""Where it is asked: odd numbers past 256 are none that bfloat16 knows, and past 2048 none that float16 does."""
MIXED = 1e-5
"""Less than this off the diagonal is no rotation."""
DRIFT = 0.02
"""Radians at position 8191 that float32 phases never reach."""


@dataclass(frozen=True)
class Turning:
    """What was found out about one rotation.

    channels are those that turn, pairs how they are joined, sense +1 where the second channel of a pair gains what the
    first loses (Su's), − where it is turned the other way. frequencies [pairs] and angles [t, pairs] are float64; rest
    is what the channels that do not turn are multiplied by.
    """

    dim: int
    channels: tuple[int, ...]
    pairs: str
    sense: str
    frequencies: Tensor
    magnitude: float
    rest: float
    angles: Tensor
    first: float = 0.0
    """Which position the first token is turned by: 1 where they are counted from one."""

    @property
    def width(self) -> int:
        """How many channels turn."""
        return len(self.channels)


def probe(rotary: Rotary, dim: int, device: torch.device | str = "cpu") -> Turning:
    """Turn unit vectors of so many channels at a few positions, and see."""
    matrices = _matrices(rotary, dim, torch.device(device))  # [t, out, in]
    off = matrices.clone()
    off.diagonal(dim1=1, dim2=2).zero_()
    strength = off.abs().amax(0)  # [out, in]
    channels = tuple(int(c) for c in (strength.amax(0) > MIXED).nonzero().flatten())
    still = [c for c in range(dim) if c not in channels]
    rest = float(matrices[0].diagonal()[still].mean()) if still else 1.0
    if not channels:
        whole = float(matrices[0].diagonal().mean())
        none = torch.zeros(len(POSITIONS), 0, dtype=torch.float64)
        return Turning(dim, (), "none", "none", none[0], whole, rest, none)
    partner = strength.argmax(0)
    firsts = [c for c in channels if c < int(partner[c])]
    seconds = [int(partner[c]) for c in firsts]
    if sorted((*firsts, *seconds)) != list(channels):
        raise ValueError(
            f"check: this function mixes {len(channels)} channels otherwise than in pairs, so it is no rotation; it is "
            f"given x [b h t d] and position [t], and returns x with pairs of channels turned"
        )
    # Column c is where unit vector c goes: cos to itself and sin to its partner.
    sines, cosines = matrices[:, seconds, firsts], matrices[:, firsts, firsts]
    sizes = (sines.square() + cosines.square()).sqrt()
    found = torch.atan2(sines, cosines)  # [t, pairs]
    # Since the first token, on the circle: it may be turned already.
    angles = torch.atan2((found - found[0]).sin(), (found - found[0]).cos())
    signs = torch.sign(angles[1])
    sense = {1.0: "+", -1.0: "−"}.get(float(signs.mean()), "mixed")
    angles = angles * signs.where(signs != 0, 1.0)
    joined = _joined(firsts, seconds, dim, len(channels))
    first = float(found[0, 0] / angles[1, 0]) if angles[1, 0] else 0.0
    return Turning(dim, channels, joined, sense, angles[1].abs(), float(sizes[0].mean()), rest, angles, first)


def _matrices(rotary: Rotary, dim: int, device: torch.device) -> Tensor:
    """M_p for every position: float64 [t, out, in]."""
    position = torch.tensor(POSITIONS, device=device)
    x = torch.eye(dim, device=device)[:, None, None, :].expand(dim, 1, len(POSITIONS), dim).contiguous()
    with torch.no_grad():
        turned = rotary(x, position)
    if not isinstance(turned, Tensor) or turned.shape != x.shape:
        given = list(turned.shape) if isinstance(turned, Tensor) else type(turned).__name__
        raise TypeError(
            f"check: a rotary function takes x [b h t d] and position [t] and returns x turned; given x of "
            f"{list(x.shape)} this one returned {given}"
        )
    matrices = turned[:, 0].permute(1, 2, 0).double().cpu()
    # DeepSeek's code reorders channels as it turns them, queries and keys alike: no score sees it.
    order = (matrices[0].abs() > 0.5 * matrices[0].abs().amax(0)).double()
    reordered = bool((order.sum(0) == 1).all()) and bool((order.sum(1) == 1).all())
    return order.T @ matrices if reordered else matrices


def _joined(firsts: list[int], seconds: list[int], dim: int, width: int) -> str:
    """How channels pair: halves of those that turn or of the whole head, neighbours, or otherwise."""
    apart = {b - a for a, b in zip(firsts, seconds, strict=True)}
    if apart == {1} and all(a % 2 == 0 for a in firsts):
        return "neighbours"
    if apart in ({width // 2}, {dim // 2}):
        return "halves"
    return f"channels {firsts[0]} and {seconds[0]}, {firsts[-1]} and {seconds[-1]}"


def drift(angles: Tensor, f: Tensor) -> float:
    """How far phases are from p · θ, at most, in radians."""
    return float(_apart(angles, _positions() * f).max())


def precision(angles: Tensor, f: Tensor) -> str:
    """Which number of these was kept in too few bits, given what the frequencies should be; "" where none explains it.

    angles [t, pairs] were observed, f [pairs] are exact.
    """
    p, worst = _positions(), drift(angles, f)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        rounded = {
            f"frequencies (inv_freq) in {name}": p * f.to(dtype).double(),
            f"positions in {name}": p.to(dtype).double() * f,
            f"phases in {name}": (p * f).to(dtype).double(),
            f"positions and phases in {name}": (p.to(dtype) * f.to(dtype)).double(),
        }
        for words, phases in rounded.items():
            if float(_apart(angles, phases).max()) < min(DRIFT, worst / 4):
                return words
    return ""


def _positions() -> Tensor:
    return torch.tensor(POSITIONS, dtype=torch.float64)[:, None]


def _apart(one: Tensor, two: Tensor) -> Tensor:
    """The distance of two angles on the circle."""
    return ((one - two + math.pi) % (2 * math.pi) - math.pi).abs()
