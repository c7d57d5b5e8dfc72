"""Bodies of our operators, written down for tensors that look alike and played for the next.

`attend` plays whole calls. A graph that torch has compiled calls our operators one by one, and what a body decides then
takes longer than its kernels do on short texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from milepost.backends.triton import configs
from milepost.call.playable import can_play, surroundings
from milepost.numerics.kept import recording
from milepost.numerics.tape import Tape, one_at_a_time, running_tape

MOST = 512
"""How many kinds of calls one operator remembers."""
SEEN = 2
"""Calls of a kind that are run before one is written down."""
Body = Callable[..., Any]
_bodies: dict[str, Body] = {}
_all_known: list[dict[Hashable, _Kind]] = []


class _Kind:
    """Calls that look alike: how many there were, and what plays them."""

    def __init__(self) -> None:
        self.seen = 0
        self.play: Body | None = None
        self.refused = False


def played(body: Body) -> Body:
    """The same function of tensors and numbers, which decides nothing twice."""
    known: dict[Hashable, _Kind] = {}
    _all_known.append(known)

    @functools.wraps(body)
    def run(*args: Any) -> Any:
        given, looks = _looked_at(args)
        # Of tensors without memory a tape cannot tell one from another.
        if not given or not can_play(given[0]) or recording(given[0].device) or not all(map(Tensor.numel, given)):
            return body(*args)
        key = (given[0].device, surroundings(given[0]), tuple(configs.overridden().items()), *looks)
        kind = known.get(key)
        if kind is None:
            if len(known) >= MOST:
                known.clear()
            kind = known[key] = _Kind()
        if kind.play is not None:
            return tuple(kind.play(*given))
        kind.seen += 1
        if kind.seen <= SEEN or kind.refused or not one_at_a_time.acquire(blocking=False):
            return body(*args)
        try:
            with Tape(*given) as tape:
                found = body(*args)
            play = tape.finished(found)
        finally:
            one_at_a_time.release()
        if tape.refused:
            kind.refused = True
        else:
            kind.play = play
        return found

    return run


def forget() -> None:
    """Decide everything anew: for whoever changes how kernels are chosen."""
    for known in _all_known:
        known.clear()


def _looked_at(args: tuple[Any, ...]) -> tuple[list[Tensor], list[Hashable]]:
    """The tensors among arguments, each once, because documents are often given for queries and keys alike; and what a
    body can go by: numbers as they are, of tensors how they lie, and which of them are one.
    """
    given: list[Tensor] = []
    looks: list[Hashable] = []
    numbers: dict[Hashable, int] = {}
    for each in args:
        if not isinstance(each, Tensor):
            looks.append((type(each), each))  # pyright: ignore[reportUnknownArgumentType]
            continue
        # Each of these takes long to ask for, beside a launch.
        where, *lies = each.data_ptr(), each.dtype, each.shape, each.stride()
        number = numbers.setdefault((where, *lies), len(given))
        if number == len(given):
            given.append(each)
        looks.append((where % 16, number, *lies))
    return given, looks


def define(name: str, schema: str, body: Body, again: bool = True) -> None:
    """Make an operator of torch: milepost::name. again: whether calls that look alike will come."""
    torch.library.define(f"milepost::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    _bodies[name] = played(body) if again else body
    for kind in ("CUDA", "CPU"):
        torch.library.impl(f"milepost::{name}", kind, _bodies[name])


def operator(name: str, body: Body, given: Tensor) -> Body:
    """One of our operators as torch knows it; or its body, where a tape is to see what it does, and where nothing but
    a kernel looks at the tensors: to go through torch takes longer than a launch.
    """
    if running_tape() is not None:
        return body
    return _bodies[name] if type(given) is Tensor and can_play(given) else getattr(torch.ops.milepost, name)


def resolved(x: Tensor) -> Tensor:
    """The same, in memory with the numbers that it stands for: torch leaves some signs for later."""
    # In a graph torch sees to it.
    return x.resolve_neg() if not torch.compiler.is_compiling() and x.is_neg() else x


def gradients(grad: Tensor | None, grad_lse: Tensor | None, out: Tensor) -> tuple[Tensor, Tensor | None]:
    """Those of an answer and its log-sum-exp, as kernels read them."""
    return torch.zeros_like(out) if grad is None else resolved(grad), None if grad_lse is None else resolved(grad_lse)


def demand_first_gradients(name: str) -> None:
    """Refuse, in a backward pass, to be part of a graph: the kernels' gradients have no gradients."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{name}: a gradient of the gradient was asked for, and our kernels have none; give attend "
            "backend='reference', or backend='chunked'"
        )
