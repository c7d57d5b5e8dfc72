"""What a rotation does, measured: no name or setting is believed.

At position p a rotary function is a matrix M_p. The channels that it mixes are its pairs, the angle between them is the
phase, and the size of a column is the magnitude. A difference of two rotations is named (sign, base, dtype, …) only
where the name reproduces every measured angle; otherwise the pairs that differ are listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milepost.hf.checking.report import Difference, between, number
from milepost.schedule import ranges

POSITIONS = (0, 1, 2, 3, 7, 19, 64, 127, 255, 257, 513, 771, 1029, 2049, 3077, 4099, 6151, 8191)
"""Where it is measured: bfloat16 has no odd number past 256, and float16 none past 2048."""
MIXED = 2e-5
"""Less than this off the diagonal is no rotation."""


@dataclass(frozen=True)
class Turning:
    """One rotation as it was measured.

    pairs are the two channels of each pair, angles and sizes [t pairs] the phase and the magnitude of each pair at each
    of the positions [t], and rest what the other channels are multiplied by. All tensors are float64.
    """

    dim: int
    pairs: tuple[tuple[int, int], ...]
    angles: Tensor
    sizes: Tensor
    rest: float
    positions: Tensor

    @property
    def channels(self) -> list[int]:
        """The channels that rotate."""
        return sorted(channel for pair in self.pairs for channel in pair)

    @property
    def width(self) -> str:
        """How many channels rotate, in words."""
        return f"rotates {2 * len(self.pairs)} of {self.dim} channels" if self.pairs else "no rotation"

    @property
    def layout(self) -> str:
        """Which channels make a pair, in words."""
        apart, first = {b - a for a, b in self.pairs}, self.pairs[0][0]
        if apart == {1} and all(a % 2 == first % 2 for a, _ in self.pairs):
            return "neighbours (2n, 2n + 1)"
        if len(apart) == 1 and [a for a, _ in self.pairs] == list(range(first, first + len(self.pairs))):
            return "halves (n, n + d/2)"
        return ", ".join(map(str, self.pairs[:3])) + ", …"


def turning_of(rotary: Callable[[Tensor, Tensor], object], dim: int) -> Turning:
    """Measure a rotary function, x [b h t d] and position [t] to [b h t d], on unit vectors."""
    position = torch.tensor(POSITIONS)
    x = torch.eye(dim)[:, None, None, :].expand(dim, 1, len(POSITIONS), dim).contiguous()
    with torch.no_grad():
        turned = rotary(x, position)
    if not isinstance(turned, Tensor) or turned.shape != x.shape:
        given = list(turned.shape) if isinstance(turned, Tensor) else type(turned).__name__
        raise TypeError(
            f"check: a rotary function takes x [b h t d] and position [t] and returns x rotated; given x of "
            f"{list(x.shape)} this one returned {given}"
        )
    return measured(turned[:, 0].permute(1, 2, 0).double().cpu(), position.double())


def measured(matrices: Tensor, positions: Tensor) -> Turning:
    """Read a rotation off its matrices, float64 [t out in]."""
    # DeepSeek's code reorders channels as it rotates them, queries and keys alike: no score changes.
    order = (matrices[0] > 0.5 * matrices[0].abs().amax(0)).double()
    if bool((order.sum(0) == 1).all()) and bool((order.sum(1) == 1).all()):
        matrices = order.T @ matrices
    off = matrices.clone()
    off.diagonal(dim1=1, dim2=2).zero_()
    strength = off.abs().amax(0)  # [out, in]
    channels = true(strength.amax(0) > MIXED)
    partner = [int(c) for c in strength.argmax(0)]
    pairs = tuple((c, partner[c]) for c in channels if c < partner[c])
    if sorted(channel for pair in pairs for channel in pair) != channels:
        raise ValueError(
            f"check: this function mixes {len(channels)} channels otherwise than in pairs, so it is no rotation; it is "
            f"given x [b h t d] and position [t], and returns x with pairs of channels rotated"
        )
    still = [c for c in range(len(partner)) if c not in channels]
    rest = float(matrices[0].diagonal()[still].mean()) if still else 1.0
    # Column c is where unit vector c goes: cos to itself and sin to its partner.
    firsts, seconds = [a for a, _ in pairs], [b for _, b in pairs]
    sin, cos = matrices[:, seconds, firsts], matrices[:, firsts, firsts]
    return Turning(len(partner), pairs, torch.atan2(sin, cos), (sin**2 + cos**2).sqrt(), rest, positions)


def rotations(a: Turning, b: Turning) -> Iterator[Difference]:
    """Name every way in which two rotations differ."""
    if a.dim != b.dim:
        yield Difference("head size", f"{a.dim}", f"{b.dim}")
        return
    if not a.pairs or not b.pairs:
        if a.pairs or b.pairs:
            yield Difference("rotation", a.width, b.width)
        return
    a, b = _with_still_pairs(a, b), _with_still_pairs(b, a)
    if a.layout != b.layout:
        yield Difference("pairs", a.layout, b.layout)
    elif len(a.pairs) == len(b.pairs) and a.channels != b.channels:
        yield between("rotary channels", (f"channels {ranges(each.channels)}" for each in (a, b)))
    if len(a.pairs) != len(b.pairs):
        yield Difference("rotary width", a.width, b.width)
    (one, first), (two, second) = _normal(a), _normal(b)
    for convention in first:
        if first[convention] != second[convention]:
            yield Difference(convention, first[convention], second[convention])
    yield from _frequencies(replace(a, angles=one), replace(b, angles=two))
    yield from _magnitudes(a, b)


def _with_still_pairs(one: Turning, other: Turning) -> Turning:
    """Add the other's pairs that are still here, at the angle 0; not to a partial rotation, which has none of them."""
    whole = one.channels == list(range(len(one.channels))) and len(one.channels) < one.dim
    if not set(one.pairs) < set(other.pairs) or (whole and _plain(steps(one)) is not None):
        return one
    pairs = tuple(sorted(other.pairs))
    where = [pairs.index(each) for each in one.pairs]
    angles = one.angles.new_zeros(len(one.positions), len(pairs))
    sizes = torch.full_like(angles, one.rest)
    angles[:, where], sizes[:, where] = one.angles, one.sizes
    return replace(one, pairs=pairs, angles=angles, sizes=sizes)


