"""Draw what six schemes do to the same scores.

Every query and key is alike but for a little noise, so what differs follows from positions. The values are one-hot,
which makes the output of attention its weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from milepost import Alibi, Kerple, Nope, Rerope, Rope, Scheme, Stream, attend, causal, explain


def schemes() -> dict[str, Scheme]:
    """Return the six schemes by their titles."""
    kerple = Kerple(2)
    with torch.no_grad():
        kerple.p.fill_(1.5)
        kerple.a.fill_(0.5)
    return {
        "NoPE": Scheme(Nope(), causal),
        "RoPE": Scheme(Rope(64), causal),
        "ALiBi, slope 1/16": Scheme(Alibi(2), causal),
        "KERPLE, 1.5 · ln(1 + n/2)": Scheme(kerple, causal),
        "ReRoPE, window 48": Scheme(Rope(64), Rerope(48), causal),
        "StreamingLLM, 4 + 60": Scheme(Rope(64), Stream(sinks=4, window=60)),
    }


def weights_of(scheme: Scheme, q: Tensor, k: Tensor) -> Tensor:
    """The attention weights [t s] of the first head."""
    one_hot = torch.eye(k.shape[2]).expand(1, k.shape[1], -1, -1)
    return attend(q, k, one_hot, scheme)[0, 0]


def draw(weights: dict[str, Tensor], path: Path) -> None:
    """Six maps of weights, and the last row of each as a curve over distance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LogNorm

    figure = plt.figure(figsize=(12, 11.5), layout="constrained")
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 0.9])
    shade, colours = LogNorm(vmin=1e-4, vmax=0.3), matplotlib.colormaps["magma"].with_extremes(bad="0.88")
    for number, (name, each) in enumerate(weights.items()):
        panel = figure.add_subplot(grid[number // 3, number % 3])
        # What is hidden is grey, what is merely faint is black.
        shown = each.clamp(min=1e-9).masked_fill(each == 0, torch.nan)
        image = panel.imshow(shown, norm=shade, cmap=colours, interpolation="nearest")
        panel.set_title(name, fontsize=12)
        panel.set_xlabel("key")
        panel.set_ylabel("query")
        figure.colorbar(image, ax=panel, shrink=0.8, label="weight" if number % 3 == 2 else None)
    curves = figure.add_subplot(grid[2, :])
    for name, each in weights.items():
        last = each[-1].flip(0)
        curves.plot(last.masked_fill(last == 0, torch.nan), label=name, linewidth=1.4)
    curves.set_yscale("log")
    curves.set_ylim(1e-5, 1)
    curves.set_xlabel("distance behind the last query")
    curves.set_ylabel("weight")
    curves.legend(ncols=3, fontsize=9, loc="upper right")
    curves.grid(alpha=0.25)
    figure.suptitle("The same queries and keys under six schemes", fontsize=15)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main() -> None:
    """Compute, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--out", type=Path, default=Path("out/six_schemes.png"))
    options = parser.parse_args()

    torch.manual_seed(0)
    content = torch.randn(64)
    q, k = (content + 0.35 * torch.randn(1, 2, options.tokens, 64) for _ in range(2))
    six = schemes()
    with torch.no_grad():
        weights = {name: weights_of(scheme, q, k) for name, scheme in six.items()}

    print(f"The last of {options.tokens} queries: where its attention goes\n")
    print(f"{'scheme':<28}{'last 16 keys':>14}{'first 4 keys':>14}{'keys holding 90 %':>20}   backend")
    for name, each in weights.items():
        last = each[-1]
        holding = int((last.sort(descending=True).values.cumsum(0) < 0.9).sum()) + 1
        ran = explain(q, k, k, six[name]).backend
        print(f"{name:<28}{last[-16:].sum():>13.1%} {last[:4].sum():>13.1%} {holding:>19}   {ran}")
    print(f"\nThe scheme of the fifth row, as an equation:\n\n{six['ReRoPE, window 48']}\n")
    draw(weights, options.out)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
