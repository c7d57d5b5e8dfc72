"""A stretch in the words of others: the `rope_parameters` that transformers 5 and vLLM read.

Two readers of one dict do not read the same: vLLM has no `attention_factor`, only `attn_factor`, which it multiplies
with YaRN's own magnitude; and its "dynamic" does not follow the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from milepost.configs.layers import FULL, SLIDING
from milepost.configs.reader import Reader
from milepost.configs.rotary import base, family_of, parameters
from milepost.methods.by_parts import ByParts
from milepost.methods.dynamic_ntk import DynamicNtk
from milepost.methods.interpolate import Interpolate
from milepost.methods.llama3 import Llama3
from milepost.methods.long_rope import LongRope
from milepost.methods.ntk import Ntk
from milepost.methods.ntk_mixed import NtkMixed
from milepost.methods.rope import Rope
from milepost.methods.yarn import Yarn
from milepost.seams.rotary import powers

Settings = dict[str, Any]
NO_ROPE_PARAMETERS = ("chatglm", "codegen", "gptj", "roformer")
"""Models whose rotation stands in the code of transformers: no setting changes it."""
LONGROPE_ONLY = ("phi3",)
"""Models whose config takes no other type."""


@dataclass(frozen=True)
class Expressed:
    """What to write into a config, for transformers and for vLLM; None with the reason where it cannot be said."""

    transformers: Settings | None = None
    vllm: Settings | None = None
    note: str = ""


def frequencies(rope: Rope, length: int) -> torch.Tensor:
    """The frequency of each pair in a text of so many tokens, float64 [pairs]."""
    f = powers(rope.theta, rope.dim, torch.device("cpu"))
    if rope.stretch is None:
        return f
    return rope.stretch.frequencies(f, torch.tensor([float(length)], dtype=torch.float64)).flatten()


def numbers(values: torch.Tensor) -> tuple[float, ...]:
    """A tensor as plain numbers."""
    return tuple(float(each) for each in values.flatten())


def magnitude(rope: Rope, length: int) -> float:
    """What rides on cos and sin in a text of so many tokens."""
    return float(rope.magnitude(torch.tensor([float(length)], dtype=torch.float64)))


def expressed(reader: Reader, rope: Rope, of: int, trained: int, target: int) -> Expressed:
    """The settings under which transformers and vLLM turn as this rope does, up to the target."""
    if reader.model_type in NO_ROPE_PARAMETERS:
        return Expressed(note=f"transformers' {reader.model_type} has its rotation in code, and no rope_parameters")
    write = WRITERS.get(type(rope.stretch))
    if write is None:
        return Expressed(note="neither transformers nor vLLM has a name for it")
    theirs, to_vllm, note = write(rope, trained, target)
    if reader.model_type in LONGROPE_ONLY and theirs["rope_type"] not in ("default", "longrope"):
        if theirs["rope_type"] == "dynamic":
            return Expressed(note=f"the config of {reader.model_type} takes longrope alone, which is not dynamic")
        theirs, to_vllm, note = as_long_rope(rope, trained, target)
    kept = mscales(reader) if theirs["rope_type"] == "yarn" else {}
    if kept:
        theirs = {key: value for key, value in theirs.items() if key != "attention_factor"} | kept
        to_vllm, note = theirs, ""
    longest = trained if theirs["rope_type"] == "dynamic" else target
    whole: Settings = {"rope_parameters": nested(reader, share(reader, rope, of) | theirs)}
    whole["max_position_embeddings"] = longest
    if reader.given("original_max_position_embeddings") is not None or reader.model_type in LONGROPE_ONLY:
        # transformers lets this one, beside the rope settings, win over the one inside them.
        whole["original_max_position_embeddings"] = theirs.get("original_max_position_embeddings", trained)
    served = None
    if to_vllm is not None:
        # vLLM multiplies the longest length by the factor of a linear stretch itself.
        longest = trained if theirs["rope_type"] == "linear" else target
        changed = {"rope_parameters": nested(reader, share(reader, rope, of) | to_vllm)}
        served = whole | changed | {"max_position_embeddings": longest}
    return Expressed(whole, served, note)


def share(reader: Reader, rope: Rope, of: int) -> Settings:
    """The share of the channels that turn, where some do not."""
    if rope.dim == of or family_of(reader).latent:
        return {}
    given = reader.get("partial_rotary_factor", "rotary_pct") or look_inside(reader)
    return {"partial_rotary_factor": given if given and int(of * given) == rope.dim else rope.dim / of}


def mscales(reader: Reader) -> Settings:
    """DeepSeek's two weights of YaRN's magnitude, which its softmax scale reads as well."""
    given = parameters(reader, FULL)
    return {name: given[name] for name in ("mscale", "mscale_all_dim") if given.get(name)}


def look_inside(reader: Reader) -> float | None:
    """The share as the rope settings have it."""
    return parameters(reader, FULL).get("partial_rotary_factor")


def nested(reader: Reader, settings: Settings) -> Settings:
    """The settings by layer type, where the model's layers turn differently; those with a window keep theirs."""
    given: Mapping[str, Any] = reader.given("rope_parameters") or {}
    own: Settings = {kind: dict(cast("Settings", each)) for kind, each in given.items() if isinstance(each, Mapping)}
    family = family_of(reader)
    if not own and not family.bases and not family.stretched:
        return settings
    if SLIDING not in own:
        own[SLIDING] = {"rope_type": "default", "rope_theta": base(reader, SLIDING, parameters(reader, SLIDING))}
    return own | {FULL: settings}


