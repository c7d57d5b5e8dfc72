"""The steps of a tape, and playing them: arguments are laid out once, and only tensors are filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from torch import Tensor

from milepost.memory.internals import empty_on
from milepost.memory.nested import inside, replaced

Run = Callable[..., Any]
Slots = list[Any]
"""The tensors of one playing, by slot."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands among the arguments of an operation."""

    number: int
    read: Run | None = None
    """What is made of the tensor for the operation: where it lies in memory, say."""


@dataclass
class Step:
    """One operation: what it is given, as constants and slots, and where its results go."""

    run: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    makes: tuple[int | None, ...]
    """Of each result: its slot, or None where it is no tensor."""
    single: bool
    """Whether the result is one tensor, and not several."""
    pure: bool
    """Whether it does nothing but return a result."""
    room: bool = False
    done: list[int] = field(default_factory=list[int])
    """Slots that nobody reads afterwards."""


def playing(
    steps: Sequence[Step], tensors: Sequence[Tensor], constants: set[int], inputs: list[int], wanted: list[int | None]
) -> Callable[..., list[Any]]:
    """Return all steps as one function of the tensors in the slots of inputs, which returns those that are wanted.

    tensors: those that the steps were written down with.
    """
    slots: Slots = [tensors[number] if number in constants else None for number in range(len(tensors))]
    moves = [_move(step, tensors, slots) for step in steps]
    ends = [_constant(None, slots) if number is None else number for number in wanted]
    count = len(inputs)

    def play(*given: Tensor) -> list[Any]:
        if len(given) != count:
            raise TypeError(f"a tape of {count} tensors was given {len(given)}")
        now = slots.copy()
        for number, each in zip(inputs, given, strict=True):
            now[number] = each
        for move in moves:
            move(now)
        return [now[number] for number in ends]

    return play


def _constant(value: Any, slots: Slots) -> int:
    """Return a slot of its own for a value that is always the same."""
    slots.append(value)
    return len(slots) - 1


def _move(step: Step, tensors: Sequence[Tensor], slots: Slots) -> Callable[[Slots], None]:
    """Return one step as a function that reads and fills slots; its fixed arguments get slots, too."""
    done = step.done
    if step.room:
        (made,) = step.makes
        assert made is not None
        x = tensors[made]
        empty, size, strides, dtype = empty_on(x.device), tuple(x.shape), x.stride(), x.dtype

        def allocate(now: Slots) -> None:
            now[made] = empty(size, strides, dtype)
            for number in done:
                now[number] = None

        return allocate
    run, makes = step.run, step.makes
    reads = [(place, each.read) for place, each in enumerate(step.args) if isinstance(each, Slot) and each.read]
    nested = [(place, each) for place, each in enumerate(step.args) if not isinstance(each, Slot) and _has_slots(each)]
    named = [(name, each) for name, each in step.kwargs.items() if _has_slots(each)]
    numbers = [each.number if isinstance(each, Slot) else _constant(each, slots) for each in step.args]
    gather = _gatherer(numbers)
    kwargs = step.kwargs

    def result(now: Slots) -> Any:
        if not reads and not nested and not kwargs:
            return run(*gather(now))
        args = list(gather(now))
        for place, read in reads:
            args[place] = read(args[place])
        for place, each in nested:
            args[place] = _filled(each, now)
        if not kwargs:
            return run(*args)
        return run(*args, **(kwargs | {name: _filled(each, now) for name, each in named}))

    if not makes or makes == (None,):

        def write(now: Slots) -> None:
            result(now)
            for number in done:
                now[number] = None

        return write
    if step.single:
        (one,) = makes
        assert one is not None

        def make(now: Slots) -> None:
            now[one] = result(now)
            for number in done:
                now[number] = None

        return make

    def make_several(now: Slots) -> None:
        for number, each in zip(makes, result(now), strict=True):
            if number is not None:
                now[number] = each
        for number in done:
            now[number] = None

    return make_several


def _gatherer(numbers: list[int]) -> Callable[[Slots], Sequence[Any]]:
    """Return what picks the slots of these numbers."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda now: [now[number] for number in numbers]


def _filled(value: Any, now: Slots) -> Any:
    """Return a value with tensors in place of slots."""

    def fill(slot: Slot) -> Any:
        return now[slot.number] if slot.read is None else slot.read(now[slot.number])

    return replaced(value, Slot, fill)


def _has_slots(value: Any) -> bool:
    return any(True for _ in inside(value, Slot))
