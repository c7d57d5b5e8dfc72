"""What follows from a method and a layout, or from one tensor, made once and kept: a bounded number of answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")


def kept(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the `most` latest answers of a function that makes tensors.

    Its arguments are hashable, and the last one is the device. While a CUDA graph is recorded nothing is made to be
    kept, but what was is read, and then kept for good: the graph reads it each time it is replayed.
    """

    def keep(make: Callable[P, T]) -> Callable[P, T]:
        known: dict[tuple[Hashable, Hashable], T] = {}
        recorded: dict[Hashable, T] = {}

        @functools.wraps(make)
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            device = args[-1]
            assert isinstance(device, torch.device)
            asked = (args, tuple(kwargs.items()))
            around = surroundings(device)
            if around is None:
                if not recording(device):
                    return make(*args, **kwargs)
                for (_, one), found in known.items():
                    if one == asked:
                        return recorded.setdefault(asked, found)
                return recorded[asked] if asked in recorded else make(*args, **kwargs)
            key = (around, asked)
            if key in known:
                # The latest come last.
                known[key] = known.pop(key)
            else:
                known[key] = make(*args, **kwargs)
                if len(known) > most:
                    del known[next(iter(known))]
            return known[key]

        answer.cache_clear = known.clear  # pyright: ignore
        return answer

    return keep


def kept_beside(make: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Remember a function's latest answer to a tensor, while that tensor lives and nobody writes to it.

    Every layer of a model is given the same documents, and what follows from them need not be made for each. The other
    arguments are hashable.
    """
    # Of each tensor: what was asked, and the answer.
    known: Any = WeakIdKeyDictionary()

    @functools.wraps(make)
    def answer(x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        around = surroundings(x.device)
        # What inference mode makes does not count its changes.
        if around is None or x.is_inference() or x.requires_grad:
            return make(x, *args, **kwargs)
        asked = (around, x._version, args, tuple(kwargs.items()))
        found: tuple[Hashable, T] | None = known.get(x)
        if found is None or found[0] != asked:
            found = (asked, make(x, *args, **kwargs))
            known[x] = found
        return found[1]

    return answer


def surroundings(device: torch.device) -> Hashable | None:
    """What tensors made now belong to, besides what they are made from; None where they must not be kept.

    What inference mode makes can have no part in a backward pass later, and what one stream writes is not yet there for
    another. What is made while a CUDA graph is recorded belongs to that graph, and what a mode such as FakeTensorMode
    makes may hold no numbers at all.
    """
    if not has_numbers():
        return None
    stream = 0
    if device.type == "cuda":
        if recording(device):
            return None
        stream = torch.cuda.current_stream(device).cuda_stream
    return torch.is_inference_mode_enabled(), stream


def has_numbers() -> bool:
    """Whether tensors hold numbers: not while a graph is traced, nor in a mode such as FakeTensorMode."""
    return not (torch.compiler.is_compiling() or is_in_torch_dispatch_mode())


def recording(device: torch.device) -> bool:
    """Whether a CUDA graph is recorded just now."""
    if torch.compiler.is_compiling() or device.type != "cuda":
        return False
    return torch.cuda.is_current_stream_capturing()
