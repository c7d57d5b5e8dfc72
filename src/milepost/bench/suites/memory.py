"""Memory at a long length: the peak during a call, compared with plain causal attention."""

from __future__ import annotations

from milepost.bench.harness.contest import BOTH, FORWARD, Column, Contest, Entry
from milepost.bench.harness.settings import Settings, grouped
from milepost.bench.suites.attention import LIMIT, entry, plain_entry, tensors
from milepost.bench.suites.schemes import causal_schemes

ROOM = 3
"""How many tensors of the size of q a scheme may need beyond plain attention."""


def memory(settings: Settings) -> list[Contest]:
    """Return every causal scheme at C. Nothing is compared with float64: at A and B the same code was."""
    b, h, g, t, d = settings.sizes.c
    size = b * h * t * d * settings.dtype.itemsize

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, b, h, t, d, g)
        found = [plain_entry(LIMIT, "limit", (q, k, v), grad)]
        for name, make in causal_schemes(h, d).items():
            found.append(entry(name, make, (q, k, v, grad), settings, checked=False))
        return found

    columns = Column(FORWARD, FORWARD, "memory"), Column(BOTH, BOTH, "memory")
    title = f"C, {grouped(b, h, g, t, d)}, {settings.words}; q has {size / 2**20:.0f} MiB"

    def bound(name: str, column: str, limit: float) -> float | None:
        return None if name == LIMIT else (limit + ROOM * size) / limit

    return [Contest("memory", title, columns, entries, LIMIT, bound=bound)]
