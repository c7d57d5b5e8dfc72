"""The conventions of a model, a config or a function: what it does with positions, measured where it can be run."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.configs import read, schedule_of
from milepost.configs.layers import layer_type
from milepost.configs.reader import Reader, look_up
from milepost.configs.rotary import Rotary as RotaryFamily
from milepost.hf.beside import Beside, beside_alone, beside_of
from milepost.hf.buckets import stretched
from milepost.hf.companion import schedules_in
from milepost.hf.extension import Extension, extension_of
from milepost.hf.models import device_of
from milepost.hf.probe import Rotary, Turning, probe
from milepost.hf.source import config_of
from milepost.methods.alibi import Alibi
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.methods.t5_bias import T5Bias
from milepost.schedule import Schedule
from milepost.scheme import Scheme

FAR = 300
"""Distances on each side at which buckets are looked at."""


@dataclass(frozen=True)
class Convention:
    """What something does with positions.

    turnings are its rotations by layer type, "" where all layers turn alike; base is the declared one, if any. scale is
    what scores are multiplied by. slopes [h] are ALiBi's, and buckets T5's, for distances −300 … 300 of a key ahead
    of its query, by stack. scales are those of all attention modules of a model. beside is what else the layers do,
    None where nobody says. read says what was measured and what was taken from a config.
    """

    name: str
    turnings: dict[str, Turning] = field(default_factory=dict[str, Turning])
    base: float | None = None
    scale: float | None = None
    slopes: Tensor | None = None
    buckets: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    scales: tuple[float, ...] = ()
    beside: Beside | None = None
    read: str = ""


def convention_of(given: object, name: str, dim: int | None = None) -> Convention:
    """The conventions of a model, a config, a folder, a name of the hub, a method, a tensor of slopes or a function."""
    if isinstance(given, Tensor):
        if given.dim() != 1:
            raise ValueError(f"check: a tensor is taken for ALiBi's slopes, [heads]; {name} is {list(given.shape)}")
        return Convention(name, slopes=given.double().cpu(), read="slopes as given")
    if isinstance(given, Scheme):
        return replace(_of_scheme(given, name, dim), beside=beside_of([given]))
    if isinstance(given, Schedule):
        if len(given.schemes) > 1:
            raise ValueError(f"check: the layers of {given!r} differ; give one of its schemes, {name}[0]")
        return convention_of(given[0], name, dim)
    if isinstance(given, (Alibi, T5Bias)) or getattr(given, "rotary", False):
        return replace(_of_scheme(Scheme(given), name, dim), beside=beside_alone(given))
    if isinstance(given, nn.Module) and look_up(given, "config") is not None:
        return _of_model(given, name)
    if is_function(given):
        return _of_function(cast("Rotary", given), name, dim)
    return _of_config(given, name)


def is_function(given: object) -> bool:
    """Whether this is a rotary function, which does not say how many channels a head has."""
    if not callable(given) or isinstance(given, (type, Scheme, Schedule, T5Bias)) or getattr(given, "rotary", False):
        return False
    return look_up(given, "model_type", "config") is None


def _of_function(rotary: Rotary, name: str, dim: int | None) -> Convention:
    if dim is None:
        raise ValueError("check: how many channels does a head have? A function does not say; pass dim=128")
    return Convention(name, {"": probe(rotary, dim)}, read="turned unit vectors")


def _of_scheme(scheme: Scheme, name: str, dim: int | None) -> Convention:
    """One scheme of ours."""
    turn = next((part for part in scheme.parts if getattr(part, "rotary", False)), None)
    own: Any = turn
    width: int | None = dim if turn is None else own.head_dim
    return Convention(
        name,
        {} if turn is None else {"": probe(own.turn, own.head_dim)},
        base=_base(turn),
        scale=None if width is None else scale_of(scheme, width),
        slopes=_slopes(scheme),
        buckets=_buckets([scheme]),
        read="measured",
    )


def _base(turn: object) -> float | None:
    rope = turn.method if isinstance(turn, Partial) else turn
    return rope.theta if isinstance(rope, Rope) else None


def _slopes(scheme: Scheme) -> Tensor | None:
    alibi = next((part for part in scheme.parts if isinstance(part, Alibi)), None)
    return None if alibi is None or alibi.by_length else alibi.slopes().behind


def scale_of(scheme: Scheme, dim: int) -> float:
    """What the scores of the first query are multiplied by."""
    index, length = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long)
    sharper = scheme.sharpen(index, length)
    return scheme.scale(dim) * (1.0 if sharper is None else float(sharper.flatten()[0]))


def ahead() -> Tensor:
    """How far a key lies ahead of its query, from −300 to 300."""
    return torch.arange(-FAR, FAR + 1)


def _buckets(schemes: list[Scheme]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for scheme in schemes:
        for part in scheme.parts:
            if isinstance(part, T5Bias):
                found["encoder" if part.bidirectional else "decoder"] = part.bucket(-ahead())
    return found


# Configurations


def _of_config(given: object, name: str) -> Convention:
    config = config_of(given, "check")
    reader = read(config, "check")
    kept = schedules_in(given)
    schedule = kept[0] if kept else schedule_of(config)
    turns, schemes = _turns(reader, list(schedule)), [schedule[0]]
    if look_up(config, "is_encoder_decoder") and not reader.decodes and "t5" in reader.model_type:
        plain: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else dict(config)
        schemes.append(schedule_of({**plain, "is_decoder": True})[0])
    return Convention(
        name,
        {kind: probe(turn.turn, turn.head_dim) for kind, turn in turns.items()},
        base=_base(next(iter(turns.values()), None)),
        scale=scale_of(schedule[0], _head_width(turns, reader)),
        slopes=_slopes(schedule[0]),
        buckets=_buckets(schemes),
        beside=beside_of(scheme for each in kept or [schedule] for scheme in each),
        read="as it was extended" if kept else "read from its config",
    )


def _extended(done: Extension, name: str) -> Convention:
    """A model that was extended: what its layers do now, whatever its config says."""
    reader = read(done.layers.config, "check")
    turns = _turns(reader, list(done.schedule))
    return Convention(
        name,
        {kind: probe(turn.turn, turn.head_dim) for kind, turn in turns.items()},
        base=_base(next(iter(turns.values()), None)),
        scale=scale_of(done.schedule[0], _head_width(turns, reader)),
        slopes=_slopes(done.schedule[0]),
        beside=beside_of(done.schedule),
        read="as it was extended",
    )


def _head_width(turns: Mapping[str, Any], reader: Reader) -> int:
    return next((turn.head_dim for turn in turns.values()), reader.head_width)


def _turns(reader: Reader, schemes: list[Scheme]) -> dict[str, Any]:
    """The rotations of a model by layer type; "" where all its layers turn alike."""
    found: dict[str, Any] = {}
    for layer, scheme in enumerate(schemes):
        turn = next((part for part in scheme.parts if getattr(part, "rotary", False)), None)
        rule = reader.family.rule if isinstance(reader.family, RotaryFamily) else None
        if turn is not None and rule is not None:
            found.setdefault(layer_type(reader, layer, rule), turn)
    return {"": next(iter(found.values()))} if found and len(set(found.values())) == 1 else found


# Models


def _of_model(model: nn.Module, name: str) -> Convention:
    """A model of transformers: its own functions where they can be called, its config for the rest."""
    done, stacks = extension_of(model), stretched(model)
    if done is not None:
        return _extended(done, name)
    from_config = _of_config(model, name)
    turnings, measured = from_config.turnings, ["config"]
    if turnings:
        own = _turned_by(model, next(iter(turnings.values())).dim, list(turnings))
        turnings, measured = (own, ["rotation"]) if own is not None else (turnings, measured)
    scales = [each.scaling for each in model.modules() if isinstance(getattr(each, "scaling", None), float)]
    slopes = from_config.slopes if from_config.slopes is None else _slopes_of(model)
    buckets = _buckets_of(model)
    return Convention(
        name,
        turnings,
        base=from_config.base,
        scale=cast("float", scales[0]) if scales else from_config.scale,
        slopes=from_config.slopes if slopes is None else slopes,
        buckets=buckets or from_config.buckets,
        scales=tuple(cast("list[float]", scales)),
        beside=from_config.beside if stacks is None or not stacks.schedules else beside_of(stacks.schemes),
        read=f"its own {measured[0]}" if measured == ["rotation"] else "read from its config",
    )


def _turned_by(model: nn.Module, dim: int, kinds: list[str]) -> dict[str, Turning] | None:
    """The rotations that a model's own modules and functions make; None where they are called otherwise."""
    made = next((each for each in model.modules() if hasattr(each, "rotary_emb")), None)
    attention = next((each for each in model.modules() if type(each).__name__.endswith("Attention")), None)
    apply = None if attention is None else _apply_of(attention, model)
    if made is None or apply is None:
        return None
    # A dynamic rotation remembers the longest text it has met; the user's own is left as it is.
    emb: Any = copy.deepcopy(made.rotary_emb)
    found: dict[str, Turning] = {}
    for kind in kinds:
        try:
            found[kind] = probe(_turn_with(emb, apply, kind), dim, device_of(model))
        except (TypeError, ValueError, RuntimeError, AttributeError):
            # It wants other arguments than most: believe the config.
            return None
    return found


