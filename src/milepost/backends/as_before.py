"""What a backward pass makes again, it makes from the tensors that the forward pass saw, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.call.call import Call

GIVEN = ("q", "k", "v", "x", "index", "key_index", "position", "key_position", "documents", "key_documents", "length")


def as_before(call: Call, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run`, which later runs with the weights of now, and raises where one of the call's tensors changed."""
    # What a compiled graph saves for its backward pass, torch looks after.
    if torch.compiler.is_compiling():
        return run
    held = list(_weights(call.scheme))
    given: list[tuple[str, Tensor | None]] = [(name, getattr(call, name)) for name in GIVEN]
    given += [(f"the scheme's {where}.{name}", store[name]) for where, store, name, _ in held]
    versions = [(name, each, _version(each)) for name, each in given if each is not None]

    def again(*args: Any) -> Any:
        for name, each, version in versions:
            if _version(each) != version:
                raise RuntimeError(
                    f"attend: {name} has been modified by an in-place operation since the forward pass, and this "
                    f"backward pass makes blocks of scores again from it; modify it after the backward pass, or give "
                    f"attend backend='reference', which keeps all scores"
                )
        # A functional call has put the module's own tensors back by now.
        others = [(store, name, each, store[name]) for _, store, name, each in held if store[name] is not each]
        try:
            for store, name, each, _ in others:
                store[name] = each
            return run(*args)
        finally:
            for store, name, _, own in others:
                store[name] = own

    return again


def _weights(scheme: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Tensor]]:
    """Every weight and buffer of a scheme: the module, where the module keeps it, its name, and itself."""
    for where, module in cast("Iterator[tuple[str, nn.Module]]", scheme.named_modules()):
        stores: tuple[Any, ...] = module._parameters, module._buffers  # pyright: ignore[reportPrivateUsage]
        for store in cast("tuple[dict[str, Any], ...]", stores):
            for name, each in store.items():
                if each is not None:
                    yield where, store, name, each


def _version(x: Tensor) -> int:
    """Return how often a tensor was modified; what inference mode made does not count it."""
    return 0 if x.is_inference() else x._version
