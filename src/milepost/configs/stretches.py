"""Stretches of RoPE, read from the settings that transformers knows them by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import milepost as mp
from milepost.configs.reader import LENGTH, Reader
from milepost.seams.arguments import did_you_mean
from milepost.seams.verbs import Stretch

TRAINED = "original_max_position_embeddings"


def stretch(reader: Reader, told: Mapping[str, Any]) -> Stretch | None:
    """The stretch that a rope type and its settings mean; None for plain RoPE."""
    return TYPES[rope_type(reader, told)](reader, told)


def rope_type(reader: Reader, told: Mapping[str, Any]) -> str:
    """The rope type under its present name."""
    new, old = told.get("rope_type"), told.get("type")
    name = SAME.get(new or old or "default", new or old or "default")
    if new and old and SAME.get(old, old) != name:
        raise ValueError(f"{reader.called}: rope_type is {new!r} and type is {old!r}. Please keep one")
    if name not in TYPES:
        raise reader.refuse(
            "rope_type", name, f"which is not known{did_you_mean(name, TYPES)}; known are {', '.join(TYPES)}"
        )
    return name


def setting(reader: Reader, told: Mapping[str, Any], name: str) -> Any:
    """A setting that the rope type cannot do without."""
    if told.get(name) is None:
        raise ValueError(
            f"{reader.called}: rope type {rope_type(reader, told)!r} needs {name!r}, and is given {', '.join(told)}"
        )
    return told[name]


def trained(reader: Reader, told: Mapping[str, Any]) -> int:
    """The trained length, inside the rope settings or beside them; else the longest length of the config."""
    inside, outside = told.get(TRAINED), reader.told(TRAINED)
    if inside is not None and outside is not None and inside != outside:
        raise ValueError(f"{reader.called}: {TRAINED} is {outside!r}, and {inside!r} inside the rope settings")
    return inside or outside or reader.need("the trained length", TRAINED, *LENGTH)


def ratio(reader: Reader, told: Mapping[str, Any]) -> float:
    """The factor; where it is not told, the longest length over the trained one."""
    return told.get("factor") or reader.need("the longest length", *LENGTH) / trained(reader, told)


def linear(reader: Reader, told: Mapping[str, Any]) -> Stretch:
    """Position interpolation."""
    return mp.Interpolate(setting(reader, told, "factor"))


def dynamic(reader: Reader, told: Mapping[str, Any]) -> Stretch:
    """Dynamic NTK; Hunyuan's alpha holds the base still."""
    if told.get("alpha"):
        return mp.Ntk(told["alpha"])
    return mp.DynamicNtk(reader.need("the trained length", *LENGTH), setting(reader, told, "factor"))


def yarn(reader: Reader, told: Mapping[str, Any]) -> Stretch:
    """YaRN, with the magnitude that attention_factor, or mscale and mscale_all_dim, come to."""
    if told.get("short_factor"):
        raise reader.refuse(
            "rope_type", "yarn", "but it has a short_factor, which is longrope's; please say which it is"
        )
    factor, scaled = ratio(reader, told), told.get("attention_factor")
    up, down = told.get("mscale"), told.get("mscale_all_dim")
    if scaled is None and up and down:
        scaled = magnitude(factor, up) / magnitude(factor, down)
    return mp.Yarn(
        factor,
        trained(reader, told),
        fast=told.get("beta_fast") or 32.0,
        slow=told.get("beta_slow") or 1.0,
        truncate=told.get("truncate") is not False,
        scaled=scaled,
    )


def magnitude(factor: float, weight: float) -> float:
    """0.1 · weight · ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope(reader: Reader, told: Mapping[str, Any]) -> Stretch:
    """LongRoPE; without a factor it is the ratio of the lengths, as in Phi-3."""
    short, long = setting(reader, told, "short_factor"), setting(reader, told, "long_factor")
    return mp.LongRope(
        tuple(short), tuple(long), trained(reader, told), ratio(reader, told), scaled=told.get("attention_factor")
    )


def llama3(reader: Reader, told: Mapping[str, Any]) -> Stretch:
    """Llama 3.1's blend; where both ends meet (Llama 4 Scout) it is a step."""
    low, high = setting(reader, told, "low_freq_factor"), setting(reader, told, "high_freq_factor")
    high = math.nextafter(low, math.inf) if high == low else high
    return mp.Llama3(setting(reader, told, "factor"), trained(reader, told), low, high)


def plain(reader: Reader, told: Mapping[str, Any]) -> None:
    """No stretch."""


SAME = {"su": "longrope", "mrope": "default"}
"""Rope types by the names they had before."""

TYPES: dict[str, Callable[[Reader, Mapping[str, Any]], Stretch | None]] = {
    "default": plain,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
    "proportional": plain,
}
