"""Linear attention under a rotation: what becomes of its denominator if that is rotated too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import milepost as mp
from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import curves, smoothed
from milepost.explore.pictures.strips import strips
from milepost.seams import demand

Numbers = NDArray[np.float64]
RUN = 15
"""Shares are drawn as the mean of so many queries."""


def negative_denominators(
    ropes: Mapping[str, Any] | None = None, *, tokens: int = 512, draws: int = 32, seed: int = 0
) -> Analysis:
    """Compare the denominator of causal linear attention, rotated, with the plain one, on random queries and keys.

        explore.negative_denominators()
        explore.negative_denominators({"mine": mp.Rope(64, theta=500.0)}, tokens=2048)

        ratio_i  =  Σ_j ⟨turn(φ(q_i), p_i), turn(φ(k_j), r_j)⟩ / Σ_j ⟨φ(q_i), φ(k_j)⟩,   j ≤ i,   φ(x) = elu(x) + 1

    The products ⟨φ(q), φ(k)⟩ are positive, their rotations are not. Where the ratio meets 0 an attention divided by the
    rotated sum is infinite, and below it the signs of all weights are turned round: so `linear_attend` rotates the
    numerator alone, and its weights sum to this ratio. Narrow heads and small bases cross soon; a head of 64 channels
    at the usual base keeps so many slow pairs that random contents stay above.

    ropes: rotations by name; a narrow head, a usual one and one of a small base if left out. tokens: the length of the
    text; draws: how many texts.
    """
    for name, value in (("tokens", tokens), ("draws", draws)):
        demand.whole(negative_denominators, name, value)
    named = _three() if ropes is None else by_name(negative_denominators, ropes, '{"RoPE": Rope(64)}')
    at = np.arange(tokens, dtype=np.float64)
    ratios = {name: _ratios(rope, tokens, draws, seed) for name, rope in named.items()}
    negative = {name: (each <= 0).mean(0) for name, each in ratios.items()}
    shown = {name: f"{name}, base 10,000" for name in ("8 channels", "64 channels")} if ropes is None else {}
    arrays: list[Array] = [axis("query", at), axis("draw", np.arange(draws, dtype=np.float64))]
    for name, each in ratios.items():
        arrays.append(array(f"{name}, ratio", each, "", "draw", "query"))
        arrays.append(array(f"{name}, not positive", negative[name], "of draws", "query"))
    counted = "; ".join(
        f"{name}: {(each <= 0).mean():.1%} of rows, least ratio {each.min():.2f}" for name, each in ratios.items()
    )
    return Analysis(
        "negative_denominators",
        "Linear attention: its denominator can fall to 0 and below if it is rotated too"
        if any((each <= 0).any() for each in ratios.values())
        else "Linear attention: its denominator, if that is rotated too",
        f"The rotated denominator is not positive in {counted}. The plain one always is.",
        tuple(arrays),
        (
            strips(
                "Rotated denominator / the plain one, in one text",
                at,
                {shown.get(name, name): each[0] for name, each in ratios.items()},
                x_name="query",
                y_name="ratio, all at one scale",
                shaded=(-np.inf, 0.0, "not positive"),
            ),
            curves(
                f"Share of {draws} texts whose denominator is not positive",
                at,
                {shown.get(name, name): _of_runs(each) for name, each in negative.items()},
                x_name="query",
                y_name=f"share, mean of {RUN} queries",
                y_range=(0.0, 1.0),
            ),
        ),
        "ratio = Σ⟨turn φ(q), turn φ(k)⟩ / Σ⟨φ(q), φ(k)⟩ over the keys so far; φ(x) = elu(x) + 1; q, k from N(0, 1)"
        + (_why() if ropes is None else ""),
    )


def _ratios(rope: Any, tokens: int, draws: int, seed: int) -> Numbers:
    """Return the ratio of each row of each draw: what linear_attend makes of values that are all 1."""
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, draws, tokens, rope.head_dim, generator=drawn, dtype=torch.float64) for _ in range(2))
    ones = torch.ones(1, draws, tokens, 1, dtype=torch.float64)
    with torch.no_grad():
        return mp.linear_attend(q, k, ones, mp.Scheme(rope, mp.causal))[0, ..., 0].numpy()


def _of_runs(share: Numbers) -> Numbers:
    """Return the mean around each query: shares of so few texts are steps."""
    return smoothed(share, RUN)


def _why() -> str:
    """Return why the share of the small base falls again: its slowest pair comes around."""
    turn = math.tau * 100.0 ** (31 / 32)
    # The mean of cos(x) from 0 to x, sin(x)/x, is least where tan(x) = x.
    return (
        f"\nbase 100: its slowest pair turns once in {turn:.0f} tokens; the mean cosine of that pair over the keys "
        f"so far is least at {4.4934 / math.tau * turn:.0f} and rises after it"
    )


def _three() -> dict[str, Any]:
    return {
        "8 channels": mp.Rope(8),
        "64 channels": mp.Rope(64),
        "64 channels, base 100": mp.Rope(64, theta=100.0),
    }


__all__ = ["negative_denominators"]
