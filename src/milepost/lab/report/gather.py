"""From the store to findings: means over seeds, their intervals, and what was run."""

from __future__ import annotations

import math
import platform
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import date
from statistics import fmean

import torch

import milepost
from milepost.catalogue.register import paper_of
from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Score, Store
from milepost.lab.judging.scoring import DRAWN
from milepost.lab.schemes.expressions import named
from milepost.lab.schemes.named import build, expression
from milepost.lab.statistics.findings import PLAIN, Equation, Findings, Measure, Ran, Row, Term
from milepost.lab.statistics.measures import measured
from milepost.lab.sweep.search import as_chosen, tried
from milepost.lab.sweep.sweep import Sweep, valid
from milepost.lab.tasks import PROTOCOLS
from milepost.schedule import Schedule, ranges
from milepost.scheme import Scheme
from milepost.seams.arguments import spell
from milepost.seams.equation import formula_of
from milepost.seams.verbs import verbs_of
from milepost.seams.visible import Visible

ByName = dict[tuple[str, int], list[tuple[int, Score]]]
"""Scores by protocol and length, each with its seed."""
POINTS = 80
"""A loss curve is drawn by about so many points."""


def gather(store: Store, sweep: Sweep, command: str | None = None) -> Findings:
    """Return what the store knows of a sweep, finished or not; `command` is the line that runs it again."""
    tried_, sweep = tried(sweep, store), as_chosen(sweep, store)
    cells = sweep.cells()
    rows: list[Row] = []
    for name in dict.fromkeys(cell.name for cell in cells):
        own = [cell for cell in cells if cell.name == name]
        answers = [(cell, score) for cell in own if cell.task for score in valid(store, cell)]
        called = sweep.called(name)
        for row in _rows(store, [cell for cell in own if not cell.task]):
            scores, lacks = row.scores | _measured(_asked(answers, row.variant)), len(sweep.seeds) - len(row.seeds)
            title, is_own = called.get(row.variant, row.variant), row.variant in called
            rows.append(replace(row, variant=title, scores=scores, own=is_own, missing=lacks))
    return Findings(tuple(rows), _ran(store, sweep, cells, command), tried=tried_)


def _asked(scores: Sequence[tuple[Cell, Score]], variant: str) -> ByName:
    """Return the scores of one row by protocol and length, each with its seed.

    Scores from an earlier, longer sweep may be in the store too; only what was asked for is shown.
    """
    found: ByName = defaultdict(list)
    for cell, score in scores:
        if score.variant == variant and (score.protocol, score.length) in cell.asked(variant):
            found[score.protocol, score.length].append((cell.seed, score))
    return dict(sorted(found.items()))


def _measured(scores: ByName) -> dict[str, dict[int, Measure]]:
    """Return scores with those of all seeds as one, from the bits of every window."""
    found: dict[str, dict[int, Measure]] = defaultdict(dict)
    for (protocol, length), each in scores.items():
        windows, count = {seed: score.windows for seed, score in each}, sum(score.count for _, score in each)
        found[protocol][length] = measured(windows, protocol in DRAWN or protocol in PROTOCOLS, count)
    return dict(found)


