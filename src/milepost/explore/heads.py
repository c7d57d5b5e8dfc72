"""Where the heads of a real model look: effective windows, entropy, sinks and far keys, and scores by distance."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import PurePath
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import milepost as mp
from milepost import Regime, Scheme
from milepost.call.options import Options
from milepost.configs import read
from milepost.configs.reader import HEADS
from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.pictures.axes import number
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.maps import map_of
from milepost.explore.pictures.picture import Picture
from milepost.explore.words import first_large
from milepost.hf.measuring.judged import evaluating
from milepost.hf.measuring.trials import tokens_of
from milepost.hf.model.attention import watched
from milepost.hf.model.extension import Extension, as_it_was, changed_by, extended, restore
from milepost.hf.model.models import demand_model, device_of, layers_of, same_config
from milepost.hf.model.parts import schedule_for
from milepost.schedule import ranges
from milepost.seams import demand
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
SHARE = 0.9
"""The share of the weight that an effective window holds."""
AT_ONCE = 1 << 25
"""Weights that are formed at once."""
UNCHANGED = "unchanged"
MEANINGS = {
    "queries": "All is measured over the last quarter of the queries, or so many of them as were asked for.",
    "window, sinks apart": "The distance within which 90 % of the weight of a head lies that is not on the first "
    "tokens, all these queries together.",
    "effective window": "The same with the weight of the first tokens, which is the effective window in the numbers: a "
    "head with more than 10 % of it there has the whole text as its window, however near it looks otherwise.",
    "entropy": "Of the weights of a query, in bits: how many keys they are spread over, as a power of two.",
    "sinks": "The weight of the first four tokens of the text, or as many as were asked for.",
    "sink logit": "The weight that no key gets, of heads that have a learned logit of attending to nothing.",
    "far keys": "The weight of keys further back in the text than the trained length, wherever a method puts them. In "
    "the pictures without the first tokens (sinks apart); in the numbers with them too.",
    "fast, middle, slow pairs": "Thirds of the pairs of channels that RoPE turns, the fastest first; mean score by "
    "distance. Distances that fewer than half of the queries reach are in the numbers and not in the picture. If no "
    "head was asked for, it is that of a middle layer that looks furthest.",
}
"""What the words of the pictures mean, in their order."""
UNITS = {
    "window, sinks apart": "tokens",
    "effective window": "tokens",
    "entropy": "bits",
    "sinks": "of the weight",
    "sink logit": "of the weight",
    "far keys": "of the weight",
    "far keys, sinks apart": "of the weight",
}
"""What is measured of every head, in the order of the pictures."""
DRAWN = {"effective window": "window with sinks"}
"""What a measure is called in the pictures, where that is not its name."""
WARNINGS = {"effective window": "the whole text if > 10 % is on sinks"}
"""What is written at the maps of a measure that would be misread without."""
UNDRAWN = ("far keys",)
"""Of these the picture would be that of the sinks once more."""
NARROW, WIDE = 150.0, 250.0
"""How wide maps are, three and two in a line."""
FAINT = 0.05
"""The most of a map is written out where it is less than this share of the scale."""
Measured = Mapping[str, Mapping[str, Numbers]]
"""Each measure [layers heads], by the name of the row that was looked at and the name of the measure."""


def look(
    model: nn.Module,
    text: object,
    tokenizer: object = None,
    *,
    given: object = None,
    length: int | None = None,
    sinks: int = 4,
    rows: int = 1024,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Analysis:
    """Look at where every head of a model attends in a text, unchanged and with other methods.

        found = explore.look(model, text, tokenizer, given="ReRoPE, sinks kept", heads=[(0, 1), (4, 3)])
        found["effective window, unchanged"]      # [layers heads], tokens

    text: a string with a tokenizer, or token ids [n]; length: how many of its tokens are read, all if left out.
    given: what `milepost.hf.extend` takes, one part or a list, drawn beside the model unchanged.
    Over the last quarter of the queries, at most `rows` of them, evenly spread:
      effective window        the distance within which 90 % of the weight lies, all these queries together
      window, sinks apart     the same of the weight that is not on the first `sinks` tokens
      entropy                 of the weights of a query, in bits
      sinks                   the weight of the first `sinks` tokens
      sink logit              the weight of the sink logit, where the model has one
      far keys                the weight of keys further back than the trained length
      far keys, sinks apart   the same without the first `sinks` tokens, which are further back in a long text
    heads: (layer, head) of which the scores are drawn by distance, in three bands of channel pairs; left out, the head
    that looks furthest in the first rotated layer from the middle on; () for none.
    The model attends through milepost meanwhile, in one pass, and is left as it was.
    """
    demand_model("look", model)
    for name, value in (("sinks", sinks), ("rows", rows)):
        demand.whole(look, name, value)
    ids = tokens_of(text, tokenizer)
    if length is not None:
        demand.whole(look, "length", length, least=8)
        if len(ids) < length:
            raise ValueError(f"look(length={length}): the text has {len(ids)} tokens; give a longer one")
        ids = ids[:length]
    if len(ids) < 8:
        raise ValueError(f"look: the text has {len(ids)} tokens; give at least 8")
    parts = demand_possible(model, given, heads or ())
    with as_it_was(model) as plain:
        layers = layers_of(plain).own.layers
    drawn = None if heads is None else tuple(heads)
    named = ", ".join(each if isinstance(each, str) else spell(each) for each in parts)
    found: dict[str, _Watching] = {}
    changes: dict[str, list[object]] = {UNCHANGED: []} | ({f"with {named}": parts} if parts else {})
    for name, change in changes.items():
        found[name] = _watched(model, ids, change, _Watching(sinks, rows, drawn, layers))
        # The same head with other methods.
        drawn = found[name].heads or ()
    return _drawn(found, len(ids), called(model))


def weights_in(model: nn.Module, ids: Tensor, given: object = None) -> dict[int, Tensor]:
    """Return the attention weights of every layer that attends, [h t t] in float32, by the layer's number.

    ids: token ids [n]; given: as `look` takes it, or the model as it is. One pass; the model is left as it was.
    """
    found: list[Tensor] = []

    def watch(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, options: Options) -> None:
        found.append(mp.weights(q, k, scheme, v=v, **options)[0].float().cpu())

    parts = demand_possible(model, given, ())
    with as_it_was(model) as plain:
        layers = layers_of(plain).own.layers
    with _attending(model, parts) as (plain, _), watched(watch), torch.no_grad():
        plain(input_ids=ids.to(device_of(plain))[None], use_cache=False)
    if not found:
        raise ValueError("weights_in: no layer of this model showed what it attends with")
    return dict(zip(layers, found, strict=True))


def demand_possible(model: nn.Module, given: object, heads: Sequence[tuple[int, int]]) -> list[object]:
    """Refuse methods and heads that this model cannot be looked at with, and return the methods; reads no weights."""
    parts = list(cast("Sequence[object]", given)) if isinstance(given, (list, tuple)) else [given] * (given is not None)
    with as_it_was(model) as plain:
        layers = layers_of(plain)
        schedule = schedule_for(layers, parts, None) if parts else layers.own
    count = read(layers.config, "look").get(*HEADS)
    for layer, head in heads:
        if layer not in schedule.layers:
            raise IndexError(
                f"look(heads={list(heads)}): there are {len(schedule)} layers that attend, {ranges(schedule.layers)}, "
                f"and layer {layer} is not among them"
            )
        if not 0 <= head < count:
            raise IndexError(f"look(heads={list(heads)}): there are {count} heads, 0 to {count - 1}")
        for each in (layers.own, schedule):
            if not each[layer].answering("cos_sin"):
                raise ValueError(
                    f"look(heads={list(heads)}): layer {layer} does not rotate, and only a head that is rotated has "
                    f"bands of pairs; leave it out"
                )
    return parts


@dataclass
class _Watching:
    """What is gathered of each layer, in the order in which they attend."""

    sinks: int
    rows: int
    heads: tuple[tuple[int, int], ...] | None
    """Of which bands are gathered; None for one that is still to be chosen."""
    layers: Sequence[int]
    """The number of each layer that attends."""
    trained: int | None = None
    window: list[Tensor] = field(default_factory=list[Tensor])
    window_apart: list[Tensor] = field(default_factory=list[Tensor])
    entropy: list[Tensor] = field(default_factory=list[Tensor])
    on_sinks: list[Tensor] = field(default_factory=list[Tensor])
    on_logit: list[Tensor] = field(default_factory=list[Tensor])
    far: list[Tensor] = field(default_factory=list[Tensor])
    far_apart: list[Tensor] = field(default_factory=list[Tensor])
    key_heads: int = 0
    has_logit: bool = False
    chosen: list[int] = field(default_factory=list[int])
    """The queries that are looked at."""
    bands: dict[tuple[int, int], list[Numbers]] = field(default_factory=dict[tuple[int, int], list[Numbers]])

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, options: Options) -> None:
        """Gather what one layer does."""
        layer, t, s = self.layers[len(self.window)], q.shape[2], k.shape[2]
        if t != s or q.shape[0] != 1:
            raise ValueError(f"look: layer {layer} attends with {t} queries and {s} keys; only one whole text is read")
        first = t - max(1, t // 4)
        chosen = sorted({round(each) for each in np.linspace(first, t - 1, min(self.rows, t - first))})
        self.chosen, self.key_heads, h = chosen, k.shape[1], q.shape[1]
        self.has_logit |= bool(scheme.answering("rest"))
        by_distance, on_sinks = torch.zeros(2, h, t, dtype=torch.float64, device=q.device)
        sums = torch.zeros(3, h, dtype=torch.float64, device=q.device)
        for some in _blocks(chosen, h * s):
            weights = mp.weights(q, k, scheme, rows=some, v=v, **options)[0].double()
            sums[0] -= torch.xlogy(weights, weights).sum((1, 2)) / math.log(2)
            sums[1] += weights[..., : self.sinks].sum((1, 2))
            if scheme.answering("rest"):
                sums[2] += (1 - weights.sum(-1)).sum(1)
            away = _distances(some, s, q.device).abs()
            by_distance.index_add_(1, away.flatten(), weights.flatten(1))
            first_ones = weights[..., : self.sinks].flatten(1)
            on_sinks.index_add_(1, away[:, : self.sinks].flatten(), first_ones)
        # A difference of sums: what is left of nothing may be a hair below 0.
        apart = (by_distance - on_sinks).clamp(min=0.0)
        self.window.append(_window(by_distance).cpu())
        self.window_apart.append(_window(apart).cpu())
        beyond = len(by_distance[0]) if self.trained is None else self.trained
        far = (each[:, beyond:].sum(1) for each in (by_distance, apart))
        lists = (self.entropy, self.on_sinks, self.on_logit, self.far, self.far_apart)
        for kept, each in zip(lists, (*sums, *far), strict=True):
            kept.append((each / len(chosen)).cpu())
        rotates = bool(scheme.answering("cos_sin"))
        if self.heads is None and layer >= self.layers[len(self.layers) // 2] and rotates:
            furthest = self.far_apart[-1] if beyond < t else self.window_apart[-1]
            if furthest.isfinite().any():
                self.heads = ((layer, int(furthest.nan_to_num(-1.0).argmax())),)
        for at in self.heads or ():
            if at[0] == layer and rotates:
                self.bands[at] = _bands(q[:, at[1]], k[:, at[1] * k.shape[1] // h], scheme, chosen)


def _window(by_distance: Tensor) -> Tensor:
    """Return the distance within which so large a share of the weight lies; NaN where there is none."""
    share = by_distance.cumsum(1) / by_distance.sum(1, keepdim=True)
    return torch.where(share[:, -1].isfinite(), (share < SHARE).sum(1).double(), torch.nan)


def _bands(q: Tensor, k: Tensor, scheme: Scheme, chosen: list[int]) -> list[Numbers]:
    """Return mean scores by distance of one head q, k [1 t d], of the fastest, middle and slowest pairs of channels."""
    turn: Any = scheme.answering("cos_sin")[0]
    half, t = turn.width // 2, q.shape[1]
    turned = Scheme(*scheme.answering("turn"), *scheme.answering("scale"), _Placed(scheme))
    channel = torch.arange(q.shape[2], device=q.device)
    pair = channel // 2 if turn.pairs == "neighbours" else channel % half
    found: list[Numbers] = []
    for band in range(3):
        inside = (pair >= band * half // 3) & (pair < (band + 1) * half // 3) & (channel < 2 * half)
        total = torch.zeros(t, dtype=torch.float64, device=q.device)
        count = torch.zeros(t, dtype=torch.float64, device=q.device)
        for some in _blocks(chosen, t):
            score = mp.scores((q * inside)[:, None].float(), k[:, None].float(), turned, rows=some)[0, 0].double()
            distance = _distances(some, t, q.device)
            behind = distance >= 0
            total.index_add_(0, distance[behind], score[behind])
            count.index_add_(0, distance[behind], torch.ones_like(score[behind]))
        found.append((total / count).cpu().numpy())
    return found


def _blocks(chosen: list[int], each: int) -> Iterator[list[int]]:
    """Cut rows into blocks, of which each row takes so many numbers."""
    step = max(1, AT_ONCE // each)
    return (chosen[start : start + step] for start in range(0, len(chosen), step))


def _distances(rows: list[int], s: int, device: torch.device) -> Tensor:
    """Return how far behind each of the rows every key is, [n s]."""
    return torch.tensor(rows, device=device)[:, None] - torch.arange(s, device=device)


class _Placed:
    """The distances at which a scheme's rotation sees pairs, without what it does to scores of far keys."""

    relative = True

    def __init__(self, scheme: Scheme) -> None:
        self.regimes = tuple(replace(each, contrast=None, shift=None) for each in scheme.place())

    def place(self) -> tuple[Regime, ...]:
        return self.regimes


