"""A fair recipe: rates and settings chosen on a text that is never judged, from as many runs for every scheme.

For each scheme some models are trained that differ in their rates alone, from a seed that no judged model has. Each is
judged on the validation text at the trained length and, where the sweep goes so far, at 8 times it; the rates with the
fewest bits, averaged over the two, are the scheme's own from then on. They are sought by steps: the next run is beside
the best so far, at twice or half the model's rate, or ten times or a tenth of the rate of what the scheme learns. A
scheme that learns nothing spends all of its runs on the model's rate. Settings of rows without training are then chosen
in the same way, from a list, on the chosen model.

All of it is cells like any other: kept, resumed, and run by any engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Store
from milepost.lab.judging.scoring import VALIDATION
from milepost.lab.schemes.choices import choices, edge_of
from milepost.lab.schemes.named import learns_bias, learns_more, own_rate, rates_in_words
from milepost.lab.statistics.findings import Tried
from milepost.lab.sweep.sweep import Sweep, valid
from milepost.lab.training.recipe import Recipe

SEED = 1000
"""The seed of every model that is trained to choose by; those that are judged count from 0."""
LEAST = 3
"""How many runs a scheme has at the least: with two rates to choose, it takes a step of each."""
MOST = 64
"""And at the most: more would be a slip of the fingers."""
STEP, OWN_STEP = 2.0, 10.0
"""By how much a step changes the model's rate, and the rate of what a scheme learns."""
Place = tuple[float, float]
"""How many steps the two rates are from their defaults."""


def walk(runs: int, learns: bool, bits: Callable[[Place], float | None]) -> list[Place]:
    """Where a scheme's runs are, as far as it is known: the place of one hangs on what came of those before.

    bits: what came of a run; None if that is not known yet.
    """
    if runs < LEAST:
        raise ValueError(
            f"--search {runs}: give at least {LEAST}, since a scheme that learns something has two rates; or 0 for none"
        )
    if runs > MOST:
        raise ValueError(f"--search {runs}: a scheme's rates are found in fewer runs; give at most {MOST}, such as 6")
    # The second is there whatever the first gives, so the two can run side by side.
    made: list[Place] = [(0.0, 0.0), (1.0, 0.0)]
    size = 1.0
    while len(made) < runs:
        found = [bits(place) for place in made]
        known = [math.inf if each is None or math.isnan(each) else each for each in found]
        if None in found:
            break
        best = made[known.index(min(known))]
        while (place := _beside(best, made, learns, size)) is None:
            # Once all around the best are tried, steps are shorter from then on.
            size /= 2
        made.append(place)
    return made


def _beside(best: Place, made: Sequence[Place], learns: bool, size: float) -> Place | None:
    """Return an untried place one step from the best, first of the rate with fewer values tried, and first upwards."""
    ways: list[Place] = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)] if learns else [(1.0, 0.0), (-1.0, 0.0)]
    ways.sort(key=lambda way: len({place[0 if way[0] else 1] for place in made}))
    places = ((best[0] + size * model, best[1] + size * own) for model, own in ways)
    return next((place for place in places if place not in made), None)


def recipe_at(recipe: Recipe, name: str, place: Place) -> Recipe:
    """Return the recipe with the rates of a place."""
    if place == (0.0, 0.0):
        return recipe
    times = OWN_STEP ** place[1]
    return replace(
        recipe,
        rate=_short(recipe.rate * STEP ** place[0]),
        bias_rate=_short(recipe.bias_rate * times) if learns_bias(name) else recipe.bias_rate,
        learned_rate=_short(recipe.learned_rate * times) if learns_more(name) else recipe.learned_rate,
    )


def _short(rate: float) -> float:
    return float(f"{rate:.4g}")


def learns(name: str) -> bool:
    """True if a scheme learns anything."""
    return learns_bias(name) or learns_more(name)


# What is trained and judged


def cells_of_rates(sweep: Sweep, store: Store | None = None) -> list[Cell]:
    """One cell for each scheme and recipe that is tried, as far as the store tells; none where no rates are sought."""
    if not sweep.search:
        return []
    return [run for cell in firsts(replace(sweep, recipes=(), chosen=())) for run in _runs(sweep, store, cell)]


def _runs(sweep: Sweep, store: Store | None, cell: Cell) -> list[Cell]:
    """Return those of one scheme."""

    def at(place: Place) -> Cell:
        return _by_validation(sweep, cell, recipe_at(cell.recipe, cell.name, place))

    def bits(place: Place) -> float | None:
        run = at(place)
        return None if store is None else _mean(_bits(store, run).get("", {}), run)

    return [at(place) for place in walk(sweep.search, learns(cell.name), bits)]


def rounds_of_rates(sweep: Sweep, store: Store) -> Iterator[list[Cell]]:
    """Yield the same cells round by round: which are in the next one is known when those of the last are worked."""
    before: set[str] = set()
    while cells := [cell for cell in cells_of_rates(sweep, store) if cell.key not in before]:
        yield cells
        before |= {cell.key for cell in cells}


