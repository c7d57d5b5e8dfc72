"""What is added to scores by a count of open gates, as our kernels take it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from milepost.call.call import Call
from milepost.seams.arguments import spell
from milepost.seams.band import Band

BEFORE = ("place", "relate", "sharpen", "bend")
"""Verbs that change the scores which gates are opened by."""


def uncounted(call: Call, band: Band) -> str | None:
    """Return why the kernels cannot bend rows as the scheme does."""
    parts: tuple[Any, ...] = call.scheme.answering("bend_rows")
    for number, part in enumerate(parts):
        if number or part not in call.scheme.answering("by_count"):
            return f"{spell(part)} modifies whole rows of scores in a way that these kernels do not do yet"
        if part.gates != "scores":
            return f"{spell(part)} opens gates by something else than scores, which these kernels do not do yet"
        for other in (each for verb in BEFORE for each in call.scheme.answering(verb)):
            return f"{spell(part)} counts scores that {spell(other)} changed, which these kernels do not do yet"
        if (band.behind, band.ahead) != (math.inf, 0):
            return f"{spell(part)} with a window is not in these kernels yet"
    return None


def counted(call: Call, q: Tensor, k: Tensor, v: Tensor, tokens: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return attention of turned queries and keys whose scores are bent by counts."""
    # Loaded here, because it needs triton.
    from milepost.backends.triton.cope.operators import gated

    part: Any = call.scheme.answering("bend_rows")[0]
    return gated(q, k, v, part.by_count(call.q), scale=call.scheme.scale(q.shape[-1]), **tokens)
