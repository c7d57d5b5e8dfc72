"""KeepSinks: attention sinks excluded from what is done to far keys (milepost's own, 2026)."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch

from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime, same

MOST = 1 << 30
"""More than that, compared with an index of 32 bits, would wrap around."""


@dataclass(frozen=True)
class KeepSinks:
    """Exclude the first `sinks` keys from what a Pivot or a Dilute around this does to the far keys of a method.

        j < sinks:   where the method puts it, its score as it is; near and not far for a Pivot
        j ≥ sinks:   as without this

    A trained model rests attention that it has no use for on the first tokens of a text (Xiao et al., 2023,
    arXiv:2309.17453). Lowered with all other far keys, they no longer take it, and it goes to near keys that mean
    nothing to the head: Dilute(KeepSinks(Rerope(4096)), 8192) lowers the others alone. Needs no training.
    """

    method: Any
    _: KW_ONLY
    sinks: int = 4

    def __post_init__(self) -> None:
        demand.moves(self, self.method)
        if any(each.contrast or each.shift for each in self.method.place()):
            around: list[str] = []
            inner = self.method
            while hasattr(inner, "method"):
                around.append(type(inner).__name__)
                inner = inner.method
            instead = f"KeepSinks({inner!r})"
            for name in reversed(around):
                instead = f"{name}({instead}, …)"
            raise ValueError(f"KeepSinks({self.method!r}): what comes around it spares the sinks; write {instead}")
        demand.whole(self, "sinks", self.sinks)
        if self.sinks > MOST:
            raise ValueError(f"KeepSinks(sinks={self.sinks}): no text is that long")

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def needs_causal(self) -> bool:
        """True if keys ahead of the query have no position."""
        return getattr(self.method, "needs_causal", False)

    def place(self) -> tuple[Regime, ...]:
        near, *far = self.method.place()
        # Both measure the key alone, by its order in the text.
        first = Bound(high=self.sinks, measure=torch.zeros_like, key_measure=same, mirrored=True, by_index=True)
        later = replace(first, low=self.sinks, high=math.inf)
        return (
            near,
            *(replace(each, bounds=(*each.bounds, first), spared=True) for each in far),
            *(replace(each, bounds=(*each.bounds, later)) for each in far),
        )
