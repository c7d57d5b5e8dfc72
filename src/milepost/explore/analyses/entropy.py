"""The entropy of attention: how it grows with the number of keys, and what log-n scaling does about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import curves
from milepost.methods.nope import Nope
from milepost.methods.softmax import LogN
from milepost.scheme import Scheme
from milepost.scores import weights
from milepost.seams import demand
from milepost.seams.visible import causal

LENGTHS = tuple(2**n for n in range(6, 15))


def attention_entropy(
    schemes: Mapping[str, Scheme] | None = None,
    *,
    trained: int = 512,
    lengths: Sequence[int] = LENGTHS,
    head_dim: int = 64,
    heads: int = 64,
    seed: int = 0,
) -> Analysis:
    """Return the entropy of the last token's attention weights, by the number of keys, for several schemes.

        explore.attention_entropy()
        explore.attention_entropy({"RoPE": mp.Scheme(mp.Rope(64), mp.causal)}, lengths=(512, 4096))

    Queries and keys are random and normal: the mean over `heads` of them, as a model's would be if nothing stood out.
    schemes: by the name that the picture writes; left out, plain attention and the three forms of LogN. trained: the
    trained length of those, and the rule in the picture.
    Look at the slope. Without a factor the entropy grows as ln n: four times as many keys, 1.39 nats more. log-n makes
    it grow more slowly; it does not keep it constant.
    """
    demand.whole(attention_entropy, "trained", trained, least=2)
    demand.whole(attention_entropy, "head_dim", head_dim)
    demand.whole(attention_entropy, "heads", heads)
    demand.whole(attention_entropy, "seed", seed, least=0)
    if not lengths:
        raise ValueError("attention_entropy(lengths=()): give at least one length")
    for length in lengths:
        demand.whole(attention_entropy, "lengths", length)
    shown = _formulas(trained) if schemes is None else {}
    if schemes is None:
        schemes = _forms(trained)
    schemes = by_name(attention_entropy, schemes, '{"RoPE": Scheme(Rope(64), causal)}')
    if not all(isinstance(each, Scheme) for each in schemes.values()):
        raise TypeError("attention_entropy: give whole schemes, Scheme(Rope(64), causal)")
    at = np.array(sorted(set(lengths)), dtype=np.float64)
    found = {name: np.empty(len(at)) for name in schemes}
    for place, length in enumerate(at.astype(int).tolist()):
        draw = torch.Generator().manual_seed(seed)
        # Few sets of keys serve many queries: keys are what fills memory.
        groups = math.gcd(heads, 4)
        q = torch.randn(1, heads, 1, head_dim, generator=draw)
        k = torch.randn(1, groups, length, head_dim, generator=draw)
        for name, scheme in schemes.items():
            found[name][place] = _entropy(weights(q, k, scheme).double())
    mark = float(trained), f"{'reference length' if shown else 'trained length'}, {trained:,}"
    # A row of its own scale: the growth of the others would be a flat line.
    hidden = "ln n by itself" if shown else None
    grown = [values[-1] - values[0] for values in found.values()]
    said = "; ".join(f"{name} {step:.2f}" for name, step in zip(found, grown, strict=True))
    return Analysis(
        "attention_entropy",
        "Entropy of attention grows with the number of keys; log-n slows its growth"
        if shown
        else "Entropy of attention by the number of keys",
        f"From {at[0]:,.0f} to {at[-1]:,.0f} keys the entropy grows by (in nats): {said}. The logarithm of the number "
        f"of keys grows by {math.log(at[-1] / at[0]):.2f}.",
        (
            axis("keys", at, "tokens"),
            *(array(name, values, "nats", "keys") for name, values in found.items()),
            array("even weights", np.log(at), "nats", "keys"),
        ),
        (
            curves(
                "Entropy of the last token's weights",
                at,
                {shown.get(name, name): each for name, each in found.items()} | {"even weights: ln n": np.log(at)},
                x_name="number of keys n",
                y_name="entropy in nats",
                x_scale="doubling",
                mark=mark,
                y_range=(0.0, float(max(np.log(at).max(), *(each.max() for each in found.values())))),
            ),
            curves(
                "Entropy below that of even weights" + ("; that of s·ln n is far lower, not drawn" if hidden else ""),
                at,
                {shown.get(name, name): each - np.log(at) for name, each in found.items() if name != hidden},
                x_name="number of keys n",
                y_name="entropy − ln n, in nats",
                x_scale="doubling",
                mark=mark,
                level=(0.0, "even weights"),
            ),
        ),
        f"Random q and k from N(0, 1), mean of {heads} heads of {head_dim} channels"
        + (
            f" · s = q·k/√{head_dim} · reference length: the trained length of the formulas; nothing is trained here\n"
            f"log-n at every length is for a model trained with it, log-n past {trained:,} for one trained without"
            if shown
            else ""
        ),
    )


def _forms(trained: int) -> dict[str, Scheme]:
    """Return plain attention, and the forms of LogN: clipped, as trained with, and the first one."""
    return {
        "plain": Scheme(Nope(), causal),
        "log-n past the trained length": Scheme(Nope(), LogN(trained), causal),
        "log-n at every length": Scheme(Nope(), LogN(trained, clip=False), causal),
        "ln n by itself": Scheme(Nope(), LogN(None, clip=False), causal),
    }


def _formulas(trained: int) -> dict[str, str]:
    """Return the forms by their names and formulas."""
    return {
        "plain": "plain: s",
        "log-n past the trained length": f"log-n past {trained:,}: s·max(1, ln n/ln {trained:,})",
        "log-n at every length": f"log-n at every length: s·ln n/ln {trained:,}",
        "ln n by itself": "ln n by itself: s·ln n",
    }


def _entropy(shares: torch.Tensor) -> float:
    """Return the mean entropy of rows of weights, in nats."""
    return float(-torch.xlogy(shares, shares).sum(-1).mean())
