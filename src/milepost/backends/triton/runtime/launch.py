# pyright: basic, reportMissingImports=false
"""Launching a kernel. Triton asks every argument anew what it is, which takes longer than many kernels do; here a
launch whose arguments look as they did before goes to the compiled kernel at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.backends.triton.runtime.launcher import OPTIONS, Again, describing, looks_of, looks_suffice
from milepost.call.call import CannotRun
from milepost.memory.internals import empty_on, stream_of
from milepost.memory.surroundings import surroundings
from milepost.memory.table import MEMORY
from milepost.memory.tape import running_tape

INTERPRETED = triton.knobs.runtime.interpret  # pyright: ignore
PUBLIC = INTERPRETED or not looks_suffice()
"""True if every launch is `kernel[grid](*args)`, because Triton is to see each argument as it is."""
MOST = 4096
"""How many kinds of launches are remembered."""


class Launched(NamedTuple):
    """A launch that was made."""

    run: Callable[..., None]
    """Makes it again, of a stream and other arguments like these."""
    args: tuple[Any, ...]


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    """Launch kernel[grid](*args, **named): args are what differs from call to call, named what it is compiled for."""
    tape = running_tape()
    if tape is None:
        _launch(kernel, grid, args, named)
        return
    with tape.aside():
        found = _launch(kernel, grid, args, named)
        if found:
            again = Again(*found)
            tape.launched(again, again.read(args))
        else:
            read = [(each.base, describing(each)) if isinstance(each, TensorDescriptor) else each for each in args]
            tape.launched(lambda *args: kernel[grid](*args, **named, **OPTIONS), read)


def launch_alike(
    looks: Hashable, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], named: Callable[[], dict[str, Any]]
) -> Launched:
    """Launch as `launch` does, where the caller knows the looks: what Triton compiles for, of arguments and `named`."""
    if PUBLIC or running_tape() is not None:
        fixed = named()
        launch(kernel, grid, *args, **fixed)
        return Launched(lambda stream, *args: kernel[grid](*args, **fixed, **OPTIONS), args)
    key = (args[0].device, looks)
    found: Again | None = MEMORY.recall(kernel, key)
    if found is None:
        found = MEMORY.keep(kernel, key, Again(*_launch(kernel, grid, args, named())), MOST)
        return Launched(found.on(grid), args)
    run = found.on(grid)
    run(stream_of(found.device), *args)
    return Launched(run, args)


class Layers:
    """What the latest step launched, for the model's next layer: there nothing is new but where the tensors lie.

    Looking at arguments takes longer than a launch does, and thirty layers would do it thirty times.
    """

    def again(self, asked: Hashable, given: tuple[Tensor, ...]) -> list[Tensor] | None:
        """Return what a layer makes of these; None where the latest step was another, or its strides were others."""
        key = self.key(asked, given)
        latest: Repeated | None = None if key is None else MEMORY.recall(self, key)
        if latest is None:
            return None
        with device_of(given[0]):
            return latest(*given)

    def keep(
        self, asked: Hashable, given: tuple[Tensor, ...], made: tuple[Tensor, ...], of: Sequence[Launched]
    ) -> None:
        """Remember what was launched for these, unless copies of them were."""
        key, read = self.key(asked, given), {id(each) for one in of for each in one.args}
        if key is not None and {id(each) for each in given} <= read and len(set(map(id, given))) == len(given):
            MEMORY.keep(self, key, Repeated(of, given, made), 1)

    @staticmethod
    def key(asked: Hashable, given: tuple[Tensor, ...]) -> Hashable | None:
        """Return how tensors lie, and what else a launch belongs to; None where it is not to be made again.

        A CUDA graph that is recorded reads tables for good, so they are made for it; a tape sees every launch.
        """
        around = surroundings(given[0].device)
        if around is None or running_tape() is not None:
            return None
        return (asked, around, *[(each.stride(), each.data_ptr() % 16) for each in given])


class Repeated:
    """Launches of a step, to be made again with other tensors that lie alike.

    given: the tensors that will be others; made: those that were made for it, or lie in what was; all else is read
    again.
    """

    def __init__(self, launches: Sequence[Launched], given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> None:
        numbers = {id(each): number for number, each in enumerate((*given, *made))}
        memory = {each.untyped_storage().data_ptr(): number for number, each in enumerate(made, len(given))}
        self.device = device = given[0].device
        self.empty = empty_on(device)
        self.made = [(tuple(each.shape), each.stride(), each.dtype) for each in made]
        self.runs: list[tuple[Callable[..., None], list[Any], list[tuple[int, int, Any]]]] = []
        # Their memory is read by number, so somebody has to hold them.
        self.others: list[Tensor] = []
        for run, args in launches:
            places: list[tuple[int, int, Any]] = []
            for place, each in enumerate(args):
                if not isinstance(each, Tensor):
                    continue
                if id(each) in numbers:
                    places.append((place, numbers[id(each)], None))
                elif each.untyped_storage().data_ptr() in memory:
                    places.append((place, memory[each.untyped_storage().data_ptr()], _part(each)))
                else:
                    self.others.append(each)
            self.runs.append((run, [_pointer(each) if isinstance(each, Tensor) else each for each in args], places))

    def __call__(self, *given: Tensor) -> list[Tensor]:
        """Return what was made for these."""
        made = [self.empty(*lies) for lies in self.made]
        pointers = [_pointer(each) for each in (*given, *made)]
        stream = stream_of(self.device.index) if self.device.type == "cuda" else 0
        for run, args, places in self.runs:
            args = args.copy()
            for place, number, part in places:
                args[place] = pointers[number] if part is None else _part_of(pointers[number], part)
            run(stream, *args)
        return made


def steps(*tensors: Tensor | None, axes: int = 3) -> tuple[int, ...]:
    """Return how far apart batches, heads and tokens of each tensor lie; 0 for one that is not there."""
    return tuple([step for each in tensors for step in ((0,) * axes if each is None else each.stride()[:axes])])


def batch_step(x: Tensor | None) -> int:
    """Return how far apart the rows of the batch lie; 0 where all share one."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _part(x: Tensor) -> Any:
    """Return where a tensor lies in the memory that it is a part of."""
    return (x.shape, x.stride(), x.storage_offset()) if PUBLIC else x.storage_offset() * x.itemsize


