"""What follows from a method and a layout alone, made once and kept: a bounded number of answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def kept(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the `most` latest answers of a function of hashable arguments that makes tensors.

    What inference mode makes can have no part in a backward pass later, what one stream writes is not yet there for
    another, and what is made while a CUDA graph is recorded belongs to that graph: these are kept apart, or not at all.
    """

    def keep(make: Callable[P, T]) -> Callable[P, T]:
        @functools.lru_cache(maxsize=most)
        def remember(inference: bool, stream: int, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return make(*args, **kwargs)

        @functools.wraps(make)
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            if torch.compiler.is_compiling():
                return make(*args, **kwargs)
            stream = 0
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                if torch.cuda.is_current_stream_capturing():
                    return make(*args, **kwargs)
                stream = torch.cuda.current_stream().cuda_stream
            return remember(torch.is_inference_mode_enabled(), stream, *args, **kwargs)

        return answer

    return keep
