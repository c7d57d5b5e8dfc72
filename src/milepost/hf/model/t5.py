"""T5: its buckets made to reach further, and its layers given parts.

Distances past `reach` share one bucket. A larger reach stretches the buckets that grow with the logarithm, over the
table that was trained, in the attributes that transformers itself reads: stock transformers then runs, saves and loads
the model by itself. Any other part (log-n, a window) needs our attention in the place of its own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Learner, Schedule, Scheme, T5Bias, __version__
from milepost.configs.stored import stamp
from milepost.hf.model.attention import NAME, Replaced, Unchanged, heads, put_back, refuse
from milepost.hf.model.models import (
    Layers,
    Place,
    as_built,
    demand_as_built,
    kept_in,
    own_config,
    own_schedule,
    settings_of,
    switches_of,
    unwrapped,
)
from milepost.hf.model.parts import changed, check
from milepost.hf.model.positions import Calls, Hooks, must
from milepost.hf.model.settings import clear, store, without
from milepost.seams.arguments import spell

Stacks = dict[str, Layers]
"""The encoder and the decoder of a model, or the one of them that it has."""


class TrainedBias(Learner):
    """T5's bias with the table of a model, which is asked where it stands: it may be moved, trained or offloaded.

        score  ←  score + table[b, h],   b the bucket of p − r in `shape`

    module: has the table as its `relative_attention_bias`.
    """

    additive = True

    def __init__(self, shape: T5Bias, module: nn.Module) -> None:
        super().__init__()
        # No children: the weights are the model's, and stay there.
        self.__dict__["shape"], self.__dict__["module"] = shape, module

    @property
    def constant_past(self) -> tuple[float, float]:
        """From these distances on, behind and ahead, one bucket has all."""
        return self.__dict__["shape"].constant_past

    def table(self, device: torch.device) -> Tensor:
        """The numbers of all buckets, [buckets h], with gradients."""
        shape: T5Bias = self.__dict__["shape"]
        table: Any = self.__dict__["module"].relative_attention_bias
        if type(table) is nn.Embedding and table.weight.device.type != "meta":
            return table.weight.to(device)
        # Offloaded, or wrapped in one that adds to it: called, it answers with all that there is.
        return table(torch.arange(shape.buckets, device=device)).to(device)

    def by_bucket(self, first: int, end: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the table, and the bucket of each distance first … end − 1, [n]."""
        return self.table(device), self.__dict__["shape"].by_bucket(first, end, device)[1]

    def by_distance(self, distance: Tensor) -> Tensor:
        """What is added at each distance [n]: [h n], float32 or better."""
        found = self.table(distance.device)[self.__dict__["shape"].bucket(distance)].T
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self.table(score.device)[self.__dict__["shape"].bucket(p - r), head].to(score.dtype)

    def __repr__(self) -> str:
        return f"{self.__dict__['shape']!r} with its trained table"


class T5Attention(Replaced):
    """Self-attention of T5, mT5 or umT5; the bias that a layer hands on to the next is not made."""

    own = Replaced.own | {"beside"}
    o: Any
    by_slot = True

    def __init__(self, original: Any, scheme: Scheme) -> None:
        super().__init__(original, scheme)
        given = inspect.signature(cast("Any", type(original)).forward).parameters
        # Beside its answer, a module of T5 gives the bias, and in newer releases always the weights.
        self.beside = 2 if "position_bias" in given and "output_attentions" not in given else 1

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor | None, ...]:
        """What transformers' module takes and answers; T5 says mask where umT5 says attention_mask."""
        refuse({"output_attentions": others.get("output_attentions")})
        own: Any = self.__dict__["original"]
        q, k, v = (heads(getattr(self, name)(hidden_states), own.key_value_proj_dim) for name in "qkv")
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        dropout = own.dropout if self.training else 0.0
        out = self.o(self.attended((q, k, v), cache, attention_mask if mask is None else mask, dropout))
        return (out, *[None] * self.beside)

    def slots(self, mask: Tensor | None, t: int, s: int) -> Tensor | None:
        """A decoder's mask is causal, an encoder's is that of padding."""
        return super().slots(mask, t, s) if self.__dict__["original"].is_decoder else padding(mask, t, s)


