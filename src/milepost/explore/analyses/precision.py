"""Angles in low precision: how wrong each dtype is by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import milepost as mp
from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves
from milepost.explore.words import in_words
from milepost.seams import demand
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
SAMPLED = 128
"""Positions that are looked at between one power of two and the next."""


def phase_errors(
    rope: Any = None,
    *,
    length: int = 1_048_576,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float16, torch.float32),
) -> Analysis:
    """Return the largest error of an angle that is computed in a dtype, by position, against float64.

        explore.phase_errors()
        explore.phase_errors(mp.Rope(128, theta=500_000.0), length=131_072)

    Position and frequency are rounded to the dtype and multiplied in it, as code does that builds its table in the
    dtype of the model. bfloat16 has eight binary digits: from 257 on it lacks odd numbers, the fastest pair is off by a
    radian there and by anything soon after. For comparison, "cos, sin" is what the rotation does here: the angle in
    float64, cosine and sine rounded to the dtype; look how it stays level.

    rope: the rotation, Rope(128) if left out. An error is between 0 and π, the largest over pairs of channels and over
    positions between one power of two and the next. float16 ends at 65,504: beyond, its angles are no numbers.
    """
    demand.whole(phase_errors, "length", length, least=4)
    rope = mp.Rope(128) if rope is None else rope
    if getattr(rope, "by_length", False) or getattr(rope, "axes", None) is not None:
        raise ValueError(
            f"phase_errors: the angles of {spell(rope)} are not the position times a frequency; leave it out"
        )
    for dtype in dtypes:
        if dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(f"phase_errors: {dtype} is not one of bfloat16, float16 and float32")
    starts = [2**n for n in range(1, (length - 1).bit_length())]
    found: dict[str, list[float]] = {}
    for start in starts:
        position = _between(start, min(2 * start, length))
        exact = rope.angles(position)
        step = rope.angles(torch.ones(1, dtype=torch.float64))[0]
        for dtype in dtypes:
            name = str(dtype).removeprefix("torch.")
            angle = position.to(dtype)[:, None] * step.to(dtype)
            cos, sin = rope.cos_sin(position, dtype=dtype)
            rounded = torch.atan2(sin.double(), cos.double())
            for called, each in ((f"angles in {name}", angle), (f"cos, sin in {name}", rounded)):
                found.setdefault(called, []).append(_worst(each.double() - exact))
    at = np.array(starts, dtype=np.float64)
    errors = {name: np.array(each) for name, each in found.items()}
    lost = [f"{name} {_first(at, each)}" for name, each in errors.items() if name.startswith("angles")]
    return Analysis(
        "phase_errors",
        "Angles in low precision are lost far on; cosines and sines of exact angles are not",
        f"An error reaches a whole radian for {', for '.join(lost)} up to {length:,} tokens. "
        f"Cosines and sines of exact angles are off by at most "
        f"{max(float(each.max()) for name, each in errors.items() if not name.startswith('angles')):.1e} rad.",
        (axis("from position", at), *(array(name, each, "rad", "from position") for name, each in errors.items())),
        (
            curves(
                "Largest error of the angle, or of the angle read back from cos and sin",
                at,
                errors,
                x_name="positions n to 2n, by n",
                y_name="error in radians",
                x_scale="doubling",
                y_scale="decades",
                level=(math.pi, "π: nothing is known"),
                notes=_ends(at, errors),
            ),
        ),
        f"{in_words(rope)} · against angles in float64 · the worst pair and position from n to 2n, up to {length:,}",
    )


def _ends(at: Numbers, errors: Mapping[str, Numbers]) -> list[tuple[float, float, str]]:
    """Return notes where a curve ends before the others, because its dtype has no larger numbers."""
    last = {name: np.flatnonzero(np.isfinite(each)) for name, each in errors.items()}
    return [
        (float(at[places[-1]]), float(errors[name][places[-1]]), _overflows(name.rpartition(" ")[2]))
        for name, places in last.items()
        if places.size and places[-1] < len(at) - 1
    ]


def _first(at: Numbers, errors: Numbers) -> str:
    """Return between which positions an error is a whole radian or no number for the first time, in words."""
    lost = at[~(errors < 1)]
    return f"between {lost[0]:,.0f} and {2 * lost[0]:,.0f}" if lost.size else "nowhere"


def _overflows(dtype: str) -> str:
    return f"overflows at {torch.finfo(getattr(torch, dtype)).max:,.0f}"


def _between(start: int, end: int) -> Tensor:
    """Return positions from start to below end, all or evenly spread, odd ones among them."""
    if end - start <= SAMPLED:
        return torch.arange(start, end, dtype=torch.float64)
    return torch.linspace(start + 1, end - 1, SAMPLED, dtype=torch.float64).round()


def _worst(difference: Tensor) -> float:
    """Return the largest difference of angles, less whole turns, of which a half is the most; NaN where one is."""
    turned = torch.remainder(difference + math.pi, math.tau) - math.pi
    return float(turned.abs().max())


__all__ = ["phase_errors"]
