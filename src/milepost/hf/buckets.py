"""T5: its buckets made to reach further, and its layers given parts.

Distances past `reach` share one bucket. A larger reach stretches the buckets that grow with the logarithm, over the
table that was trained, in the attributes that transformers itself reads: stock transformers then runs, saves and loads
the model by itself. Any other part (log-n, a window) needs our attention in the place of its own (`hf/t5.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from milepost.hf import companion
from milepost.hf.attention import NAME
from milepost.hf.models import own_config, unwrapped
from milepost.hf.t5 import Stacks, put_attention, put_back, schedules_for, stacks_of
from milepost.methods.t5_bias import T5Bias
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import spell

BUCKETED = frozenset({"mt5", "t5", "umt5"})
"""Model types that look distances up in buckets of one size for the encoder and the decoder."""


@dataclass(frozen=True)
class Stretched:
    """What was done to a model with buckets, and what undoes it."""

    model: Any
    """The model of transformers that is changed; another may wrap it."""
    before: int
    """How far its buckets reached."""
    reach: int
    stacks: Stacks = field(default_factory=Stacks)
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    """The schemes of each stack, where our attention is in the place of the model's."""

    def to_dict(self) -> dict[str, Any]:
        """What stands beside the weights."""
        return {
            "model_type": self.model.config.model_type,
            "schedule": {name: schedule.to_dict() for name, schedule in self.schedules.items()},
            "through": "attend",
            "transformers_reads_it": False,
            "config": {name: layers.own.to_dict() for name, layers in self.stacks.items()},
        }

    @property
    def schemes(self) -> list[Scheme]:
        """Those of all layers of both stacks."""
        return [scheme for schedule in self.schedules.values() for scheme in schedule]

    def undo(self) -> None:
        """Let them reach as far as before, and the model attend by itself."""
        put_back(self.stacks)
        companion.take_back(self.model)
        _put(self.model, self.before)
        del self.model.__dict__[NAME]


def has_buckets(model: object) -> bool:
    """Whether it is a model whose buckets can be stretched."""
    config = getattr(model, "config", None) if isinstance(model, nn.Module) else None
    return getattr(config, "model_type", None) in BUCKETED


def stretched(model: nn.Module) -> Stretched | None:
    """What was done to a model with buckets, also to one that another wraps, or None."""
    kept = (each.__dict__.get(NAME) for each in model.modules())
    return next((each for each in kept if isinstance(each, Stretched)), None)


def stretch_buckets(model: Any, given: Sequence[object], to: int | None, through: str | None) -> None:
    """Put parts into the layers of both stacks, or let their buckets reach further; on an error nothing is changed."""
    kind, done = model.config.model_type, stretched(model)
    if to is not None:
        raise ValueError(
            f"extend(to=…): the buckets of a {kind} model take any distance already. What can be changed is from "
            f"where on distances share one: extend(model, T5Bias({model.config.num_heads}, reach=…))"
        )
    if through not in (None, "attend"):
        raise ValueError(f'extend(through={through!r}): a {kind} model turns nothing; use "attend", or leave it out')
    before = model.config.relative_attention_max_distance if done is None else done.before
    reach = _reach(model, [each for each in given if isinstance(each, T5Bias)], kind, before)
    parts = [each for each in given if not isinstance(each, T5Bias)]
    _refuse_whole(parts, kind, model.config.num_heads)
    stacks = stacks_of(model, reach) if parts or through else {}
    put_stacks(model, before, reach, stacks, schedules_for(stacks, parts))


def put_stacks(model: Any, before: int, reach: int, stacks: Stacks, schedules: dict[str, Schedule]) -> None:
    """Change the model. Everything that can be refused has been."""
    done = stretched(model)
    if done is not None:
        done.undo()
    own_config(model)
    owner = unwrapped(model)
    done = Stretched(owner, before, reach, stacks, schedules)
    owner.__dict__[NAME] = done
    _put(owner, reach)
    put_attention(stacks, schedules)
    if schedules:
        companion.put(owner, done.to_dict())


def _refuse_whole(parts: Sequence[object], kind: str, heads: int) -> None:
    """Refuse rows of the lab and whole schemes: they say what a rotation does, or one stack only."""
    for each in parts:
        if isinstance(each, (str, Scheme, Schedule)):
            named = repr(each) if isinstance(each, str) else f"a {type(each).__name__}"
            raise ValueError(
                f"extend: a {kind} model adds its own bias by distance, an encoder's otherwise than a decoder's, so it "
                f"takes parts and not {named}: extend(model, T5Bias({heads}, reach=…), LogN(512))"
            )


def _reach(model: Any, given: Sequence[T5Bias], kind: str, before: int) -> int:
    """How far the buckets shall reach; the table of what was given is not read, the model's own stays."""
    if not given:
        return before
    heads, buckets = model.config.num_heads, model.config.relative_attention_num_buckets
    part = given[0]
    if len(given) > 1:
        raise ValueError(f"extend: {len(given)} times T5Bias; the buckets of this {kind} model have one reach")
    if (part.heads, part.buckets) != (heads, buckets):
        raise ValueError(
            f"extend: this {kind} model has trained {buckets} buckets for {heads} heads, and {spell(part)} has "
            f"{part.buckets} for {part.heads}; more buckets would need training: T5Bias({heads}, {buckets}, reach=…)"
        )
    # A decoder has all buckets on one side, so twice as many of one distance each.
    exact = max(buckets // 2 if decoder else buckets // 4 for decoder in _decoders(model))
    if part.reach <= exact:
        raise ValueError(
            f"extend: {spell(part)}: the first {exact} distances have a bucket each, so reach must be larger"
        )
    return part.reach


def _decoders(model: nn.Module) -> Iterator[bool]:
    """Whether each stack is a decoder."""
    for each in model.modules():
        if hasattr(each, "block"):
            yield bool(cast("Any", each).is_decoder)


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
