"""The steps of a tape, and playing them: one function, written out, so that nothing is looked up on the way."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

Run = Callable[..., Any]
_of_graphs = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # pyright: ignore[reportPrivateUsage]
EMPTY: dict[str, Run] = {
    kind: getattr(_of_graphs, f"_empty_strided_{kind}")
    for kind in ("cpu", "cuda")
    if hasattr(_of_graphs, f"_empty_strided_{kind}")
}
"""Room on the current device, of two tuples and a dtype, as graphs that torch compiled ask for it: in half the time.
Nothing where torch has no such functions."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands among the arguments of an operation."""

    number: int
    read: Run | None = None
    """What is made of the tensor for the operation: where it lies in memory, say."""


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
    steps: Sequence[Step], tensors: Sequence[Tensor], constants: set[int], inputs: list[int], wanted: list[int | None]
) -> Callable[..., list[Any]]:
    """All steps as a function of the tensors in the slots of inputs, which answers those that are wanted.

    tensors: those that the steps were written down with. For a kernel between two of torch's operations it reads

        def play(s0, s1):
            s2 = c3(c0, c1, c2)
            c4(c5(s0), c5(s2), c6)
            s3 = c7(s2, s1)
            s2 = None
            return [s3, None]
    """
    names = _Names(constants, tensors)
    lines = [f"def play({', '.join(f's{number}' for number in inputs)}):"]
    for step in steps:
        lines.append(f"    {_room(step, tensors, names) if step.room else _called(step, names)}")
        if step.done:
            lines.append(f"    {' = '.join(f's{number}' for number in step.done)} = None")
    lines.append(f"    return [{', '.join('None' if each is None else names.slot(each) for each in wanted)}]")
    exec(compile("\n".join(lines), "<a tape that is played>", "exec"), names.known)
    # Left among its own names, it would hold itself, and its constants with it.
    return cast("Callable[..., list[Any]]", names.known.pop("play"))


class _Names:
    """What a function is written with: slots by their number, everything else as it is, under a name of its own."""

    def __init__(self, constants: set[int], tensors: Sequence[Tensor]) -> None:
        self.constants, self.tensors = constants, tensors
        self.known: dict[str, Any] = {"empty_strided": torch.empty_strided}
        self._numbers: dict[int, str] = {}

    def slot(self, number: int) -> str:
        return self.fixed(self.tensors[number]) if number in self.constants else f"s{number}"

    def fixed(self, value: Any) -> str:
        """The name of a value that is always the same one; it is held, so that no other comes to have its number."""
        name = self._numbers.setdefault(id(value), f"c{len(self._numbers)}")
        self.known[name] = value
        return name

    def written(self, value: Any) -> str:
        """A value as it is written: lists, tuples and dictionaries by what is in them."""
        if isinstance(value, Slot):
            name = self.slot(value.number)
            return name if value.read is None else f"{self.fixed(value.read)}({name})"
        if type(value) is list:
            return f"[{', '.join(map(self.written, cast('list[Any]', value)))}]"
        if type(value) is tuple:
            return f"({''.join(f'{self.written(each)}, ' for each in cast('tuple[Any, ...]', value))})"
        if type(value) is dict:
            pairs = cast("Mapping[Any, Any]", value).items()
            return f"{{{', '.join(f'{self.fixed(key)}: {self.written(each)}' for key, each in pairs)}}}"
        return self.fixed(value)


def _room(step: Step, tensors: Sequence[Tensor], names: _Names) -> str:
    """Room for numbers, laid out as it was."""
    (made,) = step.makes
    assert made is not None
    x = tensors[made]
    size, steps, dtype, device = map(names.fixed, (tuple(x.shape), x.stride(), x.dtype, x.device))
    if x.device.type in EMPTY:
        return f"s{made} = {names.fixed(EMPTY[x.device.type])}({size}, {steps}, {dtype})"
    return f"s{made} = empty_strided({size}, {steps}, dtype={dtype}, device={device})"


def _called(step: Step, names: _Names) -> str:
    args = [names.written(each) for each in step.args]
    for name, each in step.kwargs.items():
        # An operation of the user's own may call an argument `lambda`.
        said = f"**{{{names.fixed(name)}: " if keyword.iskeyword(name) else f"{name}="
        args.append(f"{said}{names.written(each)}{'}' if keyword.iskeyword(name) else ''}")
    call = f"{names.fixed(step.run)}({', '.join(args)})"
    made = ["_" if number is None else f"s{number}" for number in step.makes]
    if not made or made == ["_"]:
        return call
    return f"{made[0] if step.single else '[' + ', '.join(made) + ']'} = {call}"
