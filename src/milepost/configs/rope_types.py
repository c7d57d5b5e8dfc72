"""The settings of a rotation (rope_parameters, rope_scaling), and the stretch that each rope type of them means."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from milepost.configs.layer_types import SAME_TYPE
from milepost.configs.reader import LENGTH, Reader
from milepost.methods.embeddings import Learned
from milepost.methods.rope_stretches import DynamicNtk, Interpolate, Llama3, LongRope, Ntk
from milepost.methods.yarn import Yarn
from milepost.seams.arguments import did_you_mean
from milepost.seams.verbs import Stretch

TRAINED = "original_max_position_embeddings"
BASE = ("rope_theta", "rotary_emb_base", "rope_base")
OF_VLLM = ("attn_factor", "short_mscale", "long_mscale")
"""vLLM's words for attention_factor, which transformers reads and vLLM does not: a config for both has both."""
Settings = Mapping[str, Any]

# Reading the settings


def settings_given(reader: Reader) -> tuple[Settings, bool]:
    """Return rope_parameters as transformers 5 has it, or rope_scaling as before, and True if it is the new one."""
    new, old = (reader.given(name) for name in ("rope_parameters", "rope_scaling"))
    for name, each in (("rope_parameters", new), ("rope_scaling", old)):
        if each is not None and not isinstance(each, Mapping):
            raise reader.refuse(name, each, "and must be an object of settings, or null")
    if new and old and new != old:
        raise ValueError(
            f"{reader.called}: rope_parameters and rope_scaling disagree: {new!r} and {old!r}. Please keep one"
        )
    return cast("Settings", new or old or {}), bool(new)


def settings_of(reader: Reader, kind: str, own: tuple[str, ...] = (), stretched: tuple[str, ...] = ()) -> Settings:
    """Return the rope settings of a layer type, checked key by key.

    own: keys that only models of this family read. An old-style rope_scaling is about the layer types in `stretched`.
    """
    settings, new = settings_given(reader)
    nested = by_layer_type(settings)
    if nested:
        beside = [key for key, each in settings.items() if SAME_TYPE.get(key, key) not in nested and each is not None]
        if beside:
            raise reader.refuse(beside[0], settings[beside[0]], "next to settings by layer type; move it into them")
        if kind not in nested:
            raise ValueError(f"{reader.called}: rope_parameters has settings of {', '.join(nested)}, but not of {kind}")
        settings = nested[kind]
    elif not new and stretched and kind not in stretched:
        return {}
    check_settings(reader, settings, own)
    return settings


def by_layer_type(settings: Settings) -> dict[str, Settings]:
    """Return the settings of each layer type; empty where all layers have the same."""
    return {SAME_TYPE.get(key, key): cast("Settings", each) for key, each in settings.items()
            if isinstance(each, Mapping)}  # fmt: skip


def check_settings(reader: Reader, settings: Settings, own: tuple[str, ...] = ()) -> None:
    """Raise where a setting has a wrong value, or where nothing reads it."""
    kind = rope_type(reader, settings)
    read = {*EVERYWHERE, *TYPES[kind][1], *own}
    if kind == "default":
        # DeepSeek's attention reads its temperature next to every stretch, and without one ignores it.
        read.discard("mscale_all_dim")
    if settings.get("attention_factor") is not None:
        read.update(OF_VLLM)
    for key, value in settings.items():
        if value is None or (key == "factor" and kind == "default" and value == 1):
            continue
        if key not in read and not (kind == "dynamic" and settings.get("alpha") and key in TYPES["yarn"][1]):
            # A name that other models read is no slip of the pen.
            near = "" if key in OF_OTHERS else did_you_mean(key, read)
            raise reader.refuse(
                key, value, f"which rope type {kind!r} of {reader.model_type} does not read{near}; remove it"
            )
        if key in ("truncate", "mrope_interleaved"):
            if not isinstance(value, bool):
                raise reader.refuse(key, value, "and must be true or false")
        elif key in ("short_factor", "long_factor", "mrope_section"):
            if not isinstance(value, (list, tuple)):
                raise reader.refuse(key, value, "and must be a list of numbers")
        elif key in (TRAINED, "max_position_embeddings"):
            if type(value) is not int or value < 1:
                raise reader.refuse(key, value, "and must be an integer, at least 1")
        elif key not in ("rope_type", "type", *UNUSED):
            reader.number(key, value, zero=key in ("mscale", "mscale_all_dim", "partial_rotary_factor", "alpha"))


# Rope types


def stretch(reader: Reader, settings: Settings) -> Stretch | None:
    """Return the stretch that a rope type and its settings mean; None for plain RoPE."""
    make, _ = TYPES[rope_type(reader, settings)]
    return make(reader, settings)


def rope_type(reader: Reader, settings: Settings) -> str:
    """Return the rope type under its present name."""
    new, old = settings.get("rope_type"), settings.get("type")
    kind = old if new is None else new
    name = "default" if kind is None else SAME.get(kind, kind) if isinstance(kind, str) else kind
    if new is not None and old is not None and SAME.get(old, old) != name:
        raise ValueError(f"{reader.called}: rope_type is {new!r} and type is {old!r}. Please keep one")
    if name not in TYPES:
        raise reader.refuse(
            "rope_type", name, f"which is not known{did_you_mean(str(name), TYPES)}; known are {', '.join(TYPES)}"
        )
    return name


