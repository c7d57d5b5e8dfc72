"""What a config says of the rotation, in transformers' words: rope_parameters, where it has words for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.hf.models import Layers
from milepost.hf.rotary import same_beside, turn_of
from milepost.methods.dynamic_ntk import DynamicNtk
from milepost.methods.interpolate import Interpolate
from milepost.methods.llama3 import Llama3
from milepost.methods.long_rope import LongRope
from milepost.methods.ntk import Ntk
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.methods.yarn import Yarn
from milepost.schedule import Schedule

KEPT = ("rope_theta", "partial_rotary_factor")
"""What a rotation keeps whatever stretches it."""


@dataclass(frozen=True)
class Settings:
    """The part of a config that says how far a model reads and how it turns."""

    rope_parameters: dict[str, Any] | None
    longest: int | None

    @staticmethod
    def of(config: Any) -> Settings:
        """What a config says now."""
        return Settings(
            copy.deepcopy(getattr(config, "rope_parameters", None)), getattr(config, "max_position_embeddings", None)
        )

    def put(self, config: Any) -> None:
        """Let the config say this."""
        if self.rope_parameters is not None:
            config.rope_parameters = copy.deepcopy(self.rope_parameters)
        if self.longest is not None:
            config.max_position_embeddings = self.longest


def written(layers: Layers, schedule: Schedule, before: Settings) -> Settings | None:
    """What the config must say for stock transformers to turn so, or None where it has no words for the schedule."""
    if before.rope_parameters is None:
        return None
    if all(own.same_as(scheme) for own, scheme in zip(layers.own, schedule, strict=True)):
        return before
    ropes: dict[str | None, Rope] = {}
    nested = any(isinstance(each, dict) for each in before.rope_parameters.values())
    for layer, (own, scheme) in enumerate(zip(layers.own, schedule, strict=True)):
        turn, old = turn_of(scheme), turn_of(own)
        # What DeepSeek folds into its scale stands in the same settings, and would go with them.
        if not same_beside(own, scheme) or own.answering("sharpen"):
            return None
        if turn is None:
            continue
        rope, was = inner(turn), inner(old)
        kind = layers.layer_type(layer) if nested else None
        if rope is None or was is None or (rope.dim, rope.pairs) != (was.dim, was.pairs):
            return None
        if ropes.setdefault(kind, rope) != rope:
            return None
    longest = before.longest
    parameters = copy.deepcopy(before.rope_parameters)
    for kind, rope in ropes.items():
        was = before.rope_parameters if kind is None else before.rope_parameters[kind]
        found = said(rope, was)
        if found is None:
            return None
        made, reach = found
        longest = longest if reach is None else reach
        if kind is None:
            parameters = made
        else:
            parameters[kind] = made
    return Settings(parameters, longest)


def inner(turn: object) -> Rope | None:
    """The RoPE of a rotation that transformers can say."""
    if isinstance(turn, Partial):
        return inner(turn.method) if turn.temperature == "rotary" else None
    return turn if isinstance(turn, Rope) else None


def said(rope: Rope, was: dict[str, Any]) -> tuple[dict[str, Any], int | None] | None:
    """The rope settings of a rotation, and the longest length that goes with them where they depend on it."""
    stretch = rope.stretch
    kept = {key: was[key] for key in KEPT if key in was} | {"rope_theta": rope.theta}
    if stretch is None:
        return kept | {"rope_type": "default"}, None
    if isinstance(stretch, Ntk) and rope.dim > 2:
        # A larger base is all there is to it.
        return kept | {"rope_type": "default", "rope_theta": raised(rope, stretch)}, None
    for kind, words in WORDS.items():
        if isinstance(stretch, kind):
            made, reach = words(stretch)
            return (kept | made, reach) if made else None
    return None


def raised(rope: Rope, stretch: Ntk) -> float:
    """θ · factor^(d/(d − 2))."""
    return rope.theta * stretch.factor ** (rope.dim / (rope.dim - 2))


Said = tuple[dict[str, Any], int | None]


def linear(stretch: Interpolate) -> Said:
    """Readers multiply max_position_embeddings by the factor, so it stays the trained length."""
    return {"rope_type": "linear", "factor": float(stretch.factor)}, None


def dynamic(stretch: DynamicNtk) -> Said:
    """The trained length is max_position_embeddings."""
    return {"rope_type": "dynamic", "factor": float(stretch.factor)}, stretch.trained


def yarn(stretch: Yarn) -> Said:
    """The paper's own ramp is said by nobody else."""
    if stretch.ramp != "code":
        return {}, None
    made = {
        "rope_type": "yarn", "factor": float(stretch.factor), "original_max_position_embeddings": stretch.trained,
        "beta_fast": float(stretch.fast), "beta_slow": float(stretch.slow), "truncate": stretch.truncate,
    }  # fmt: skip
    scaled = {} if stretch.scaled is None else {"attention_factor": float(stretch.scaled)}
    return made | scaled, reach(stretch.factor, stretch.trained)


def longrope(stretch: LongRope) -> Said:
    """The factors of every pair, and the ratio that the magnitude follows."""
    made = {
        "rope_type": "longrope", "short_factor": list(stretch.short), "long_factor": list(stretch.long),
        "factor": float(stretch.factor), "original_max_position_embeddings": stretch.trained,
    }  # fmt: skip
    scaled = {} if stretch.scaled is None else {"attention_factor": float(stretch.scaled)}
    return made | scaled, reach(stretch.factor, stretch.trained)


def llama3(stretch: Llama3) -> Said:
    """Llama 3.1's blend."""
    made = {
        "rope_type": "llama3", "factor": float(stretch.factor), "original_max_position_embeddings": stretch.trained,
        "low_freq_factor": float(stretch.low), "high_freq_factor": float(stretch.high),
    }  # fmt: skip
    return made, reach(stretch.factor, stretch.trained)


def reach(factor: float, trained: int) -> int:
    """The longest length of a stretched model."""
    return round(factor * trained)


WORDS: dict[type, Callable[[Any], Said]] = {
    Interpolate: linear, DynamicNtk: dynamic, Yarn: yarn, LongRope: longrope, Llama3: llama3,
}  # fmt: skip
