"""The choice of a backend for a call of `attend`, remembered by the call's fingerprint together with what plays it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from milepost.backends import BACKENDS, STEPPERS, Stepper
from milepost.call.call import Call, CannotRun
from milepost.call.options import NAMES, Options
from milepost.call.resolve import counted_call, is_step, resolve
from milepost.call.tokens import CachedKeys
from milepost.memory.kind import Kind, Result, Worth
from milepost.memory.surroundings import Fingerprint, look_of_all, surroundings
from milepost.memory.table import MEMORY
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean

CHOICES = 256
"""How many kinds of calls are remembered for a scheme."""


class Choice(NamedTuple):
    """A backend; for decoding steps also what runs the next one, with however many keys."""

    backend: str
    step: Stepper | None = None


def fingerprint_of(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, backend: str | None, return_lse: bool, options: Options
) -> Fingerprint | None:
    """Return the fingerprint of a call; None if nothing of it may be remembered."""
    if not isinstance(scheme, Scheme) or not type(q) is type(v) is Tensor:
        return None
    if type(k) is not Tensor and type(k) is not CachedKeys:
        return None
    around = surroundings(q.device)
    # Those that count positions from the middle of the keys have them made.
    if around is None or scheme.answering("centred"):
        return None
    state = scheme.state()
    if state is None:
        return None
    said = _said(k, scheme, options)
    if said is None:
        return None
    weights = look_of_all(scheme.weights())
    asked = (backend, return_lse, q is k, k is v, q is v)
    plain = k.plain if type(k) is CachedKeys else k
    if is_step(q, k, v, scheme, options) and not _learns((q, k, v, *scheme.weights())):
        b, g, s, d = plain.shape
        turned = type(k) is CachedKeys and k.turned_by is not None
        looks = (
            q.shape, b, g, d, s.bit_length(), v.shape[:2], v.shape[3], q.dtype, k.dtype, v.dtype, q.device, k.device,
            v.device, turned, *asked, *weights,
        )  # fmt: skip
        return Fingerprint(around, state, looks, steps=True)
    return Fingerprint(around, state, (*look_of_all((q, plain, v)), *asked, *said, *weights), steps=False)


def _said(k: Tensor, scheme: Scheme, options: Options) -> tuple[Hashable, ...] | None:
    """What was said of the tokens, by name; None if it is more than looks can say."""
    found: list[Hashable] = []
    if type(k) is CachedKeys:
        index = k.token_index if type(k.token_index) is range else _look(k.token_index)
        turned = k.turned_by is not None, k.turned_by is scheme
        found.append(("cached", index, _look(k.token_position), k.token_counted, *turned))
    for name, value in options.items():
        if name not in NAMES:
            return None
        if value is None:
            continue
        if isinstance(value, Tensor):
            # Documents of queries and keys may be one tensor, or two.
            same = next(other for other, one in options.items() if one is value)
            found.append((name, same, type(value), _look(value)))
        elif type(value) in (int, float, range):
            found.append((name, type(value), value))
        else:
            return None
    return tuple(found)


def _look(x: Tensor | range | None) -> Hashable:
    return look_of_all((x,)) if isinstance(x, Tensor) else x


def _learns(tensors: tuple[Tensor, ...]) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def remember(scheme: Scheme, asked: Fingerprint, backend: str, call: Call) -> Kind:
    """Remember the choice for a kind of call."""
    step = STEPPERS[backend](call) if asked.steps and backend in STEPPERS else None
    worth = MEMORY.recall(scheme, Worth)
    worth = MEMORY.keep(scheme, Worth, Worth(), CHOICES) if worth is None else worth
    return MEMORY.keep(scheme, asked, Kind(Choice(backend, step), worth), CHOICES)


def run_again(
    kind: Kind, asked: Fingerprint, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, options: Options, return_lse: bool
) -> Result:
    """Run one more call of a kind: the choice is not made again, and the call is played where it can be."""
    backend, step = kind.chosen
    if asked.steps:
        # The next one has more keys, so that nothing of it can be played.
        found = None if step is None else _stepped(step, q, k, v, return_lse)
        return found or BACKENDS[backend].run(counted_call(q, k, v, scheme, return_lse))
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if said.get("dropout") == 0.0:
        del said["dropout"]
    given, compute = _computed(backend, q, k, v, scheme, said, return_lse)
    weights = scheme.weights()
    drawn, marked = "dropout" in said, any(type(each) is not Tensor for each in given)
    if not asked.around.plays or not BACKENDS[backend].PLAYED or drawn or marked or not all(map(_is_plain, weights)):
        return compute(*given)
    if _learns((*given, *weights)):
        return kind.run_learning(compute, given, weights, scheme.weights)
    # A weight is given, so that a tape does not take its numbers for constants.
    return kind.run(lambda *tensors: compute(*tensors[: len(given)]), given + weights)


def _is_plain(weight: Tensor) -> bool:
    """True if a weight is one that its scheme has for good, and nobody hooks into its gradient."""
    return type(weight) is torch.nn.Parameter and not weight._backward_hooks


def _stepped(step: Stepper, q: Tensor, k: Tensor, v: Tensor, return_lse: bool) -> Result | None:
    """Run one more step, where it is like the others."""
    first = 0
    if isinstance(k, CachedKeys):
        assert isinstance(k.token_index, range)
        first, k = k.token_index.start, k.plain
    found = step(q, k, v, first)
    return found if found is None or return_lse else (found[0], None)


def _computed(
    backend: str, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, said: dict[str, Any], return_lse: bool
) -> tuple[tuple[Tensor, ...], Callable[..., Result]]:
    """The tensors of a call, each once, and a function of these that runs it."""
    bare = not said and type(k) is Tensor
    if bare and q is not k and k is not v and q is not v:
        return (q, k, v), functools.partial(_bare, backend, scheme, return_lse)
    tensors: dict[str, Tensor] = {"q": q, "k": k, "v": v}
    tensors |= {name: value for name, value in said.items() if isinstance(value, Tensor)}
    # Positions of queries and keys, say, are often one tensor: it is given once.
    given = tuple({id(each): each for each in tensors.values()}.values())
    places = [next(n for n, one in enumerate(given) if one is each) for each in tensors.values()]

    def compute(*given: Tensor) -> Result:
        q, k, v, *others = (given[n] for n in places)
        if bare:
            return _bare(backend, scheme, return_lse, q, k, v)
        filled: Any = said | dict(zip([*tensors][3:], others, strict=True))
        return BACKENDS[backend].run(resolve(q, k, v, scheme, filled, return_lse))

    return given, compute


def _bare(backend: str, scheme: Scheme, return_lse: bool, q: Tensor, k: Tensor, v: Tensor) -> Result:
    """Run a call of three tensors."""
    return BACKENDS[backend].run(counted_call(q, k, v, scheme, return_lse))


def named(name: str, call: Call) -> str:
    """Return the backend of a name, if it can run the call."""
    if name not in BACKENDS:
        raise ValueError(
            f"attend(backend={name!r}): no backend is called that{did_you_mean(name, BACKENDS)}; "
            f"there are {', '.join(BACKENDS)}"
        )
    reason = BACKENDS[name].refuses(call)
    if reason is not None:
        able = " or ".join(f'"{each}"' for each, backend in BACKENDS.items() if backend.refuses(call) is None)
        raise CannotRun(f'backend "{name}" cannot run this scheme: {reason}. Use {able}, or leave backend unset')
    return name


def cheapest(call: Call) -> str:
    """Return the backend that costs least."""
    # A plain loop, because torch.compile knows no min(…, key=…). The specification can always run and costs most.
    cheapest, least = "reference", math.inf
    for name, backend in BACKENDS.items():
        if backend.refuses(call) is None:
            cost = backend.cost(call)
            if cost < least:
                cheapest, least = name, cost
    return cheapest
