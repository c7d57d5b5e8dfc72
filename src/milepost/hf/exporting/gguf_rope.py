"""A rotation as llama.cpp reads it: `rope.*` in the metadata of a GGUF file, and tensors of factors.

llama.cpp divides the angle of each pair by a factor from `rope_freqs.weight`, or from one of two tensors, one for
contexts within the trained length and one for longer ones: the context that it is started with counts, and not the
length of the text. Only some of its architectures read these tensors. YaRN is computed by its own code, in which

    cos, sin  ←  cos, sin · attn_factor · (1 + 0.1 · ln factor)

where attn_factor is 1 unless the metadata says otherwise. What multiplies cosines and sines goes to every layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from milepost import ByParts, Interpolate, LongRope, Ntk, Rope, Yarn
from milepost.hf.config.rope_parameters import as_long_rope, base_of, reached
from milepost.seams.arguments import spell

USUAL = {"ramp": "code", "fast": 32.0, "slow": 1.0, "truncate": True}
"""The YaRN of llama.cpp; its Llama, Qwen and Gemma 3 read no other ramp from the metadata."""
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True)
class Written:
    """What a GGUF file says of a rotation. keys: without the name of the architecture; None where it is left out."""

    base: float
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    tensors: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    note: str = ""

    @property
    def magnitude(self) -> bool:
        """True if cosines and sines of every layer are multiplied by a number."""
        return "rope.scaling.attn_factor" in self.keys


def written_in_gguf(rope: Rope, trained: int) -> Written:
    """Return the metadata under which llama.cpp rotates as a rotation does; ValueError where there is none.

    In words of its own (linear, yarn, a larger base) where it has them, which every architecture reads.
    """
    stretch: Any = rope.stretch
    if rope.by_length and not isinstance(stretch, LongRope):
        raise ValueError(f"llama.cpp rotates alike at every length of text, and {spell(stretch)} follows the length")
    if stretch is None:
        return Written(rope.theta)
    # A subclass may do anything.
    kind = cast("Any", type(stretch))
    if kind is Interpolate:
        return Written(rope.theta, _scaling("linear", factor=float(stretch.factor)))
    if kind is Ntk and rope.head_dim > 2:
        return Written(base_of(rope, reached(rope, trained)))
    if kind in (Yarn, ByParts) and all(getattr(stretch, name) == usual for name, usual in USUAL.items()):
        own = 0.1 * math.log(stretch.factor) + 1.0
        scaled = getattr(stretch, "scaled", 1.0)
        keys = _scaling("yarn", factor=float(stretch.factor), original_context_length=stretch.trained)
        if scaled is not None and not math.isclose(scaled, own, rel_tol=1e-9):
            keys["rope.scaling.attn_factor"] = scaled / own
        return Written(rope.theta, keys)
    return by_factors(rope, trained)


def by_factors(rope: Rope, trained: int) -> Written:
    """Return a rotation as a factor for each pair, and a magnitude."""
    found = as_long_rope(rope, trained, reached(rope, trained))[0]
    long, size = tuple(found["long_factor"]), found["attention_factor"]
    keys = {"rope.scaling.attn_factor": float(size)} if size != 1 else {}
    stretch: Any = rope.stretch
    if not (isinstance(stretch, LongRope) and stretch.short != stretch.long):
        return Written(rope.theta, keys, {FREQS: long})
    keys |= _scaling("longrope", original_context_length=stretch.trained)
    note = (
        f"llama.cpp takes the factors for long texts if it is started with a context of more than {stretch.trained:,} "
        f"tokens, for short texts too; milepost and transformers take those for short texts there"
    )
    return Written(rope.theta, keys, {LONG: long, SHORT: tuple(map(float, stretch.short))}, note)


def _scaling(kind: str, **values: float) -> dict[str, Any]:
    return {"rope.scaling.type": kind} | {f"rope.scaling.{name}": each for name, each in values.items()}


def said_by(turns: Sequence[Rope]) -> Rope:
    """Return the one rotation of some layers; ValueError where they differ."""
    if len(set(turns)) > 1:
        listed = ", ".join(spell(turn) for turn in dict.fromkeys(turns))
        raise ValueError(f"a GGUF file says one rotation for all layers, and these have {listed}")
    return turns[0]
