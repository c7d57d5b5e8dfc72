"""The targets of the ratios of rows, on one H200 in bfloat16: forward, then forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from milepost.bench.harness.contest import BOTH, FORWARD
from milepost.bench.suites.schemes import PLAIN, WINDOW

Pair = tuple[float, float]
_TURNED: tuple[Pair, Pair] = (1.15, 1.1), (1.07, 1.05)
_SLOPED: tuple[Pair, Pair] = (1.4, 1.5), (1.35, 1.4)
_ENDLESS: tuple[Pair, Pair] = (2.0, 2.6), (2.0, 2.6)
_RELATED: tuple[Pair, Pair] = (2.8, 3.6), (1.7, 1.9)
_REGIMES: tuple[Pair, Pair] = (1.45, 1.5), (1.2, 1.2)
CAUSAL: dict[str, tuple[Pair | None, Pair]] = {
    PLAIN: ((1.2, 1.35), (1.35, 1.55)),
    "RoPE": _TURNED,
    "RoPE with YaRN": _TURNED,
    "ALiBi": _SLOPED,
    "ALiBi, learned slopes": _SLOPED,
    "T5": ((1.4, 1.5), (1.15, 1.2)),
    "KERPLE, log": _ENDLESS,
    "KERPLE, power": _ENDLESS,
    "Sandwich": _ENDLESS,
    "Shaw's keys, reach 128": ((1.8, 2.4), (1.3, 1.4)),
    "DeBERTa, reach 512": _RELATED,
    "Transformer-XL, reach 512": _RELATED,
    "ReRoPE": _REGIMES,
    "Leaky ReRoPE": _REGIMES,
    "Self-Extend": _REGIMES,
    "dual chunk": _REGIMES,
    "ReRoPE with Pivot": _REGIMES,
    "ReRoPE with Pivot and Dilute": _REGIMES,
    WINDOW: (None, (0.3, 0.35)),
    "CoPE, 64 positions": ((4.0, 9.0), (2.5, 5.0)),
}
"""Times plain causal SDPA, at A and at B."""
ENCODER: dict[str, Pair] = {
    "symmetric ALiBi": (1.4, 1.6),
    "T5, both sides": (1.7, 2.2),
    "DeBERTa, reach 512": (5.0, 7.0),
}
PACKED: Pair = (0.15, 0.2)
SHORT: Pair = (2.0, 2.0)
HOST: dict[str, Pair] = {
    "RoPE": (184, 977),
    "ALiBi": (149, 652),
    "T5": (156, 922),
    "ReRoPE": (253, 856),
    "ReRoPE with Pivot, sinks kept": (500, 1500),
}
"""Microseconds of a short call."""
STEPS = {"many": {"eager": 1 / 0.9, "graph": 1 / 0.9}, "one": {"eager": 3.0, "graph": 1.15}}
"""Times SDPA on rotated keys: a batch over many keys, and one row."""
ROTARY = {"graph": 0.95, "graph, forward+backward": 0.85}
"""Shares of a copy's speed."""
ROTARY_STEP = 3e-3
"""Milliseconds, in a graph."""


def of_rows(wanted: Mapping[str, Pair | None]) -> Callable[[str, str, float], float | None]:
    """Return the bound of a contest from those of its rows."""

    def bound(name: str, column: str, limit: float) -> float | None:
        pair = wanted.get(name)
        return None if pair is None or column not in (FORWARD, BOTH) else pair[column == BOTH]

    return bound
