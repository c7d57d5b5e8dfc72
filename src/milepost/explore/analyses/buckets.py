"""Which row of a table each pair of tokens reads: T5's and DeBERTa's buckets, Transformer-XL's and XLNet's shift."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import Curves, curves, evenly
from milepost.explore.pictures.maps import Map, map_of
from milepost.explore.words import in_words
from milepost.methods.biases import T5Bias
from milepost.methods.relations import Deberta, TransformerXL
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.verbs import answers
from milepost.seams.visible import causal

Numbers = NDArray[np.float64]
MOST = 128
"""How many rows and columns of a map are drawn."""


def bucket_map(method: Any, *, length: int | None = None) -> Analysis:
    """Draw which row of its table a method reads for each pair of tokens, and how many distances share a row.

        explore.bucket_map(mp.T5Bias(8, bidirectional=True))
        explore.bucket_map(mp.Deberta(768, 12, 64, reach=512, buckets=256))

    method: T5Bias, Deberta, Shaw, or another that looks up by distance. length: tokens of the map, twice the reach of
    the method if left out. Distances are p − r, positive behind the query. Look at where single rows end and shared
    ones begin, and at the last row, which all further distances share. Of DeBERTa both indices of position-to-content
    are drawn: the paper's is the code's with the sign of the distance turned.
    """
    if isinstance(method, type) or not (isinstance(method, T5Bias) or answers(method, "relate")):
        given = method.__name__ if isinstance(method, type) else repr(method)
        raise TypeError(f"bucket_map({given}): give a method that looks up by distance, such as T5Bias(8)")
    tokens: int = 2 * (getattr(method, "reach", None) or 64) if length is None else length
    demand.whole(bucket_map, "length", tokens, least=2)
    distances = torch.arange(1 - tokens, tokens)
    # T5's causal form has no rows for keys ahead: they are hidden.
    ahead = isinstance(method, T5Bias) and not method.bidirectional
    rows = _rows(method, distances)
    at = evenly(tokens, MOST)
    pairs = (torch.tensor(at)[:, None] - torch.tensor(at)).numpy() + tokens - 1
    found = {name: each.double().numpy() for name, each in rows.items()}
    maps = {name: each[pairs] for name, each in found.items()}
    places, apart = np.array(at, np.float64), distances.double().numpy()
    first = next(iter(found))
    total = _total(method, tokens - 1)
    visible = slice(tokens - 1 if ahead else 0, None)
    shared = np.bincount(rows[first].numpy()[visible], minlength=total)
    alone = int((shared == 1).sum())
    limits = (float(min(each.min() for each in found.values())), float(max(each.max() for each in found.values())))
    return Analysis(
        "bucket_map",
        "DeBERTa's code reads position→content at the opposite sign from the paper"
        if isinstance(method, Deberta)
        else f"{_called(method)}: which row of its table each pair of tokens reads",
        f"At distances {0 if ahead else 1 - tokens:,} … {tokens - 1:,} ".replace("-", "−")
        + f"{int((shared > 0).sum())} of {total} rows are read, {alone} of them at one distance alone"
        + ("; keys ahead are hidden." if ahead else ".")
        + _last_row(method, first, tokens),
        (
            axis("query", places, "tokens"),
            axis("key", places, "tokens"),
            axis("distance", apart, "tokens"),
            axis("row", np.arange(len(shared), dtype=np.float64)),
            array("distances that share it", shared.astype(np.float64), "", "row"),
            *(array(name, each, "", "distance") for name, each in found.items()),
            *(array(f"{name} by pair", each, "", "query", "key") for name, each in maps.items()),
        ),
        (
            *(
                _pairs(
                    _title(name), np.where(pairs < tokens - 1, np.nan, each) if ahead else each, places, places, limits
                )
                for name, each in maps.items()
            ),
            _steps(apart[visible], {name: each[visible] for name, each in found.items()}, not ahead),
        ),
        f"{in_words(method)} · {total} rows; a row is what is learned for one distance or a range of them"
        + (", a number for each head" if isinstance(method, T5Bias) else ", a vector"),
    )


def shift_map(method: TransformerXL, *, queries: int = 16, memory: int = 16) -> Analysis:
    """Draw the distance whose vector each pair reads after the relative shift: Transformer-XL's and XLNet's.

        explore.shift_map(mp.TransformerXL(512, 8, 64))
        explore.shift_map(mp.TransformerXL(512, 8, 64, reach=8), queries=32, memory=0)

    Queries are the last tokens behind `memory` others, as keys. Transformer-XL hides the keys ahead; in its code the
    shift leaves there what it wrapped around. XLNet sees them, at negative distances. Each diagonal is one distance,
    which is what the shift of the authors is for. Past the `reach` of the method distances are one.
    """
    if not isinstance(method, TransformerXL):
        given = getattr(method, "__name__", repr(method))
        raise TypeError(f"shift_map({given}): give a TransformerXL, such as TransformerXL(512, 8, 64)")
    demand.whole(shift_map, "queries", queries)
    demand.whole(shift_map, "memory", memory, least=0)
    keys = memory + queries
    index, key_index = torch.arange(memory, keys), torch.arange(keys)
    scheme = Scheme(method, causal)
    seen = scheme.see(torch.tensor(0), torch.tensor(0), index[:, None], key_index)
    distances = scheme.distances(index, key_index)[0]
    with torch.no_grad():
        table = method.relate(keys).keys
    assert table is not None
    # The row of distance 0 lies in the middle, and every other as far from it as its distance is large.
    both = (table.find(distances) - table.find(torch.zeros(()))).double()
    left = torch.where(seen, both, torch.nan) if seen is not None else both
    found: dict[str, Numbers] = {"Transformer-XL": left.numpy(), "XLNet": both.numpy()}
    at, tokens = index.double().numpy(), key_index.double().numpy()
    low, high = float(both.min()), float(both.max())
    shown: Any = "distance", (float(memory), "memory", "text") if memory else None
    return Analysis(
        "shift_map",
        "Distance read by each query and key after the relative shift: equal along each diagonal",
        f"{queries} queries behind {memory} tokens of memory read the distances 0 … {int(high)} under a causal mask, "
        f"and {int(low)} … {int(high)} without one.",
        (
            axis("query", at, "tokens"),
            axis("key", tokens, "tokens"),
            *(array(name, each, "tokens", "query", "key") for name, each in found.items()),
        ),
        (
            _pairs(
                "Transformer-XL: causal, with memory",
                found["Transformer-XL"],
                at,
                tokens,
                (low, high),
                *shown,
                self_at=at,
            ),
            _pairs("XLNet: both directions", found["XLNet"], at, tokens, (low, high), *shown, self_at=at),
        ),
        f"{queries} queries behind a memory of {memory} tokens · keys are counted from the first of the memory, so "
        f"that the first query is key {memory}"
        + ("" if method.reach is None else f" · distances up to {method.reach}"),
    )


def _rows(method: Any, distances: Tensor) -> dict[str, Tensor]:
    """Return the number of the row that is read at each distance, for each of the tables of a method."""
    if isinstance(method, T5Bias):
        return {"bucket": method.bucket(distances)}
    if not isinstance(method, Deberta):
        return _tables(method, distances)
    found = _tables(method, distances)
    for index in ("code", "paper"):
        twin = copy.copy(method)
        twin.index = index
        found[f"row of the queries' table, {index}"] = _tables(twin, distances)["row of the queries' table"]
    del found["row of the queries' table"]
    return found


def _called(method: Any) -> str:
    return {"T5Bias": "T5's buckets", "Deberta": "DeBERTa", "Shaw": "Shaw"}.get(type(method).__name__, in_words(method))


def _tables(method: Any, distances: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        relation = method.relate(max(int(distances.abs().max()), 1))
    tables = {"keys": relation.keys, "queries": relation.queries, "values": relation.values}
    return {f"row of the {name}' table": each.find(distances) for name, each in tables.items() if each is not None}


def _total(method: Any, span: int) -> int:
    """Return how many rows the table has."""
    if isinstance(method, T5Bias):
        return len(method.table)
    with torch.no_grad():
        relation = method.relate(span)
    return next(each.rows.shape[1] for each in (relation.keys, relation.queries, relation.values) if each is not None)


def _last_row(method: Any, name: str, tokens: int) -> str:
    """Return from where on all distances behind share a row, as a sentence; nothing where there is no such row."""
    reach = getattr(method, "reach", None)
    if reach is None:
        return ""
    behind = _rows(method, torch.arange(reach + 1))[name].numpy()
    first, row = int(np.flatnonzero(behind == behind[-1])[0]), int(behind[-1])
    if first < tokens:
        return f" From {first:,} behind on all read row {row}."
    return f" Row {row}, which all distances share from {first:,} behind on, is not reached within {tokens:,} tokens."


def _title(name: str) -> str:
    """Return what is read, as a title."""
    meanings = {
        "bucket": "Row read by each pair",
        "row of the keys' table": "Content→position",
        "row of the values' table": "Values",
    }
    return meanings.get(name, name.replace("row of the queries' table,", "Position→content:"))


def _pairs(
    title: str,
    values: Numbers,
    queries: Numbers,
    keys: Numbers,
    limits: tuple[float, float],
    unit: str = "row",
    border: tuple[float, str, str] | None = None,
    self_at: Numbers | None = None,
) -> Map:
    return map_of(
        title,
        values,
        queries,
        keys,
        row_name="query",
        column_name="key",
        unit=unit,
        limits=limits,
        hidden="future keys",
        border=border,
        marked=[] if self_at is None else [(self_at[0], self_at[0], self_at[-1], self_at[-1])],
        mark_name="distance 0",
    )


def _steps(apart: Numbers, found: dict[str, Numbers], both: bool) -> Curves:
    """Return the row by distance, in steps that are upright."""
    at = np.repeat(apart, 2)[1:]
    notes: list[tuple[float, float, str]] = []
    rows = next(iter(found.values()))
    if len(found) == 1 and not both and np.all(np.diff(rows) >= 0):
        # Where single rows end, and where the last one begins.
        single = int(np.flatnonzero(np.diff(rows) == 0)[0]) if (np.diff(rows) == 0).any() else len(rows) - 1
        last = int(np.flatnonzero(rows == rows[-1])[0])
        notes = [
            (float(apart[single]), float(rows[single]), f"distances 0–{apart[single - 1]:,.0f}: one row each"),
            (float(apart[last]), float(rows[last]), f"one row from {apart[last]:,.0f} on"),
        ]
    return curves(
        "Row by distance",
        at,
        {_title(name) if len(found) > 1 else "": np.repeat(each, 2)[:-1] for name, each in found.items()},
        x_name="distance in tokens, positive is behind the query" if both else "distance in tokens",
        y_name="row",
        notes=notes,
    )


__all__ = ["bucket_map", "shift_map"]
