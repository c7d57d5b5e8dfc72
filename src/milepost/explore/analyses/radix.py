"""A position as a number: the pairs of a rotation are its places, and a stretch writes it in another way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import curves, evenly
from milepost.explore.pictures.wheels import WheelKey, Wheels
from milepost.explore.words import in_words
from milepost.methods.rope import Rope
from milepost.methods.rope_stretches import Interpolate, Ntk, NtkMixed
from milepost.seams import demand

Numbers = NDArray[np.float64]
MOST = 6
"""How many places are drawn."""


def odometer(
    rope: Rope,
    *,
    trained: int = 1000,
    factor: float = 8.0,
    positions: Sequence[int] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Analysis:
    """Write positions in the number system of a rotation, beside the angles of its pairs.

        explore.odometer(mp.Rope(8))
        explore.odometer(mp.Rope(128), trained=4096, factor=8, positions=(100, 4095, 20_000))

    Pair n counts in units of β^n tokens, β = θ^(2/d), as the places of a number in base β do; Rope(8) counts in tens.
    Past the trained length a place has digits that it never had (direct); interpolation keeps the digits and adds
    fractions to the last one; a larger base βλ, λ = factor^(2/(d − 2)), counts further with as many places. Look at the
    highest place: its hand leaves the shaded arc in the direct form alone. In a larger base other digits are larger
    than in training, but no angle is new: a hand goes around modulo 2π, whatever the base.
    """
    given, at = _checked(rope, trained, factor, positions)
    forms = {
        "direct": given,
        "interpolated": replace(given, stretch=Interpolate(factor)),
        "larger base": replace(given, stretch=Ntk(factor)),
        "mixed": replace(given, stretch=NtkMixed(factor, b=1.0)),
    }
    named = {} if more is None else by_name(odometer, more, '{"YaRN": Yarn(8, trained=1000)}')
    for name in forms.keys() & named.keys():
        raise ValueError(f"odometer: {name!r} is the name of a form that is always there; choose another")
    forms |= {name: replace(given, stretch=stretch) for name, stretch in named.items()}
    steps = {name: _angles(each, [1])[0] for name, each in forms.items()}
    lambdas = {"larger base": factor ** (2 / max(given.head_dim - 2, 1)), "mixed": factor ** (2 / given.head_dim)}
    base = given.theta ** (2 / given.head_dim)
    bases = {name: base * lambdas.get(name, 1.0) for name in forms}
    angles = {name: _angles(each, at) for name, each in forms.items()}
    digits = {name: _digits(angles[name], bases[name]) for name in forms}
    known = _angles(given, range(trained))
    largest, seen = _digits(known, base).max(0), steps["direct"] * trained / math.tau
    arcs = {name: _unseen(seen, each * trained * factor / math.tau) for name, each in steps.items()}
    shown = list(reversed(evenly(len(seen), MOST)))
    places = {name: tuple(f"× {_unit(1 / each[n])}" for n in shown) for name, each in steps.items()}
    titles = {
        "direct": f"Direct: base {base:.4g}",
        "interpolated": f"Interpolated: position / {factor:g}, base {base:.4g}",
        "larger base": f"Larger base: {bases['larger base']:.4g}",
        "mixed": f"Mixed: base {bases['mixed']:.4g}, and the lowest unit {1 / steps['mixed'][0]:.4g}",
    }
    wheels = [
        Wheels(
            title,
            "position",
            trained,
            np.asarray(at, np.float64),
            places[name],
            digits[name][:, shown],
            angles[name][:, shown],
            largest[shown],
            seen[shown],
            tuple(shown),
            _sooner(base) if name == "direct" else "",
        )
        for name, title in titles.items()
    ]
    pairs = np.arange(len(seen), dtype=np.float64)
    half = given.head_dim // 2
    slowing = {
        "direct": "direct: 1",
        "interpolated": f"interpolated: {factor:g}",
        "larger base": f"larger base: {factor:g} to the n/{half - 1}",
        "mixed": f"mixed: {factor:g} to the (n + 1)/{half}",
    }
    slowing |= {name: name for name in named}
    slowed = curves(
        "How much slower each pair turns",
        pairs,
        {slowing[name]: steps["direct"] / each for name, each in steps.items()},
        x_name="pair n, from the lowest place of the number to the highest",
        y_name="times slower",
    )
    broken = [name for name, each in digits.items() if (np.abs(each[:, 1:] - np.rint(each[:, 1:])) > 1e-6).any()]
    whole = all(np.allclose(digits[name] @ (1 / steps[name]), at, rtol=0, atol=1e-6) for name in digits)
    highest = f"pair {len(seen) - 1}"
    counts = [f"{name} {int((each > 0).sum())}" for name, each in arcs.items()]
    return Analysis(
        "odometer",
        f"RoPE writes positions as numbers in base {base:.4g}"
        + (f"; past training the highest place ({highest}) turns to new angles" if arcs["direct"][-1] > 0 else ""),
        f"Trained on {trained:,} tokens. Pairs that meet new angles within {trained * factor:,.0f}: "
        f"{', '.join(counts)}. The larger base is {bases['larger base']:.6g}.",
        (
            axis("position", at, "tokens"),
            axis("pair", pairs),
            array("largest digit in training", largest, "", "pair"),
            array("turns in training", seen, "turns", "pair"),
            *(array(f"base, {name}", each) for name, each in bases.items()),
            *(array(f"step, {name}", each, "radians", "pair") for name, each in steps.items()),
            *(array(f"digit, {name}", each, "", "position", "pair") for name, each in digits.items()),
            *(array(f"angle, {name}", each % math.tau, "radians", "position", "pair") for name, each in angles.items()),
            *(array(f"unseen arc, {name}", each, "turns", "pair") for name, each in arcs.items()),
        ),
        (*wheels, slowed, WheelKey("How to read the dials", trained)),
        f"{in_words(given)} · trained at {trained:,} tokens, run at {trained * factor:,.0f} · dial: position / unit as "
        f"an angle in radians · lowest place: pair 0, highest: {highest} · mixed: every place is slowed, "
        "the lowest too"
        + (
            f" · a base that is no whole number ({' and '.join(broken)}) has fractions above the lowest place too"
            if broken
            else ""
        )
        + ("; digits × units still add up to every position drawn" if broken and whole else ""),
    )


def _sooner(base: float) -> str:
    """Return why digits that are far apart may have nearly the same hand, where they may."""
    if base <= 7:
        return ""
    turn = f"a digit runs to {base:.4g}, its dial turns at {math.tau:.2f}"
    return f"{turn}: digits six apart, as 1 and 7, nearly share a hand"


def _checked(rope: Any, trained: int, factor: float, positions: Sequence[int] | None) -> tuple[Rope, list[int]]:
    """Return the rotation and the positions that are looked at."""
    if not isinstance(rope, Rope) or rope.stretch is not None:
        given = rope.__name__ if isinstance(rope, type) else repr(rope)
        raise TypeError(
            f"odometer({given}): digits need one base, so give a Rope without a stretch, such as Rope(8); the "
            f"stretches are drawn beside it"
        )
    demand.whole(odometer, "trained", trained, least=2)
    demand.finite(odometer, "factor", factor, above=1)
    longest = int(trained * factor)
    at = [trained // 4, trained - 1, trained + trained * 3 // 4 - 1, longest // 2 + 321, longest - 1]
    for each in positions or ():
        demand.whole(odometer, "positions", each, least=0)
    return rope, sorted(set(at if positions is None else positions))


def _angles(rope: Rope, positions: Sequence[int]) -> Numbers:
    """Return the angle of each pair at each position, [positions pairs], in radians and not reduced."""
    return rope.angles(torch.tensor(list(positions), dtype=torch.float64)).numpy()


def _digits(turned: Numbers, base: float) -> Numbers:
    """Return the digit of each place; the last place keeps its fraction."""
    units = np.floor(turned + 1e-9)
    units[:, 0] = turned[:, 0]
    digits = units % base
    # A hair below the base is the base itself, which is the digit 0.
    return np.where(base - digits < 1e-9, 0.0, digits)


def _unseen(before: Numbers, after: Numbers) -> Numbers:
    """Return how much of a turn each pair meets for the first time, from how far it went before and after, in turns."""
    found = np.clip(np.minimum(after, 1.0) - before, 0.0, None)
    return np.where(found < 1e-9, 0.0, found)


def _unit(tokens: float) -> str:
    """Return how many tokens a place counts by."""
    near = round(tokens)
    return f"{near:,}" if abs(tokens - near) < 1e-6 * tokens or tokens >= 1000 else f"{tokens:,.4g}"


__all__ = ["odometer"]
