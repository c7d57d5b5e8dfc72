"""`attend`: one call for every scheme; `explain`: who runs it, and what was weighed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, overload

import torch
from torch import Tensor

from milepost.backends import BACKENDS
from milepost.call.call import Call
from milepost.call.inputs import refuse_kinds
from milepost.call.options import NAMES, Options
from milepost.call.resolve import resolve
from milepost.choice import cheapest, fingerprint_of, named, remember, run_again
from milepost.memory.surroundings import without_autocast
from milepost.memory.table import MEMORY
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, *, backend: str | None = None, return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, *, backend: str | None = None, return_lse: Literal[True],
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    *,
    backend: str | None = None,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a scheme.

    q: [b h t d], k: [b g s d], v: [b g s dv], raw: turning happens here. h is a multiple of g. Returns [b h t dv].

    index, key_index        the true order: integers [t] or [b t], or a range. Keys default to 0 … s − 1, queries to the
                            last t of them.
    position, key_position  where tokens stand, [t], [b t] or [b t axes]; the indices if left out. With as many queries
                            as keys, one of the two stands for both.
    documents               [t] or [b t]: a token sees its own document only; −1 is padding, which sees nothing and is
    key_documents           not seen. Each defaults from the other. Without an index, it restarts in each document;
                            with as many queries as keys and one of the two, an index stands for both sides.
    length                  how many tokens the text has, a number or [b], where these keys are not all of them; [b t]
                            where each of as many queries as keys has its own.
    x                       the layer inputs of all s keys [b s D], for methods that gate on them.
    dropout                 the share of attention weights to drop.
    backend                 by name it runs or raises CannotRun; unnamed, the one that costs least.
    return_lse              also return the log-sum-exp of each row of scores, [b h t], the logit of rest included.

    Keys out of a `Cache` know their indices, positions and whether they are turned. A row that sees nothing gives
    zeros.
    """
    refuse_kinds(q, k, v)
    if return_lse is not True and return_lse is not False:
        raise TypeError(f"attend(return_lse={return_lse!r}): return_lse is True or False")
    if not torch.compiler.is_compiling() and any(type(each) is Tensor and each.is_neg() for each in (q, k, v)):
        # Torch left their signs for later, and a kernel reads memory as it is.
        q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    asked = fingerprint_of(q, k, v, scheme, backend, return_lse, options)
    kind = None if asked is None else MEMORY.recall(scheme, asked)
    if asked is None or kind is None:
        check_names("attend", options)
        call = resolve(q, k, v, scheme, options, return_lse)
        name = named(backend, call) if backend is not None else cheapest(call)
        if k.shape[2] == 0 or q.shape[2] == 0:
            return _nothing(call)
        if asked is not None:
            remember(scheme, asked, name, call)
        with without_autocast(q.device):
            out, lse = BACKENDS[name].run(call)
    else:
        with without_autocast(q.device):
            out, lse = run_again(kind, asked, q, k, v, scheme, options, return_lse)
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def check_names(caller: str, options: Options) -> None:
    """Refuse options that `attend` does not have."""
    for name in options:
        if name not in NAMES:
            raise TypeError(f"{caller}: no option is called {name!r}{did_you_mean(name, NAMES)}")


def _nothing(call: Call) -> Tensor | tuple[Tensor, Tensor]:
    """What rows get where there are no keys, and where there are no rows."""
    # Joined to what was given, so that there are gradients: zeros.
    joined = sum((each.reshape(-1)[:0].sum() for each in (call.q, call.k, call.v)), call.v.new_zeros(()))
    out = joined + call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])
    rest = call.scheme.rest()
    logit = torch.full((1,), -torch.inf, device=out.device) if rest is None else rest
    lse = joined.to(call.score_dtype) + logit.to(call.q.device, call.score_dtype)[:, None].expand(call.q.shape[:3])
    return (out, lse) if call.return_lse else out


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call, what each would cost, and why others cannot."""

    backend: str
    costs: dict[str, float]
    """What each backend that could run it would cost, in seconds of a common machine."""
    reasons: dict[str, str]
    """Why each of the others cannot."""

    @property
    def able(self) -> tuple[str, ...]:
        """The backends that could run it."""
        return tuple(self.costs)

    def __str__(self) -> str:
        lines = [f"{self.backend}: runs it"]
        for name in BACKENDS:
            if name in self.reasons:
                lines.append(f"{name}: cannot, {self.reasons[name]}")
            elif name != self.backend:
                lines.append(f"{name}: could run it, {_compared(self.costs[name], self.costs[self.backend])}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    # A default, so that the call of 0.1, explain(scheme, q, k), meets our error and not Python's.
    scheme: Scheme = cast("Scheme", None),  # noqa: B008
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Explanation:
    """Return which backend `attend` would choose, what each would cost, and why others cannot run the call.

    Takes the arguments of `attend`, and computes nothing.
    """
    if not isinstance(scheme, Scheme):
        given = ", ".join(type(each).__name__ for each in (q, k, v, scheme) if each is not None)
        raise TypeError(
            f"explain({given}): the scheme is the fourth argument since 0.2, as in attend: explain(q, k, v, scheme)"
        )
    check_names("explain", options)
    call = resolve(q, k, v, scheme, options, return_lse)
    refusals = {name: backend.refuses(call) for name, backend in BACKENDS.items()}
    return Explanation(
        cheapest(call),
        {name: BACKENDS[name].cost(call) for name, reason in refusals.items() if reason is None},
        {name: reason for name, reason in refusals.items() if reason is not None},
    )


def _compared(cost: float, least: float) -> str:
    """One cost beside the least, in words."""
    if math.isinf(cost):
        return "but is slow: the others are tested against it"
    times = cost / least
    return f"at about {times:.1f} times the cost" if times < 100 else "at more than 100 times the cost"


def _with_options(function: Callable[..., object]) -> inspect.Signature:
    """Return a signature with the options by name, as editors and help() show it."""
    found = inspect.signature(function)
    own = (each for each in found.parameters.values() if each.kind is not each.VAR_KEYWORD)
    own = (each if each.kind is each.KEYWORD_ONLY else each.replace(default=each.empty) for each in own)
    defaults: dict[str, float | None] = {**dict.fromkeys(NAMES), "dropout": 0.0}
    options = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each) for name, each in defaults.items())
    return found.replace(parameters=[*own, *options])


attend.__signature__ = _with_options(attend)
explain.__signature__ = _with_options(explain)