def _rows(store: Store, cells: list[Cell]) -> Iterator[Row]:
    """Yield the rows of one trained scheme, seeds together: as trained, then each change of it that has a score."""
    first, longest = cells[0], cells[0].judging.longest
    scored = [(cell, score) for cell in cells for score in valid(store, cell)]
    curves = {cell.key: store.losses(cell.key) for cell in cells}
    begun = {cell.key for cell, _ in scored} | {key for key, losses in curves.items() if losses}
    known = [store.cell(cell.key) for cell in cells if cell.key in begun]
    for variant, text in {PLAIN: expression(first.name), **dict(first.variants)}.items():
        seeds = tuple(dict.fromkeys(cell.seed for cell, score in scored if score.variant == variant))
        if not seeds:
            continue
        plain, by_name = variant == PLAIN, _asked(scored, variant)
        windows = {at: [of for _, of in each] for (protocol, at), each in by_name.items() if protocol == "windows"}
        schedule = build(first.name if plain else text, first.shape, first.recipe.length, longest)
        kinds = _kinds(schedule)
        yield Row(
            name=first.name,
            variant=variant,
            text=text,
            equation="\n".join(f"{layers}: {layer}" if layers else str(layer) for layers, layer in kinds),
            # A scheme is printed as the sum on one line, then its parts.
            equations=tuple(
                Equation(layers, str(layer).splitlines()[0], tuple(_terms(layer))) for layers, layer in kinds
            ),
            seeds=seeds,
            parameters=max((int(each["parameters"]) for each in known), default=0),
            seconds=math.fsum(each["seconds"] for each in known) if plain else 0.0,
            scores=_measured(by_name),
            last={length: fmean(each.detail["last"] for each in found) for length, found in windows.items()},
            positions={length: _positions(found) for length, found in windows.items()},
            losses=thinned(_averaged(list(curves.values()))) if plain else [],
            gained=_gained(cells, curves) if plain else None,
            whole=any(sees_all(layer, longest, first.shape.heads) for layer in schedule),
            costs=_costs(store, cells, variant),
        )


def _costs(store: Store, cells: list[Cell], variant: str) -> dict[str, float]:
    """Return what a row costs, seeds averaged: how fast it was trained, and what was measured of it."""
    found: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        for name, value in store.costs(cell.key).get(variant, {}).items():
            found[name].append(value)
        known = store.cell(cell.key) if variant == PLAIN and store.knows(cell.key) else None
        if known is not None and known["seconds"]:
            found["trained"].append(known["step"] * cell.recipe.batch * cell.recipe.length / known["seconds"])
    return {name: fmean(values) for name, values in found.items()}


def _positions(scores: list[Score]) -> list[tuple[int, float]]:
    """Return the bits of each bin of positions, seeds averaged; all seeds have the same bins."""
    bins = zip(*(score.detail["by_position"] for score in scores), strict=True)
    return [(int(each[0][0]), fmean(bits for _, bits in each)) for each in bins]