def _normal(turning: Turning) -> tuple[Tensor, dict[str, str]]:
    """Bring angles to +pθ with p from 0, and say what that took; each step must be true of every pair."""
    angles, order, sign, first = turning.angles, "cos first", "+pθ", 0.0
    if bool((circle(angles[0] - math.pi / 2).abs() < 1e-4).all()):
        angles, order = circle(math.pi / 2 - angles), "sin first"
    step = circle(angles[1] - angles[0])
    moving = step[step.abs() > 1e-7]
    if len(moving) and bool((moving < 0).all()):
        angles, step, sign = -angles, -step, "−pθ"
    fast = step.abs() > 1e-3
    if bool(fast.any()):
        offset = (angles[0][fast] / step[fast]).mean()
        if abs(float(offset)) > 1e-2 and bool((circle(angles[0] - offset * step).abs() < 1e-3).all()):
            angles, first = circle(angles - offset * step), float(offset)
    return angles, {"cos and sin": order, "sign": sign, "first position": number(first)}


def _frequencies(a: Turning, b: Turning) -> Iterator[Difference]:
    """Compare the angles of two rotations whose sign and start are the same now."""
    f, g = steps(a), steps(b)
    curve, curve_b = _plain(f), _plain(g)
    if len(f) != len(g):
        # Frequencies depend on the width, so only the bases can be compared.
        if curve is None or curve_b is None or not near(curve[0], curve_b[0]):
            yield Difference("frequencies", _listed(f, range(len(f))), _listed(g, range(len(g))),
                             "Radians a token of the first pairs.")  # fmt: skip
        return
    off, p = circle(a.angles - b.angles).abs(), a.positions[:, None]
    # What float32 loses.
    allowed = 2e-5 + 1e-6 * p * torch.maximum(f.abs(), g.abs())
    wrong = true((off > allowed).any(0))
    if not wrong:
        return
    for n, (exact, given) in enumerate(((f, b), (g, a))):
        why = _precision(given, exact, float(off.max()))
        if why:
            words = ["float32 or better", why]
            yield between("dtype of the angles", (words if n == 0 else words[::-1]),
                             f"Angles are off by up to {float(off.max()):.2g} radians within 8,192 tokens.",
                             "Keep inv_freq, positions and angles in float32, outside of autocast.")  # fmt: skip
            return
    if curve is not None and curve_b is not None:
        (base, by), (other, by_other) = curve, curve_b
        if not near(base, other, 5e-6):
            yield Difference("base", f"rope_theta {number(base)}", f"rope_theta {number(other)}")
        if not near(by, by_other, 5e-6):
            words = [f"divides every frequency by {number(each)}" if each != 1 else "none" for each in (by, by_other)]
            yield between("stretch", words)
        if not (near(base, other, 5e-6) and near(by, by_other, 5e-6)):
            return
    shown = wrong[:3]
    at = "; ".join(f"channels {a.pairs[n][0]} and {a.pairs[n][1]}" for n in shown)
    yield Difference("frequencies", _listed(f, shown), _listed(g, shown), f"Radians a token of {at}. In all pair"
                     f"{'s' * (len(wrong) > 1)} {ranges(wrong)} of {len(f)} differ.")  # fmt: skip


