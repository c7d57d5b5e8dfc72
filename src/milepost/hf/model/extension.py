"""A model of transformers under another scheme, and as it was: what `extend` does once it is known what to put in."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from milepost import Schedule, Scheme, __version__
from milepost.configs import read
from milepost.configs.stored import stamp
from milepost.hf.model.attention import (
    NAME,
    OURS,
    READ,
    Ordered,
    Unchanged,
    as_stock,
    beside_attention,
    layer_for,
    left_to_us,
    passed_on,
    put_back,
    register,
)
from milepost.hf.model.models import (
    KNOWN,
    REPLACED,
    Layers,
    Place,
    as_built,
    attentions_in,
    demand_as_built,
    demand_model,
    kept_in,
    layers_of,
    own_config,
    settings_of,
    switches_of,
    unwrapped,
)
from milepost.hf.model.parts import schedule_for
from milepost.hf.model.positions import Calls, Hooks
from milepost.hf.model.proof import demand_proof
from milepost.hf.model.rotary import Form, Turned, Widths, form_of, plain, same_beside, turn_of, turns_by_type
from milepost.hf.model.settings import Settings, clear, store, unedited, without, written
from milepost.hf.model.t5 import Stretched, has_buckets, stretch_buckets
from milepost.hf.model.tables import Grown, grow, table_of
from milepost.hf.model.weights import demand_heads, demand_loaded
from milepost.refusal import need
from milepost.schedule import stock_schedule
from milepost.seams import demand

NEEDED = ("transformers", "safetensors")
Path = Literal["rotary", "attend"]
Model = TypeVar("Model")
ASKED = SimpleNamespace(called="extend")
"""Whom errors name."""


@dataclass(frozen=True)
class Extension:
    """What was done to a model, and what undoes it; `model.milepost` of the module that has the layers."""

    schedule: Schedule
    """What its layers do now."""
    through: Path
    layers: Layers
    """The model as it was."""
    settings: Settings | None
    """What its config says now of the rotation, where transformers has words for it."""
    before: Settings
    implementations: list[str]
    """By which functions the model and its layers attended."""
    hooks: Hooks

    def to_dict(self) -> dict[str, Any]:
        """What the config stores. config: what the rest of it describes, so that an edit by hand is noticed."""
        turns = any(turn_of(scheme) is not None for scheme in self.layers.own)
        by = "rope_type" if turns and self.before.values.get("rope_parameters") else "model_type"
        return stamp(__version__) | {
            "schedule": self.schedule.to_dict(),
            "through": self.through,
            "transformers_reads_it": self.settings is not None,
            "marked": None if self.settings is not None else by,
            "config": stock_schedule(read(self.layers.config, "extend")).to_dict(),
        }

    def undo(self) -> Callable[[], None]:
        """Let the model be as it was; returns what puts the same extension, module by module, there again."""
        layers = self.layers
        kept = [each.__dict__.pop(NAME, None) for each in layers.attentions]
        turned = [Place(each.parent, each.name, getattr(each.parent, each.name)) for each in layers.turners]
        for turner in layers.turners:
            turner.put(turner.module)
        ours = put_back(layers.places)
        self.hooks.remove()
        named = implementations(layers)
        if not layers.places:
            put_implementations(layers, self.implementations)
        kind = cast("Any", type(layers.config))
        config = dict[str, Any](layers.config.__dict__)
        clear(layers.config)
        self.before.put(layers.config)
        del layers.backbone.__dict__[NAME]

        def again() -> None:
            layers.backbone.__dict__[NAME] = self
            for place in (*turned, *ours):
                place.put(place.module)
            for module, layer in zip(layers.attentions, kept, strict=True):
                if layer is not None:
                    module.__dict__[NAME] = layer
            self.hooks.put()
            layers.config.__class__ = kind
            vars(layers.config).update(config)
            if not layers.places:
                put_implementations(layers, named)

        return again

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register the attention in a process that has just unpickled a model."""
        self.__dict__.update(state)
        register()

    def __repr__(self) -> str:
        return f"Extension(through={self.through!r}, {self.schedule!r})"


