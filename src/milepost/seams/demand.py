"""Checks on what a user asked for. Each error says what was asked, what is wrong and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import FunctionType

import torch
from torch import Tensor

from milepost.seams.arguments import spell
from milepost.seams.verbs import verbs_of


def asked(owner: object, name: str, value: object) -> str:
    """The user's own call, as the head of an error: `Rope(dim=127)`."""
    called = owner.__name__ if isinstance(owner, FunctionType) else getattr(owner, "called", type(owner).__name__)
    return f"{called}({name}={value!r})"


def whole(owner: object, name: str, value: object, least: int = 1) -> None:
    """Demand an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be at least {least}")


def even(owner: object, name: str, value: object, why: str) -> None:
    """Demand a positive even integer."""
    whole(owner, name, value, least=1)
    if isinstance(value, int) and value % 2:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be even, because {why}")


def finite(owner: object, name: str, value: float, above: float | None = None, least: float | None = None) -> None:
    """Demand a finite number, larger than `above` or at least `least` where these are given."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{asked(owner, name, value)}: {name} must be finite")
    if above is not None and value <= above:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be greater than {above:g}")
    if least is not None and value < least:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be at least {least:g}")


def flag(owner: object, name: str, value: object) -> None:
    """Demand True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{asked(owner, name, value)}: {name} is True or False, not {type(value).__name__}")


def one_of(owner: object, name: str, value: object, choices: Sequence[object]) -> None:
    """Demand one of the `choices`."""
    if value not in choices:
        raise ValueError(f"{asked(owner, name, value)}: {name} must be one of {', '.join(map(repr, choices))}")


def stretch(owner: object, name: str, value: object, verbs: type, such_as: str) -> None:
    """Demand None, or a method that answers the verbs of a protocol."""
    # What is a part of a scheme by itself stretches nothing, though it may answer a facet of the same name.
    if value is None or (isinstance(value, verbs) and not isinstance(value, type) and not verbs_of(value)):
        return
    given = value.__name__ if isinstance(value, type) else repr(value)
    made = f"this is a class; make one: {given}(…); " if isinstance(value, type) else ""
    raise TypeError(f"{type(owner).__name__}({name}={given}): {made}a {name} is a method such as {such_as}")


def moves(owner: object, method: object) -> None:
    """Demand a method that moves far keys, and is nothing else."""
    if isinstance(method, type):
        name = f"{type(owner).__name__}({method.__name__})"
        raise TypeError(f"{name}: this is a class; make one: {method.__name__}(…)")
    if set(verbs_of(method)) != {"place"}:
        name = f"{type(owner).__name__}({method!r})"
        raise TypeError(f"{name}: the method must move far keys and do nothing else, as Rerope(256)")


def order(owner: object, x: Tensor, index: Tensor | None) -> Tensor:
    """The index of embeddings x [b t D], 0 … t − 1 if None; demand [t] or [b t] otherwise."""
    b, t = x.shape[0], x.shape[-2]
    if index is None:
        return torch.arange(t, device=x.device)
    if index.dtype == torch.bool or index.is_complex():
        raise TypeError(f"{type(owner).__name__}: index must be integers, given {index.dtype}")
    if index.shape not in ((t,), (b, t), (1, t)):
        raise ValueError(f"{type(owner).__name__}: index must be [{t}] or [{b}, {t}], given {list(index.shape)}")
    return index


def several(owner: object, name: str, value: object) -> None:
    """Demand a tuple or a list."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{asked(owner, name, value)}: {name} must be a tuple, not {type(value).__name__}")


def width(owner: object, x: Tensor, dim: int, name: str = "dim", partly: bool = False) -> None:
    """Demand that the last axis of x has dim channels; `partly` where some of more could be turned."""
    if x.shape[-1] != dim:
        more = partly and x.shape[-1] > dim
        hint = f"; to turn only some of them use Partial({spell(owner)}, of={x.shape[-1]})" if more else ""
        raise ValueError(f"{asked(owner, name, dim)}: given a tensor of {x.shape[-1]} channels{hint}")


def checking_values(device: torch.device) -> bool:
    """Whether values may be looked at: not where that would wait for a device or break a traced graph."""
    return device.type == "cpu" and not torch.compiler.is_compiling()