def _part_of(whole: Any, part: Any) -> Any:
    return whole.as_strided(*part) if PUBLIC else whole + part


def device_of(x: Tensor) -> Any:
    """Return a context in which kernels are launched where x is: none on the current device, whose costs a launch."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext()


def _pointer(x: Tensor) -> Any:
    """Return where a tensor begins: Triton takes a number as it is, and asks a tensor for its address and device."""
    return x if PUBLIC else x.data_ptr()


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Launch, and answer what Again is made of, where it was compiled."""
    if PUBLIC:
        _compiled(kernel, grid, args, named)
        return ()
    device = torch.cuda.current_device()
    looks = (device, *map(looks_of, args), *named, *named.values())
    found: tuple[Any, tuple[Any, ...]] | None = MEMORY.recall(kernel, looks)
    if found is None:
        compiled = _compiled(kernel, grid, args, named)
        rest = tuple(named[name] for name in kernel.arg_names[len(args) :])
        found = MEMORY.keep(kernel, looks, (compiled, rest), MOST)
    else:
        compiled, rest = found
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
    return *found, (*grid, 1, 1)[:3], device


def _compiled(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the compiled kernel, launched through Triton; refuse a kernel that this GPU has no memory for."""
    try:
        return kernel[grid](*args, **named, **OPTIONS)
    except triton.OutOfResources as error:
        raise CannotRun(
            f'backend "triton" cannot run this call: kernel {kernel.__name__} needs more {error.name} than this GPU '
            f'has: {error.required}, and the limit is {error.limit}. Use backend="flex" or backend="chunked"'
        ) from error
