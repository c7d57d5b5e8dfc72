"""The steps of a tape, and playing them on tensors in numbered slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Slots = list[Any]
"""The tensors of one playing, by number."""
Run = Callable[..., Any]


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands among the arguments of an operation."""

    number: int


@dataclass
class Step:
    """One operation: what it is given, as constants and slots, and where its answers go."""

    run: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    makes: tuple[int | None, ...]
    """Of each answer: its slot, or None where it is no tensor."""
    single: bool
    """Whether it answers one tensor, and not several."""
    pure: bool
    """Whether it does nothing but answer."""
    room: bool = False
    done: list[int] = field(default_factory=list[int])
    """Slots that nobody reads afterwards."""


def playing(
    blank: Slots, inputs: list[int], players: list[Callable[[Slots], None]], wanted: list[int | None]
) -> Callable[..., Slots]:
    """All steps as a function of the tensors in the slots of inputs, which answers those that are wanted."""

    def play(*given: Tensor) -> Slots:
        slots = blank.copy()
        for number, each in zip(inputs, given, strict=True):
            slots[number] = each
        for player in players:
            player(slots)
        return [None if number is None else slots[number] for number in wanted]

    return play


def player(step: Step, tensors: list[Tensor]) -> Callable[[Slots], None]:
    """One step as a function of the slots."""
    if step.room and step.makes[0] is not None:
        return _making_room(step.makes[0], tensors[step.makes[0]])
    inner = [each for each in step.args if not isinstance(each, Slot)]
    flat = not any(isinstance(each, Slot) for each in tree_leaves((inner, step.kwargs)))
    return _storing(_flat(step) if flat else _nested(step), step)


def _making_room(made: int, x: Tensor) -> Callable[[Slots], None]:
    size, steps, dtype, device = tuple(x.shape), x.stride(), x.dtype, x.device

    def make_room(slots: Slots) -> None:
        slots[made] = torch.empty_strided(size, steps, dtype=dtype, device=device)

    return make_room


def _flat(step: Step) -> Callable[[Slots], Any]:
    """A step whose tensors are arguments of their own."""
    run, kwargs = step.run, step.kwargs
    template = [None if isinstance(each, Slot) else each for each in step.args]
    places = [(n, each.number) for n, each in enumerate(step.args) if isinstance(each, Slot)]

    def call(slots: Slots) -> Any:
        args = template.copy()
        for place, number in places:
            args[place] = slots[number]
        return run(*args, **kwargs)

    return call


def _storing(call: Callable[[Slots], Any], step: Step) -> Callable[[Slots], None]:
    makes, single, done = step.makes, step.single, step.done

    def run(slots: Slots) -> None:
        found = call(slots)
        if single:
            if makes[0] is not None:
                slots[makes[0]] = found
        elif makes:
            for number, each in zip(makes, found, strict=True):
                if number is not None:
                    slots[number] = each
        for number in done:
            slots[number] = None

    return run


def _nested(step: Step) -> Callable[[Slots], Any]:
    """A step with tensors in lists or by name."""

    def call(slots: Slots) -> Any:
        args, kwargs = tree_map_only(Slot, lambda each: slots[each.number], (step.args, step.kwargs))
        return step.run(*args, **kwargs)

    return call
