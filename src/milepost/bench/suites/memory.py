"""Memory at a long length: the peak during a call, compared with plain causal attention."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import attend
from milepost.bench.harness.agreement import learned
from milepost.bench.harness.contest import BOTH, FORWARD, Column, Contest, Entry, Works, passes
from milepost.bench.harness.settings import Settings, grouped
from milepost.bench.suites.attention import LIMIT, chosen, tensors
from milepost.bench.suites.schemes import Make, causal_schemes, made

ROOM = 3
"""How many tensors of the size of q a scheme may need beyond plain attention."""


def memory(settings: Settings) -> list[Contest]:
    """Return every causal scheme at C. Nothing is compared with float64: at A and B the same code was."""
    b, h, g, t, d = settings.sizes.c
    size = b * h * t * d * settings.dtype.itemsize

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, b, h, t, d, g)

        def plain() -> Works:
            return Works(
                passes(lambda: sdpa(q, k, v, is_causal=True, enable_gqa=h != g), (q, k, v), grad), None, "torch"
            )

        found = [Entry(LIMIT, "limit", plain)]
        for name, make in causal_schemes(h, d).items():
            found.append(Entry(name, "milepost", lambda make=make: _works(q, k, v, grad, make, settings)))
        return found

    columns = Column(FORWARD, FORWARD, "memory"), Column(BOTH, BOTH, "memory")
    title = f"C, {grouped(b, h, g, t, d)}, {settings.words}; q has {size / 2**20:.0f} MiB"

    def bound(name: str, column: str, limit: float) -> float | None:
        return None if name == LIMIT else (limit + ROOM * size) / limit

    return [Contest("memory", title, columns, entries, LIMIT, bound=bound)]


def _works(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, make: Make, settings: Settings) -> Works:
    scheme = made(make, settings.device)
    found = passes(lambda: attend(q, k, v, scheme), (q, k, v, *learned(scheme)), grad)
    return Works(found, None, chosen(scheme, q, k, v))
