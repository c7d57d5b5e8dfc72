"""Draw the pictures of docs/look.md from the numbers beside them: python examples/look_pictures.py docs/look

The numbers were measured on an H200 (docs/look.md says of what). Where "far keys, sinks apart" is absent it is derived:
every query that was looked at in 32,768 tokens is further than the trained length from the first four tokens, so all
weight on these is far, and far keys without them are the difference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.heads import arrays_of, maps_of, said_of, settings_of
from milepost.explore.pictures.scatter import Scatter
from milepost.explore.unseen import drawn_losses

Numbers = NDArray[np.float64]
TRAINED, SINKS, QUERIES = 8192, 4, 1024
MODEL, KEY_HEADS, PAIRS, UNSEEN = "SmolLM2-135M-Instruct", 3, 32, 12
EARLY = 12
"""Layers before those that have sinks."""
WINDOW, AT = 3 * TRAINED // 4, TRAINED // 4
"""What "ReRoPE, sinks kept" comes to for a model trained at this length."""
ROWS = "unchanged", "with ReRoPE, sinks kept"


def read(path: Path) -> dict[str, Numbers]:
    """Return the arrays of an analysis that was written as JSON, by name."""
    arrays: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["arrays"]
    return {name: np.array(each["values"], dtype=np.float64) for name, each in arrays.items()}


def rows_of(found: dict[str, Numbers], length: int) -> dict[str, dict[str, Numbers]]:
    """Return the measures of every row, with far keys without the sinks where these are far of every query."""
    rows = {
        row: {name.removesuffix(f", {row}"): each for name, each in found.items() if name.endswith(f", {row}")}
        for row in ROWS
    }
    for each in rows.values():
        if "far keys" in each and nearest_sink(length) >= TRAINED:
            each["far keys, sinks apart"] = each["far keys"] - each["sinks"]
    return rows


def nearest_sink(length: int) -> int:
    """Return how far the first query that is looked at is from the last of the sinks."""
    return length - length // 4 - (SINKS - 1)


def heads(folder: Path, length: int) -> Analysis:
    """Return what the heads look at, from its numbers."""
    rows = rows_of(read(folder / f"heads_{length}.json"), length)
    layers, count = rows[ROWS[0]]["sinks"].shape
    settings = settings_of(MODEL, (layers, count, KEY_HEADS), TRAINED, length, QUERIES, SINKS)
    settings += (
        f" · ReRoPE: distances below {WINDOW:,} are unchanged, all others are read as {AT:,}; sinks kept: far "
        f"keys have their scores lowered, but for the first {SINKS} tokens"
    )
    on_sinks = " and ".join(f"{100 * float(rows[row]['sinks'].mean()):.1f} % {row}" for row in ROWS)
    before, after = (float(rows[row]["effective window"][:EARLY].mean()) for row in ROWS)
    change = "double" if round(after / before) == 2 else "grow" if after > before else "shrink"
    title = (
        f"{layers * count} heads in {length:,} tokens: weight on the first four (sinks) is {on_sinks}; windows "
        f"with sinks of layers 0–{EARLY - 1} {change}, mean {before:,.0f} to {after:,.0f}"
    )
    return Analysis("look", title, said_of(rows, length), tuple(arrays_of(rows)), tuple(maps_of(rows)), settings, 3)


def back(folder: Path) -> Analysis:
    """Return every head at four times the trained length beside itself at the trained length, unchanged."""
    short, long = (rows_of(read(folder / f"heads_{length}.json"), length) for length in (TRAINED, 4 * TRAINED))
    known, arrays, pictures, said = short[ROWS[0]], list[Any](), list[Any](), list[str]()
    back_by: dict[str, list[str]] = {}
    head = np.arange(known["sinks"].size, dtype=np.float64)
    for name, title, unit in (
        ("sinks", "Weight on the first four tokens", "of the weight"),
        ("entropy", "Entropy of the weights, in bits", "bits"),
    ):
        x = known[name].ravel()
        dots = {row: (x, long[row][name].ravel()) for row in reversed(ROWS)}
        alike = {row: float(np.corrcoef(*pair)[0, 1]) for row, pair in dots.items()}
        said.append(f"{name} by {' and '.join(f'{each:.2f} {row}' for row, each in alike.items())}")
        for row, each in alike.items():
            back_by.setdefault(row, []).append(f"{name} {each:.2f}")
        arrays.append(array(f"{name} at {TRAINED:,}, unchanged", x, unit, "head"))
        arrays += [array(f"{name} at {4 * TRAINED:,}, {row}", y, unit, "head") for row, (_, y) in dots.items()]
        pictures.append(Scatter(title, dots, f"at {TRAINED:,} tokens, unchanged", f"at {4 * TRAINED:,} tokens"))
    return Analysis(
        "heads_back",
        f"At {4 * TRAINED:,} tokens heads look as they did at {TRAINED:,} with ReRoPE, sinks kept (correlation: "
        f"{', '.join(back_by[ROWS[1]])}); unchanged they do not ({', '.join(back_by[ROWS[0]])})",
        f"Over {len(head)} heads the model unchanged at {TRAINED:,} correlates in {'; in '.join(said)}.",
        (axis("head", head), *arrays),
        tuple(pictures),
        f"{MODEL}, trained at {TRAINED:,} tokens · every dot is one head, over the last quarter of the queries",
    )


def losses(folder: Path) -> Analysis:
    """Return the losses with pairs changed, from their numbers."""
    found = read(folder / "unseen_angles_32768.json")
    by_name = {name.removeprefix("loss, "): each for name, each in found.items() if name.startswith("loss, ")}
    unseen = np.arange(PAIRS) >= PAIRS - UNSEEN
    return drawn_losses(by_name, found["position"], TRAINED, 4 * TRAINED, unseen, [], MODEL)


def main(folder: Path) -> None:
    """Write each picture, and the numbers with what they say."""
    made = {f"heads_{length}": heads(folder, length) for length in (TRAINED, 4 * TRAINED)}
    made |= {"heads_back": back(folder), "unseen_angles_32768": losses(folder)}
    for name, found in made.items():
        for ending in ("svg", "json") if name != "heads_back" else ("svg",):
            found.save(folder / f"{name}.{ending}")
        print(f"{name}: {found.says}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/look"))
