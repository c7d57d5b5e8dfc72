"""The one writer of `rope_parameters`: a rotation in the settings that transformers 5 and vLLM read.

`plan` prints these settings, `extend` puts them into a model's config, and so `save` writes them. Where transformers
has a rope type for a stretch, that type is written. Any other stretch that does not depend on the length of the text is
written as longrope, with a factor for each pair of channels, the same for short texts and for long ones.

vLLM reads the same settings with three differences. Older releases than 0.32 know `attn_factor`, by which they multiply
YaRN's own magnitude, where transformers knows `attention_factor`. Its longrope has `short_mscale` and `long_mscale`.
What it does not know it passes over, so both are written. Its "dynamic" has one base for all lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from milepost import (
    AxialRope,
    ByParts,
    DeepseekScale,
    DynamicNtk,
    Interpolate,
    Llama3,
    LongRope,
    Ntk,
    Partial,
    Rope,
    Yarn,
)
from milepost.configs.layer_types import FULL, SLIDING
from milepost.configs.reader import Reader
from milepost.configs.rope_types import OF_VLLM, TRAINED, by_layer_type, magnitude_of
from milepost.configs.rotation import IN_CODE, base, family_of, parameters
from milepost.seams.rotary import powers

Settings = dict[str, Any]
Turning = Rope | AxialRope
"""What the settings describe: the frequencies of pairs, whichever position of a token turns them."""
LONGROPE_ONLY = ("phi3",)
"""Model types whose config accepts no other rope type."""
BETAS_SAID = ("gpt_oss",)
"""Model types whose class in vLLM looks YaRN's betas up without a default, and passes over a magnitude."""
STILL = 1e30
"""The factor of a pair that does not turn: JSON has no infinity, and float32 rounds the angle to zero."""


@dataclass(frozen=True)
class Expressed:
    """The changes of a config; None, with the reason in `note`, where there are none.

    vllm: the same changes, where vLLM rotates by them as transformers does, or None.
    """

    transformers: Settings | None = None
    vllm: Settings | None = None
    note: str = ""


def expressed(
    reader: Reader,
    turns: Mapping[str, Rope | AxialRope | Partial],
    trained: int,
    target: int | None = None,
    temperature: DeepseekScale | None = None,
) -> Expressed:
    """Return the settings under which transformers and vLLM rotate as these rotations do.

    turns: the rotation of each layer type, or one of any name where the config has one for all layers. Layer types that
    are left out keep theirs. trained: the trained length; target: the length to reach, by default the trained one times
    the factor of the stretch. temperature: what DeepSeek's attention reads from the same settings.
    """
    if reader.model_type in IN_CODE:
        return Expressed(note=f"transformers' {reader.model_type} has its rotation in code, and no rope_parameters")
    theirs: dict[str, Settings] = {}
    to_vllm: dict[str, Settings] = {}
    longest, notes = 0, list[str]()
    by_type = has_types(reader)
    for kind, turn in turns.items():
        rope, of = (turn.method, turn.of) if isinstance(turn, Partial) else (turn, turn.head_dim)
        if not isinstance(rope, (Rope, AxialRope)) or getattr(rope, "own", False):
            return Expressed(note=f"{type(rope).__name__} is no rotation that rope_parameters describe")
        reach = target or reached(rope, trained)
        written = written_as(reader, rope, trained, reach, temperature, by_type)
        if isinstance(written, str):
            return Expressed(note=written)
        own, served, note = written
        kept = share(reader, kind, rope, of) | sections(reader, kind)
        theirs[kind] = kept | own
        if served is not None:
            to_vllm[kind] = kept | served
        # Readers multiply the longest length by a linear factor, and count a dynamic one from it.
        counted = own["rope_type"] in ("linear", "dynamic")
        longest = max(longest, getattr(rope.stretch, "trained", trained) if counted else reach)
        notes += [note] * (bool(note) and note not in notes)
    whole: Settings = {"rope_parameters": laid_out(reader, theirs, by_type), "max_position_embeddings": longest}
    inside = next((each[TRAINED] for each in theirs.values() if TRAINED in each), trained)
    if reader.given(TRAINED) is not None or reader.model_type in LONGROPE_ONLY:
        # transformers lets this one, outside the rope settings, win over the one inside them.
        whole[TRAINED] = inside
    vllm = whole | {"rope_parameters": laid_out(reader, to_vllm, by_type)} if len(to_vllm) == len(theirs) else None
    return Expressed(whole, vllm, "; ".join(notes))