def _averaged(curves: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Return losses in nats as bits, averaged over the seeds that have made the step."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for step, loss in curve:
            by_step[step].append(loss / math.log(2))
    return [(step, fmean(losses)) for step, losses in sorted(by_step.items())]


def _gained(cells: list[Cell], curves: dict[str, list[tuple[int, float]]]) -> Measure | None:
    """Return what the last fifth of training brought, step beside step of the fifth before; batches are independent."""
    by_seed: dict[int, tuple[float, ...]] = {}
    for cell in cells:
        losses = [loss / math.log(2) for _, loss in curves[cell.key]]
        if len(losses) != cell.recipe.steps:
            continue
        fifth = len(losses) // 5
        before, after = losses[len(losses) - 2 * fifth : len(losses) - fifth], losses[len(losses) - fifth :]
        by_seed[cell.seed] = tuple(a - b for a, b in zip(before, after, strict=True))
    return measured(by_seed, drawn=True) if any(by_seed.values()) else None


def thinned(curve: list[tuple[int, float]], points: int = POINTS) -> list[tuple[int, float]]:
    """Return a curve as at most so many means, of steps in bins that widen as steps go on: [last step, mean] each.

    Bins are cut from the last step backwards, so that the last one is as full as its neighbours, and not one batch.
    """
    if not curve:
        return []
    end = curve[-1][0] + 1
    bins: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for step, loss in curve:
        # 0 for the last bin, and points − 1 for the first steps.
        back = math.floor(points * math.log(end / (step + 1)) / math.log(end)) if end > 1 else 0
        bins[min(back, points - 1)].append((step, loss))
    return [(members[-1][0], fmean(loss for _, loss in members)) for _, members in sorted(bins.items(), reverse=True)]


def _kinds(schedule: Schedule) -> list[tuple[str, Scheme]]:
    """Return the kinds of layers of a schedule, each after the layers that it is; "" where it is all of them."""
    kinds: list[tuple[Scheme, list[int]]] = []
    for number, layer in enumerate(schedule):
        own = next((numbers for kind, numbers in kinds if kind.same_as(layer)), None)
        if own is None:
            kinds.append((layer, [number]))
        else:
            own.append(number)
    if len(kinds) == 1:
        return [("", kinds[0][0])]
    return [
        (f"layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)} of 0–{len(schedule) - 1}", layer)
        for layer, numbers in kinds
    ]


def _terms(scheme: Scheme) -> Iterator[Term]:
    for part in scheme.parts:
        seen = isinstance(part, Visible)
        name, formula = (repr(part), "") if seen else (spell(part), formula_of(part))
        for number, verb in enumerate(verbs_of(part) or ("",)):
            yield Term(verb, name, formula if number == 0 else "", "" if number else _paper(type(part)))


def _paper(method: type) -> str:
    """Return the address of a method's paper; nothing for one of the user's own."""
    found = re.search(r"arXiv:(\d+\.\d+)", paper_of(method) if method.__module__.startswith("milepost.") else "")
    return f"https://arxiv.org/abs/{found[1]}" if found else ""


def sees_all(scheme: Scheme, length: int, heads: int) -> bool:
    """True if the last of `length` queries sees every key up to its own, in one head at least."""
    head = torch.arange(heads)[:, None]
    seen = scheme.see(torch.tensor(0), head, torch.tensor(length - 1), torch.arange(length)[None])
    return seen is None or bool(seen.expand(heads, length).all(-1).any())


def _ran(store: Store, sweep: Sweep, cells: list[Cell], command: str | None) -> Ran:
    first, facts, recipe = cells[0], sweep.corpus.facts, asdict(cells[0].recipe)
    done = seconds = 0
    for cell in cells:
        scores = valid(store, cell)
        done += cell.wanted() <= {(score.variant, score.protocol, score.length) for score in scores}
        seconds += store.cell(cell.key)["seconds"] if scores or store.losses(cell.key) else 0
    return Ran(
        trained=first.recipe.length,
        lengths=tuple(length for protocol, length in first.asked() if protocol == "windows"),
        schemes=tuple(dict.fromkeys(map(named, sweep.schemes))),
        seeds=sweep.seeds,
        shape=asdict(first.shape),
        # The rates only where all schemes have the same.
        recipe={name: value for name, value in recipe.items() if not (sweep.search and name.endswith("rate"))},
        judging=asdict(first.judging),
        corpus=facts.source,
        digest=first.corpus,
        train_bytes=facts.train_bytes,
        test_bytes=facts.test_bytes,
        guess=math.nan if facts.guess is None else facts.guess,
        again=command or _spelled(sweep, first),
        versions=_versions(),
        seconds=float(seconds),
        cells=len(cells),
        done=done,
        made=date.today().isoformat(),
        pairs=math.inf if facts.pairs is None else facts.pairs,
        shared=facts.shared,
    )


def _versions() -> dict[str, str]:
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "milepost": milepost.__version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "machine": f"{platform.system()}, {machine}",
    }


def _spelled(sweep: Sweep, first: Cell) -> str:
    """Return the sweep as Python, for who called no command; of the corpus it says where it came from."""
    whole = replace(sweep, judging=first.judging)
    # What was chosen is found again, and what was left to itself need not be said.
    values = {each.name: getattr(whole, each.name) for each in fields(sweep)}
    left_out = {"corpus", "recipes", "chosen", *(name for name in ("search", "tune", "own") if not values[name])}
    arguments = [f"    {name}={value!r}," for name, value in values.items() if name not in left_out]
    lines = [f"# corpus: {sweep.corpus.source}", "run(Sweep(", *arguments, "    corpus=corpus,", "), store, engine)"]
    return "\n".join(lines)
