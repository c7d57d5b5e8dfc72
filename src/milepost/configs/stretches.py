"""Stretches of RoPE, read from the settings that transformers knows them by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from milepost.configs.reader import LENGTH, Reader
from milepost.methods.dynamic_ntk import DynamicNtk
from milepost.methods.interpolate import Interpolate
from milepost.methods.llama3 import Llama3
from milepost.methods.long_rope import LongRope
from milepost.methods.ntk import Ntk
from milepost.methods.yarn import Yarn
from milepost.seams.arguments import did_you_mean
from milepost.seams.verbs import Stretch

TRAINED = "original_max_position_embeddings"


def stretch(reader: Reader, settings: Mapping[str, Any]) -> Stretch | None:
    """The stretch that a rope type and its settings mean; None for plain RoPE."""
    return TYPES[rope_type(reader, settings)](reader, settings)


def rope_type(reader: Reader, settings: Mapping[str, Any]) -> str:
    """The rope type under its present name."""
    new, old = settings.get("rope_type"), settings.get("type")
    name = SAME.get(new or old or "default", new or old or "default")
    if new and old and SAME.get(old, old) != name:
        raise ValueError(f"{reader.called}: rope_type is {new!r} and type is {old!r}. Please keep one")
    if name not in TYPES:
        raise reader.refuse(
            "rope_type", name, f"which is not known{did_you_mean(name, TYPES)}; known are {', '.join(TYPES)}"
        )
    return name


def setting(reader: Reader, settings: Mapping[str, Any], name: str) -> Any:
    """A setting that the rope type cannot do without."""
    if settings.get(name) is None:
        raise ValueError(
            f"{reader.called}: rope type {rope_type(reader, settings)!r} needs {name!r}, and is given "
            f"{', '.join(settings)}"
        )
    return settings[name]


def trained(reader: Reader, settings: Mapping[str, Any]) -> int:
    """The trained length, inside the rope settings or beside them; else the longest length of the config."""
    inside, outside = settings.get(TRAINED), reader.given(TRAINED)
    if inside is not None and outside is not None and inside != outside:
        raise ValueError(f"{reader.called}: {TRAINED} is {outside!r}, and {inside!r} inside the rope settings")
    return inside or outside or reader.need("the trained length", TRAINED, *LENGTH)


def ratio(reader: Reader, settings: Mapping[str, Any]) -> float:
    """The factor; where it is not given, the longest length over the trained one."""
    return settings.get("factor") or reader.need("the longest length", *LENGTH) / trained(reader, settings)


def linear(reader: Reader, settings: Mapping[str, Any]) -> Stretch:
    """Position interpolation."""
    return Interpolate(setting(reader, settings, "factor"))


def dynamic(reader: Reader, settings: Mapping[str, Any]) -> Stretch:
    """Dynamic NTK; Hunyuan's alpha holds the base still."""
    if settings.get("alpha"):
        return Ntk(settings["alpha"])
    return DynamicNtk(reader.need("the trained length", *LENGTH), setting(reader, settings, "factor"))


def yarn(reader: Reader, settings: Mapping[str, Any]) -> Stretch:
    """YaRN, with the magnitude that attention_factor, or mscale and mscale_all_dim, come to."""
    if settings.get("short_factor"):
        raise reader.refuse(
            "rope_type", "yarn", "but it has a short_factor, which is longrope's; please say which it is"
        )
    factor, scaled = ratio(reader, settings), settings.get("attention_factor")
    up, down = settings.get("mscale"), settings.get("mscale_all_dim")
    if scaled is None and up and down:
        scaled = magnitude(factor, up) / magnitude(factor, down)
    return Yarn(
        factor,
        trained(reader, settings),
        fast=settings.get("beta_fast") or 32.0,
        slow=settings.get("beta_slow") or 1.0,
        truncate=settings.get("truncate") is not False,
        scaled=scaled,
    )


def magnitude(factor: float, weight: float) -> float:
    """0.1 · weight · ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope(reader: Reader, settings: Mapping[str, Any]) -> Stretch:
    """LongRoPE; without a factor it is the ratio of the lengths, as in Phi-3."""
    short, long = setting(reader, settings, "short_factor"), setting(reader, settings, "long_factor")
    return LongRope(
        tuple(short),
        tuple(long),
        trained(reader, settings),
        ratio(reader, settings),
        scaled=settings.get("attention_factor"),
    )


def llama3(reader: Reader, settings: Mapping[str, Any]) -> Stretch:
    """Llama 3.1's blend; where both ends meet (Llama 4 Scout) it is a step."""
    low, high = setting(reader, settings, "low_freq_factor"), setting(reader, settings, "high_freq_factor")
    high = math.nextafter(low, math.inf) if high == low else high
    return Llama3(setting(reader, settings, "factor"), trained(reader, settings), low, high)


def plain(reader: Reader, settings: Mapping[str, Any]) -> None:
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