def cells_of_rows(sweep: Sweep) -> list[Cell]:
    """Return one cell for each scheme that has rows with settings to choose, with every setting as a row of its own."""
    found: list[Cell] = []
    for cell in firsts(sweep):
        texts = [text for row in sweep.open_rows(cell.name).values() for text in choices(row)]
        if texts:
            tried = _by_validation(sweep, cell, cell.recipe)
            found.append(replace(tried, variants=tuple((text, text) for text in dict.fromkeys(texts))))
    return found


def firsts(sweep: Sweep) -> list[Cell]:
    """Return the cells of language of one seed: one for each scheme."""
    return [cell for cell in sweep.cells() if cell.seed == sweep.seeds[0] and not cell.task]


def _by_validation(sweep: Sweep, cell: Cell, recipe: Recipe) -> Cell:
    judging = replace(cell.judging, protocols=(VALIDATION,), validation=sweep.corpus.chosen_by)
    made = replace(cell, seed=SEED, recipe=recipe, judging=judging, variants=())
    sweep.corpus.needs(recipe.length, judging.longest, chosen=made.asked()[-1][1])
    return made


# What came of it


def with_rates(sweep: Sweep, store: Store) -> Sweep:
    """Return the sweep with the best rates of each scheme, of those tried so far."""
    found = {tried.name: recipe for recipe, tried in _tried_rates(sweep, store) if tried.chosen}
    return replace(sweep, recipes=tuple(found.items()))


def with_settings(sweep: Sweep, store: Store) -> Sweep:
    """Return the sweep with the best settings of each row, of those tried so far."""
    found = {(each.name, each.row): each.setting for each in _tried_rows(sweep, store) if each.chosen}
    return replace(sweep, chosen=tuple((name, row, text) for (name, row), text in found.items()))


def as_chosen(sweep: Sweep, store: Store) -> Sweep:
    """Return the sweep with all that was chosen so far, from what is in the store."""
    return with_settings(with_rates(sweep, store), store)


def tried(sweep: Sweep, store: Store) -> tuple[Tried, ...]:
    """Everything that was tried, with its bits on the validation text."""
    rates = tuple(each for _, each in _tried_rates(sweep, store))
    return rates + tuple(_tried_rows(with_rates(sweep, store), store))


def _tried_rates(sweep: Sweep, store: Store) -> Iterator[tuple[Recipe, Tried]]:
    for name, group in groupby(cells_of_rates(sweep, store), key=lambda cell: cell.name):
        cells = list(group)
        bits = [_bits(store, cell).get("", {}) for cell in cells]
        best = _best(bits, cells[0])
        rates = [(cell.recipe.rate, own_rate(cell.recipe, name)) for cell in cells]
        for number, (cell, each) in enumerate(zip(cells, bits, strict=True)):
            edge, words = _edge_of_rates(rates, number) if number == best else "", rates_in_words(cell.recipe, name)
            yield cell.recipe, Tried(name, "", words, each, number == best, *rates[number], edge)


def _tried_rows(sweep: Sweep, store: Store) -> Iterator[Tried]:
    for cell in cells_of_rows(sweep):
        found = _bits(store, cell)
        for row, text in sweep.open_rows(cell.name).items():
            texts = choices(text)
            bits = [found.get(each, {}) for each in texts]
            best = _best(bits, cell)
            for number, (each, own) in enumerate(zip(texts, bits, strict=True)):
                edge = edge_of(text, number) if number == best else ""
                yield Tried(cell.name, row, each, own, number == best, edge=edge)


def _edge_of_rates(rates: Sequence[tuple[float, float | None]], chosen: int) -> str:
    """Return which of the chosen rates is the lowest or the highest that was tried."""
    found: list[str] = []
    for what, tried in (("rate", [rate for rate, _ in rates]), ("scheme ×", [times or 0.0 for _, times in rates])):
        if min(tried) < max(tried) and tried[chosen] in (min(tried), max(tried)):
            found.append(f"{what} {tried[chosen]:g}, the {'lowest' if tried[chosen] == min(tried) else 'highest'}")
    return "; ".join(found)


def _bits(store: Store, cell: Cell) -> dict[str, dict[int, float]]:
    """Bits on the validation text: by row, then by length."""
    found: dict[str, dict[int, float]] = {}
    if store.knows(cell.key):
        for score in valid(store, cell):
            if score.protocol == VALIDATION:
                found.setdefault(score.variant, {})[score.length] = score.mean
    return found


def _mean(bits: Mapping[int, float], cell: Cell) -> float | None:
    """Return the bits that a run is chosen by, averaged over the lengths; None where it is not judged to the end."""
    lengths = [length for _, length in cell.asked()]
    return math.fsum(bits[each] for each in lengths) / len(lengths) if all(each in bits for each in lengths) else None


def _best(bits: Sequence[Mapping[int, float]], cell: Cell) -> int | None:
    """Return which has the fewest bits; what diverged, or is not judged yet, is never the best."""
    means = {number: mean for number, each in enumerate(bits) if (mean := _mean(each, cell)) is not None}
    return min((number for number in means if math.isfinite(means[number])), key=means.__getitem__, default=None)