def padding(mask: Tensor | None, t: int, s: int) -> Tensor | None:
    """Return the mask of an encoder, [b 1 t|1 s], in the form of `slots`: tokens count from the first that is real.

    Queries that are padding see what the others see, as in transformers; nobody sees them.
    """
    if mask is None:
        return None
    seen = (mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool())[:, 0]
    real = seen.any(1)
    must(
        (seen == real[:, None]).all(),
        "milepost: the attention mask {} hides some keys from some of the {} queries of an encoder and not from "
        "others; an extended model takes the mask of padding, [b, n]",
        list(mask.shape),
        t,
    )
    slot = torch.arange(s, device=mask.device).expand_as(real)
    index = (slot - real.int().argmax(1)[:, None]).clamp(min=0)
    rows = (index, index), (torch.where(real, 0, -1), torch.zeros_like(index)), (slot, slot)
    return torch.stack([torch.cat(row, 1) for row in rows], 1)[:, None]


def stacks_of(model: nn.Module, reach: int) -> Stacks:
    """The stacks of a model, with the schemes that they have when their buckets reach so far; changes nothing."""
    found: Stacks = {}
    for stack in _stacks(model):
        places = tuple(
            # Of a model that was extended already, the modules that it had at first.
            Place(parent, name, child.__dict__["original"] if isinstance(child, Replaced) else child)
            for parent in stack.modules()
            for name, child in parent.named_children()
            if name == "SelfAttention"
        )
        config = copy.deepcopy(stack.config)
        config.relative_attention_max_distance = reach
        own, modules = own_schedule(config), tuple(each.module for each in places)
        if len(places) != len(own):
            raise ValueError(
                f"extend: the {config.model_type} config has {len(own)} layers, and the model has self-attention in "
                f"{len(places)}; the config disagrees with the model"
            )
        name = "decoder" if stack.is_decoder else "encoder"
        found[name] = Layers(model, stack, config.model_type, own, modules, (), places)
    return found


def schedules_for(stacks: Stacks, given: Sequence[object]) -> dict[str, Schedule]:
    """The schemes of each stack with the parts put in, or an error that says why they cannot be."""
    found = {name: changed(layers, given) for name, layers in stacks.items()}
    for name, layers in stacks.items():
        for layer, scheme in enumerate(found[name]):
            check(layers, layer, scheme)
            if scheme.is_causal and not layers.own[layer].is_causal:
                seen = ", ".join(map(repr, scheme.answering("see")))
                raise ValueError(
                    f"extend: the {name} of this {layers.model_type} model sees keys ahead, and {seen} hides them; "
                    f"what both stacks can be given looks both ways, such as window(64, ahead=63)"
                )
    return found


def put_attention(stacks: Stacks, schedules: dict[str, Schedule]) -> None:
    """Let modules of ours attend in every stack; those of a stack that shares one table ask its first layer for it."""
    for name, layers in stacks.items():
        first: T5Attention | None = None
        for place, scheme in zip(layers.places, schedules[name], strict=True):
            module = T5Attention(place.module, scheme)
            first = module if first is None else first
            holder = module if hasattr(module, "relative_attention_bias") else first
            module.__dict__["scheme"] = with_table(scheme, holder)
            place.put(module)


