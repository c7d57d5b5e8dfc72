"""The config of an extended model: what it describes to stock transformers, and the extension that it stores.

`save_pretrained` of a model and of its config, trainers and `push_to_hub` all write what `config.to_dict()` returns. So
the extension is stored in the config. Where stock transformers cannot run the model from it, the config gets a class
that adds the marks of `configs/stored.py` to that dict. In memory the config keeps what transformers put into it.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any, cast

import torch

from milepost import AxialRope, DeepseekScale, Partial, Rope, Schedule, Scheme
from milepost.configs import read
from milepost.configs.layer_types import FULL
from milepost.configs.rope_types import TRAINED
from milepost.configs.source import text_of
from milepost.configs.stored import KEY, LOADED_BY, marked, stored_in, unmarked
from milepost.hf.config.rope_parameters import Expressed, expressed, frequencies, has_types, magnitude
from milepost.hf.model.models import MODELS, Layers, Turner, own_schedule, turners_in, undrawn
from milepost.hf.model.rotary import forms_at, lengths, same_beside, turn_of, turns_by_type
from milepost.schedule import schedule_in, stock_schedule

NAMES = ("rope_parameters", "max_position_embeddings", TRAINED)


@dataclass(frozen=True)
class Settings:
    """The part of a config that sets the rotation and the longest length."""

    values: dict[str, Any]

    @staticmethod
    def of(config: Any) -> Settings:
        """Return what a config has now."""
        return Settings({name: copy.deepcopy(getattr(config, name)) for name in NAMES if hasattr(config, name)})

    def put(self, config: Any) -> None:
        """Set them in a config."""
        for name, value in self.values.items():
            setattr(config, name, copy.deepcopy(value))


def written(layers: Layers, schedule: Schedule, before: Settings) -> Settings | None:
    """Return the settings under which stock transformers runs the schedule, or None where there are none.

    What the one writer proposes is read back twice: as a schedule, and by the model's own rotary module, which is built
    anew from it. So a quirk of a config that nobody here knows of leads to None, and never to other logits.
    """
    if not before.values.get("rope_parameters"):
        return None
    if all(own.same_as(scheme) for own, scheme in zip(layers.own, schedule, strict=True)):
        return before
    found = proposed(layers, schedule, before).transformers
    if found is None:
        return None
    settings = Settings(before.values | {name: value for name, value in found.items() if name in before.values})
    return settings if read_back(layers, schedule, settings) else None


def proposed(layers: Layers, schedule: Schedule, before: Settings) -> Expressed:
    """Return the settings that the one writer has for the rotations of a schedule; nobody has read them back yet."""
    reader = read(stock_config(layers.config, before.values), "extend")
    by_type = has_types(reader)
    turns: dict[str, Any] = {}
    for layer, scheme in schedule.items():
        turn = turn_of(scheme)
        kind = (layers.layer_type(layer) or FULL) if by_type else FULL
        if turn is None:
            continue
        if rope_of(turn) is None:
            return Expressed(note=f"{type(turn).__name__} is no rotation that rope_parameters describe")
        if turns.setdefault(kind, turn) != turn:
            return Expressed(note="its layers rotate differently, and rope_parameters say one rotation for all of them")
    if not turns:
        return Expressed(note="none of its layers rotates")
    temperature = next((part for each in schedule for part in each.parts if isinstance(part, DeepseekScale)), None)
    trained = layers.own.trained or before.values.get("max_position_embeddings")
    if trained is None:
        return Expressed(note="its config does not say at which length it was trained, and rope_parameters go by that")
    return expressed(reader, turns, trained, temperature=temperature)


def rope_of(turn: object) -> Rope | AxialRope | None:
    """The rotation that rope_parameters can describe, of all channels or a part; a subclass may turn otherwise."""
    if isinstance(turn, Partial):
        return rope_of(turn.method) if turn.temperature == "rotary" else None
    return turn if isinstance(turn, (Rope, AxialRope)) and type(turn) in (Rope, AxialRope) else None


# Read back


def read_back(layers: Layers, schedule: Schedule, settings: Settings) -> bool:
    """True if a stock config with these settings describes the schedule, and stock's rotary module rotates by it."""
    try:
        config = stock_config(layers.config, settings.values)
    except Exception:
        # A config that transformers refuses is not read as anything: Gemma 4 and Phi MoE raise errors of their own.
        return False
    try:
        now = own_schedule(config)
        turners = layers.turners or tuple(turners_in(layers.backbone))
        return all(map(same, now, schedule)) and all(rotates(layers, config, each, schedule) for each in turners)
    except (KeyError, ValueError, TypeError):
        return False