def _watched(model: nn.Module, ids: Tensor, change: list[object], watching: _Watching) -> _Watching:
    """Return what was gathered in one pass, with a change, or with the extension that the model has."""
    with _attending(model, change) as (plain, trained):
        watching.trained = trained
        with watched(watching), torch.no_grad():
            plain(input_ids=ids.to(device_of(plain))[None], use_cache=False)
    if not watching.window:
        raise ValueError(
            "look: no layer of this model showed what it attends with; a compiled model is not looked into"
        )
    if not change and all(each.isnan().all() for each in watching.window):
        raise ValueError(
            "look: no head of this model has attention weights that are numbers: its weights are NaN, or they overflow "
            "in its dtype. Load it in float32 or bfloat16, and see that all of its weights were loaded"
        )
    return watching


@contextmanager
def _attending(model: nn.Module, change: list[object]) -> Generator[tuple[Any, int | None]]:
    """The model attending through milepost for a while, and the length it was trained at."""
    done = changed_by(model)
    if done is not None and not isinstance(done, Extension):
        raise ValueError("look: this model's table or buckets were changed, which is not looked into; restore it first")
    with evaluating([model]), as_it_was(model) as plain, same_config(model):
        kept = done is not None and not change
        extended(plain, [done.schedule] if kept and done is not None else change, through="attend", stored=kept)
        try:
            now = changed_by(plain)
            yield plain, now.layers.own.trained if isinstance(now, Extension) else None
        finally:
            restore(plain)


