"""The value of a part: what may be remembered of it, and what has to be asked again at every call.

- A frozen method of ours has a value, and it cannot change. It is known by exact type, so that a subclass is not taken
  for it.
- A learned method of ours has a state: its plain attributes and the shapes of its tensors. It is read at every call.
- Any other class has neither, and nothing is remembered of it: who knows what it reads. One that sets `fixed = True` in
  its own body has a value, what its objects hold, and `attend` raises if that changes. One that learns has a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from milepost.memory.internals import module_hooks

PLAIN = frozenset((bool, int, str, bytes, type(None), torch.dtype, torch.device, range))
OURS = "milepost."
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_fields: dict[type, tuple[str, ...] | None] = {}
_declared: MutableMapping[object, Hashable] = WeakIdKeyDictionary()
"""The value that each object of a class that declares itself fixed had when it was first met.

By which object it is: two that are == may hold different things.
"""


def value_of(part: object) -> Hashable | None:
    """Return what tells a part from every other that differs from it, or None if it may change.

    Numbers of different types differ: 2 and 2.0 make tensors of other dtypes.
    """
    kind = type(part)
    if kind in PLAIN:
        return kind, part
    if kind is float:
        # Tells 0.0 from −0.0.
        return kind, cast("float", part).hex()
    if kind is tuple:
        return _all(map(value_of, cast("tuple[object, ...]", part)))
    names = _frozen_fields(kind)
    if names is not None:
        found = _all(value_of(getattr(part, name)) for name in names)
        return None if found is None else (kind, found)
    return _declared_value(part) if _declares(kind) and not isinstance(part, nn.Module) else None


def is_fixed(part: object) -> bool:
    """True if nothing about a part can change, so that what follows from it may be remembered."""
    return value_of(part) is not None


def is_ours(part: object) -> bool:
    """True if a part is fixed and made of nothing but frozen classes of ours: its value need not be read again."""
    kind = type(part)
    if kind in PLAIN or kind is float:
        return True
    if kind is tuple:
        return all(map(is_ours, cast("tuple[object, ...]", part)))
    names = _frozen_fields(kind)
    return names is not None and all(is_ours(getattr(part, name)) for name in names)


def _all(values: Iterable[Hashable | None]) -> tuple[Hashable | None, ...] | None:
    found = tuple(values)
    return None if None in found else found


def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a frozen dataclass of ours; None for every other class."""
    if not kind.__module__.startswith(OURS):
        return None
    # Not functools.cache, which torch.compile warns of.
    if kind not in _fields:
        frozen = dataclasses.is_dataclass(kind) and cast("Any", kind).__dataclass_params__.frozen
        _fields[kind] = tuple(field.name for field in dataclasses.fields(cast("Any", kind))) if frozen else None
    return _fields[kind]


def _declares(kind: type) -> bool:
    """True if a class declares its objects fixed; a subclass of it has to do so itself."""
    return vars(kind).get("fixed") is True


def _declared_value(part: object) -> Hashable:
    """The value of an object whose class declares itself fixed."""
    kind, held = type(part), held_by(part)
    for name, value in held.items():
        if value_of(value) is None:
            raise TypeError(
                f"{kind.__name__}.{name}: the class declares itself fixed, and a {type(value).__name__} may change; "
                f"hold numbers, text and tuples of these, or leave out `fixed = True`"
            )
    found = (kind, tuple((name, value_of(value)) for name, value in held.items()))
    if found != _declared.setdefault(part, found):
        raise TypeError(
            f"{kind.__name__}: the class declares itself fixed, and an object of it was changed after it was used; "
            f"make a new object, or leave out `fixed = True`"
        )
    return found


def held_by(part: object) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    held: dict[str, Any] = dict(getattr(part, "__dict__", {}))
    for each in type(part).__mro__:
        slots: Any = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(part, name):
                held[name] = getattr(part, name)
    return held


def state_of(part: object) -> Hashable | None:
    """Return what decides how a part runs, but for the numbers in its tensors; None if that cannot be known.

    Two calls between which it stayed the same do the same to their tensors.
    """
    value = value_of(part)
    if value is not None:
        return value
    return None if module_hooks() else _state_of(part, {id(part): 0})


def _state_of(part: object, known: dict[int, int]) -> Hashable | None:
    """known: the modules and weights met so far, by number: which of them are one matters, not where they lie."""
    kind = type(part)
    if not isinstance(part, nn.Module):
        return _state_of_holder(part, known)
    # Torch's own modules inside one of ours: their attributes say all.
    if not kind.__module__.startswith((OURS, "torch.nn.modules.")) and not _declares(kind):
        return None
    inside = part.__dict__
    if any(inside[name] for name in _HOOKS):
        # What it does is also what these do.
        return None
    found: list[Hashable] = [kind]
    for name, held in inside.items():
        if name not in _OF_EVERY_MODULE:
            state = _state_of_value(held)
            if state is None:
                return None
            found.append((name, state))
    # buffers() and children() return the same in four times the time, and this is read at every call.
    for name, buffer in inside["_buffers"].items():
        if buffer is not None and buffer.requires_grad:
            return None
        found.append((name, None if buffer is None else (id(buffer), buffer.shape, buffer.dtype, buffer.device)))
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


def _state_of_holder(part: object, known: dict[int, int]) -> Hashable | None:
    """The state of a frozen dataclass of ours that holds something that learns."""
    names = _frozen_fields(type(part))
    if names is None:
        return None
    found: list[Hashable] = [type(part)]
    for name in names:
        value = getattr(part, name)
        state = value_of(value)
        if state is None:
            number = known.setdefault(id(value), len(known))
            state = _state_of(value, known)
            if state is None:
                return None
            state = (number, state)
        found.append(state)
    return tuple(found)


def _state_of_value(value: object) -> Hashable | None:
    """The state of a learned part's attribute: a tensor is known by which one it is."""
    if isinstance(value, Tensor):
        return None if value.requires_grad else (id(value), value.shape, value.dtype, value.device)
    if type(value) is tuple:
        return _all(map(_state_of_value, cast("tuple[object, ...]", value)))
    return value_of(value)
