"""The padding leak: how far a stack of convolutions knows where the border is."""

from __future__ import annotations

import numpy as np

import milepost as mp
from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.axes import number
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.maps import map_of
from milepost.seams import demand

PADDINGS = ("zeros", "circular", "reflect", "replicate", "none")
SEEN = 1e-12
"""A difference of more than this is one; tanh keeps them near 1."""


def padding_leak_map(
    length: int = 41, *, depth: int = 8, kernel: int = 3, channels: int = 8, seed: int = 0
) -> Analysis:
    """Show what zero padding tells each position of a constant input, after one convolution and after many.

        explore.padding_leak_map()
        explore.padding_leak_map(81, depth=8, kernel=5)

    The input is the same everywhere, so without positions every output would be alike. With zero padding the border is
    felt (kernel − 1)/2 positions further inside with every layer: look for the two wedges. With circular, reflected or
    repeated values in the padding, or none at all, nothing is felt anywhere.
    `mp.padding_leak` computes each row: the distance of every output from the one in the middle.
    """
    for name, value in (("length", length), ("depth", depth)):
        demand.whole(padding_leak_map, name, value)
    layers = np.arange(1, depth + 1, dtype=np.float64)
    at = np.arange(length, dtype=np.float64)
    rest = {"kernel": kernel, "channels": channels, "seed": seed}
    found = np.stack([mp.padding_leak(length, depth=n, padding="zeros", **rest).numpy() for n in range(1, depth + 1)])
    by_padding = {name: np.full(length, np.nan) for name in PADDINGS}
    for name in PADDINGS:
        leak = mp.padding_leak(length, depth=depth, padding=name, **rest).numpy()
        start = (length - len(leak)) // 2
        by_padding[name][start : start + len(leak)] = leak
    felt = (found[:, : length // 2] > SEEN).sum(-1).astype(np.float64)
    others = max(float(np.nanmax(by_padding[name])) for name in PADDINGS[1:])
    # The widest of those that feel nothing stands for all of them.
    rest_of = np.nanmax(np.stack([by_padding[name] for name in PADDINGS[1:]]), 0)
    return Analysis(
        "padding_leak_map",
        "Zero padding tells a convolution where the border is; no other padding does"
        if others <= SEEN
        else "What zero padding tells a convolution",
        f"With zero padding {felt[0]:.0f} at each end differs from the middle after one layer and {felt[-1]:.0f} after "
        f"{depth}; with any other padding the largest difference is {number(others)}.",
        (
            axis("layers", layers),
            axis("position", at),
            array("leak", found, "", "layers", "position"),
            array("positions that feel a border", felt, "at each end", "layers"),
            *(array(f"padding {name}", values, "", "position") for name, values in by_padding.items()),
        ),
        (
            map_of(
                "Zero padding: difference from the middle output",
                np.where(found > SEEN, found, np.nan),
                layers,
                at,
                row_name="layers",
                column_name="position",
                unit="norm",
                hidden="as in the middle",
                limits=(0.0, float(found.max())),
            ),
            curves(
                f"After {depth} layers, by padding",
                at,
                {"zeros": by_padding["zeros"], "all others": rest_of} if others <= SEEN else by_padding,
                x_name="position",
                y_name="difference from the middle output (norm)",
            ),
        ),
        f"{depth} convolutions of width {kernel} on a constant input of {length} positions, {channels} channels, "
        "random kernels, so that both ends differ · all others: "
        + ", ".join(PADDINGS[1:-1])
        + ", and none, which leaves no output at the ends",
    )


__all__ = ["padding_leak_map"]