def meanings_of(found: Analysis) -> dict[str, str]:
    """Return what the words of a look mean, those that are drawn alone."""
    names = [each.name for each in found.arrays]
    drawn = {name: any(each.startswith(f"{name}, ") for each in names) for name in MEANINGS if name in UNITS} | {
        "queries": True,
        "fast, middle, slow pairs": any(each.startswith("score of ") for each in names),
    }
    return {DRAWN.get(name, name): words for name, words in MEANINGS.items() if drawn[name]}


def _drawn(found: dict[str, _Watching], length: int, called: str) -> Analysis:
    one = next(iter(found.values()))
    layers, count, trained = len(one.window), len(one.window[0]), one.trained
    kept = {
        "effective window": "window",
        "window, sinks apart": "window_apart",
        "entropy": "entropy",
        "sinks": "on_sinks",
        **({"sink logit": "on_logit"} if any(each.has_logit for each in found.values()) else {}),
        **(
            {"far keys": "far", "far keys, sinks apart": "far_apart"}
            if trained is not None and length > trained
            else {}
        ),
    }
    rows: Measured = {
        row: {name: torch.stack(getattr(each, at)).numpy() for name, at in kept.items()} for row, each in found.items()
    }
    arrays = arrays_of(rows, one.layers)
    pictures = list(maps_of(rows, one.layers))
    if any(each.bands for each in found.values()):
        distance = np.arange(length, dtype=np.float64)
        at = np.unique(np.geomspace(1, _often(one.chosen), 160).astype(int)) - 1
        arrays.append(axis("distance", distance))
        for row, each in found.items():
            for (at_layer, which), bands in each.bands.items():
                named = dict(zip(("fast pairs", "middle pairs", "slow pairs"), bands, strict=True))
                arrays += [array(f"score of {name}, layer {at_layer} head {which}, {row}", values, "", "distance")
                           for name, values in named.items()]  # fmt: skip
                pictures.append(
                    curves(
                        f"Layer {at_layer}, head {which}, {row}",
                        at + 1.0,
                        {name: values[at] for name, values in named.items()},
                        x_name="distance in tokens, 1 and on",
                        y_name="mean score",
                        x_scale="decades",
                        mark=None if trained is None else (float(trained), f"trained length, {trained:,}"),
                    )
                )
    return Analysis(
        "look",
        f"Where {layers * count} heads look in {length:,} tokens",
        said_of(rows, length, one.layers),
        tuple(arrays),
        tuple(pictures),
        settings_of(
            called, (layers, count, one.key_heads), trained, length, len(one.chosen), one.sinks, compared=len(rows) == 2
        ),
        across=2 if len(rows) == 1 else 3,
    )