def setting(reader: Reader, settings: Settings, name: str) -> Any:
    """Return a setting that the rope type requires."""
    if settings.get(name) is None:
        raise ValueError(
            f"{reader.called}: rope type {rope_type(reader, settings)!r} needs {name!r}, and is given "
            f"{', '.join(settings)}"
        )
    return settings[name]


def trained(reader: Reader, settings: Settings) -> int:
    """Return the trained length, inside the rope settings or next to them; else the longest length of the config."""
    inside, outside = settings.get(TRAINED), reader.given(TRAINED)
    if inside is not None and outside is not None and inside != outside:
        raise ValueError(f"{reader.called}: {TRAINED} is {outside!r}, and {inside!r} inside the rope settings")
    return inside or outside or reader.need("the trained length", TRAINED, *LENGTH)


def ratio(reader: Reader, settings: Settings) -> float:
    """Return the factor; where it is not given, the longest length over the trained one."""
    return settings.get("factor") or reader.need("the longest length", *LENGTH) / trained(reader, settings)


def linear(reader: Reader, settings: Settings) -> Stretch:
    """Position interpolation."""
    return Interpolate(setting(reader, settings, "factor"))


def dynamic(reader: Reader, settings: Settings) -> Stretch:
    """Dynamic NTK from the longest length, as transformers has it; Hunyuan's alpha fixes the base."""
    if settings.get("alpha"):
        return Ntk(settings["alpha"])
    return DynamicNtk(reader.need("the trained length", *LENGTH), factor=setting(reader, settings, "factor"))


def yarn(reader: Reader, settings: Settings) -> Stretch:
    """YaRN, with the magnitude that attention_factor, or mscale and mscale_all_dim, come to."""
    factor, scaled = ratio(reader, settings), settings.get("attention_factor")
    up, down = settings.get("mscale"), settings.get("mscale_all_dim")
    if scaled is None and up and down:
        scaled = magnitude_of(factor, up) / magnitude_of(factor, down)
    return Yarn(
        factor,
        trained(reader, settings),
        fast=settings.get("beta_fast") or 32.0,
        slow=settings.get("beta_slow") or 1.0,
        truncate=settings.get("truncate") is not False,
        scaled=scaled,
    )


def magnitude_of(factor: float, weight: float) -> float:
    """0.1 · weight · ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope(reader: Reader, settings: Settings) -> Stretch:
    """LongRoPE; without a factor it is the ratio of the lengths, as in Phi-3."""
    return LongRope(
        tuple(setting(reader, settings, "short_factor")),
        tuple(setting(reader, settings, "long_factor")),
        trained(reader, settings),
        factor=ratio(reader, settings),
        scaled=settings.get("attention_factor"),
    )


def llama3(reader: Reader, settings: Settings) -> Stretch:
    """Llama 3.1's blend; with low equal to high (Llama 4 Scout) it is a step."""
    low, high = setting(reader, settings, "low_freq_factor"), setting(reader, settings, "high_freq_factor")
    high = math.nextafter(low, math.inf) if high == low else high
    return Llama3(setting(reader, settings, "factor"), trained(reader, settings), low=low, high=high)


def plain(reader: Reader, settings: Settings) -> None:
    """No stretch."""


SAME = {"su": "longrope", "mrope": "default"}
"""Rope types by the names they had before."""

TYPES: dict[str, tuple[Callable[[Reader, Settings], Stretch | None], tuple[str, ...]]] = {
    "default": (plain, ()),
    "linear": (linear, ("factor",)),
    "dynamic": (dynamic, ("factor", "alpha")),
    "yarn": (yarn, ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "longrope": (longrope, ("factor", "attention_factor", "short_factor", "long_factor")),
    "llama3": (llama3, ("factor", "low_freq_factor", "high_freq_factor")),
    "proportional": (plain, ("factor",)),
}
"""What makes the stretch of each rope type, and the settings that it reads, in transformers and here."""

UNUSED = ("finetuned", "interleaved")
"""Keys of published configs that no reader uses: YaRN's Llamas and Qwen3-Omni have them."""

OF_OTHERS = (
    "llama_4_scaling_beta",
    "mrope_interleaved",
    "mrope_section",
    *(key for _, keys in TYPES.values() for key in keys),
)
"""Keys that some rope type, or some models beside every type, read."""

EVERYWHERE = ("rope_type", "type", "partial_rotary_factor", TRAINED, *BASE, *UNUSED)

# The trained length

OTHER_LENGTHS = ("seq_length", "max_source_positions", "max_encoder_position_embeddings")


def trained_length(reader: Reader, parts: Iterable[object]) -> int | None:
    """Return the trained length: that before a stretch, or else the rows of a learned table, or the longest length.

    None where the config has no length at all. It is one for all layers, those without a stretch included. A linear or
    dynamic stretch that does not name an original length is counted from the longest, as transformers does.
    """
    settings, _ = settings_given(reader)
    each_type = list(by_layer_type(settings).values()) or [settings]
    stretched = [each for each in each_type if rope_type(reader, each) != "default"]
    before = [each.get(TRAINED) or reader.get(TRAINED) for each in stretched]
    rows = [part.length for part in parts if isinstance(part, Learned)]
    return next((length for length in (*before, *rows) if length), reader.get(*LENGTH) or reader.get(*OTHER_LENGTHS))