def _apply_of(attention: nn.Module, model: nn.Module) -> Callable[..., Any] | None:
    """The function beside an attention module that turns queries and keys."""
    beside = vars(sys.modules[type(attention).__module__])
    names = ["apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave"]
    if look_up(getattr(model, "config", None), "rope_interleave"):
        names.reverse()
    return next((beside[name] for name in names if name in beside), None)


def _turn_with(emb: Any, apply: Callable[..., Any], kind: str) -> Rotary:
    layered = hasattr(emb, "layer_types")

    def turn(x: Tensor, position: Tensor) -> Tensor:
        given = (position[None],) if not layered else (position[None], kind or emb.layer_types[0])
        cos, sin = emb(x[:1], *given)
        kinds = f"{given[-1]}_inv_freq" if layered else "inv_freq"
        width = 2 * getattr(emb, kinds).shape[-1]
        turned = apply(x[..., :width], x[..., :width], cos, sin)[0]
        return torch.cat((turned, x[..., width:]), -1)

    return turn


def _slopes_of(model: nn.Module) -> Tensor | None:
    """ALiBi's slopes as a model's own function makes them, and as its attention adds them."""
    reader = read(config_of(model, "check"), "check")
    modules = [vars(sys.modules[type(each).__module__]) for each in model.modules()]
    for beside in modules:
        if "build_alibi_tensor" in beside:
            mask = torch.ones(1, 3)
            made = beside["build_alibi_tensor"](mask, reader.heads, torch.float32)
            slopes = made.double().reshape(reader.heads, -1).diff(dim=-1)[:, 0]
            # Falcon adds its bias before it divides by √d.
            return slopes * reader.head_width**-0.5 if reader.model_type == "falcon" else slopes
        if "build_mpt_alibi_tensor" in beside:
            most = look_up(look_up(model.config, "attn_config") or {}, "alibi_bias_max") or 8
            made = beside["build_mpt_alibi_tensor"](reader.heads, 3, most)
            return made.double().reshape(reader.heads, -1).diff(dim=-1)[:, 0]
    return None


def _buckets_of(model: nn.Module) -> dict[str, Tensor]:
    """T5's buckets as a model's own attention makes them."""
    found: dict[str, Tensor] = {}
    for each in model.modules():
        own: Any = each
        if getattr(own, "has_relative_attention_bias", False) and hasattr(own, "_relative_position_bucket"):
            stack = "decoder" if own.is_decoder else "encoder"
            given: dict[str, Any] = {
                "bidirectional": not own.is_decoder,
                "num_buckets": own.relative_attention_num_buckets,
                "max_distance": own.relative_attention_max_distance,
            }
            # umT5's reads all that off the module.
            taken = inspect.signature(own._relative_position_bucket).parameters
            if "num_buckets" not in taken and not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                given = {}
            found.setdefault(stack, own._relative_position_bucket(ahead(), **given))
    return found