def arrays_of(rows: Measured, layers: Sequence[int] | None = None) -> list[Array]:
    """Return what was measured as arrays with their axes. layers: their numbers, where some do not attend."""
    first = next(iter(rows.values()))
    made = list(starmap(axis, _axes(next(iter(first.values())), layers).items()))
    return made + [
        array(f"{name}, {row}", each[name], UNITS[name], "layer", "head")
        for name in first
        for row, each in rows.items()
    ]


def maps_of(rows: Measured, layers: Sequence[int] | None = None) -> list[Picture]:
    """Return a map of every measure of every row, and of their difference where there are two."""
    made: list[Picture] = []
    measured = next(iter(rows.values()))
    for name in (each for each in UNITS if each in measured and each not in UNDRAWN):
        values = {row: each[name] for row, each in rows.items()}
        most = max((float(np.nanmax(each)) for each in values.values() if np.isfinite(each).any()), default=1.0)
        title = DRAWN.get(name, name)
        title = first_large(title)
        title += f" ({WARNINGS[name]})" if name in WARNINGS else ""
        for row, each in values.items():
            largest = float(np.nanmax(each)) if np.isfinite(each).any() else most
            faint = f" (at most {number(largest)})" if largest < FAINT * most else ""
            made.append(_map(f"{title}: {row}{faint}", each, layers, UNITS[name], (0.0, most), len(rows) > 1))
        if len(values) == 2:
            before, after = values.values()
            found = np.abs(after - before)
            limits = (0.0, float(np.nanmax(found)) if np.isfinite(found).any() else 1.0)
            made.append(_map(f"{title}: difference", after - before, layers, UNITS[name], limits, True, True))
    return made


