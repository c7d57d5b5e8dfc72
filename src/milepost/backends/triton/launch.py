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

from milepost.backends.triton.straight import Again
from milepost.numerics.playing import EMPTY
from milepost.numerics.tape import running_tape

INTERPRETED = triton.knobs.runtime.interpret  # pyright: ignore
MOST = 4096
"""How many kinds of launches are remembered."""
_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
_alike: dict[Hashable, Again] = {}


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
        again = Again(*found) if found else _Interpreted(lambda *args: kernel[grid](*args, **named))
        tape.launched(again, again.read(args))


def launch_alike(
    looks: Hashable, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], named: Callable[[], dict[str, Any]]
) -> Launched:
    """The same for a launch whose looks the caller knows: what Triton compiles for, of all arguments, and `named`."""
    if INTERPRETED or running_tape() is not None:
        fixed = named()
        launch(kernel, grid, *args, **fixed)
        return Launched(lambda stream, *args: kernel[grid](*args, **fixed), args)
    key = (id(kernel), args[0].device, looks)
    found = _alike.get(key)
    if found is None:
        if len(_alike) >= MOST:
            _alike.clear()
        found = _alike[key] = Again(*_launch(kernel, grid, args, named()))
        return Launched(found.on(grid), args)
    run = found.on(grid)
    run(_stream(found.device), *args)
    return Launched(run, args)


class Layers:
    """What the latest step launched, for the model's next layer: there nothing is new but where the tensors lie.

    Looking at arguments takes longer than a launch does, and thirty layers would do it thirty times.
    """

    def __init__(self) -> None:
        self.latest: tuple[Hashable, Repeated] | None = None

    def again(self, asked: Hashable, given: tuple[Tensor, ...]) -> list[Tensor] | None:
        """What a layer makes of these; None where the latest step was not `asked` too, or its tensors lay otherwise."""
        latest = self.latest
        if latest is None or latest[0] != self.key(asked, given):
            return None
        with device_of(given[0]):
            return latest[1](*given)

    def keep(
        self, asked: Hashable, given: tuple[Tensor, ...], made: tuple[Tensor, ...], of: Sequence[Launched]
    ) -> None:
        """Remember what was launched for these, unless copies of them were."""
        key, read = self.key(asked, given), {id(each) for one in of for each in one.args}
        if key is not None and {id(each) for each in given} <= read and len(set(map(id, given))) == len(given):
            self.latest = key, Repeated(of, given, made)

    @staticmethod
    def key(asked: Hashable, given: tuple[Tensor, ...]) -> Hashable | None:
        """How tensors lie, and what else a launch belongs to; None where it is not to be made again.

        A CUDA graph that is recorded reads tables for good, so they are made for it; a tape sees every launch.
        """
        device = given[0].device
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return None
            stream = _stream(device.index)
        if running_tape() is not None:
            return None
        return (asked, stream, *[(each.stride(), each.data_ptr() % 16) for each in given])


class Repeated:
    """Launches of a step, to be made again with other tensors that lie alike.

    given: the tensors that will be others; made: those that were made for it, or lie in what was; all else is read
    again.
    """

    def __init__(self, launches: Sequence[Launched], given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> None:
        numbers = {id(each): number for number, each in enumerate((*given, *made))}
        memory = {each.untyped_storage().data_ptr(): number for number, each in enumerate(made, len(given))}
        self.device = device = given[0].device
        self.empty = EMPTY.get(device.type) or (
            lambda size, steps, dtype: torch.empty_strided(size, steps, dtype=dtype, device=device)
        )
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
        """What was made for these."""
        made = [self.empty(*lies) for lies in self.made]
        pointers = [_pointer(each) for each in (*given, *made)]
        stream = _stream(self.device.index) if self.device.type == "cuda" else 0
        for run, args, places in self.runs:
            args = args.copy()
            for place, number, part in places:
                args[place] = pointers[number] if part is None else _part_of(pointers[number], part)
            run(stream, *args)
        return made


def _part(x: Tensor) -> Any:
    """Where a tensor lies in the memory that it is a part of."""
    return (x.shape, x.stride(), x.storage_offset()) if INTERPRETED else x.storage_offset() * x.itemsize


def _part_of(whole: Any, part: Any) -> Any:
    return whole.as_strided(*part) if INTERPRETED else whole + part


def device_of(x: Tensor) -> Any:
    """A context in which kernels are launched where x is; to enter the current device once more would cost as much as
    the launch.
    """
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext()


def _pointer(x: Tensor) -> Any:
    """Where a tensor begins: Triton takes a number at once, and asks a tensor where it lies, and on which device."""
    return x if INTERPRETED else x.data_ptr()


def _stream(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)  # pyright: ignore


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Launch, and answer what Again is made of, where it was compiled."""
    if INTERPRETED:
        kernel[grid](*args, **named)
        return ()
    device = torch.cuda.current_device()
    looks = (id(kernel), device, *map(looks_of, args), *named, *named.values())
    found = _known.get(looks)
    if found is None:
        compiled = kernel[grid](*args, **named)
        found = compiled, tuple(named[name] for name in kernel.arg_names[len(args) :])
        if len(_known) >= MOST:
            _known.clear()
        _known[looks] = found
    else:
        compiled, rest = found
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
    return *found, (*grid, 1, 1)[:3], device


class _Interpreted:
    """A kernel that is interpreted, launched with other arguments."""

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run

    def __call__(self, *args: Any) -> None:
        self.run(*args)

    def read(self, args: Sequence[Any]) -> list[Any]:
        """Arguments as a tape takes them: tiles with what describes another tensor's."""
        return [(each.base, _describing(each)) if isinstance(each, TensorDescriptor) else each for each in args]


def _describing(like: TensorDescriptor) -> Callable[[Tensor], TensorDescriptor]:
    shape, strides, blocks, padding = like.shape, like.strides, like.block_shape, like.padding
    return lambda base: TensorDescriptor(base, shape, strides, blocks, padding)


def looks_of(x: Any) -> Any:
    """What Triton compiles for, of one argument: a number's being 1, or a multiple of 16, and what it is stored in."""
    if x is None:
        return None
    if isinstance(x, int):
        return (1 if x == 1 else 16 if x % 16 == 0 else 0, -(1 << 31) <= x < 1 << 31)
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    if isinstance(x, TensorDescriptor):
        return x.base.dtype, tuple(x.block_shape)
    return type(x)
