"""Angles of a rotation: which of them training met, their wavelengths, and a position as digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.asked import by_name, rotation
from milepost.explore.pictures.clocks import Clocks
from milepost.explore.pictures.curves import curves
from milepost.explore.scene import Say
from milepost.explore.words import first_large, in_words, stretch_in_words
from milepost.methods.yarn import Yarn
from milepost.seams import demand
from milepost.seams.arguments import spell


def angles_seen(rope: Any, *, trained: int, length: int, stretched: Any = None) -> Analysis:
    """Compare the angles that each pair of channels meets at a new length with those that it met in training.

        explore.angles_seen(mp.Rope(128), trained=4096, length=32_768)
        explore.angles_seen(mp.Rope(128), trained=4096, length=32_768, stretched=mp.Rope(128, stretch=mp.Ntk(8)))

    rope: the rotation as it was trained, which a stretch put on later is no part of; stretched: as it runs at the new
    length, itself if left out. A pair that made a full turn in training has met every angle. One that did not meets new
    angles as soon as it goes further.
    """
    for name, value in (("trained", trained), ("length", length)):
        demand.whole(angles_seen, name, value)
    now = rotation(angles_seen, rope if stretched is None else stretched)
    rotation(angles_seen, rope)
    before, after = turns(rope, trained), turns(now, length)
    unseen = np.clip(np.minimum(after, 1.0) - before, 0.0, None)
    unseen[unseen < 1e-9] = 0.0
    plain = np.clip(np.minimum(turns(rope, length), 1.0) - before, 0.0, None)
    # A stretch that leaves about as many pairs there seems to be no help.
    still = bool(stretched is not None and 0 < unseen.max() < plain.max())
    pairs = np.arange(len(before), dtype=np.float64)
    full, new = int((before >= 1 - 1e-9).sum()), int((unseen > 0).sum())
    says = (
        f"{full} of {len(before)} pairs make a full turn within {trained:,} tokens. "
        f"At {length:,} tokens {new} pairs meet angles for the first time"
        + (f", the widest arc is {unseen.max():.2f} of a turn." if new else ".")
    )
    if stretched is None and getattr(rope, "stretch", None) is not None:
        says += (
            f" {training_with(rope, trained).en} If the stretch came after training, give the rotation without it "
            f"first, and this one as stretched=."
        )
    dials = Clocks(
        "Angles of each pair, from the top clockwise; the fastest pairs first",
        before,
        after,
        tuple(f"{n}" for n in range(len(before))),
    )
    return Analysis(
        "angles_seen",
        _of(stretched)
        + f"{new or 'None'} of {len(before)} pairs {'still ' * still}meet{'s' * (new < 2)} angles that training never "
        + "had"
        + (f", but by at most {unseen.max():.2f} of a turn, and {plain.max():.2f} without it" if still else ""),
        says,
        (
            axis("pair", pairs),
            array("turns in training", before, "turns", "pair"),
            array("turns", after, "turns", "pair"),
            array("unseen arc", unseen, "turns", "pair"),
        ),
        (dials,),
        f"{in_words(rope)} · trained at {trained:,} tokens"
        + ("" if stretched is None else f" · then {in_words(now)}")
        + f" · run at {length:,}",
    )


def _of(stretched: Any) -> str:
    """Return the stretch that a title is about, where one was given."""
    stretch = getattr(stretched, "stretch", None)
    return "" if stretch is None else f"{first_large(stretch_in_words(stretch))}: "


def training_with(rope: Any, trained: int) -> Say:
    """Return which rotation and length count as training, where a stretch leaves that open."""
    return Say(
        f"Training is counted with {spell(rope)} over {trained:,} tokens.",
        f"训练按 {spell(rope)}、{trained:,} 个 token 计。",
    )


def wavelengths(ropes: dict[str, Any], *, trained: int, length: int) -> Analysis:
    """Return the wavelength of each pair, for several rotations, beside the trained length and the new one.

    explore.wavelengths({"RoPE": mp.Rope(128), "NTK": mp.Rope(128, stretch=mp.Ntk(8))}, trained=4096, length=32_768)
    """
    for name, value in (("trained", trained), ("length", length)):
        demand.whole(wavelengths, name, value)
    asked = by_name(wavelengths, ropes, '{"RoPE": Rope(128)}')
    found = {name: math.tau / _steps(rotation(wavelengths, rope), length) for name, rope in asked.items()}
    yarn = any(isinstance(getattr(rope, "stretch", None), Yarn) for rope in asked.values())
    by_parts = "YaRN keeps the fast pairs and slows the slow ones" if yarn else ""
    pairs = np.arange(len(next(iter(found.values()))), dtype=np.float64)
    picture = curves(
        "Wavelength of each pair of channels",
        pairs,
        found,
        x_name="pair of channels, the fastest first",
        y_name="tokens a turn",
        y_scale="decades",
        level=(float(trained), f"trained length, {trained:,}"),
        at_ends=True,
    )
    return Analysis(
        "wavelengths",
        f"Pairs above the dotted line make no full turn within {trained:,} tokens"
        + (f"; {by_parts}" if by_parts else ""),
        f"Pairs above the dotted line do not make a full turn within the trained length of {trained:,} tokens.",
        (axis("pair", pairs), *(array(name, values, "tokens", "pair") for name, values in found.items())),
        (picture,),
        f"{in_words(next(iter(ropes.values())))} · trained at {trained:,} tokens, run at {length:,}",
    )


def _steps(rope: Any, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return by how much each pair turns from one position to the next in a text of that length, in radians."""
    at = torch.tensor([0, 1], dtype=torch.float64)
    found = rope.angles(at, length) if _by_length(rope) else rope.angles(at)
    return (found[..., 1, :] - found[..., 0, :]).reshape(-1).detach().cpu().double().numpy()


def turns(rope: Any, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how far each pair turns over a text, in turns."""
    return np.abs(_steps(rope, length)) * length / math.tau


def _by_length(rope: Any) -> bool:
    return bool(getattr(rope, "by_length", False))
