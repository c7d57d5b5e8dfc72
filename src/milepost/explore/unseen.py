"""An intervention on a real model: what becomes of its loss if only the pairs that meet unseen angles are changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import milepost as mp
from milepost import Schedule, Scheme
from milepost.explore.analysis import Analysis, Array, Numbers, array, axis
from milepost.explore.heads import called
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.picture import Picture
from milepost.hf.measuring.judged import Row, evaluating, judge
from milepost.hf.measuring.trials import tokens_of
from milepost.hf.model.extension import as_it_was, extended, restore
from milepost.hf.model.models import demand_model, same_config
from milepost.lab.statistics.intervals import over_seeds
from milepost.schedule import ranges
from milepost.seams import demand
from milepost.seams.verbs import Side

HARM = 0.1
"""Nats within the trained length that are said in the title."""


@dataclass(frozen=True)
class Slower:
    """Turn each pair of channels more slowly, by a factor of its own; an infinite one stands still."""

    factors: tuple[float, ...]

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / torch.tensor(self.factors, dtype=f.dtype, device=f.device)

    def magnitude(self, length: Tensor) -> float:
        return 1.0


@dataclass(frozen=True)
class Without:
    """Leave channels out of the dot product."""

    channels: tuple[int, ...]
    relative = True

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        if side != "query":
            return x
        kept = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        kept[list(self.channels)] = 0
        return x * kept


def unseen_angles(
    model: nn.Module, text: object, tokenizer: object = None, *, length: int, windows: int = 8, bins: int = 48
) -> Analysis:
    """Change only the pairs that meet unseen angles in a model, then only the others, and compare the loss by position.

        found = explore.unseen_angles(model, text, tokenizer, length=4 * 512)
        print(found.says)

    A pair that did not make a full turn within the trained length meets new angles beyond it. If that is what breaks
    RoPE, changing these pairs alone mends the loss past the trained length, and changing the others does not.
      slowed    the pairs turn more slowly, by length/trained, so that they meet trained angles alone
      frozen    the pairs do not turn
      dropped   the pairs do not count in the dot product
    Beside these the model unchanged, and with a mask that shows the last trained length alone (window).
    text: a string with a tokenizer, or token ids [n], of windows · length tokens at least. One RoPE without a stretch
    is read; a model that is extended is looked at without its extension, and is left as it was.
    """
    demand_model("unseen_angles", model)
    for name, value in (("length", length), ("windows", windows), ("bins", bins)):
        demand.whole(unseen_angles, name, value)
    ids = tokens_of(text, tokenizer)
    if len(ids) < windows * length:
        raise ValueError(
            f"unseen_angles: the text has {len(ids):,} tokens, and {windows} windows of {length:,} are asked for; give "
            f"a longer text or fewer windows"
        )
    texts = ids[: windows * length].view(windows, length)
    with evaluating([model]), as_it_was(model) as plain, same_config(model):
        rope, trained = _rope_of(plain)
        if length < trained + 2:
            raise ValueError(
                f"unseen_angles(length={length}): the model was trained at {trained:,}; give at least {trained + 2:,}"
            )
        unseen = _turns(rope, trained) < 1
        if not 0 < unseen.sum() < len(unseen):
            raise ValueError(
                f"unseen_angles: {unseen.sum()} of {len(unseen)} pairs meet unseen angles; there is nothing to compare"
            )
        bare = [layer for layer, scheme in Schedule.of(plain).items() if not scheme.answering("turn")]
        edges = _edges(trained, length - 1, bins)
        found: dict[str, Numbers] = {}
        for name, more in _rows(rope, unseen, length / trained, trained):
            found[name] = _losses(plain, more, texts, edges)
            if not more and not np.isfinite(found[name]).all():
                raise ValueError(
                    "unseen_angles: the loss of this model as it is is not a number: its weights are NaN, or they "
                    "overflow in its dtype. Load it in float32 or bfloat16, and see that all its weights were loaded"
                )
    position = (edges[:-1] + edges[1:]) / 2.0
    return drawn_losses(found, position, trained, length, unseen, bare, called(model))


def _edges(trained: int, end: int, bins: int) -> Any:
    """Return where bins begin and end, about equal, none of them with positions on both sides of the trained length."""
    before = max(1, round(bins * trained / end))
    parts = np.linspace(0, trained, before + 1), np.linspace(trained, end, max(1, bins - before) + 1)
    return np.unique(np.concatenate(parts).astype(int))


def _rope_of(model: Any) -> tuple[Any, int]:
    """Return the rotation that all layers share, and the trained length."""
    schedule = Schedule.of(model)
    turns = {part for scheme in schedule for part in scheme.answering("turn")}
    rope = next(iter(turns), None)
    if not turns:
        raise ValueError("unseen_angles: no layer of this model has RoPE, so there are no angles that it could meet")
    if len(turns) != 1 or not isinstance(rope, mp.Rope) or rope.stretch is not None:
        raise ValueError("unseen_angles: this model has not one plain RoPE in all layers, which alone is looked into")
    if schedule.trained is None:
        raise ValueError("unseen_angles: the config does not say the trained length (max_position_embeddings)")
    return rope, schedule.trained


def _turns(rope: Any, length: int) -> Numbers:
    """Return how often each pair turns in a text."""
    step = rope.angles(torch.ones(1, dtype=torch.float64))[0]
    return (step * length / math.tau).numpy()


def _rows(rope: Any, unseen: Any, factor: float, trained: int) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Return every change by its name: what a scheme gets besides; a stretch goes into its rotation."""
    yield "unchanged", ()
    yield "window", (mp.window(trained),)
    half = len(unseen)
    for which, chosen in (("unseen pairs", unseen), ("other pairs", ~unseen)):
        yield f"{which} slowed", (Slower(tuple(np.where(chosen, factor, 1.0).tolist())),)
        yield f"{which} frozen", (Slower(tuple(np.where(chosen, math.inf, 1.0).tolist())),)
        pairs = np.flatnonzero(chosen)
        both = (2 * pairs, 2 * pairs + 1) if rope.pairs == "neighbours" else (pairs, pairs + half)
        yield f"{which} dropped", (Without(tuple(int(each) for each in np.concatenate(both))),)