def with_table(scheme: Scheme, module: nn.Module) -> Scheme:
    """The scheme with the table that a module has in place of a new one."""
    made = Scheme(*(TrainedBias(part, module) if isinstance(part, T5Bias) else part for part in scheme.parts))
    made.trained = scheme.trained
    return made


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
    hooks: Hooks = field(default_factory=Hooks)

    def to_dict(self) -> dict[str, Any]:
        """What the config stores."""
        return stamp(__version__) | {
            "schedule": {name: schedule.to_dict() for name, schedule in self.schedules.items()},
            "through": "attend",
            "transformers_reads_it": False,
            "marked": "model_type",
            "config": {name: layers.own.to_dict() for name, layers in self.stacks.items()},
        }

    @property
    def schemes(self) -> list[Scheme]:
        """Those of all layers of both stacks."""
        return [scheme for schedule in self.schedules.values() for scheme in schedule]

    def undo(self) -> Callable[[], None]:
        """Let them reach as far as before, and the model attend by itself; returns what puts it all there again."""
        ours = put_back(place for layers in self.stacks.values() for place in layers.places)
        self.hooks.remove()
        clear(self.model.config)
        _put(self.model, self.before)
        del self.model.__dict__[NAME]

        def again() -> None:
            self.model.__dict__[NAME] = self
            _put(self.model, self.reach)
            for place in ours:
                place.put(place.module)
            self.hooks.put()
            if self.schedules:
                store(self.model.config, self.to_dict())

        return again


def has_buckets(model: object) -> bool:
    """Whether it is a model whose buckets can be stretched."""
    config = getattr(model, "config", None) if isinstance(model, nn.Module) else None
    return getattr(config, "model_type", None) in BUCKETED


def stretched(model: nn.Module) -> Stretched | None:
    """What was done to a model with buckets, also to one that another wraps, or None."""
    return kept_in(model, NAME, Stretched)


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
    demand_stacks(unwrapped(model), stacks)
    put_stacks(model, before, reach, stacks, schedules_for(stacks, parts))


def demand_stacks(model: nn.Module, stacks: Stacks) -> None:
    """Refuse stacks that were changed by hand."""
    built = as_built(model, without(model.config)) if stacks else None
    for layers, stack in zip(stacks.values(), [] if built is None else _stacks(built), strict=True):
        demand_as_built(layers.backbone, switches_of(stack))
        fresh = [each for name, each in stack.named_modules() if name.endswith(".SelfAttention")]
        for layer, (module, its) in enumerate(zip(layers.attentions, fresh, strict=True)):
            T5Attention.demand(module)
            demand_as_built(module, settings_of(its), f" in layer {layer}")


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
    by = f"attend {schedules!r}" if schedules else f"of buckets that reach {reach}"
    for layers in stacks.values():
        ours = [Place(each.parent, each.name, getattr(each.parent, each.name)) for each in layers.places]
        unchanged = Unchanged(layers.backbone, ours=ours if schedules else ())
        done.hooks.add(partial(unchanged.put, layers.backbone))
    for stack in _stacks(owner):
        if stack.is_decoder:
            calls = Calls(stack, schedules.get("decoder", ()), by, attends=False, named=None)
            done.hooks.add(partial(calls.put, stack, owner))
    if schedules:
        store(owner.config, done.to_dict())


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
            f"{part.buckets} for {part.heads}; more buckets would need training: "
            f"T5Bias({heads}, buckets={buckets}, reach=…)"
        )
    # A decoder has all buckets on one side, so twice as many of one distance each.
    exact = max(buckets // 2 if stack.is_decoder else buckets // 4 for stack in _stacks(model))
    if part.reach <= exact:
        raise ValueError(
            f"extend: {spell(part)}: the first {exact} distances have a bucket each, so reach must be larger"
        )
    return part.reach


def _stacks(model: nn.Module) -> Iterator[Any]:
    """The encoder and the decoder, or the one of them that there is."""
    return (each for each in model.modules() if hasattr(each, "block"))


def _modules(model: nn.Module) -> Iterator[Any]:
    """The attention modules that say how far buckets reach."""
    for each in model.modules():
        if hasattr(each, "relative_attention_max_distance"):
            yield cast("Any", each)


def _put(model: nn.Module, reach: int) -> None:
    """Let every module and every config say how far buckets reach."""
    for each in _modules(model):
        each.relative_attention_max_distance = reach
    for each in cast("Iterator[Any]", model.modules()):
        config = each.__dict__.get("config")
        if config is not None:
            config.relative_attention_max_distance = reach
