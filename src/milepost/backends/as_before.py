"""What a backward pass makes again, it makes from the tensors and the scheme of the forward pass, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.backends.scores import Prepared
from milepost.call.call import Call
from milepost.memory.fixed import held_by, is_fixed
from milepost.seams.parts import Parts
from milepost.seams.verbs import verbs_of

GIVEN = ("q", "k", "v", "x", "index", "key_index", "position", "key_position", "documents", "key_documents", "length")


def as_before(made: Prepared, run: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Return what makes, for each block, a `run` that reads `made` now, and later the scheme as it is now.

    Later it raises where one of the call's tensors was modified. It is given all arguments of `run` but the first.
    """
    # What a compiled graph saves for its backward pass, torch looks after.
    if torch.compiler.is_compiling():
        return lambda: lambda *args: run(made, *args)
    call = made.call
    # Forward and backward pass may read other weights: by then these were trained, loaded, or put back.
    kept = replace(call, scheme=Parts(*_copied(call.scheme.parts, {})))
    later = replace(made, call=kept, views=[replace(view, call=kept) for view in made.views])
    versions = [(name, each, _version(each)) for name, each in _given(call)]

    def block() -> Callable[..., Any]:
        begun: list[bool] = []

        def again(*args: Any) -> Any:
            if not begun:
                begun.append(True)
                return run(made, *args)
            for name, each, version in versions:
                if _version(each) != version:
                    raise RuntimeError(
                        f"attend: {name} has been modified by an in-place operation since the forward pass, and this "
                        f"backward pass makes blocks of scores again from it; modify it after the backward pass, or "
                        f"give attend backend='reference', which keeps all scores"
                    )
            return run(later, *args)

        return again

    return block


def _given(call: Call) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor | None]] = [(name, getattr(call, name)) for name in GIVEN]
    return [(name, each) for name, each in found if each is not None]


def _copied(part: object, known: dict[int, Any]) -> Any:
    """Return a part as it is now: another object, whose tensors are copies. What cannot change is itself.

    So are objects of classes that copy in a way of their own (locks, files, functions, loggers).
    known: copies made so far, by the number of the object; what is held twice is held twice by the copy.
    """
    number = id(part)
    if number in known:
        return known[number]
    twin: Any = part
    if isinstance(part, Tensor):
        twin = known[number] = part.detach().clone().requires_grad_(part.requires_grad)
    elif isinstance(part, tuple):
        items = [_copied(one, known) for one in cast("tuple[object, ...]", part)]
        if any(new is not old for new, old in zip(items, cast("tuple[object, ...]", part), strict=True)):
            twin = known[number] = tuple.__new__(type(part), items)  # pyright: ignore
    elif isinstance(part, (list, set, dict)):
        twin = known[number] = copy.copy(cast("Any", part))
        twin.clear()
        if isinstance(part, dict):
            each = cast("dict[object, object]", part).items()
            twin.update({name: _copied(one, known) for name, one in each})
        else:
            made = [_copied(one, known) for one in cast("list[object] | set[object]", part)]
            twin.extend(made) if isinstance(part, list) else twin.update(made)
    elif not is_fixed(part) and held_by(part):
        twin = known[number] = _twin_of(part)
        if twin is not part:
            for name, one in held_by(part).items():
                # Modules and frozen classes have ways of their own to be assigned to.
                object.__setattr__(twin, name, _copied(one, known))
    return twin


def _twin_of(part: object) -> object:
    """Return another object that holds the same, or itself: of a class, and of what must be there once."""
    if isinstance(part, nn.Module) or verbs_of(part):
        return copy.copy(part)
    kind = type(part)
    plain = kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
    if hasattr(kind, "__del__") or not (plain or kind is SimpleNamespace):
        return part
    try:
        return copy.copy(part)
    except TypeError:
        # What C holds, and Python cannot copy.
        return part


def _version(x: Tensor) -> int:
    """Return how often a tensor was modified; what inference mode made does not count it."""
    return 0 if x.is_inference() else x._version
