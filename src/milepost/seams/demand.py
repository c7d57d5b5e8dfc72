"""Checks on what a user asked for. Each error says what was asked, what is wrong and what to do."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.memory.internals import batched
from milepost.seams.arguments import spell
from milepost.seams.values import asked as asked
from milepost.seams.values import even as even
from milepost.seams.values import finite as finite
from milepost.seams.values import flag as flag
from milepost.seams.values import one_of as one_of
from milepost.seams.values import several as several
from milepost.seams.values import whole as whole
from milepost.seams.verbs import verbs_of

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)
"""The integers that int64 has all of."""
HALVES = {torch.bfloat16: 256, torch.float16: 2048}
"""Up to where they have every whole number."""


def stretch(owner: object, name: str, value: object, verbs: type, such_as: str) -> None:
    """Demand None, or a method that answers the verbs of a protocol."""
    # What is a part of a scheme by itself stretches nothing, though it may answer a facet of the same name.
    if value is None or (isinstance(value, verbs) and not isinstance(value, type) and not verbs_of(value)):
        return
    given = value.__name__ if isinstance(value, type) else repr(value)
    made = f"this is a class; make one: {given}(…); " if isinstance(value, type) else ""
    raise TypeError(f"{type(owner).__name__}({name}={given}): {made}a {name} is a method such as {such_as}")


def moves(owner: object, method: object) -> None:
    """Demand a method that moves far keys, and is nothing else."""
    if isinstance(method, type):
        name = f"{type(owner).__name__}({method.__name__})"
        raise TypeError(f"{name}: this is a class; make one: {method.__name__}(…)")
    if set(verbs_of(method)) != {"place"}:
        name = f"{type(owner).__name__}({method!r})"
        raise TypeError(f"{name}: the method must move far keys and do nothing else, as Rerope(256)")


def order(owner: object, x: Tensor, index: Tensor | None) -> Tensor:
    """The index of embeddings x [b t D], 0 … t − 1 if None; demand [t] or [b t] otherwise."""
    b, t = x.shape[0], x.shape[-2]
    if index is None:
        return torch.arange(t, device=x.device)
    index = exact(f"{type(owner).__name__}: index", index, fractions=True)
    if index.shape not in ((t,), (b, t), (1, t)):
        raise ValueError(f"{type(owner).__name__}: index must be [{t}] or [{b}, {t}], given {list(index.shape)}")
    return index


def exact(name: str, values: Tensor, fractions: bool = False) -> Tensor:
    """Return indices or positions in a dtype that can count: integers as int64, fractions as they are.

    name begins the error: who was given what, such as "attend: index".
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, given {type(values).__name__}")
    dtype = values.dtype
    if dtype in INTEGERS:
        return values if dtype == torch.int64 else values.long()
    if fractions and dtype in (torch.float32, torch.float64):
        return values
    if fractions and dtype in HALVES:
        raise TypeError(
            f"{name} is {dtype}, which lacks whole numbers past {HALVES[dtype]}, so that tokens would share positions; "
            f"give float32, float64 or integers"
        )
    hint = ""
    if dtype == torch.bool:
        hint = "; for a padding mask give documents=torch.where(mask, 0, -1)"
    elif name.endswith("index"):
        hint = "; where tokens stand may be a fraction: give it as position"
    raise TypeError(f"{name} must be {'integers or fractions' if fractions else 'integers'}, given {dtype}{hint}")


def width(owner: object, x: Tensor, dim: int, name: str = "head_dim", *, partly: bool = False) -> None:
    """Demand that the last axis of x has dim channels; `partly` where some of more could be turned."""
    if x.shape[-1] != dim:
        more = partly and x.shape[-1] > dim
        hint = f"; to turn only some of them use Partial({spell(owner)}, of={x.shape[-1]})" if more else ""
        raise ValueError(f"{asked(owner, name, dim)}: given a tensor of {x.shape[-1]} channels{hint}")


def checking_values(*values: Tensor) -> bool:
    """Whether values may be looked at: not where that would wait for a device or break a traced graph.

    Those of fake tensors, and of all rows that `torch.vmap` runs at once, are not there.
    """
    if torch.compiler.is_compiling() or any(each.device.type != "cpu" for each in values):
        return False
    return not any(type(each) not in (Tensor, torch.nn.Parameter) or batched(each) for each in values)
