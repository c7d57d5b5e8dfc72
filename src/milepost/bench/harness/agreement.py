"""Check a contender against its scheme: some rows of its output, and their gradients, compared with float64.

The contender runs at its full shape, as it will be timed, with an output gradient that is zero but in a few rows of the
first batch. Those rows alone decide every gradient, and the reference can compute them in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from milepost import Scheme, attend
from milepost.bench.harness.plain_torch import plain_attention
from milepost.bench.harness.report import Agreement

ROWS = 64
"""Rows that are compared in each of two places."""
FLOORS = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
"""Errors, relative to the norm, that pass in any case."""
TIMES = 3.0
"""Times plain torch's error that pass as well: rounding is luck."""
Results = list[Tensor]


def against_float64(
    run: Callable[[], Tensor], q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scheme: Scheme, first: int = 0,
) -> Agreement:  # fmt: skip
    """Compare what `run` makes of q, k, v and the scheme's weights, in tokens from `first` on, a text of their own."""
    rows = _rows(q.shape[2] - first, q.device)
    weights = learned(scheme)
    chosen = torch.zeros_like(grad)
    chosen[0, :, first + rows] = grad[0, :, first + rows]
    out = run()
    grads = torch.autograd.grad(out, (q, k, v, *weights), chosen, materialize_grads=True)
    ours = [out[0, :, first + rows], grads[0][0, :, first + rows], *(each[0, :, first:] for each in grads[1:3])]
    ours += grads[3:]
    some = [q[:1, :, first:][:, :, rows], k[:1, :, first:], v[:1, :, first:], grad[:1, :, first + rows]]
    exact = _results(some, rows, scheme, torch.float64)
    plain = _results(some, rows, scheme, q.dtype, plain_attention)
    return compared(ours, exact, plain, FLOORS[q.dtype])


def learned(scheme: Scheme) -> tuple[Tensor, ...]:
    """Return the weights that have gradients."""
    return tuple(weight for weight in scheme.parameters() if weight.requires_grad)


def _rows(count: int, device: torch.device) -> Tensor:
    """Return rows in the middle and the last ones; all of them where there are few."""
    if count <= 2 * ROWS:
        return torch.arange(count, device=device)
    middle = min(count // 3, count - 2 * ROWS)
    return torch.cat((torch.arange(middle, middle + ROWS), torch.arange(count - ROWS, count))).to(device)


def _by_reference(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, index: Tensor) -> Tensor:
    return attend(q, k, v, scheme, index=index, backend="reference")


def _results(
    some: list[Tensor], rows: Tensor, scheme: Scheme, dtype: torch.dtype, by: Callable[..., Tensor] = _by_reference
) -> Results:
    """Return the same rows and gradients in a dtype, by the reference or otherwise; weights are float32 or better."""
    own = copy.deepcopy(scheme).to(torch.promote_types(dtype, torch.float32))
    q, k, v = (each.detach().to(dtype).requires_grad_() for each in some[:3])
    out = by(q, k, v, own, index=rows)
    weights = learned(own)
    grads = torch.autograd.grad(out, (q, k, v, *weights), some[3].to(dtype), materialize_grads=True)
    return [out[0], *(each[0] for each in grads[:3]), *grads[3:]]


def compared(ours: Results, exact: Results, plain: Results, floor: float) -> Agreement:
    """Compare outputs first, then gradients, with float64, and with plain torch."""
    errors = [_error(a, b, exact) for a, b in zip(ours, exact, strict=True)]
    plains = [_error(a, b, exact) for a, b in zip(plain, exact, strict=True)]
    fine = all(error <= max(floor, TIMES * usual) for error, usual in zip(errors, plains, strict=True))
    # Gradients of q, k and v. A weight's sums over all pairs, which plain torch does in float32; it must be fine alone.
    pairs = [(0.0, 0.0), *zip(errors[1:4], plains[1:4], strict=True)]

    def over_plain(pair: tuple[float, float]) -> float:
        # Errors far below the floor are not compared.
        return pair[0] / max(pair[1], floor / 100)

    worst = max(pairs, key=over_plain)
    return Agreement(errors[0], plains[0], worst[0], worst[1], fine)


def _error(a: Tensor, b: Tensor, exact: Results) -> float:
    """Return the distance relative to the norm; to the largest one where this norm is zero in float64."""
    norm, most = _norm(b), max(map(_norm, exact))
    off = _norm(a.detach().double() - b)
    return off / (norm if norm > 1e-9 * most else max(most, 1e-30))


def _norm(x: Tensor) -> float:
    return math.sqrt(float(x.detach().double().square().sum()))
