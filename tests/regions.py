"""The laws of tables, bounds and bands: which row a distance has, which pairs a regime holds, which keys are seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from milepost import Regime, Relation, Scheme, Table, attend
from milepost.seams.band import Band
from tests.layers import B, D, H, project, tokens
from tests.oracles import assert_same, attention

# tables


def looks_rows_up_by_distance(part: Any) -> None:
    """A row number for every distance, whatever the span; and the reference adds those rows, pair by pair."""
    n = 13
    relation, wide = part.relate(n - 1), part.relate(5 * n)
    for name in ("keys", "queries", "values"):
        table, wider = getattr(relation, name), getattr(wide, name)
        assert (table is None) == (wider is None)
        if table is None:
            continue
        assert table.row.dtype == torch.int32
        assert table.rows.shape[0] in (1, H)
        assert 0 <= int(table.row.min()) <= int(table.row.max()) < table.rows.shape[1]
        far = [-1000, -n, *range(1 - n, n), n, 1000, -2.4, 3.6]
        assert table.find(torch.tensor(far)).tolist() == [_row(table, d) for d in far]
        near = torch.arange(1 - n, n)
        assert_same(table.rows[:, table.find(near)], wider.rows[:, wider.find(near)])
    assert_same(*_related(part, relation, n))


def looks_few_rows_up(part: Any) -> None:
    """Tables of some distances alone have the rows that tables of all have there."""
    whole = part.relate(40)
    for few in ([0], [-7, -1, 0, 2, 3, 31], [5, 40]):
        made = part.relate_at(torch.tensor(few))
        for name in ("keys", "queries", "values"):
            table, wider = getattr(made, name), getattr(whole, name)
            assert (table is None) == (wider is None)
            if table is not None:
                at = torch.tensor(few)
                assert_same(table.rows[:, table.find(at)], wider.rows[:, wider.find(at)])


def _row(table: Table, distance: float) -> int:
    return int(table.row[min(max(round(distance) - table.first, 0), len(table.row) - 1)])


def _related(part: Any, relation: Relation, n: int) -> tuple[Tensor, Tensor]:
    """The reference's answer, and the sum that the tables say, one pair at a time."""
    scheme = Scheme(part)
    q, k, v = project(tokens(t=n))

    def row(table: Table | None, h: int, distance: int) -> Tensor | float:
        return 0.0 if table is None else table.rows[h % table.rows.shape[0], _row(table, distance)].double()

    shift = torch.zeros(H, D) if relation.shift is None else relation.shift
    turned = scheme.turn(q, torch.arange(n)), scheme.turn(k, torch.arange(n), "key")

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        found = (
            turned[0][b, h, i] @ turned[1][b, h // 2, j]
            + ((q[b, h, i] + shift[h]) * row(relation.keys, h, i - j)).sum()
        )
        return (found + (k[b, h // 2, j] * row(relation.queries, h, i - j)).sum()) * scheme.scale(D)

    def value(b: int, h: int, i: int, j: int) -> Tensor:
        return v[b, h // 2, j] + row(relation.values, h, i - j)

    with torch.no_grad():
        return attend(q, k, v, scheme, backend="reference"), attention((B, H, n, n), score, value)


# bounds


def places_by_its_bounds(part: Any) -> None:
    """Regimes do not overlap, hold every pair that is seen, and lie within the distances that they say."""
    regimes = part.place()
    assert regimes[0].contrast is None
    for step in (1.0, 0.5):
        at = torch.arange(-9, 34, dtype=torch.float64) * step
        p, r = at[:, None], at
        every = torch.ones(len(at), len(at), dtype=torch.bool)
        regions = [every if found is None else found for found in (regime.holds(p, r) for regime in regimes)]
        total = torch.stack(regions).sum(0)
        assert int(total.max()) == 1, "two regimes hold one pair"
        assert bool(((total == 1) | ~_must_hold(part, p, r)).all()), "no regime holds a pair that is seen"
        for regime, region in zip(regimes, regions, strict=True):
            assert region.tolist() == [[_within(regime, a, b) for b in at] for a in at]
            distance, (least, most) = (p - r)[region], regime.distances()
            # Fractions of a step lie less than one whole step past the last whole distance.
            assert least - (1 - step) <= float(distance.min()), "a nearer key than it says"
            assert float(distance.max()) <= most + (1 - step), "a further key than it says"
        if step == 1:
            _grows_no_more_than_it_says(regimes, regions, p, r)
            _measures_as_promised(regimes, p, r)


def _grows_no_more_than_it_says(regimes: Iterable[Regime], regions: Iterable[Tensor], p: Tensor, r: Tensor) -> None:
    for regime, region in zip(regimes, regions, strict=True):
        placed, distance = (regime.query(p) - regime.key(r)).expand_as(region)[region], (p - r)[region]
        assert bool((placed.abs() <= regime.growth * distance.abs() + 1e-9).all()), "a distance grew by more"


def _measures_as_promised(regimes: Iterable[Regime], p: Tensor, r: Tensor) -> None:
    """Measures are whole and never fall, and implied bounds follow from the others."""
    for regime in regimes:
        for bound in regime.bounds:
            for found in (bound.measure(r), (bound.key_measure or bound.measure)(r)):
                assert torch.equal(found, found.round()), "a measure is no whole number"
                assert bool((found.diff() >= 0).all()), "a measure falls"
        others = replace(regime, bounds=tuple(bound for bound in regime.bounds if not bound.implied))
        if others.bounds:
            assert torch.equal(others.holds(p, r), regime.holds(p, r)), "a bound is not implied"


def _must_hold(part: Any, p: Tensor, r: Tensor) -> Tensor:
    """Pairs that somebody may ask about: what the part sees itself, and nothing ahead where it needs that."""
    zero = torch.zeros((), dtype=torch.long)
    seen = part.see(zero, zero, p, r) if hasattr(part, "see") else torch.ones_like(p + r, dtype=torch.bool)
    return seen & (r <= p) if getattr(part, "needs_causal", False) else seen


def _within(regime: Regime, p: Tensor, r: Tensor) -> bool:
    """The bounds of a regime, for one pair, as numbers."""
    for bound in regime.bounds:
        query, key = float(bound.measure(p)), float((bound.key_measure or bound.measure)(r))
        difference = key - query if bound.mirrored else query - key
        if not bound.low <= difference < bound.high:
            return False
    return True


# normal


def sees_its_band(part: Any) -> None:
    """`see` is what the four numbers say, for every head."""
    band = part.normal()
    if band is None:
        return
    n = 24
    zero, at = torch.zeros((), dtype=torch.long), torch.arange(n)
    shown = torch.tensor([[in_band(band, i, j) for j in range(n)] for i in range(n)])
    for head in range(H):
        assert torch.equal(part.see(zero, torch.tensor(head), at[:, None], at).expand(n, n), shown)


def in_band(band: Band, i: int, j: int) -> bool:
    """The definition of a band, for one pair."""
    near = i - j < band.behind or j < band.sinks
    return j - i <= band.ahead and near and (band.chunk is None or i // band.chunk == j // band.chunk)