def written_as(
    reader: Reader, rope: Turning, trained: int, reach: int, temperature: DeepseekScale | None, by_type: bool
) -> Written | str:
    """The settings of one rotation, or the reason why there are none."""
    native = WRITERS.get(type(rope.stretch))
    if native is None and rope.by_length:
        return f"neither transformers nor vLLM has a rope type for {type(rope.stretch).__name__}"
    found = as_long_rope(rope, trained, reach) if native is None else native(rope, trained, reach)
    kind = found[0]["rope_type"]
    if reader.model_type in LONGROPE_ONLY and kind not in ("default", "longrope"):
        if rope.by_length:
            return f"the config of {reader.model_type} takes longrope alone, which is not dynamic"
        found = as_long_rope(rope, trained, reach)
    elif by_type and "truncate" in found[0]:
        # transformers looks for it outside the settings of the layer type.
        found = as_long_rope(rope, trained, reach)
    if reader.model_type in BETAS_SAID and found[0]["rope_type"] == "yarn":
        own = {"beta_fast": 32.0, "beta_slow": 1.0} | found[0]
        heard = "attention_factor" not in own
        found = own, own if heard else None, "" if heard else f"vLLM's {reader.model_type} passes over attention_factor"
    return found if temperature is None else weighted(reader, rope, found, trained, reach, temperature)


def weighted(
    reader: Reader, rope: Turning, found: Written, trained: int, reach: int, temperature: DeepseekScale
) -> Written | str:
    """The settings with DeepSeek's temperature, which its attention makes of `factor` and `mscale_all_dim`."""
    weight = {"mscale_all_dim": temperature.weight}
    found = {key: value for key, value in found[0].items() if key not in OF_VLLM}, None, ""
    if found[0]["rope_type"] == "yarn" and found[0]["factor"] == temperature.factor:
        other = parameters(reader, FULL).get("mscale") or temperature.weight
        size = magnitude_of(temperature.factor, other) / magnitude_of(temperature.factor, temperature.weight)
        if math.isclose(size, magnitude(rope, reach), rel_tol=1e-9):
            own = {key: value for key, value in found[0].items() if key != "attention_factor"}
            return own | {"mscale": other} | weight, own | {"mscale": other} | weight, ""
        return found[0] | weight | {"attention_factor": magnitude(rope, reach)}, None, "vLLM has no word for it"
    if rope.by_length:
        return f"{type(rope.stretch).__name__} and DeepSeek's temperature do not share one factor"
    own = {key: value for key, value in as_long_rope(rope, trained, reach)[0].items() if key not in OF_VLLM}
    return own | weight | {"factor": float(temperature.factor)}, None, "written as longrope, pair by pair"


def reached(rope: Turning, trained: int) -> int:
    """Return the length that a rotation is stretched to."""
    return round(getattr(rope.stretch, "factor", 1.0) * getattr(rope.stretch, "trained", trained))


# What a config has of its own


def share(reader: Reader, kind: str, rope: Turning, of: int) -> Settings:
    """The share of the channels that turn; left out where all do and the config does not name it."""
    if family_of(reader).latent:
        return {}
    given: Any = parameters(reader, kind).get("partial_rotary_factor")
    given = given or reader.get("partial_rotary_factor", "rotary_pct")
    if given and int(of * given) == rope.head_dim:
        return {"partial_rotary_factor": given}
    return {} if rope.head_dim == of else {"partial_rotary_factor": rope.head_dim / of}


def sections(reader: Reader, kind: str) -> Settings:
    """Which pairs turn by which position of a token, where the settings say so (M-RoPE)."""
    given = parameters(reader, kind)
    return {name: given[name] for name in ("mrope_section", "mrope_interleaved") if given.get(name) is not None}


def has_types(reader: Reader) -> bool:
    """True if a config has rope settings for each layer type (Gemma 3, OLMo 3)."""
    return bool(by_layer_type(reader.given("rope_parameters") or {})) or family_of(reader).by_type


def laid_out(reader: Reader, by_kind: Mapping[str, Settings], by_type: bool) -> Settings:
    """The settings as the config has them: one dict, or one for each layer type, of which the others are kept."""
    if not by_type:
        # Without types all layers rotate alike, or there is nothing to write.
        return next(iter(by_kind.values()), Settings())
    own: Settings = {kind: dict(each) for kind, each in by_layer_type(reader.given("rope_parameters") or {}).items()}
    if SLIDING not in own:
        own[SLIDING] = plain(Rope(2, theta=base(reader, SLIDING, parameters(reader, SLIDING))))[0]
    return own | dict(by_kind)


# One function for each stretch: what transformers reads, what vLLM reads, and what a user should know

Written = tuple[Settings, Settings | None, str]


def plain(rope: Turning, trained: int = 0, reach: int = 0) -> Written:
    """No stretch."""
    found: Settings = {"rope_type": "default", "rope_theta": rope.theta}
    return found, found, ""


def linear(rope: Turning, trained: int, reach: int) -> Written:
    """Position interpolation."""
    stretch: Any = rope.stretch
    found = plain(rope)[0] | {"rope_type": "linear", "factor": float(stretch.factor)}
    return found, found, ""


