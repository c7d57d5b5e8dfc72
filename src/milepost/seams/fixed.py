"""What about a part can change between two calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_fixed(part: object) -> bool:
    """Whether nothing about the part can change: what follows from it may be kept."""
    names = _frozen_fields(type(part))
    if names is None:
        return False
    for name in names:
        value = getattr(part, name)
        if isinstance(value, (nn.Module, Tensor)) or (dataclasses.is_dataclass(value) and not is_fixed(value)):
            return False
    try:
        hash(part)
    except TypeError:
        # It holds a list, say, which anybody can change.
        return False
    return True


@functools.lru_cache(maxsize=256)
def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass; None for other classes."""
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # pyright: ignore
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def state_of(part: object) -> Hashable | None:
    """What was said to a part that can change, besides the numbers in its tensors; None where that cannot be read.

    Two calls between which it stayed the same do the same to their tensors.
    """
    return _state_of(part, {id(part): 0})


def _state_of(part: object, known: dict[int, int]) -> Hashable | None:
    """known: the modules and weights that were met, by number: which of them are one matters, not where they lie."""
    kind = type(part)
    if _has_slots(kind):
        return None
    found: list[Hashable] = [kind]
    is_module = isinstance(part, nn.Module)
    for name, value in part.__dict__.items():
        if is_module and name in _OF_EVERY_MODULE:
            continue
        state = _state_of_value(value)
        if state is None:
            return None
        found.append((name, state))
    if not isinstance(part, nn.Module):
        return tuple(found)
    inside = part.__dict__
    if any(inside[name] for name in _HOOKS):
        # What it does is also what these do.
        return None
    # buffers() and children() say the same in four times the time, and this is asked at every call.
    for name, buffer in inside["_buffers"].items():
        if buffer is not None and buffer.requires_grad:
            return None
        # Its number alone would not do: who reads nothing but a shape does not hold it, and another may get it.
        found.append((name, None if buffer is None else (id(buffer), buffer.shape, buffer.dtype)))
    for name, weight in inside["_parameters"].items():
        found.append((name, None if weight is None else known.setdefault(id(weight), len(known))))
    for name, child in inside["_modules"].items():
        if child is None or id(child) in known:
            found.append((name, None if child is None else known[id(child)]))
            continue
        known[id(child)] = len(known)
        state = _state_of(child, known)
        if state is None:
            return None
        found.append((name, state))
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _has_slots(kind: type) -> bool:
    """Whether objects keep something elsewhere than in their `__dict__`."""
    return not hasattr(kind, "__dict__") or any(vars(each).get("__slots__") for each in kind.__mro__)


def _state_of_value(value: object) -> Hashable | None:
    if isinstance(value, PLAIN):
        # 2 and 2.0 are equal, and make other dtypes.
        return type(value), value
    if isinstance(value, Tensor):
        return None if value.requires_grad else id(value)
    if isinstance(value, tuple):
        states = tuple(_state_of_value(each) for each in value)  # pyright: ignore
        return None if None in states else states
    return (value,) if is_fixed(value) else None
