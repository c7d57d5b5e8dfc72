"""How a refusal is asked for and read: small inputs, and an error of one kind whose text begins as given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, causal
from tests.oracles import inputs

INF, NAN = math.inf, math.nan
ROPE = Scheme(mp.Rope(8), causal)
T = torch.arange(6)


def small(**sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [2 4 6 8], k and v [2 2 6 8] in float32, unless told otherwise."""
    q, k, v = inputs(**({"t": 6} | sizes))
    return q.float(), k.float(), v.float()


def refused(kind: type[Exception], text: str, ask: Callable[[], Any]) -> None:
    """The error is of this kind, and its text begins as given; `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in text.split("…"))
    with pytest.raises(kind, match="^" + pattern) as error:
        ask()
    assert error.type is kind, f"{error.type.__name__} where {kind.__name__} was meant"