def larger_base(rope: Turning, trained: int, reach: int) -> Written:
    """NTK: a larger base, which needs no rope type."""
    if rope.head_dim == 2:
        return as_long_rope(rope, trained, reach)
    return plain(replace(rope, theta=base_of(rope, reach)))


def dynamic(rope: Turning, trained: int, reach: int) -> Written:
    """Dynamic NTK; transformers counts from max_position_embeddings."""
    stretch: Any = rope.stretch
    found = plain(rope)[0] | {"rope_type": "dynamic", "factor": float(stretch.factor)}
    return found, None, (
        "max_position_embeddings stays at the trained length, from which transformers counts. vLLM holds one base for "
        "all lengths, so there use NTK. transformers keeps cached keys at the base they were rotated with, and the "
        "largest base it has seen until a text is shorter than the trained length"
    )  # fmt: skip


def yarn(rope: Turning, trained: int, reach: int) -> Written:
    """YaRN, and NTK-by-parts as YaRN whose magnitude is 1; what is the default of both readers is left out.

    The paper's own ramp is known to nobody else.
    """
    stretch: Any = rope.stretch
    scaled = getattr(stretch, "scaled", 1.0)
    if stretch.ramp != "code":
        return as_long_rope(rope, trained, reach)
    found = plain(rope)[0] | {"rope_type": "yarn", "factor": float(stretch.factor)}
    found[TRAINED] = stretch.trained
    usual = {"beta_fast": (stretch.fast, 32.0), "beta_slow": (stretch.slow, 1.0), "truncate": (stretch.truncate, True)}
    found |= {name: value for name, (value, default) in usual.items() if value != default}
    if scaled is None:
        return found, found, ""
    found |= {"attention_factor": float(scaled), "attn_factor": scaled / magnitude_of(stretch.factor, 1.0)}
    return found, found, "attn_factor says the same to older releases of vLLM"


def llama3(rope: Turning, trained: int, reach: int) -> Written:
    """Llama 3.1's blend."""
    stretch: Any = rope.stretch
    found = plain(rope)[0] | {"rope_type": "llama3", "factor": float(stretch.factor)}
    found |= {"low_freq_factor": float(stretch.low), "high_freq_factor": float(stretch.high), TRAINED: stretch.trained}
    return found, found, ""


def longrope(rope: Turning, trained: int, reach: int) -> Written:
    """LongRoPE."""
    stretch: Any = rope.stretch
    found = plain(rope)[0] | {"rope_type": "longrope", "factor": float(stretch.factor)}
    found |= {"short_factor": list(stretch.short), "long_factor": list(stretch.long), TRAINED: stretch.trained}
    if stretch.scaled is None:
        return found, found, ""
    found |= dict.fromkeys(("attention_factor", "short_mscale", "long_mscale"), float(stretch.scaled))
    return found, found, "short_mscale and long_mscale say the same to vLLM"


def as_long_rope(rope: Turning, trained: int, reach: int) -> Written:
    """Any stretch that does not depend on the text: a factor for each pair, the same for short texts and long."""
    slowed = powers(rope.theta, rope.head_dim, torch.device("cpu")) / frequencies(rope, reach)
    by = numbers(slowed.clamp(max=STILL))
    stretch = LongRope(by, by, trained, factor=max(1.0, reach / trained), scaled=magnitude(rope, reach))
    found, to_vllm, note = longrope(replace(rope, stretch=stretch), trained, reach)
    return found, to_vllm, f"written as longrope, pair by pair{'; ' if note else ''}{note}"


WRITERS: dict[type, Callable[[Turning, int, int], Written]] = {
    type(None): plain,
    Interpolate: linear,
    Ntk: larger_base,
    DynamicNtk: dynamic,
    ByParts: yarn,
    Yarn: yarn,
    Llama3: llama3,
    LongRope: longrope,
}


# The numbers of a rotation


def frequencies(rope: Turning, length: int) -> torch.Tensor:
    """Return the frequency of each pair in a text of so many tokens, float64 [pairs]."""
    f = powers(rope.theta, rope.head_dim, torch.device("cpu"))
    if rope.stretch is None:
        return f
    return rope.stretch.frequencies(f, torch.tensor([float(length)], dtype=torch.float64)).flatten()


def magnitude(rope: Turning, length: int) -> float:
    """Return the factor on cos and sin in a text of so many tokens."""
    return float(rope.magnitude(torch.tensor([float(length)], dtype=torch.float64)))


def base_of(rope: Turning, length: int) -> float:
    """Return the base whose plain frequencies have the same first and last pair."""
    f = frequencies(rope, length)
    return float((f[0] / f[-1]) ** (rope.head_dim / (rope.head_dim - 2)))


def numbers(values: torch.Tensor) -> tuple[float, ...]:
    """Return a tensor as plain numbers."""
    return tuple(float(each) for each in values.flatten())
