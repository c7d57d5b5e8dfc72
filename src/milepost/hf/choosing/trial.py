"""A trial: one text that shows loss, recall at several depths and a pass key, all in one forward pass.

    preamble … passage … [pass key] … passage … natural ending | passages again | question, answer

The passages stand where the text has them, further back than the trained length, so that a window cannot see them. What
comes after the natural ending is hidden from it, so the loss there is that of the text alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from milepost.hf.measuring.trials import Needle, need_tokens, needles

BLOCKS = 8
"""Into how many blocks the judged ending is cut; intervals are over blocks."""
DEPTHS = 4
"""How many passages come again."""
MOST_LAST, MOST_PASSAGE = 512, 64


@dataclass(frozen=True)
class Sizes:
    """How a trial is laid out, in tokens: the same for all texts and rows.

    starts: where the passages stand. sinks: how many first tokens the window keeps.
    """

    target: int
    trained: int
    last: int
    passage: int
    starts: tuple[int, ...]
    sinks: int

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return max(1, self.last // BLOCKS)

    @property
    def distances(self) -> tuple[int, ...]:
        """How far back each passage stands from the end, about: copies come in another order in each text."""
        return tuple(self.target - start for start in self.starts)


@dataclass(frozen=True)
class Trial:
    """Token ids [1, target + 1] of which the last is only judged, and where its parts end, counted from the end."""

    ids: Tensor
    order: tuple[int, ...]
    answer: int
    asked: int

    def judged(self, sizes: Sizes) -> int:
        """Return how many of the last tokens are looked at."""
        return sizes.last + len(self.order) * sizes.passage + self.asked + self.answer


@dataclass(frozen=True)
class Result:
    """What one row came to on one trial: nats of each block, of each copy by depth, and the pass key, if there is one.

    seconds: how long the pass took, shared among the trials that were read together.
    """

    blocks: tuple[float, ...]
    copies: tuple[float, ...]
    found: bool | None
    seconds: float = 0.0


def sizes_for(trained: int, target: int, last: int | None, sinks: int = 4) -> Sizes:
    """Return sizes that fit: what is judged and repeated takes less than half of the trained length."""
    last = min(MOST_LAST, max(1, trained // 4)) if last is None else last
    passage = min(MOST_PASSAGE, max(1, trained // 16))
    sinks = min(sinks, trained // 8)
    if last + DEPTHS * passage >= trained - sinks:
        raise ValueError(
            f"extend(last={last}): a window of {trained:,} tokens must hold what is judged and {DEPTHS} passages of "
            f"{passage}; ask for last={max(1, trained // 4)}"
        )
    # Behind a preamble, and out of the window's sight.
    first = max(passage, target // 32, sinks + 1)
    room = target - trained - passage - first
    count = 0 if room < 0 else min(DEPTHS, 1 + room // (2 * passage))
    starts = tuple(first + round(n * room / max(1, count - 1)) for n in range(count))
    return Sizes(target, trained, last, passage, starts, sinks)


def trials_for(ids: Tensor, tokenizer: object, sizes: Sizes, count: int, first: int | None) -> list[Trial]:
    """Return trials whose natural endings stand at fixed places of the text and do not overlap."""
    need_tokens(ids, sizes.target + 1 + (count - 1) * sizes.last, f"{count} endings at {sizes.target:,} tokens")
    room = len(ids) - sizes.target - 1
    ends = [sizes.target + 1 + n * room // max(1, count - 1) for n in range(count)]
    hidden = needles(ids, tokenizer, count, 0)
    return [
        _trial(ids, end, number, key, sizes, first) for number, (end, key) in enumerate(zip(ends, hidden, strict=True))
    ]


def _trial(ids: Tensor, end: int, number: int, needle: Needle, sizes: Sizes, first: int | None) -> Trial:
    depths = len(sizes.starts)
    at = _between(sizes, number, len(needle.hidden)) if needle.room <= sizes.trained // 4 else None
    tail, hidden = depths * sizes.passage, torch.empty(0, dtype=torch.long)
    if at is not None:
        tail, hidden = tail + len(needle.asked) + len(needle.answer), needle.hidden
    natural = ids[end - (sizes.target + 1 - tail - len(hidden)) : end]
    at = 0 if at is None else at
    text = torch.cat((natural[:at], hidden, natural[at:]))
    if first is not None:
        text[0] = first
    # No depth always comes first: the copies take turns.
    order = tuple((n + number) % depths for n in range(depths))
    copies = [text[sizes.starts[n] : sizes.starts[n] + sizes.passage] for n in order]
    asked = [needle.asked, needle.answer] if len(hidden) else []
    whole = torch.cat([text, *copies, *asked])[None]
    return Trial(whole, order, *((len(needle.answer), len(needle.asked)) if len(hidden) else (0, 0)))


def _between(sizes: Sizes, number: int, room: int) -> int | None:
    """Return where the pass key is put, between two passages that take turns; None where it fits between none."""
    gaps = [
        (one + sizes.passage + other - room) // 2
        for one, other in zip(sizes.starts, sizes.starts[1:], strict=False)
        if other - one - sizes.passage >= room
    ]
    return gaps[number % len(gaps)] if gaps else None


def read_off(nats: Tensor, right: Tensor, trial: Trial, sizes: Sizes) -> Result:
    """Return what a row came to, from the nats [n] of at least the tokens that are judged, and which it guessed."""
    end = len(nats) - trial.answer - trial.asked
    repeated = nats[end - len(trial.order) * sizes.passage : end].view(len(trial.order), -1)
    ending = end - len(trial.order) * sizes.passage
    own = nats[ending - sizes.last : ending].double()
    blocks = tuple(float(each.mean()) for each in cast("Iterable[Tensor]", own.split(sizes.block)))
    by_depth = dict(zip(trial.order, (float(each.double().mean()) for each in repeated), strict=True))
    found = bool(right[-trial.answer :].all()) if trial.answer else None
    return Result(blocks, tuple(by_depth[n] for n in range(len(trial.order))), found)


def plain(result: Result) -> dict[str, Any]:
    """Return a result as JSON can hold it."""
    return dict(vars(result))


def from_plain(kept: dict[str, Any]) -> Result:
    """Return the result that was kept."""
    return Result(tuple(kept["blocks"]), tuple(kept["copies"]), kept["found"], kept["seconds"])