def _axes(values: Numbers, layers: Sequence[int] | None) -> dict[str, Numbers]:
    """Return the numbers of the layers and of the heads."""
    count, heads = values.shape
    return {
        "layer": np.array(range(count) if layers is None else layers, dtype=np.float64),
        "head": np.arange(heads, dtype=np.float64),
    }


def _map(
    title: str,
    values: Numbers,
    layers: Sequence[int] | None,
    unit: str,
    limits: tuple[float, float],
    narrow: bool,
    signed: bool = False,
) -> Picture:
    return map_of(
        title, values, *_axes(values, layers).values(), row_name="layer", column_name="head", unit=unit, limits=limits,
        hidden="no numbers", signed=signed, wide=NARROW if narrow else WIDE,
    )  # fmt: skip


def settings_of(
    called: str,
    heads: tuple[int, int, int],
    trained: int | None,
    length: int,
    queries: int,
    sinks: int,
    *,
    compared: bool = True,
) -> str:
    """Return what was looked at and what the words mean.

    heads: layers, heads of each, and key heads of each; compared: whether there are maps of a difference.
    """
    layers, count, keys = heads
    shared = f", each key head serves {count // keys} neighbouring query heads" if 1 <= keys < count else ""
    model = f"{called}, {layers} layers of {count} heads{shared}"
    return " · ".join(
        (
            model + ("" if trained is None else f", trained at {trained:,} tokens"),
            f"read: {length:,} tokens; measured: {queries:,} of the last quarter of its queries",
            f"sinks: the first {sinks} token{'s' * (sinks > 1)}",
            "window: 90 % of a head's weight is on keys so near; sinks apart: of the weight that is not on sinks",
            "entropy: n bits are as wide as even weights on 2ⁿ keys",
            *(["far keys: further back than the trained length"] if trained is not None and length > trained else []),
            *(["difference: the second map minus the first"] if compared else []),
        )
    )


