"""Rotations by several coordinates, on a grid of patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import milepost as mp
from milepost.explore.analysis import Analysis, Array, array, axis
from milepost.explore.asked import by_name
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.tiles import Tile, tiles
from milepost.seams import demand
from milepost.seams.arguments import spell

Numbers = NDArray[np.float64]
AXES = {2: ("down", "across"), 3: ("time", "down", "across")}
"""What the coordinates of a patch are, by how many there are."""


def patch_scores(
    ropes: Mapping[str, Any] | None = None,
    *,
    rows: int = 24,
    columns: int = 24,
    at: tuple[int, int] | None = None,
    q: Tensor | None = None,
    k: Tensor | None = None,
) -> Analysis:
    """Draw the scores of one patch of an image with all others, where every patch has the same content.

        explore.patch_scores()
        explore.patch_scores({"own": mp.AxialRope(64, (16, 16), own=True)}, rows=14, columns=14)

    What differs between patches is then the rotation alone. Look for a cross or a ridge: a pair of channels turns by
    one coordinate, so patches in the row and in the column of the one looked at stay alike. Where consecutive pairs
    make a section, the first coordinates have the fast pairs and the last the slow ones, and the map is longer one way
    than the other; interleaved, all have both.

    ropes: rotations of two coordinates (down, across) or three (time, down, across), by name; the axial one of vision
    towers, the two-part one, and M-RoPE in both orders of its sections if left out. at: the row and the column of the
    patch looked at, the middle one if left out. q, k: its query and the key of all, [head_dim]. Left out they are ones,
    and scores are divided by head_dim, so that a patch has 1 with itself.
    """
    for name, value in (("rows", rows), ("columns", columns)):
        demand.whole(patch_scores, name, value)
    row, column = (rows // 2, columns // 2) if at is None else at
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"patch_scores(at={at}): there are {rows} rows and {columns} columns, counted from 0")
    named = _published() if ropes is None else by_name(patch_scores, ropes, '{"axial": AxialRope(64, (16, 16))}')
    down, across = np.arange(rows, dtype=np.float64), np.arange(columns, dtype=np.float64)
    arrays: list[Array] = [axis("row", down), axis("column", across)]
    names: list[str] = []
    maps: list[Numbers] = []
    bars: list[tuple[str, list[Tile]]] = []
    ends: list[str] = []
    for name, rope in named.items():
        axes = getattr(rope, "axes", None)
        if axes not in AXES:
            raise ValueError(
                f"patch_scores: {name} is {spell(rope)}, which reads {axes or 1} coordinates; give a rotation of two "
                f"or three, such as AxialRope(64, (16, 16))"
            )
        found = _scores(rope, rows, columns, (row, column), q, k)
        steps = _steps(rope)
        pairs, owner = f"pair of {name}", steps.argmax(0).astype(np.float64)
        arrays += [
            array(name, found, "score", "row", "column"),
            axis(pairs, np.arange(len(owner), dtype=np.float64)),
            array(f"coordinate of {name}", owner, "", pairs),
            array(f"step of {name}", steps.max(0), "rad a patch", pairs),
        ]
        names.append(name)
        maps.append(found)
        rates = np.log10(steps.max(0))
        for which, coordinate in enumerate(AXES[axes]):
            own = np.where(owner == which, rates, np.nan)
            bars.append((f"{name}: {coordinate}, {int((owner == which).sum())}", [Tile(own[None])]))
        ends.append(f"{found[-1, column]:.3f} down and {found[row, -1]:.3f} across for {name}")
    drawn = np.stack(maps)
    alike = _alike(names, maps)
    tile = min(200.0, 600 / len(alike))
    along: dict[str, Numbers] = {}
    for group in alike:
        found = maps[names.index(group[0])]
        down_it, across_it = found[row:, column], found[row, column:]
        ways = {"down": down_it, "across": across_it}
        if len(down_it) == len(across_it) and np.abs(down_it - across_it).max() < 1e-9:
            ways = {"both ways": down_it}
        along |= {f"{' = '.join(group)}, {way}": each for way, each in ways.items()}
    far = max(len(each) for each in along.values())
    padded = {name: np.pad(each, (0, far - len(each)), constant_values=np.nan) for name, each in along.items()}
    every = np.concatenate([tile.values[np.isfinite(tile.values)] for _, (tile,) in bars if tile.values is not None])
    slow, fast = float(every.min()), float(every.max())
    called = "score" if q is not None or k is not None else "share of the score with itself"
    return Analysis(
        "patch_scores",
        "M-RoPE in blocks gives its fastest pairs to time, so patches of one image hardly differ"
        if ropes is None
        else "Rotations on a grid of patches",
        f"From row {row}, column {column} to the edges of the image the score changes to {'; '.join(ends)}.",
        tuple(arrays),
        (
            tiles(
                "Which pairs of channels turn by each coordinate, and how fast",
                bars,
                ("",),
                across="pair of channels, from the first to the last",
                down="",
                limits=(slow, fast),
                ends=(f"slow, {10**slow:.2g} rad a patch", f"fast, {10**fast:.2g}"),
                hidden="pairs of other coordinates",
                side=(560.0, 14.0),
            ),
            tiles(
                f"Score of the patch in row {row}, column {column} with every patch",
                [("", [Tile(maps[names.index(group[0])], " = ".join(group)) for group in alike])],
                ("",) * len(alike),
                across="column",
                down="row",
                limits=(float(drawn.min()), float(drawn.max())),
                unit=called,
                side=(tile, max(24.0, tile * rows / columns)),
            ),
            curves(
                "From the patch down its column, and across its row",
                np.arange(far, dtype=np.float64),
                padded,
                x_name="patches away",
                y_name=f"{called}, not from 0",
            ),
        ),
        f"{rows} × {columns} patches of one content · "
        + ("128 channels, base 10,000 · " if ropes is None else "")
        + _equal(alike)
        + (
            "; they pair other channels, n with n + 64 and n with n + 32 of each half · two parts: a rotation of its "
            "own in each half of the channels, one by row and one by column (ChatGLM) · M-RoPE in blocks has the "
            "sections of Qwen2-VL, interleaved those of Qwen3-VL"
            if ropes is None
            else ""
        ),
    )


def _scores(rope: Any, rows: int, columns: int, at: tuple[int, int], q: Tensor | None, k: Tensor | None) -> Numbers:
    """Return the scores of the patch with every patch, [rows columns]."""
    dim: int = rope.head_dim
    scheme = mp.Scheme(rope, mp.Scale(1 / dim)) if q is None and k is None else mp.Scheme(rope)

    def everywhere(name: str, each: Tensor | None) -> Tensor:
        if each is not None and each.shape != (dim,):
            raise ValueError(f"patch_scores: {name} must be [{dim}] for {spell(rope)}, given {list(each.shape)}")
        one = torch.ones(dim, dtype=torch.float64) if each is None else each.detach().double()
        return one.expand(1, 1, rows * columns, dim)

    down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    still = [torch.zeros_like(down)] * (rope.axes - 2)
    place = torch.stack((*still, down, across), -1).reshape(1, rows * columns, rope.axes)
    with torch.no_grad():
        looked_at = at[0] * columns + at[1]
        found = mp.scores(everywhere("q", q), everywhere("k", k), scheme, rows=looked_at, position=place)
    return found.reshape(rows, columns).double().numpy()


def _steps(rope: Any) -> Numbers:
    """Return by how much each pair turns for a step along each coordinate, [axes pairs], in radians."""
    one = torch.eye(rope.axes, dtype=torch.float64)[None]
    return rope.angles(one)[0].detach().double().numpy()


def _alike(names: Sequence[str], maps: Sequence[Numbers]) -> list[list[str]]:
    """Return the names of maps that are the same together."""
    found: dict[int, list[str]] = {}
    for n, each in enumerate(maps):
        first = next(m for m in range(n + 1) if np.abs(each - maps[m]).max() < 1e-9)
        found.setdefault(first, []).append(names[n])
    return list(found.values())


def _equal(alike: Sequence[Sequence[str]]) -> str:
    """Return which maps are one, and why that is no wonder."""
    groups = [" and ".join(group) for group in alike if len(group) > 1]
    if not groups:
        return "the rotation alone differs"
    return f"{'; '.join(groups)} score alike: the same angles in the same numbers of pairs"


def _published() -> dict[str, Any]:
    """Return the four layouts at one width and base, so that they differ by their sections alone."""
    return {
        "axial": mp.AxialRope(128, (32, 32), own=True),
        "two parts": mp.TwoPartRope(128),
        "M-RoPE, blocks": mp.AxialRope(128, (16, 24, 24)),
        "M-RoPE, interleaved": mp.AxialRope(128, (24, 20, 20), order="interleaved"),
    }


__all__ = ["patch_scores"]
