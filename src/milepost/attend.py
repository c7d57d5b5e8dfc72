"""`attend`: one call for every scheme; `explain`: who runs it, and why the faster ones refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from milepost.backends import BACKENDS
from milepost.call.call import Call, CannotRun, resolve
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, *, index: Tensor | None = None, key_index: Tensor | None = None,
    position: Tensor | None = None, key_position: Tensor | None = None, documents: Tensor | None = None,
    key_documents: Tensor | None = None, x: Tensor | None = None, dropout: float = 0.0, backend: str | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, *, index: Tensor | None = None, key_index: Tensor | None = None,
    position: Tensor | None = None, key_position: Tensor | None = None, documents: Tensor | None = None,
    key_documents: Tensor | None = None, x: Tensor | None = None, dropout: float = 0.0, backend: str | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    *,
    index: Tensor | None = None,
    key_index: Tensor | None = None,
    position: Tensor | None = None,
    key_position: Tensor | None = None,
    documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    x: Tensor | None = None,
    dropout: float = 0.0,
    backend: str | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a scheme.

    q: [b h t d], k: [b g s d], v: [b g s dv], raw: turning happens here. h is a multiple of g. Returns [b h t dv].

    index, key_index        integers [t] or [b t]: the true order. Keys default to 0 … s − 1, queries to the last t.
    position, key_position  where tokens stand, [t], [b t] or [b t axes]; the indices if left out.
    documents               [t] or [b t]: a token sees its own document only; −1 is padding, which sees nothing and is
    key_documents           not seen. Each defaults from the other. Without an index, it restarts in each document.
    x                       the layer inputs of all s keys [b s D], for methods that gate on them.
    dropout                 the share of attention weights to drop.
    backend                 by name it runs or raises CannotRun; unnamed, the fastest that does not refuse.
    return_lse              also return the log-sum-exp of each row of scores, [b h t], the logit of rest included.

    A row that sees nothing gives zeros.
    """
    call = resolve(
        q, k, v, scheme, index, key_index, position, key_position, documents, key_documents, x, dropout, return_lse
    )
    name = _named(backend, call) if backend is not None else _fastest(call)
    if k.shape[2] == 0:
        return _nothing(call)
    # There is no autocast on the meta device.
    with torch.autocast("cpu" if q.device.type == "meta" else q.device.type, enabled=False):
        out, lse = BACKENDS[name].run(call)
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def _nothing(call: Call) -> Tensor | tuple[Tensor, Tensor]:
    """What rows get where there are no keys."""
    out = call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])
    rest = call.scheme.rest()
    logit = torch.full((1,), -torch.inf, device=out.device) if rest is None else rest
    return (
        (out, logit.to(call.q.device, call.score_dtype)[:, None].expand(call.q.shape[:3])) if call.return_lse else out
    )


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call, and what each of the others says."""

    backend: str
    others: dict[str, str]
    able: tuple[str, ...]
    """Every backend that could run the call, the chosen one included."""

    def __str__(self) -> str:
        lines = [f"{self.backend}: runs it"]
        return "\n".join(lines + [f"{name}: {why}" for name, why in self.others.items()])

    __repr__ = __str__


def explain(
    scheme: Scheme, q: Tensor, k: Tensor, v: Tensor | None = None, **options: Tensor | float | None
) -> Explanation:
    """Say which backend `attend` would choose, and why not the others. Takes the options of `attend`."""
    if not isinstance(scheme, Scheme):
        raise TypeError(
            f"explain: the first argument is a Scheme, given {type(scheme).__name__}: explain(scheme, q, k)"
        )
    told = dict.fromkeys(
        ("index", "key_index", "position", "key_position", "documents", "key_documents", "x"), None
    ) | {"dropout": 0.0, "return_lse": False}
    for name in options:
        if name not in told:
            raise TypeError(f"explain: no option is called {name!r}{did_you_mean(name, told)}")
    call = resolve(q, k, k if v is None else v, scheme, **(told | options))  # pyright: ignore
    chosen = _fastest(call)
    others = {
        name: backend.refuses(call) or "could run it, but is slower here"
        for name, backend in BACKENDS.items()
        if name != chosen
    }
    able = tuple(name for name, backend in BACKENDS.items() if backend.refuses(call) is None)
    return Explanation(chosen, others, able)


def _named(name: str, call: Call) -> str:
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


def _fastest(call: Call) -> str:
    able = [name for name, backend in BACKENDS.items() if backend.refuses(call) is None]
    fast = (name for name in able if call.q.device.type in BACKENDS[name].FAST_ON and BACKENDS[name].worth(call))
    return next(fast, able[-1])