def called(model: nn.Module) -> str:
    """Return the model's name without the folder that it lies in; what it is where it has none."""
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    return PurePath(name).name or type(model).__name__


def _often(chosen: list[int]) -> int:
    """Return how many distances half of the queries reach: further ones are means over a few, the first token's."""
    return sorted(chosen)[len(chosen) // 2] + 1


def said_of(rows: Measured, length: int, layers: Sequence[int] | None = None) -> str:
    """Return what was found, in sentences."""
    lines: list[str] = []
    for row, each in rows.items():
        window, sinks = each["effective window"], each["sinks"]
        name, lost = first_large(row), int(np.isnan(window).sum())
        if lost == window.size:
            lines.append(f"{name}, no head has weights that are numbers.")
            continue
        line = f"{name}, half of the heads hold 90 % of their weight within {_middle(window):,} tokens"
        apart = each.get("window, sinks apart")
        if apart is not None and np.isfinite(apart).any():
            line += f" ({_middle(apart):,} with the first tokens left out)"
        line += f", {int((sinks > 0.5).sum())} heads put more than half of it on the first tokens"
        line += f", {int((each['sink logit'] > 0.5).sum())} heads on their sink logit" if "sink logit" in each else ""
        numbers = range(len(window)) if layers is None else layers
        where = [n for n, layer in zip(numbers, window, strict=True) if np.isnan(layer).any()]
        heads = f"{lost} head{'s' * (lost > 1)} of layer{'s' * (len(where) > 1)} {ranges(where)}"
        line += f", {heads} {'have' if lost > 1 else 'has'} weights that are no numbers" if lost else ""
        if "far keys, sinks apart" in each:
            far = 100 * float(np.nanmean(each["far keys, sinks apart"]))
            line += f", and {far:.1f} % of all weight is on keys past the trained length, the first tokens apart"
        lines.append(f"{line}.")
    return f"Over the last quarter of {length:,} queries. {' '.join(lines)}"


def _middle(values: Numbers) -> int:
    """Return the lower of the two in the middle, where there are two."""
    return int(np.nanquantile(values, 0.5, method="lower"))


__all__ = ["arrays_of", "called", "look", "maps_of", "meanings_of", "said_of", "settings_of"]
