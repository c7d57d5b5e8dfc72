"""Numbers that follow from a method's arguments, for print: they are asked of its own code, never of its formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.seams.verbs import verbs_of

LENGTHS = (1, 2**10, 2**20, 2**40)
"""What has one value for all of these does not follow the length of a text."""

SHOWN = 8
"""So many slopes are printed; of more heads the first ones and the last."""


def slopes_of(part: object) -> Sequence[float] | None:
    """The slope of each head behind the query, of a bias that is linear in the distance; None where it learns them.

    None also where they follow the length of the text.
    """
    if isinstance(part, nn.Module) or "bend" not in verbs_of(part) or getattr(part, "by_length", False):
        return None
    with torch.device("cpu"):
        found: Any = getattr(part, "slopes", None)
        found = getattr(found(), "behind", None) if callable(found) else found
    if isinstance(found, Tensor):
        return cast("list[float]", found.flatten().tolist())
    return cast("Sequence[float]", found) if isinstance(found, (tuple, list)) else None


def magnitude_of(method: object) -> float | None:
    """The factor that rides on cos and sin, where it is not learned and does not follow the length of the text."""
    found: Any = getattr(method, "magnitude", None)
    if not callable(found) or isinstance(method, nn.Module):
        return None
    with torch.device("cpu"):
        values = {float(cast("Tensor | float", found(torch.tensor([length]).double()))) for length in LENGTHS}
    return values.pop() if len(values) == 1 else None


def sharpness_of(part: object) -> float | None:
    """The factor on the softmax scale, where it is the same for every query."""
    if "sharpen" not in verbs_of(part):
        return None
    with torch.device("cpu"):
        index = torch.tensor([LENGTHS]) - 1
        answers = [cast("Tensor", cast("Any", part).sharpen(index, torch.tensor([[length]]))) for length in LENGTHS]
    values = {value for answer in answers for value in cast("list[float]", answer.flatten().tolist())}
    return values.pop() if len(values) == 1 else None


def base_of(stretch: object, dim: int, theta: float) -> float | None:
    """The base that makes the stretched frequencies base^(−2n/d), where there is one for texts of every length."""
    found: Any = getattr(stretch, "frequencies", None)
    if not callable(found) or dim < 4:
        return None
    with torch.device("cpu"):
        f = theta ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
        answers = cast("list[Tensor]", [found(f, torch.tensor(length).double()) for length in LENGTHS])
        base = float(answers[0][1]) ** (-dim / 2)
        made = base ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    return base if all(torch.allclose(each, made, rtol=1e-9, atol=0) for each in answers) else None


def in_short(value: float) -> str:
    """Six digits: what follows from exact arguments need not be exact itself."""
    return f"{value:.6g}".replace("-", "−", 1) if value < 0 else f"{value:.6g}"


def by_head(values: Sequence[float]) -> str:
    """Numbers, one a head: `0.0625, 0.00390625, 0.25`."""
    texts = [in_short(value) for value in values]
    return ", ".join(texts if len(texts) <= SHOWN else [*texts[: SHOWN - 1], "…", texts[-1]])
