"""Draw how far from the border a zero-padded stack of convolutions knows where it is."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import milepost as mp

DEPTHS = (1, 3, 6)
LENGTH, KERNEL = 41, 3


def main(path: Path) -> None:
    """Draw one curve for each depth, and one without zeros, which is flat."""
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    for depth, colour in zip(DEPTHS, ("#9ecae1", "#4292c6", "#08519c"), strict=True):
        leak = mp.padding_leak(LENGTH, depth=depth, kernel=KERNEL)
        reach = (KERNEL - 1) // 2 * depth
        axes.plot(
            leak / leak.max(), color=colour, marker="o", markersize=3, label=f"depth {depth}: {reach} from each border"
        )
    flat = mp.padding_leak(LENGTH, depth=max(DEPTHS), kernel=KERNEL, padding="circular")
    axes.plot(flat, color="#888888", linestyle="--", label="circular padding, 6 layers")
    axes.set_xlabel("place in a constant input")
    axes.set_ylabel("difference from the middle")
    axes.set_title("Zero padding tells a convolution where the border is", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="zero padding, kernel 3", loc="upper center", fontsize=9)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/padding_leak.png"))
