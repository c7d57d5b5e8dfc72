"""The one table of what is remembered between calls, and `kept`: a function whose results are remembered in it."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar, cast

import torch

from milepost.memory.fixed import value_of
from milepost.memory.surroundings import Surroundings, capturing, has_numbers, surroundings

P = ParamSpec("P")
T = TypeVar("T")


class Memory:
    """Results by owner and key. An owner is a scheme, a function or a kernel; what it owns is forgotten with it.

    Of more results than an owner may have, the one used longest ago is forgotten.
    """

    def __init__(self) -> None:
        self._owned: dict[int, tuple[weakref.ref[Any], dict[Hashable, Any]]] = {}
        self._pinned: list[object] = []
        # An owner may be collected while its own thread looks something up.
        self._lock = threading.RLock()

    def of(self, owner: object) -> dict[Hashable, Any]:
        """Return what an owner has, by key."""
        number = id(owner)
        found = self._owned.get(number)
        if found is None or found[0]() is not owner:
            with self._lock:
                found = self._owned.get(number)
                if found is None or found[0]() is not owner:
                    found = self._owned[number] = weakref.ref(owner, functools.partial(self._drop, number)), {}
        return found[1]

    def _drop(self, number: int, ref: weakref.ref[Any]) -> None:
        found = self._owned.get(number)
        if found is not None and found[0] is ref:
            del self._owned[number]

    def recall(self, owner: object, key: Hashable) -> Any:
        """Return what was remembered under a key, or None."""
        known = self.of(owner)
        found = known.get(key)
        if found is not None and len(known) > 1:
            with self._lock:
                # The latest come last.
                known[key] = known.pop(key, found)
        return found

    def keep(self, owner: object, key: Hashable, value: T, most: int) -> T:
        """Remember a value, and return it."""
        known = self.of(owner)
        with self._lock:
            known[key] = value
            while len(known) > most:
                del known[next(iter(known))]
        return value

    def pin(self, value: T) -> T:
        """Keep a value for good: a CUDA graph that was captured reads it at every replay."""
        if all(value is not each for each in self._pinned):
            self._pinned.append(value)
        return value

    def forget(self) -> None:
        """Forget everything but what graphs read."""
        with self._lock:
            for _, known in list(self._owned.values()):
                known.clear()


MEMORY = Memory()


def kept(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the `most` latest results of a function that makes tensors from parts, numbers and a device, its last
    argument.

    Nothing is remembered of an argument that may change: see `value_of`. While a CUDA graph is captured nothing new is
    remembered, but what was is read, and pinned.
    """

    def keep(make: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(make)
        def result(*args: P.args, **kwargs: P.kwargs) -> T:
            # A graph that is traced makes everything anew, and cannot look into this table.
            if not has_numbers():
                return make(*args, **kwargs)
            device = args[-1]
            assert isinstance(device, torch.device)
            asked = value_of((*args, *sorted(kwargs.items())))
            if asked is None:
                return make(*args, **kwargs)
            around = surroundings(device)
            if around is None:
                found = _made_before(result, asked) if capturing(device) else None
                return make(*args, **kwargs) if found is None else MEMORY.pin(found)
            found = MEMORY.recall(result, (around, asked))
            return MEMORY.keep(result, (around, asked), make(*args, **kwargs), most) if found is None else found

        return result

    return keep


def by_value(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the `most` latest results of a function that makes no tensors."""

    def keep(make: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(make)
        def result(*args: P.args, **kwargs: P.kwargs) -> T:
            asked = value_of((*args, *sorted(kwargs.items())))
            if asked is None or torch.compiler.is_compiling():
                return make(*args, **kwargs)
            found = MEMORY.recall(result, asked)
            # In a tuple, because a result may be None.
            return (MEMORY.keep(result, asked, (make(*args, **kwargs),), most) if found is None else found)[0]

        return result

    return keep


def _made_before(owner: object, asked: Hashable) -> Any:
    """What was made of the same arguments outside of the graph that is captured, on whichever stream."""
    inference = torch.is_inference_mode_enabled()
    for (around, one), found in cast("dict[tuple[Surroundings, Hashable], Any]", MEMORY.of(owner)).copy().items():
        if one == asked and around.modes[1] == inference:
            return found
    return None
