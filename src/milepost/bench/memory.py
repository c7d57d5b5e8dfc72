"""Memory at a long length: the peak during a call, beside that of plain causal attention."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import attend
from milepost.bench.agreement import learned
from milepost.bench.attention import LIMIT, chosen, tensors
from milepost.bench.contest import BOTH, FORWARD, Column, Contest, Entry, Works, passes
from milepost.bench.schemes import Make, causal_schemes, made
from milepost.bench.settings import Settings, grouped

ROOM = 3
"""How many tensors of the size of q a scheme may need beyond plain attention."""


def memory(settings: Settings) -> list[Contest]:
    """Every causal scheme at C. Nothing is compared here: at A and B the same code was."""
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
