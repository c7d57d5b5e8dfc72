"""ALiBi: its bias, what it leaves of a far key's weight, and how far each head sees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves, evenly
from milepost.explore.pictures.maps import map_of
from milepost.explore.words import in_words
from milepost.methods.alibi import Alibi
from milepost.methods.alibi_stretches import AlibiInterpolate, AlibiNtk
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.visible import causal

Numbers = NDArray[np.float64]
MOST = 128
"""How many rows of the bias are drawn."""
OCTAVE = 8
"""Distances between one power of two and the next."""


def alibi_view(
    alibi: Alibi, *, factor: float = 4.0, length: int = 64, head: int | None = None, left: float = 0.01
) -> Analysis:
    """Draw the bias of ALiBi, what it leaves of a key's weight by distance, and the field of view of every head.

        explore.alibi_view(mp.Alibi(8))
        explore.alibi_view(mp.Alibi(32), factor=8, left=0.1)

    The bias multiplies a weight by e^(−slope · distance) before the softmax divides. The field of view is the distance
    at which `left` of it is left: ln(1/left)/slope. Look at the last picture: AlibiInterpolate(factor) widens every
    view alike, AlibiNtk(factor) keeps that of the steepest head and widens that of the flattest by the factor. length:
    tokens of the bias that is drawn; head: whose bias that is, the middle one by rank if left out.
    """
    if not isinstance(alibi, Alibi) or alibi.stretch is not None:
        given = alibi.__name__ if isinstance(alibi, type) else repr(alibi)
        raise TypeError(f"alibi_view({given}): give an Alibi without a stretch, such as Alibi(8)")
    demand.finite(alibi_view, "factor", factor, above=0)
    demand.whole(alibi_view, "length", length, least=2)
    demand.finite(alibi_view, "left", left, above=0)
    if left >= 1:
        raise ValueError(f"alibi_view(left={left!r}): left is a share of the weight, below 1")
    forms = {
        "ALiBi": alibi,
        f"AlibiInterpolate({factor:g})": replace(alibi, stretch=AlibiInterpolate(factor)),
        f"AlibiNtk({factor:g})": replace(alibi, stretch=AlibiNtk(factor)),
    }
    shown = dict(zip(forms, ("ALiBi", f"interpolated by {factor:g}", f"NTK by {factor:g}"), strict=True))
    slopes: dict[str, Numbers] = {name: each.slopes().behind.numpy() for name, each in forms.items()}
    views = {name: math.log(1 / left) / each for name, each in slopes.items()}
    steep = np.argsort(-slopes["ALiBi"], kind="stable")
    chosen = int(steep[(len(steep) - 1) // 2]) if head is None else head
    demand.whole(alibi_view, "head", chosen, least=0)
    if chosen >= alibi.heads:
        raise ValueError(f"alibi_view(head={chosen}): {spell(alibi)} has {alibi.heads} heads, 0 … {alibi.heads - 1}")
    at = torch.tensor(evenly(length, MOST))
    bias: Numbers = Scheme(alibi, causal).bias(at, at, dtype=torch.float64, heads=alibi.heads)[0, chosen].numpy()
    distances = _distances(float(views["ALiBi"].max()))
    kept = {name: np.exp(-each[:, None] * distances) for name, each in slopes.items()}
    heads, positions = np.arange(alibi.heads, dtype=np.float64), at.double().numpy()
    own = views["ALiBi"]
    further = [each / own for each in views.values()]
    times = dict(zip(forms, map(_times, further), strict=True))
    found = [f"{name}: {each.min():,.1f} and {each.max():,.0f}" for name, each in views.items() if each is not own]
    return Analysis(
        "alibi_view",
        f"ALiBi: interpolated, every head sees {further[1].min():.3g} times as far; by NTK the steepest "
        f"{further[2].min():.3g}, the flattest {further[2].max():.3g} times",
        f"{_percent(left)} of a weight is left at {own.min():,.1f} tokens in the steepest head and at "
        f"{own.max():,.0f} in the flattest; {'; '.join(found)}.",
        (
            axis("query", positions, "tokens"),
            axis("key", positions, "tokens"),
            axis("head", heads),
            axis("distance", distances, "tokens"),
            array(f"bias, head {chosen}", bias, "nats", "query", "key"),
            *(array(f"weight left, {name}", each, "", "head", "distance") for name, each in kept.items()),
            *(array(f"slope, {name}", each, "nats a token", "head") for name, each in slopes.items()),
            *(array(f"field of view, {name}", each, "tokens", "head") for name, each in views.items()),
        ),
        (
            map_of(
                f"Bias of head {chosen}, whose slope is {_fraction(slopes['ALiBi'][chosen])}",
                bias,
                positions,
                positions,
                row_name="query",
                column_name="key",
                unit="nats",
                hidden="future keys",
            ),
            *(
                map_of(
                    f"Weight left by distance: {shown[name]}{times[name]}",
                    kept[name][steep],
                    heads[steep],
                    distances,
                    row_name="head",
                    column_name="distance in tokens (log)",
                    unit="share left",
                    limits=(0.0, 1.0),
                )
                for name in forms
            ),
            curves(
                f"Distance at which {_percent(left)} of a weight is left",
                heads,
                {shown[name]: each[steep] for name, each in views.items()},
                x_name="head, the steepest first",
                y_name="distance in tokens",
                y_scale="decades",
                at_ends=True,
            ),
        ),
        f"{in_words(alibi)}, counted from 0 · stretched by {factor:g}, two ways",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _times(further: Numbers) -> str:
    """Return how many times as far heads see, as it is written behind the name of a stretch."""
    least, most = float(further.min()), float(further.max())
    if most - least < 1e-9:
        return "" if abs(most - 1) < 1e-9 else f", every head × {most:.3g}"
    return f", × {least:.3g} to × {most:.3g}"


def _fraction(slope: float) -> str:
    """Return a slope as one over a whole number, where it is one."""
    return f"1/{1 / slope:.0f}" if abs(1 / slope - round(1 / slope)) < 1e-9 else f"{slope:.3g}"


def _distances(far: float) -> Numbers:
    """Return distances from 1 past the farthest view, so many to a doubling; their ends are powers of 16."""
    doublings = 4 * math.ceil(math.log2(max(far, 2)) / 4)
    return 2 ** np.linspace(0, doublings, doublings * OCTAVE + 1)


__all__ = ["alibi_view"]
