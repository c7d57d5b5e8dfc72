"""What follows from a method and a layout, or from one tensor, made once and kept: a bounded number of answers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary

from milepost.numerics.tape import running_tape

P = ParamSpec("P")
T = TypeVar("T")
UNSHARED = ("cuda",)
"""Devices whose memory nobody writes to but torch."""
BESIDE = 8
"""Answers that are kept beside a tensor: near and far, of queries and of keys, of a few schemes."""


class Surroundings(NamedTuple):
    """What tensors made now belong to, besides what they are made from."""

    inference: bool
    stream: int


def kept(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the `most` latest answers of a function that makes tensors.

    Its arguments are hashable, and the last one is the device. While a CUDA graph is recorded nothing is made to be
    kept, but what was is read, and then kept for good: the graph reads it each time it is replayed.
    """

    def keep(make: Callable[P, T]) -> Callable[P, T]:
        known: dict[tuple[Surroundings, Hashable], T] = {}
        recorded: dict[tuple[bool, Hashable], T] = {}
        lock = threading.Lock()

        @functools.wraps(make)
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            device = args[-1]
            assert isinstance(device, torch.device)
            asked = (args, tuple(kwargs.items()))
            around = surroundings(device)
            if around is None:
                if not recording(device):
                    return make(*args, **kwargs)
                inference = torch.is_inference_mode_enabled()
                for (where, one), found in known.items():
                    if one == asked and where.inference == inference:
                        return recorded.setdefault((inference, asked), found)
                return recorded[inference, asked] if (inference, asked) in recorded else make(*args, **kwargs)
            key = (around, asked)
            with lock:
                if key in known:
                    # The latest come last.
                    known[key] = known.pop(key)
                    return known[key]
            made = make(*args, **kwargs)
            with lock:
                known[key] = made
                if len(known) > most:
                    del known[next(iter(known))]
            return made

        answer.cache_clear = known.clear  # pyright: ignore
        return answer

    return keep


def kept_beside(make: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Remember a function's latest answers to a tensor on a GPU, while that tensor lives and nobody writes to it.

    For tensors that milepost made itself, such as the distances of a table; the other arguments are hashable. What a
    user gives must not be read this way: NumPy, and torch's own collectives, write to a tensor without its knowing.
    """
    # Of each tensor: its version, and the answers to what was asked of it.
    known: Any = WeakIdKeyDictionary()

    @functools.wraps(make)
    def answer(x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        around = surroundings(x.device)
        # What inference mode makes does not count its changes.
        if around is None or x.device.type not in UNSHARED or x.is_inference() or x.requires_grad:
            return make(x, *args, **kwargs)
        version, found = cast("tuple[int, dict[Hashable, T]]", known.get(x, (-1, {})))
        if version != x._version or len(found) >= BESIDE:
            found = {}
            known[x] = x._version, found
        asked = (around, args, tuple(kwargs.items()))
        if asked not in found:
            made = make(x, *args, **kwargs)
            if made is x:
                # Kept beside itself, it would live for ever.
                return made
            found[asked] = made
        return found[asked]

    return answer


def surroundings(device: torch.device) -> Surroundings | None:
    """What tensors made now belong to; None where they must not be kept.

    What inference mode makes can have no part in a backward pass later, and what one stream writes is not yet there for
    another. What is made while a CUDA graph is recorded belongs to that graph, and what a mode such as FakeTensorMode
    makes may hold no numbers at all; nor, outside of it, what one of torch.func makes.
    """
    if not has_numbers() or transformed():
        return None
    stream = 0
    if device.type == "cuda":
        if recording(device):
            return None
        stream = torch.cuda.current_stream(device).cuda_stream
    return Surroundings(torch.is_inference_mode_enabled(), stream)


def has_numbers() -> bool:
    """Whether tensors hold numbers: not while a graph is traced, nor in a mode such as FakeTensorMode."""
    if torch.compiler.is_compiling():
        return False
    return not is_in_torch_dispatch_mode() or running_tape() is not None


def transformed() -> bool:
    """Whether torch.func is at work, or gradients go forward: neither sees through a kernel of ours."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # pyright: ignore


def recording(device: torch.device) -> bool:
    """Whether a CUDA graph is recorded just now."""
    if torch.compiler.is_compiling() or device.type != "cuda":
        return False
    return torch.cuda.is_current_stream_capturing()