def extended(
    model: Model, given: Sequence[object], to: int | None = None, through: Path | None = None, stored: bool = False
) -> Model:
    """The model under what was given, changed in place: `extend`, which documents it, without measuring."""
    if isinstance(model, nn.Module) and hasattr(model, "config") and table_of(model) is not None:
        grow(model, given, to)
        return model
    need("extend", "hf", NEEDED)
    if not given and to is None and through is None:
        demand_model("extend", model)
        raise ValueError(
            "extend: nothing was given to extend the model by. Give a method, such as Yarn(4, trained=8192), or a "
            'length and a text, to=…, text=…; through="attend" alone runs the model\'s own scheme through attend'
        )
    if has_buckets(model):
        stretch_buckets(model, given, to, through)
        return model
    before = extension_of(model)
    layers = layers_of(model) if before is None else replace(before.layers, model=model)
    if to is not None:
        demand.whole(ASKED, "to", to)
        if layers.own.trained is not None and to < layers.own.trained:
            raise ValueError(
                f"extend(to={to}): this {layers.model_type} model was trained at {layers.own.trained} tokens, and "
                f"reads as many already"
            )
    demand_masks(layers)
    schedule = schedule_for(layers, given, to, stored)
    demand_scale(layers)
    if before is None:
        demand_loaded(layers)
        demand_heads(layers)
    forms = [form_of(layers, turner) for turner in layers.turners]
    path = chosen(layers, schedule, through)
    demand_way(layers, path)
    if path == "attend":
        demand_unchanged(layers)
    first = Settings.of(layers.config) if before is None else before.before
    if layers.model_type not in KNOWN | REPLACED:
        was = without(layers.config)
        first.put(was)
        demand_proof(layers, path, by_itself, was, brings_temperature(layers, schedule))
    settings = written(layers, schedule, first)
    if before is not None:
        restore(model)
    own_config(layers.model)
    try:
        apply(layers, schedule, path, forms, settings)
    except BaseException:
        restore(model)
        raise
    return model


def brings_temperature(layers: Layers, schedule: Schedule) -> bool:
    """Whether rotations have another factor on cosines and sines than the model's own, at some length."""
    lengths = torch.tensor([1.0, 2.0**31], dtype=torch.float64)

    def factors(scheme: Scheme) -> Tensor:
        turn = turn_of(scheme)
        magnitude = getattr(getattr(turn, "method", turn), "magnitude", None)
        return torch.as_tensor(1.0 if magnitude is None else magnitude(lengths), dtype=torch.float64).expand(2)

    return any(not torch.equal(factors(one), factors(other)) for one, other in zip(layers.own, schedule, strict=True))


def by_itself(model: nn.Module, through: Path) -> None:
    """Put a model under the scheme that it has already, without asking for a proof: it is one.

    Its config is changed in place, and must be its own.
    """
    layers = layers_of(model)
    forms = [form_of(layers, turner) for turner in layers.turners]
    apply(layers, layers.own, through, forms, written(layers, layers.own, Settings.of(layers.config)))


def restore(model: Model) -> Model:
    """Undo `extend`; a model that was not extended stays as it is."""
    if not isinstance(model, nn.Module):
        demand_model("restore", model)
        return model
    done = changed_by(model)
    if done is not None:
        done.undo()
    return model


@contextmanager
def as_it_was(model: Model) -> Generator[Model]:
    """The model without its extension for a while, and then with it again."""
    done = changed_by(model)
    again = None if done is None else done.undo()
    try:
        yield model
    finally:
        if again is not None:
            again()


def changed_by(model: object) -> Extension | Grown | Stretched | None:
    """Return what `extend` did to a model: layers extended, a table grown or buckets stretched; None if nothing."""
    if not isinstance(model, nn.Module):
        return None
    found = (kept_in(model, NAME, kind) for kind in (Extension, Grown, Stretched))
    return next((each for each in found if each is not None), None)


def extension_of(model: object) -> Extension | None:
    """Return what was done to the layers of a model, or None."""
    return kept_in(model, NAME, Extension) if isinstance(model, nn.Module) else None


def chosen(layers: Layers, schedule: Schedule, through: Path | None) -> Path:
    """The way there: through the rotary module where that says all, else through attend."""
    if through is not None:
        demand.one_of(ASKED, "through", through, ("rotary", "attend"))
    if layers.places:
        if through == "rotary":
            raise ValueError(f'extend(through="rotary"): a {layers.model_type} model has no module for cosines alone')
        return "attend"
    why = next((reason for reason in map(only_turns, layers.own, schedule) if reason), None)
    if why is None and any(turns_by_type(layers, schedule, turner) is None for turner in layers.turners):
        why = "layers that share one rotary module turn differently"
    if through == "rotary" and why is not None:
        raise ValueError(f'extend(through="rotary"): {why}, and cosines and sines cannot say that; use "attend"')
    return through or ("attend" if why or not layers.turners else "rotary")


def demand_way(layers: Layers, path: Path) -> None:
    """Refuse a way on which a model's layers cannot be reached, with the reason."""
    if path == "rotary" and not (layers.turners or layers.places):
        raise ValueError(
            f"extend: layers of this {layers.model_type} model attend without positions, so there are no cosines to "
            f'change; leave `through` out, or write through="attend"'
        )
    picking = [each for each in layers.attentions if getattr(each, "indexer", None) is not None]
    if path == "attend" and picking:
        raise ValueError(
            f"extend: layers of this {layers.model_type} model attend to the keys that an indexer picks, after "
            f"rotations of its own ({type(picking[0].indexer).__name__}), and `attend` sees all; give a method that "
            f"changes cosines and sines alone, such as Yarn"
        )


def demand_masks(layers: Layers) -> None:
    """Refuse modules of ours where transformers' mask shows what is ahead: they read off it which token each one is."""
    if layers.places and not all(own.is_causal for own in layers.own):
        raise ValueError(
            f"extend: this {layers.model_type} model sees keys ahead (is_causal is false in its config), and its "
            f"layers are told where tokens stand by a causal mask alone; extend it without is_causal: false"
        )