def _listed(f: Tensor, pairs: list[int] | range) -> str:
    return ", ".join(number(float(f[n])) for n in pairs[:3]) + (", …" if len(pairs) > 3 else "")


def _plain(f: Tensor) -> tuple[float, float] | None:
    """Return the base and the factor of frequencies base^(−n/pairs) / factor; None where they are no such curve."""
    if len(f) < 3 or bool((f <= 0).any()):
        return None
    logs, n = f.log(), torch.arange(len(f), dtype=f.dtype)
    slope = (logs[0] - logs[-1]) / (len(f) - 1)
    if bool((logs[0] - slope * n - logs).abs().max() > 2e-4):
        return None
    factor = float(1 / f[0])
    return float((slope * len(f)).exp()), 1.0 if near(factor, 1.0) else factor


def _precision(turning: Turning, f: Tensor, worst: float) -> str:
    """Return which number was kept in too few bits, given exact frequencies f; "" where none explains the angles."""
    p = turning.positions[:, None]
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        rounded = {
            f"inv_freq in {name}": p * f.to(dtype).double(),
            f"positions in {name}": p.to(dtype).double() * f,
            f"angles in {name}": (p * f).to(dtype).double(),
            f"positions and angles in {name}": (p.to(dtype) * f.to(dtype)).double(),
        }
        for words, phases in rounded.items():
            # A number between two others may be rounded to either.
            if float((circle(turning.angles - phases).abs() > min(0.02, worst / 4)).double().mean()) < 0.02:
                return words
    return ""


def _magnitudes(a: Turning, b: Turning) -> Iterator[Difference]:
    one, two = float(a.sizes[0].mean()), float(b.sizes[0].mean())
    if not (near(one, two) and near(a.rest, b.rest)):
        yield between("magnitude", (f"cos and sin × {number(each)}" for each in (one, two)))
    elif a.sizes.shape == b.sizes.shape and bool((a.sizes - b.sizes).abs().max() > 1e-3 * one):
        t, n = divmod(int((a.sizes - b.sizes).abs().argmax()), a.sizes.shape[1])
        words = [f"× {number(float(each.sizes[t, n]))}" for each in (a, b)]
        yield between("magnitude by position", words, f"At position {int(a.positions[t])}, pair {n}, the most.")


def steps(turning: Turning) -> Tensor:
    """Return radians a token, [pairs]: the angle at position 1, made more exact by further positions that agree."""
    angles, positions = turning.angles - turning.angles[0], turning.positions
    found = circle(angles[1])
    for p, angle in zip(positions[2:], angles[2:], strict=True):
        found = (p * found + circle(angle - p * found)) / p
    off = circle(angles - positions[:, None] * found).abs().amax(0)
    return found.where(off < 1e-2, circle(angles[1]))


def true(mask: Tensor) -> list[int]:
    """List where a mask [n] is true."""
    return [int(n) for n in mask.nonzero().flatten()]


def circle(angle: Tensor) -> Tensor:
    """Bring an angle between −π and π."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def near(one: float, two: float, within: float = 1e-4) -> bool:
    """True if two numbers are the same but for what float32 loses."""
    return abs(one - two) <= within * max(abs(one), abs(two), 1e-12)