def same(one: Scheme, other: Scheme) -> bool:
    """True if two schemes differ at most in how the same rotation is written."""
    turn, its = turn_of(one), turn_of(other)
    if not same_beside(one, other) or (turn is None) != (its is None):
        return False
    if turn is None:
        return True
    rope, its_rope = rope_of(turn), rope_of(its)
    if rope is None or its_rope is None or (rope.head_dim, rope.pairs, turn.head_dim) != (
        its_rope.head_dim, its_rope.pairs, its.head_dim,
    ):  # fmt: skip
        return False
    if isinstance(rope, AxialRope) or isinstance(its_rope, AxialRope):
        both = (each.axis_of() if isinstance(each, AxialRope) else None for each in (rope, its_rope))
        if next(both) != next(both):
            return False
    return all(
        torch.allclose(frequencies(rope, n), frequencies(its_rope, n), rtol=1e-9, atol=1e-20)
        and abs(magnitude(rope, n) - magnitude(its_rope, n)) < 1e-9
        for n in {*lengths(rope), *lengths(its_rope)}
    )


def rotates(layers: Layers, config: Any, turner: Turner, schedule: Schedule) -> bool:
    """True if a rotary module of the model's class, built from a config, has the cosines and sines of the schedule."""
    for kind, turn in (turns_by_type(layers, schedule, turner) or {}).items():
        for length in lengths(cast("Rope", rope_of(turn))):
            # Some modules remember the longest text that they have seen.
            module = cast("Any", type(turner.module))(config)
            if not forms_at(module, kind, turn, length, torch.finfo(torch.float32))[0]:
                return False
    return True


class Marked:
    """Mixed into a config class of transformers: the dict of the config has marks."""

    stock: Any
    """The class of transformers."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to become the config of a model that is being built, which would be stock and saved as extended."""
        if name == "_attn_implementation_internal":
            built = builds(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if built is not None:
                raise ValueError(
                    f"milepost: {built}(config) would be built without the extension that this config stores; take "
                    f"copy.deepcopy(model), read a saved folder with {LOADED_BY}(folder), or build it from the config "
                    f"of restore(model) and extend it"
                )
        super().__setattr__(name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the dict of the config that stock transformers refuses."""
        return marked(self.stock.to_dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, so it is pickled by what it is made of.
        return _made, (self.stock, dict(self.__dict__))


def builds(frame: FrameType) -> str | None:
    """Return the class of the model of transformers whose __init__ runs in a frame, or None.

    That is where every such model settles its attention, and writes it into the config; nothing else tells a config
    that a model is made of it. A user's class around a model has no layers of its own: none of its classes that are of
    transformers has an __init__, but for PreTrainedModel. Those that it makes of the config are refused in turn.
    """
    from transformers import PreTrainedModel

    made = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
    if not isinstance(made, PreTrainedModel):
        return None
    layered = ("__init__" in vars(each) for each in type(made).__mro__ if each.__module__.startswith(MODELS))
    return type(made).__name__ if any(layered) else None


@cache
def _marked_class(stock: Any) -> Any:
    return type(f"Milepost{stock.__name__}", (Marked, stock), {"__module__": __name__, "stock": stock})


def _made(stock: Any, values: dict[str, Any]) -> Any:
    kind = _marked_class(stock)
    made = kind.__new__(kind)
    made.__dict__.update(values)
    return made


def store(config: Any, extension: dict[str, Any]) -> None:
    """Store an extension in the config of its model."""
    clear(config)
    setattr(config, KEY, extension)
    if extension.get("marked"):
        config.__class__ = _marked_class(cast("Any", type(config)))


def clear(config: Any) -> None:
    """Remove an extension from the config of its model."""
    if isinstance(config, Marked):
        config.__class__ = config.stock
    config.__dict__.pop(KEY, None)


def stored_schedule(config: Any, called: str) -> Schedule:
    """Return the schedule that a config stores; raise where the rest of it was edited since, or nothing is stored."""
    stored = stored_in(text_of(config) or config)
    if stored is None:
        raise ValueError(
            f"{called}: the config of this model was replaced by one that stores no extension; set what you need in "
            f"model.config as extend left it, or restore(model), replace it, and extend again"
        )
    with undrawn():
        return schedule_in(stored, stock_schedule(read(config, called)), False, called)


def unedited(module: Any) -> list[Any]:
    """Register that no state_dict, which `save_pretrained` asks for, is made beside a config that `load` refuses."""
    return [module.register_state_dict_pre_hook(_before_state)]


def _before_state(module: Any, prefix: str, keep_vars: bool) -> None:
    stored_schedule(module.config, "state_dict of an extended model")


def without(config: Any) -> Any:
    """Return a copy of the config of a model without its extension; what else it says stays."""
    copied = copy.deepcopy(config)
    clear(copied)
    return copied


def stock_config(config: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a config without its extension and with some changes, as stock transformers would read it."""
    kind = cast("Any", config.stock if isinstance(config, Marked) else type(config))
    plain = {key: each for key, each in unmarked(config.to_dict()).items() if key != KEY}
    return kind.from_dict(plain | changes)
