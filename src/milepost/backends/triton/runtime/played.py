"""Bodies of our operators, played from a tape for tensors that look alike.

`attend` plays whole calls. A graph that torch has compiled calls our operators one by one, and what a body decides then
takes longer than its kernels do on short texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from milepost.backends.triton.runtime import configs
from milepost.memory.kind import Kind
from milepost.memory.surroundings import Surroundings, surroundings
from milepost.memory.table import MEMORY
from milepost.memory.tape import running_tape

MOST = 512
"""How many kinds of calls one operator remembers."""
Body = Callable[..., Any]
_bodies: dict[str, Body] = {}


def played(body: Body) -> Body:
    """Return the same function of tensors and numbers, which decides nothing twice.

    Its keyword `around` is the surroundings of the call, where they are known already: to ask takes ten microseconds.
    """

    @functools.wraps(body)
    def run(*args: Any, around: Surroundings | None = None) -> Any:
        given, looks = _looked_at(args)
        if around is None and given:
            around = surroundings(given[0].device)
        # Of tensors without memory a tape cannot tell one from another.
        if around is None or not around.plays or not all(map(Tensor.numel, given)):
            return body(*args)
        key = (given[0].device, around, tuple(configs.overridden().items()), *looks)
        kind = MEMORY.recall(run, key) or MEMORY.keep(run, key, Kind(), MOST)
        return kind.run(lambda *_given: body(*args), tuple(given))  # pyright: ignore[reportUnknownLambdaType]

    return run


def _looked_at(args: tuple[Any, ...]) -> tuple[list[Tensor], list[Hashable]]:
    """Return the tensors among arguments, each once, as documents of queries and keys often are one; and what a
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


def arguments(kind: Any, most: int | None = None) -> str:
    """Return the first arguments of an operator that takes the fields of a NamedTuple, as torch's schemas have them."""
    words = {"Tensor | None": "Tensor? {}=None", "int": "SymInt {}={}", "float": "float {}={}", "bool": "bool {}={}"}
    fields = [(name, of.__forward_arg__) for name, of in kind.__annotations__.items()]
    return ", ".join(words[of].format(name, kind._field_defaults[name]) for name, of in fields[:most])


def define(name: str, schema: str, body: Body, empty: Body, again: bool = True) -> None:
    """Make an operator of torch: milepost::name. empty: returns what it does, empty; again: whether calls that look
    alike will come.
    """
    torch.library.define(f"milepost::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.register_fake(f"milepost::{name}", empty)
    _bodies[name] = played(body) if again else body
    for kind in ("CUDA", "CPU"):
        torch.library.impl(f"milepost::{name}", kind, _bodies[name])


def operator(name: str, body: Body, given: Tensor) -> Body:
    """Return one of our operators as torch knows it; or its body, where a tape records what it does, and where only
    a kernel looks at the tensors: to go through torch takes longer than a launch.
    """
    if running_tape() is not None:
        return body
    around = surroundings(given.device) if type(given) is Tensor else None
    if around is None or not around.plays:
        return getattr(torch.ops.milepost, name)
    found = _bodies[name]
    return found if found is body else functools.partial(found, around=around)


def resolved(x: Tensor) -> Tensor:
    """Return the same, in memory with the numbers that it stands for: torch leaves some signs for later."""
    # In a graph torch sees to it.
    return x.resolve_neg() if not torch.compiler.is_compiling() and x.is_neg() else x


def gradients(grad: Tensor | None, grad_lse: Tensor | None, out: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return those of an answer and its log-sum-exp, as kernels read them."""
    return torch.zeros_like(out) if grad is None else resolved(grad), None if grad_lse is None else resolved(grad_lse)


def demand_first_gradients(name: str) -> None:
    """Refuse, in a backward pass, to be part of a graph: the kernels' gradients have no gradients."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{name}: a gradient of the gradient was asked for, and our kernels have none; give attend "
            "backend='reference', or backend='chunked'"
        )
