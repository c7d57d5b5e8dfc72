"""Who runs a call of `attend`: weighed once for calls that look alike, and run again in the same way."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from milepost.backends import BACKENDS, STEPPERS, Stepper
from milepost.call.call import Call, CannotRun
from milepost.call.options import NAMES, Options
from milepost.call.plan import Compute, Plan, Worth
from milepost.call.playable import can_play, is_plain_weight, laid_out, surroundings
from milepost.call.resolve import counted_call, is_step, resolve
from milepost.call.tokens import CachedKeys
from milepost.numerics.kept import has_numbers
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean
from milepost.seams.parts import Parts

CHOICES = 256
"""How many kinds of calls are remembered for a scheme."""
LAYOUTS = 8
"""How many ways to lie in memory are remembered for a kind of call."""


def named(name: str, call: Call) -> str:
    """The backend of a name, if it can run the call."""
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


class Kind:
    """Calls that look alike: who runs them, and how they are run again."""

    def __init__(self, backend: str, worth: Worth, steps: bool = False, step: Stepper | None = None) -> None:
        self.backend, self.worth, self.steps, self.step = backend, worth, steps, step
        self.plans: dict[Hashable, Plan] = {}

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, options: Options, return_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run one more of them."""
        if self.steps:
            # The next one has more keys, so that nothing of it can be played.
            found = None if self.step is None else self._stepped(self.step, q, k, v, return_lse)
            return found or BACKENDS[self.backend].run(counted_call(q, k, v, scheme, return_lse))
        said: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None and name != "dropout"
        }
        given, compute = (q, k, v), functools.partial(self._bare, scheme, return_lse)
        if said or q is k or k is v or q is v:
            given, compute = self._told(q, k, v, scheme, said, return_lse)
        if not BACKENDS[self.backend].PLAYED or not can_play(q):
            return compute(*given)
        weights = scheme.weights()
        state = scheme.state()
        if state is None or not all(map(is_plain_weight, weights)):
            return compute(*given)
        where = (laid_out((*given, *weights)), surroundings(q), state)
        plan = self.plans.get(where)
        if plan is None:
            if len(self.plans) >= LAYOUTS:
                self.plans.clear()
            plan = self.plans[where] = Plan(self.worth)
        return plan.run(compute, given, weights, scheme.weights)

    def _stepped(
        self, step: Stepper, q: Tensor, k: Tensor, v: Tensor, return_lse: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """Run one more step, where it is like the others."""
        first = 0
        if isinstance(k, CachedKeys):
            assert isinstance(k.token_index, range)
            first, k = k.token_index.start, k.plain
        if not has_numbers() or torch._C._are_functorch_transforms_active():  # pyright: ignore
            return None
        found = step(q, k, v, first)
        return found if found is None or return_lse else (found[0], None)

    def _bare(self, scheme: Scheme, return_lse: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run a call of three tensors."""
        return BACKENDS[self.backend].run(counted_call(q, k, v, scheme, return_lse))

    def _told(
        self, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, said: dict[str, Any], return_lse: bool
    ) -> tuple[tuple[Tensor, ...], Compute]:
        """The tensors of a call of which more was said, and what runs it from these."""
        tensors: dict[str, Tensor] = {"q": q, "k": k, "v": v}
        tensors |= {name: value for name, value in said.items() if isinstance(value, Tensor)}
        # Positions of queries and keys, say, are often one tensor: it is given once.
        given = tuple({id(each): each for each in tensors.values()}.values())
        places = [next(n for n, one in enumerate(given) if one is each) for each in tensors.values()]

        def compute(*given: Tensor) -> tuple[Tensor, Tensor | None]:
            q, k, v, *others = (given[n] for n in places)
            if not said:
                return self._bare(scheme, return_lse, q, k, v)
            filled: Any = said | dict(zip([*tensors][3:], others, strict=True))
            return BACKENDS[self.backend].run(resolve(q, k, v, scheme, filled, return_lse))

        return given, compute


_chosen: WeakKeyDictionary[Parts, dict[Hashable, Kind]] = WeakKeyDictionary()
_worth: WeakKeyDictionary[Parts, Worth] = WeakKeyDictionary()


def looks_of(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, backend: str | None, return_lse: bool, options: Options
) -> Hashable | None:
    """All that decides how a call is run: calls that look alike are checked and weighed once, which would take longer
    than one token. None where it is more than how things look.
    """
    if torch.compiler.is_compiling() or not isinstance(scheme, Scheme) or not type(q) is type(v) is Tensor:
        return None
    if type(k) is Tensor or type(k) is CachedKeys:
        step = _step(q, k, v, scheme, backend, return_lse, options)
        if step is not None or type(k) is CachedKeys:
            return step
    else:
        return None
    said: list[Hashable] = []
    for name, value in options.items():
        if name not in NAMES or (name == "dropout" and value != 0.0):
            return None
        if value is None or name == "dropout":
            continue
        if type(value) is Tensor:
            # Documents of queries and keys may be one tensor, or two.
            same = next(other for other, one in options.items() if one is value)
            said.append((name, same, value.shape, value.dtype, value.device, value.requires_grad))
        elif isinstance(value, (int, range)):
            said.append((name, value))
        else:
            return None
    # Those that count positions from the middle of the keys have them made.
    if scheme.answering("centred"):
        return None
    return (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, backend, return_lse,
        torch.is_grad_enabled(), q.requires_grad, k.requires_grad, v.requires_grad, *said,
        q is k, k is v, q is v,
        tuple([(weight.device, weight.dtype, weight.shape, weight.requires_grad) for weight in scheme.weights()]),
    )  # fmt: skip


class Step(tuple[Hashable, ...]):
    """How few queries over keys that grow look: alike until the number of keys has doubled."""


def _step(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, backend: str | None, return_lse: bool, options: Options
) -> Step | None:
    if not is_step(q, k, v, scheme, options) or scheme.answering("centred"):
        return None
    weights = scheme.weights()
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v, *weights)):
        return None
    turned = type(k) is CachedKeys and k.turned_by is not None
    k = k.plain if type(k) is CachedKeys else k
    b, g, s, d = k.shape
    return Step((
        q.shape, b, g, d, s.bit_length(), v.shape[:2], v.shape[3], q.dtype, k.dtype, v.dtype, q.device, k.device,
        v.device, backend, return_lse, turned,
        tuple([(weight.device, weight.dtype, weight.shape) for weight in weights]),
    ))  # fmt: skip


def kinds_of(scheme: Parts) -> dict[Hashable, Kind]:
    """The kinds of calls that are remembered for a scheme, by how they look."""
    known = _chosen.get(scheme)
    # Another thread may be as quick.
    return _chosen.setdefault(scheme, {}) if known is None else known


def remember(scheme: Parts, looks: Hashable, backend: str, call: Call) -> Kind:
    """Remember who runs one kind more; past the most, all are forgotten."""
    steps = type(looks) is Step
    step = STEPPERS[backend](call) if steps and backend in STEPPERS else None
    known = kinds_of(scheme)
    if len(known) >= CHOICES:
        known.clear()
    known[looks] = kind = Kind(backend, _worth.setdefault(scheme, Worth()), steps, step)
    return kind


def cheapest(call: Call) -> str:
    """The backend that costs least, weighed once for calls that look alike."""
    if torch.compiler.is_compiling():
        return weighed(call)
    key = (
        call.q.shape, call.k.shape, call.v.shape[-1], call.q.dtype, call.q.device, call.layout, call.at_index,
        call.documents is None, call.documents is call.key_documents, call.index_given,
        None if call.given_length is None else call.given_length.shape, call.dropout > 0, call.return_lse,
        torch.is_grad_enabled(), call.needs_grad,
    )  # fmt: skip
    found = kinds_of(call.scheme).get(key)
    return (found or remember(call.scheme, key, weighed(call), call)).backend


def weighed(call: Call) -> str:
    """The backend that costs least."""
    # A plain loop, because torch.compile knows no min(…, key=…). The specification can always run and costs most.
    cheapest, least = "reference", math.inf
    for name, backend in BACKENDS.items():
        if backend.refuses(call) is None:
            cost = backend.cost(call)
            if cost < least:
                cheapest, least = name, cost
    return cheapest
