"""One score of a model: by which protocol, at which length, with the bits of every window that it is the mean of."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from milepost.lab.judging import judge
from milepost.lab.statistics.intervals import over_seeds, over_windows
from milepost.lab.tasks import PROTOCOLS, score
from milepost.lab.training.reader import Reader

# Examples of a task that are judged however long they are.
FEWEST = 16
VALIDATION = "validation"
"""The protocol by which settings are chosen: windows of a text of their own, which is never judged."""
DRAWN = ("recall",)
"""Protocols whose windows are drawn at random, and so are independent; tasks are, too. Others follow the text."""


@dataclass(frozen=True)
class Judging:
    """How a trained model is judged."""

    longest: int
    total: int = 1 << 17
    """About how many bytes are judged at each length."""
    ends: int = 16
    recall: tuple[int, ...] = ()
    copies: int = 32
    """How many pairs of copies are made for each distance of recall."""
    copied: int = 128
    """How many bytes a copy has."""
    alone: int = 64
    answers: int = 128
    """How many examples of a task are judged at each length, unless they have more than `total` tokens."""
    protocols: tuple[str, ...] = ("windows", "ends", "sliding", "alone", "recall", "passages")
    validation: str = ""
    """The digest of the text by which settings are chosen, where they are."""


@dataclass(frozen=True)
class Scored:
    """A mean over windows, half its 95 % interval over windows, and the windows themselves in the order of the text."""

    mean: float
    half: float | None
    count: int
    """How many bytes, or answers, were judged."""
    windows: tuple[float, ...]
    detail: dict[str, Any]


def scored(
    judging: Judging, model: Reader, text: Tensor, protocol: str, length: int, trained: int, seed: int
) -> Scored:
    """Judge a model that was trained at `trained` by one protocol, at one length or distance."""
    detail: dict[str, Any] = {}
    if protocol in ("recall", "passages"):
        # What a second copy saves against the same bytes fresh, in the same place; more is better.
        real = protocol == "passages"
        bits, fresh = judge.recall(model, text, length, judging.copied, judging.copies, real=real)
        of_windows = (fresh.double() - bits.double()).mean(1)
        mean = of_windows.mean()
        detail = {"second": float(bits.double().mean()), "fresh": float(fresh.double().mean())}
    else:
        bits = _bits(judging, model, text, protocol, length, trained, seed)
        of_windows, mean = bits.double().mean(1), bits.double().mean()
        if protocol == "windows":
            detail = {"last": float(bits[:, -judge.LAST :].mean()), "by_position": _binned(bits.mean(0))}
    # One number a window, as exact as the logits are.
    windows = tuple(map(float, of_windows.float()))
    independent = protocol in DRAWN or protocol in PROTOCOLS
    half = float((over_seeds if independent else over_windows)(windows))
    # None for a single window, or where one is no number.
    return Scored(float(mean), half if math.isfinite(half) else None, bits.numel(), windows, detail)


def _bits(judging: Judging, model: Reader, text: Tensor, protocol: str, length: int, trained: int, seed: int) -> Tensor:
    """Return the bits of every byte, or whether each answer is right, [windows, bytes]."""
    if protocol in PROTOCOLS:
        task = PROTOCOLS[protocol].task
        count = min(judging.answers, max(FEWEST, judging.total // length))
        return score(model, task, task.within(length), count, seed)[:, None]
    match protocol:
        case "windows" | "validation":
            return judge.non_overlapping(model, text, length, judging.total)
        case "ends":
            # Half of the trained length at most, so that even there every byte has as much before it.
            return judge.at_ends(model, text, length, judging.longest, judging.ends, min(judge.LAST, trained // 2))
        case "sliding":
            return judge.sliding(model, text, length, max(1, length // 4), judging.total // 4)
        case _:
            return judge.each_alone(model, text, length, judging.alone)


def _binned(values: Tensor) -> list[tuple[int, float]]:
    """Return the mean bits of positions in bins that double: [first position, mean] each."""
    edges = [0, 1, 2, 4, 8]
    while edges[-1] < len(values):
        edges += [edges[-1] * 3 // 2, edges[-1] * 2]
    edges = sorted({min(edge, len(values)) for edge in edges})
    return [(a, float(values[a:b].mean())) for a, b in itertools.pairwise(edges)]
