"""A fair recipe: rates and settings chosen on a text that is never judged, from as many runs for every scheme.

For each scheme some models are trained that differ in their rates alone, from a seed that no judged model has. Each is
judged on the validation text at the trained length and, where the sweep goes so far, at 8 times it; the rates with the
fewest bits, averaged over the two, are the scheme's own from then on. A scheme that learns something divides its runs
between the model's rate and its own; one that learns nothing spends all of them on the model's rate. Settings of rows
without training are then chosen in the same way, on the chosen model.

All of it is cells like any other: kept, resumed, and run by any engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from milepost.lab.cells.cell import Cell, asked
from milepost.lab.cells.store import Store
from milepost.lab.judging.scoring import VALIDATION
from milepost.lab.schemes.choices import choices
from milepost.lab.schemes.named import learns_bias, learns_more, own_rate, rates_in_words
from milepost.lab.statistics.findings import Tried
from milepost.lab.sweep.sweep import Sweep, valid
from milepost.lab.training.recipe import Recipe

SEED = 1000
"""The seed of every model that is trained to choose by; those that are judged count from 0."""
TIMES = (1.0, 0.1, 10.0)
"""The rate of what a scheme learns, in terms of its default."""
OCTAVES = 4.0
"""The model's rate is sought between a quarter of its default and four times it; by steps of two where runs are few."""


def grid(recipe: Recipe, name: str, runs: int) -> list[Recipe]:
    """The recipes that are tried for a scheme, `runs` of them; the default is the first."""
    if runs < len(TIMES) or runs % len(TIMES):
        raise ValueError(
            f"--search {runs}: give a multiple of {len(TIMES)}, such as 9; a scheme that learns something tries "
            f"{len(TIMES)} rates for it beside each rate of the model"
        )
    if not learns(name):
        return [replace(recipe, rate=rate) for rate in _rates(recipe.rate, runs)]
    return [
        replace(
            recipe,
            rate=rate,
            bias_rate=recipe.bias_rate * (times if learns_bias(name) else 1.0),
            learned_rate=recipe.learned_rate * (times if learns_more(name) else 1.0),
        )
        for rate in _rates(recipe.rate, runs // len(TIMES))
        for times in TIMES
    ]


def learns(name: str) -> bool:
    """Whether a scheme learns anything."""
    return learns_bias(name) or learns_more(name)


def _rates(rate: float, count: int) -> list[float]:
    """So many rates about the default, evenly spaced by their logarithms; the default is the first."""
    step = 1.0 if count < 2 else min(1.0, OCTAVES / (count - 1))
    places = sorted((n - (count - 1) // 2 for n in range(count)), key=lambda n: (abs(n), n))
    return [float(f"{rate * 2 ** (n * step):.4g}") if n else rate for n in places]


# What is trained and judged


def cells_of_rates(sweep: Sweep) -> list[Cell]:
    """One cell for each scheme and recipe that is tried; none where no rates are sought."""
    if not sweep.search:
        return []
    return [
        _by_validation(sweep, cell, recipe)
        for cell in _first(replace(sweep, recipes=(), chosen=()))
        for recipe in grid(cell.recipe, cell.name, sweep.search)
    ]


def cells_of_rows(sweep: Sweep) -> list[Cell]:
    """One cell for each scheme that has rows with settings to choose, with every setting as a row of its own."""
    found: list[Cell] = []
    for cell in _first(sweep):
        texts = [text for row in sweep.open_rows(cell.name).values() for text in choices(row)]
        if texts:
            tried = _by_validation(sweep, cell, cell.recipe)
            found.append(replace(tried, variants=tuple((text, text) for text in dict.fromkeys(texts))))
    return found


def _first(sweep: Sweep) -> Iterator[Cell]:
    """The cells of language of one seed."""
    return (cell for cell in sweep.cells() if cell.seed == sweep.seeds[0] and not cell.task)


def _by_validation(sweep: Sweep, cell: Cell, recipe: Recipe) -> Cell:
    judging = replace(cell.judging, protocols=(VALIDATION,), validation=sweep.corpus.chosen_by)
    made = replace(cell, seed=SEED, recipe=recipe, judging=judging, variants=())
    sweep.corpus.needs(recipe.length, judging.longest, chosen=asked(made)[-1][1])
    return made


# What came of it


def with_rates(sweep: Sweep, store: Store) -> Sweep:
    """The sweep with the best rates of each scheme, of those tried so far."""
    found = {tried.name: recipe for recipe, tried in _tried_rates(sweep, store) if tried.chosen}
    return replace(sweep, recipes=tuple(found.items()))


def with_settings(sweep: Sweep, store: Store) -> Sweep:
    """The sweep with the best settings of each row, of those tried so far."""
    found = {(each.name, each.row): each.setting for each in _tried_rows(sweep, store) if each.chosen}
    return replace(sweep, chosen=tuple((name, row, text) for (name, row), text in found.items()))


def as_chosen(sweep: Sweep, store: Store) -> Sweep:
    """The sweep with all that was chosen so far, from what is in the store."""
    return with_settings(with_rates(sweep, store), store)


def tried(sweep: Sweep, store: Store) -> tuple[Tried, ...]:
    """Everything that was tried, with its bits on the validation text."""
    rates = tuple(each for _, each in _tried_rates(sweep, store))
    return rates + tuple(_tried_rows(with_rates(sweep, store), store))


def _tried_rates(sweep: Sweep, store: Store) -> Iterator[tuple[Recipe, Tried]]:
    by_name: dict[str, list[Cell]] = {}
    for cell in cells_of_rates(sweep):
        by_name.setdefault(cell.name, []).append(cell)
    for name, cells in by_name.items():
        bits = [_bits(store, cell).get("", {}) for cell in cells]
        best = _best(bits, [length for _, length in asked(cells[0])])
        for number, (cell, each) in enumerate(zip(cells, bits, strict=True)):
            recipe = cell.recipe
            setting = rates_in_words(recipe, name)
            yield recipe, Tried(name, "", setting, each, number == best, recipe.rate, own_rate(recipe, name))


def _tried_rows(sweep: Sweep, store: Store) -> Iterator[Tried]:
    for cell in cells_of_rows(sweep):
        found = _bits(store, cell)
        lengths = [length for _, length in asked(cell)]
        for row, text in sweep.open_rows(cell.name).items():
            texts = choices(text)
            bits = [found.get(each, {}) for each in texts]
            best = _best(bits, lengths)
            for number, (each, own) in enumerate(zip(texts, bits, strict=True)):
                yield Tried(cell.name, row, each, own, number == best)


def _bits(store: Store, cell: Cell) -> dict[str, dict[int, float]]:
    """Bits on the validation text: by row, then by length."""
    found: dict[str, dict[int, float]] = {}
    if store.knows(cell.key):
        for score in valid(store, cell):
            if score.protocol == VALIDATION:
                found.setdefault(score.variant, {})[score.length] = score.mean
    return found


def _best(bits: Sequence[Mapping[int, float]], lengths: Sequence[int]) -> int | None:
    """Which has the fewest bits, averaged over the lengths; what diverged, or is not judged yet, is never the best."""
    means = [math.fsum(each.get(length, math.nan) for length in lengths) / len(lengths) for each in bits]
    known = [number for number, mean in enumerate(means) if math.isfinite(mean)]
    return min(known, key=lambda number: means[number], default=None)