def _with(scheme: Scheme, more: tuple[object, ...]) -> Scheme:
    """Return a scheme with more parts, and a stretch among them in its rotation."""
    stretch = next((part for part in more if isinstance(part, Slower)), None)
    own = (replace(part, stretch=stretch) if isinstance(part, mp.Rope) else part for part in scheme.parts)
    # A layer without positions (SmolLM3, Cohere 2) has no pairs.
    turns = bool(scheme.answering("turn"))
    return Scheme(*own, *(part for part in more if part is not stretch and (turns or not isinstance(part, Without))))


def _losses(model: nn.Module, more: tuple[object, ...], texts: Tensor, edges: Any) -> Numbers:
    """Return the mean loss in each bin of positions, [windows bins], in nats."""
    if more:
        own = Schedule.of(model)
        changed = Schedule([_with(each, more) for each in own], layers=own.layers)
        extended(model, [changed], through="attend", stored=True)
    try:
        nats = judge(Row("unseen_angles", model), texts, texts.shape[1] - 1).nats.double().numpy()
    finally:
        if more:
            restore(model)
    return np.stack([nats[:, a:b].mean(1) for a, b in pairwise(edges)], 1)


def drawn_losses(
    found: dict[str, Numbers], position: Numbers, trained: int, length: int, unseen: Any, bare: list[int], of: str
) -> Analysis:
    """Return the losses [windows bins] by position ; unseen: which pairs meet new angles, of: the model."""
    past = position >= trained
    arrays: list[Array] = [
        axis("position", position, "tokens"),
        axis("window", np.arange(len(found["unchanged"]), dtype=np.float64)),
    ]
    arrays += [array(f"loss, {name}", each, "nats", "window", "position") for name, each in found.items()]
    beside = ("unchanged", "window")
    several = len(found["unchanged"]) > 1
    ends = {name: _interval(each) for name, each in found.items()}
    at = np.concatenate(([0.0], position))
    high = max(float(np.nanmax(each[at >= trained], initial=-np.inf)) for _, each in ends.values())
    low = min(float(np.nanmin(each, initial=np.inf)) for each, _ in ends.values())
    pictures: list[Picture] = []
    for which, many in (("unseen", int(unseen.sum())), ("other", int((~unseen).sum()))):
        own = [name for name in found if name.startswith(which)]
        shown = {name: name.removeprefix(f"{which} pairs ") for name in (*beside, *own)}
        # From 0 on: a point stands for the bin around it.
        picture = curves(
            f"Only the {many} {'unseen' if which == 'unseen' else 'other'} pairs changed",
            at,
            {short: _from_0(found[name].mean(0)) for name, short in shown.items()},
            x_name="position in tokens",
            y_name="loss in nats",
            mark=(float(trained), f"trained length, {trained:,}"),
            y_range=(low, high),
            ranges={short: ends[name] for name, short in shown.items()} if several else None,
            at_ends=True,
        )
        pictures.append(picture)
    changes = (
        "slowed: turned so much more slowly that they stay at trained angles; frozen: not turned; dropped: left out of "
        "the dot product"
    )
    return Analysis(
        "unseen_angles",
        f"{int(unseen.sum())} of {len(unseen)} pairs meet unseen angles past {trained:,} tokens: "
        f"{_mended(found, past, int((~unseen).sum()), trained)}",
        _said(found, past, bare),
        tuple(arrays),
        tuple(pictures),
        f"{of}, trained at {trained:,} tokens, read at {length:,} · {changes} · window: a mask that shows the last "
        f"{trained:,} keys · mean of {len(found['unchanged'])} texts" + (", pale: 95 % interval" if several else ""),
    )