# One writer for each stretch: what transformers reads, what vLLM reads, and what a user should know

Written = tuple[Settings, Settings | None, str]


def plain(rope: Rope, trained: int, target: int) -> Written:
    """No stretch."""
    found: Settings = {"rope_type": "default", "rope_theta": rope.theta}
    return found, found, ""


def linear(rope: Rope, trained: int, target: int) -> Written:
    """Position interpolation."""
    found: Settings = {"rope_type": "linear", "rope_theta": rope.theta, "factor": float(rope.stretch.factor)}  # pyright: ignore
    return found, found, ""


def larger_base(rope: Rope, trained: int, target: int) -> Written:
    """NTK: a larger base and nothing else, so it needs no type of its own."""
    found: Settings = {"rope_type": "default", "rope_theta": base_of(rope, target)}
    return found, found, ""


def base_of(rope: Rope, length: int) -> float:
    """The base whose plain frequencies have the same first and last pair."""
    f = frequencies(rope, length)
    return float((f[0] / f[-1]) ** (rope.dim / (rope.dim - 2)))


def dynamic(rope: Rope, trained: int, target: int) -> Written:
    """Dynamic NTK; transformers counts from max_position_embeddings."""
    stretch: Any = rope.stretch
    found: Settings = {"rope_type": "dynamic", "rope_theta": rope.theta, "factor": float(stretch.factor)}
    return found, None, (
        "max_position_embeddings stays at the trained length, from which transformers counts. vLLM holds one base for "
        "all lengths, so there use NTK. transformers' cached decoding differs from a fresh pass; milepost's does not"
    )  # fmt: skip


def yarn(rope: Rope, trained: int, target: int) -> Written:
    """YaRN."""
    stretch: Any = rope.stretch
    if stretch.ramp != "code":
        return as_long_rope(rope, trained, target)
    found = ramped(rope)
    usual = 0.1 * torch.tensor(stretch.factor, dtype=torch.float64).log().item() + 1
    if stretch.scaled is None:
        return found, found, ""
    to_vllm = found | {"attn_factor": stretch.scaled / usual}
    return found | {"attention_factor": float(stretch.scaled)}, to_vllm, "vLLM calls its magnitude attn_factor"


def by_parts(rope: Rope, trained: int, target: int) -> Written:
    """NTK-by-parts: YaRN whose magnitude is 1."""
    stretch: Any = rope.stretch
    return yarn(Rope(rope.dim, rope.theta, rope.pairs, as_yarn(stretch)), trained, target)


def as_yarn(stretch: ByParts) -> Yarn:
    """The YaRN with the same frequencies."""
    given = stretch.ramp, stretch.fast, stretch.slow, stretch.truncate
    return Yarn(stretch.factor, stretch.trained, *given, scaled=1.0)


def ramped(rope: Rope) -> Settings:
    """YaRN's settings but for its magnitude; what is the default of both readers is left out."""
    stretch: Any = rope.stretch
    found: Settings = {"rope_type": "yarn", "rope_theta": rope.theta, "factor": float(stretch.factor)}
    found["original_max_position_embeddings"] = stretch.trained
    usual = {"beta_fast": (stretch.fast, 32.0), "beta_slow": (stretch.slow, 1.0), "truncate": (stretch.truncate, True)}
    return found | {name: value for name, (value, default) in usual.items() if value != default}


def llama3(rope: Rope, trained: int, target: int) -> Written:
    """Llama 3.1's blend."""
    stretch: Any = rope.stretch
    found: Settings = {"rope_type": "llama3", "rope_theta": rope.theta, "factor": float(stretch.factor)}
    found |= {"low_freq_factor": float(stretch.low), "high_freq_factor": float(stretch.high)}
    found["original_max_position_embeddings"] = stretch.trained
    return found, found, ""


def longrope(rope: Rope, trained: int, target: int) -> Written:
    """LongRoPE."""
    stretch: Any = rope.stretch
    found: Settings = {"rope_type": "longrope", "rope_theta": rope.theta, "factor": float(stretch.factor)}
    found |= {"short_factor": list(stretch.short), "long_factor": list(stretch.long)}
    found["original_max_position_embeddings"] = stretch.trained
    if stretch.scaled is None:
        return found, found, ""
    sizes = {"short_mscale": stretch.scaled, "long_mscale": stretch.scaled}
    return found | {"attention_factor": float(stretch.scaled)}, found | sizes, "vLLM calls its magnitude short_mscale"


def as_long_rope(rope: Rope, trained: int, target: int) -> Written:
    """Any stretch that does not follow the text: a factor for each pair, the same for short texts and long."""
    f = powers(rope.theta, rope.dim, torch.device("cpu"))
    by = numbers(f / frequencies(rope, target))
    stretch = LongRope(by, by, trained, target / trained, scaled=magnitude(rope, target))
    found, to_vllm, note = longrope(Rope(rope.dim, rope.theta, rope.pairs, stretch), trained, target)
    return found, to_vllm, f"said as longrope, pair by pair{'; ' if note else ''}{note}"


WRITERS: dict[type, Callable[[Rope, int, int], Written]] = {
    type(None): plain,
    Interpolate: linear,
    Ntk: larger_base,
    NtkMixed: as_long_rope,
    DynamicNtk: dynamic,
    ByParts: by_parts,
    Yarn: yarn,
    Llama3: llama3,
    LongRope: longrope,
}