def demand_scale(layers: Layers) -> None:
    """Refuse modules that were set to another softmax scale than their config says, which the schemes go by."""
    for layer, (place, own) in enumerate(zip(layers.places, layers.own, strict=False)):
        says, width = OURS[layers.model_type].scale(place.module), layers.head_width(place.module)
        if not math.isclose(says, own.scale(width), rel_tol=1e-5):
            raise ValueError(
                f"extend: layer {layer} of this {layers.model_type} model scales its scores by {says:.6g}, and its "
                f"config says {own.scale(width):.6g}; the module was changed by hand. Put it back, and give the scale "
                f"as a part: extend(model, Scale({says:.6g}))"
            )


def demand_unchanged(layers: Layers) -> None:
    """Refuse modules that were changed by hand, which the schemes know nothing of."""
    built = as_built(layers.backbone, without(layers.config))
    demand_as_built(layers.backbone, switches_of(built))
    ours = OURS.get(layers.model_type)
    for layer, (module, its) in enumerate(zip(layers.attentions, attentions_in(built), strict=True)):
        if ours is not None:
            ours.demand(module)
        demand_as_built(module, settings_of(its, READ if ours is None else ours.reads), f" in layer {layer}")


def only_turns(own: Scheme, scheme: Scheme) -> str | None:
    """Why more than cosines and sines changes in a layer; None where nothing else does."""
    turn, old = turn_of(scheme), turn_of(own)
    if turn is not None and not plain(turn):
        return f"{turn!r} turns each key by the length of the text, or turns by more than its position"
    if (turn is None) != (old is None) or (turn is not None and (turn.pairs, turn.width) != (old.pairs, old.width)):
        return f"{turn!r} turns other channels than {old!r}"
    return None if same_beside(own, scheme) else f"{scheme!r} changes more than the rotation"


def apply(
    layers: Layers,
    schedule: Schedule,
    path: Path,
    forms: list[tuple[Form, Widths]],
    settings: Settings | None,
) -> None:
    """Change the model. Everything that can be refused has been."""
    attended = implementations(layers)
    done = Extension(schedule, path, layers, settings, Settings.of(layers.config), attended, Hooks())
    layers.backbone.__dict__[NAME] = done
    for turner, (form, widths) in zip(layers.turners, forms, strict=True):
        turns = turns_by_type(layers, schedule if path == "rotary" else layers.own, turner) or {}
        turner.put(Turned(turner.module, turns if path == "rotary" else dict.fromkeys(turns), form, widths))
    for place, scheme in zip(layers.places, schedule, strict=False):
        place.put(OURS[layers.model_type](place.module, scheme))
    if path == "attend" and not layers.places:
        register()
        for module, scheme, own in zip(layers.attentions, schedule, layers.own, strict=True):
            width = layers.head_width(module)
            layer = module.__dict__[NAME] = layer_for(scheme, own, module, width, layers.turned_back)
            done.hooks.add(partial(passed_on, module))
            done.hooks.add(partial(left_to_us, module, layer.scheme))
            if layer.asked is not None:
                done.hooks.add(partial(layer.asked.put, module))
        for module in beside_attention(layers.backbone):
            done.hooks.add(partial(as_stock, module))
        put_implementations(layers, [NAME] * len(attended))
    places = (*layers.turners, *layers.places)
    ours = [Place(each.parent, each.name, getattr(each.parent, each.name)) for each in places]
    by_name = layers.attentions if path == "attend" and not layers.places else ()
    unchanged = Unchanged(layers.backbone, by_name, ours)
    done.hooks.add(partial(unchanged.put, layers.backbone))
    done.hooks.add(partial(Ordered(layers.attentions, schedule).put, layers.backbone))
    done.hooks.add(partial(unedited, layers.backbone))
    named = NAME if path == "attend" and not layers.places else None
    listed = layers.model_type in KNOWN | REPLACED
    calls = Calls(layers.backbone, schedule, f"{path} {schedule!r}", path == "attend", named, listed)
    done.hooks.add(partial(calls.put, layers.backbone, unwrapped(layers.model)))
    if settings is not None:
        settings.put(layers.config)
    store(layers.config, done.to_dict())


def implementations(layers: Layers) -> list[str]:
    """Return by which functions a model and each of its layers attend: a layer may have a config of its own."""
    found = (layers.config, *(getattr(each, "config", layers.config) for each in layers.attentions))
    return [each._attn_implementation for each in found]


def put_implementations(layers: Layers, named: list[str]) -> None:
    """Let a model and each of its layers attend by the functions of these names."""
    name, *others = named
    layers.backbone.set_attn_implementation(name)
    if layers.config._attn_implementation != name:
        raise ValueError(f"extend: {type(layers.backbone).__name__} does not let its attention be set to {name!r}")
    for module, its in zip(layers.attentions, others, strict=True):
        config = getattr(module, "config", layers.config)
        if config is not layers.config:
            config._attn_implementation = its


__all__ = ["Extension", "as_it_was", "extended", "extension_of", "restore"]