def _from_0(values: Numbers) -> Numbers:
    """Return values by bins with none at position 0, where the axis begins."""
    return np.concatenate(([np.nan], values))


def _interval(each: Numbers) -> tuple[Numbers, Numbers]:
    """Return both ends of the 95 % interval over windows of text at each position; the mean twice if there is one."""
    half = np.array([float(over_seeds(each[:, n])) if len(each) > 1 else 0.0 for n in range(each.shape[1])])
    return _from_0(each.mean(0) - half), _from_0(each.mean(0) + half)


def _mended(found: dict[str, Numbers], past: Any, others: int, trained: int) -> str:
    """Return what slowing each kind of pairs does to the loss, in words; others: how many meet no unseen angles."""
    window = found["window"][:, past].mean()
    damage = found["unchanged"][:, past].mean() - window
    if damage <= 0:
        return "the loss does not break there"
    closes: dict[str, str] = {}
    for name in ("unseen", "other"):
        share = 1 - (found[f"{name} pairs slowed"][:, past].mean() - window) / damage
        closes[name] = f"closes {100 * share:.0f} %" if share >= 0.005 else ""
    # What gains nothing proves little if it does harm where nothing was to be gained.
    cost = (found["other pairs slowed"] - found["unchanged"])[:, ~past].mean() if (~past).any() else 0.0
    return (
        f"slowing these {closes['unseen'] or 'closes nothing'} of the gap to a window; slowing the other {others} "
        + (closes["other"] or f"gains nothing on average past {trained:,}")
        + (f" and costs {cost:.1f} nats before it" if cost >= HARM else "")
    )


def _said(found: dict[str, Numbers], past: Any, bare: list[int]) -> str:
    """Return the loss past the trained length, as differences to the window's, with intervals over windows of text."""
    window = found["window"][:, past]
    lines: list[str] = []
    for name, each in found.items():
        more = (each[:, past] - window).mean(1)
        if name != "window":
            lines.append(f"{name} {more.mean():+.3f} ± {float(over_seeds(more)):.3f}")
    head = f"Past the trained length, nats a token more than with a window (which has {window.mean():.3f})"
    several = len(bare) > 1
    layers = f" Layer{'s' * several} {ranges(bare)} {'have' if several else 'has'} no RoPE and"
    left = f"{layers} {'are' if several else 'is'} left as {'they are' if several else 'it is'}, but for the window."
    return f"{head}: {'; '.join(lines)}.{left if bare else ''}"


__all__ = ["drawn_losses", "unseen_angles"]
