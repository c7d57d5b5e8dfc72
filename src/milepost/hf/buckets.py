"""T5: its buckets made to reach further, in the attributes that transformers itself reads.

Distances past `reach` share one bucket. A larger reach stretches the buckets that grow with the logarithm, over the
table that was trained; stock transformers then runs, saves and loads the model by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from milepost.hf.attention import NAME
from milepost.hf.models import own_config
from milepost.methods.t5_bias import T5Bias
from milepost.seams.arguments import spell

BUCKETED = frozenset({"mt5", "t5", "umt5"})
"""Model types that look distances up in buckets of one size for the encoder and the decoder."""


@dataclass(frozen=True)
class Stretched:
    """What was done to a model with buckets, and what undoes it."""

    model: Any
    before: int
    """How far its buckets reached."""
    reach: int

    def undo(self) -> None:
        """Let them reach as far as before."""
        _put(self.model, self.before)
        del self.model.__dict__[NAME]


def has_buckets(model: object) -> bool:
    """Whether it is a model whose buckets can be stretched."""
    config = getattr(model, "config", None) if isinstance(model, nn.Module) else None
    return getattr(config, "model_type", None) in BUCKETED


def stretch_buckets(model: Any, given: Sequence[object], to: int | None, through: str | None) -> None:
    """Let the buckets of both stacks reach as far as the T5Bias that was given; on an error nothing is changed."""
    kind, done = model.config.model_type, model.__dict__.get(NAME)
    if to is not None or through is not None:
        named = "through" if to is None else "to"
        raise ValueError(
            f"extend({named}=…): the buckets of a {kind} model take any distance already. What can be changed is from "
            f"where on distances share one: extend(model, T5Bias({model.config.num_heads}, reach=…))"
        )
    before = model.config.relative_attention_max_distance if done is None else done.before
    reach = _reach(model, given, kind, before)
    if done is not None:
        done.undo()
    own_config(model)
    model.__dict__[NAME] = Stretched(model, before, reach)
    _put(model, reach)


def _reach(model: Any, given: Sequence[object], kind: str, before: int) -> int:
    """How far the buckets shall reach; the table of what was given is not read, the model's own stays."""
    if not given:
        return before
    heads, buckets = model.config.num_heads, model.config.relative_attention_num_buckets
    part = given[0]
    if len(given) > 1 or not isinstance(part, T5Bias):
        other = next((each for each in given if not isinstance(each, T5Bias)), part)
        named = other if isinstance(other, str) else spell(other)
        raise ValueError(
            f"extend: a {kind} model adds its own bias by distance; how far that reaches can be changed, and nothing "
            f"else: extend(model, T5Bias({heads}, reach=…)), without {named}"
        )
    if (part.heads, part.buckets) != (heads, buckets):
        raise ValueError(
            f"extend: this {kind} model has trained {buckets} buckets for {heads} heads, and {spell(part)} has "
            f"{part.buckets} for {part.heads}; more buckets would need training: T5Bias({heads}, {buckets}, reach=…)"
        )
    # A decoder has all buckets on one side, so twice as many of one distance each.
    exact = max(buckets // 2 if each.is_decoder else buckets // 4 for each in _modules(model))
    if part.reach <= exact:
        raise ValueError(
            f"extend: {spell(part)}: the first {exact} distances have a bucket each, so reach must be larger"
        )
    return part.reach


def _modules(model: nn.Module) -> Iterator[Any]:
    """The attention modules that look distances up."""
    for each in model.modules():
        if hasattr(each, "relative_attention_bias") and hasattr(each, "relative_attention_max_distance"):
            yield cast("Any", each)


def _put(model: nn.Module, reach: int) -> None:
    """Let every module and every config say how far buckets reach."""
    for each in _modules(model):
        each.relative_attention_max_distance = reach
    for each in cast("Iterator[Any]", model.modules()):
        config = each.__dict__.get("config")
        if config is not None:
            config.relative_attention_max_distance = reach
