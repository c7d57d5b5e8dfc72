"""Backends: the ways to compute one equation. Each reads verbs and facets; none names a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from milepost.backends import chunked, diagonals, flex, reference, sdpa
from milepost.backends.triton import backend as triton
from milepost.call.call import Call

Result = tuple[Tensor, Tensor | None]


class Backend(Protocol):
    """A way to compute attention."""

    @property
    def CANNOT(self) -> dict[str, str]:  # noqa: N802
        """Compute the verbs it has no answer to, and what such a part does, as the middle of a sentence."""
        ...

    @property
    def PLAYED(self) -> bool:  # noqa: N802
        """True if its operations may be written down and played: not a compiled graph's, nor the specification's."""
        ...

    def refuses(self, call: Call) -> str | None:
        """Compute why this call cannot be run, or None."""
        ...

    def cost(self, call: Call) -> float:
        """About how many seconds it would take on a common machine; only comparisons between backends count."""
        ...

    def run(self, call: Call) -> Result:
        """Compute the output [b h t dv] and, where asked for, the log-sum-exp [b h t]."""
        ...


BACKENDS: dict[str, Backend] = {
    "sdpa": sdpa,
    "triton": triton,
    "flex": flex,
    "diagonals": diagonals,
    "chunked": chunked,
    "reference": reference,
}
"""By name, those that are chosen most often first."""

Stepper = Callable[[Tensor, Tensor, Tensor, int], "Result | None"]
"""Runs q over keys and values, the first of which has an index; None where that step is not like the others."""
STEPPERS: dict[str, Callable[[Call], Stepper | None]] = {"sdpa": sdpa.stepper, "triton": triton.stepper}
"""By backend: what runs steps that look like a call, with any number of keys, without asking again what they are."""
