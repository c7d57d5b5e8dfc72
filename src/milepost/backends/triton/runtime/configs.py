"""Tile shapes, warps and stages of each kernel on compute capability 9.0: chosen by measurement, never at run time.

A choice depends on the kernel, the head width (the next power of two), the bytes of an element and the facets.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import NamedTuple

import torch


class Config(NamedTuple):
    """A tile of `rows` × `keys`, worked on by `warps` warps, with `stages` tiles in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    tma: bool = True
    far: int = 0
    """Keys of a tile of far ones, where there are such; 0: as many as of near ones."""
    registers: int = 0
    """The most registers that a thread gets, so that more programs run at a time; 0: as many as it takes."""

    def __str__(self) -> str:
        flags = " tma" if self.tma else ""
        flags += (f" far {self.far}" if self.far else "") + (f" r{self.registers}" if self.registers else "")
        return f"{self.rows}×{self.keys} w{self.warps} s{self.stages}{flags}"


KERNELS = ("forward", "keys", "rows", "walk")

Table = dict[str, tuple[Config | None, ...]]
"""Of each kernel, the choices for heads of 64, 128 and 256 channels; None, or nothing: there is no choice here."""
WIDTHS = (64, 128, 256)

CHOSEN: Table = {
    "forward": (Config(64, 128, 4, 3), Config(64, 64, 4, 3), Config(128, 64, 8, 2)),
    "keys": (Config(64, 64, 4, 2), Config(64, 128, 8, 3), Config(32, 64, 8, 2)),
    "rows": (Config(64, 64, 4, 3), Config(128, 64, 8, 3), Config(64, 32, 8, 2)),
    "walk": (Config(64, 64, 4, 2), Config(64, 64, 4, 1), Config(64, 64, 4, 1)),
    "gates": (Config(64, 16, 4, 3, False, far=64), Config(64, 32, 4, 3, False, far=64), Config(64, 32, 8, 1, False)),
    "gates_rows": (
        Config(64, 32, 4, 2, False, far=32),
        Config(64, 16, 4, 3, False, far=32),
        Config(32, 32, 8, 1, False),
    ),
    "gates_keys": (Config(16, 32, 4, 2, False), Config(32, 32, 4, 2, False), Config(32, 32, 8, 1, False)),
    "gates_far": (Config(64, 64, 4, 3), Config(64, 64, 4, 2), Config(32, 32, 8, 1, False)),
}
"""Two bytes an element."""

NARROW: Table = {
    "forward": (Config(64, 64, 4, 2, registers=128), Config(64, 64, 4, 3)),
    "keys": (Config(32, 64, 4, 3), Config(64, 64, 4, 2)),
    "rows": (Config(64, 64, 4, 2), Config(64, 64, 4, 2)),
}
"""Where a block of rows sees few keys: programs are short, and several at a time hide how they start."""

NARROW_IN_LITTLE: Table = {
    "keys": (None, None, Config(16, 64, 8, 2)),
}
"""And where a GPU has little shared memory, which the tiles chosen for compute capability 9.0 overflow."""

BENT: Table = {
    "keys": (Config(32, 64, 4, 3), Config(32, 128, 8, 3), Config(16, 64, 8, 2)),
}
"""Where a score is more than a product, by a slope or a cap: with larger tiles registers spill."""

WITH_TABLE: Table = {
    "forward": (Config(64, 64, 4, 2, registers=128), Config(128, 64, 8, 3), Config(128, 32, 8, 3)),
    "keys": (Config(32, 64, 4, 3), Config(64, 128, 8, 3), Config(16, 64, 8, 2)),
    "walk": (None, None, Config(32, 64, 8, 1, False)),
}
"""Where a bias that is looked up by distance wants another choice: its entries take shared memory, too."""

WITH_TABLE_NARROW: Table = {
    "forward": (None, Config(64, 32, 4, 3)),
    "keys": (None, Config(32, 64, 4, 3)),
}
"""And where a window leaves little of it."""

WITH_NUMBERS: Table = {
    "rows": (Config(64, 32, 4, 3), Config(64, 64, 4, 2)),
}
"""And where it follows from two numbers a head, which learn: its derivative is looked up, too."""

WITH_PRODUCTS: Table = {
    "forward": (Config(64, 32, 4, 2), Config(64, 32, 4, 2), Config(64, 32, 8, 2)),
    "keys": (Config(32, 64, 4, 3), Config(32, 64, 8, 3), Config(32, 64, 8, 2)),
    "rows": (Config(64, 32, 4, 2), Config(64, 32, 4, 2), Config(64, 32, 8, 2)),
}
"""Where vectors by distance are added, one address a pair."""

WITH_BOTH_PRODUCTS: Table = {
    "forward": (Config(64, 64, 4, 3),),
    "keys": (Config(32, 32, 4, 3),),
    "rows": (None, Config(64, 32, 8, 3)),
}
"""Those of queries and those of keys."""

DIAGONAL: Table = {
    "forward": (Config(64, 32, 4, 3), Config(64, 32, 4, 2)),
    "keys": (Config(32, 64, 4, 3), Config(16, 64, 4, 3)),
    "rows": (Config(64, 32, 4, 3), Config(64, 32, 4, 3)),
}
"""Where they are stored as `diagonal_layout` has them, and are read in whole lines."""

BOTH_DIAGONAL: Table = {
    "forward": (None, Config(64, 32, 4, 3)),
}
"""Those of queries and those of keys."""

WITH_PRODUCTS_PACKED: Table = {
    "rows": (Config(64, 32, 8, 3),),
}
"""And where documents lie in the row besides."""

WITH_TABLE_PACKED: Table = {
    "forward": (Config(64, 64, 4, 3), Config(64, 64, 4, 2), Config(64, 16, 8, 2)),
    "keys": (Config(32, 64, 4, 3), Config(32, 32, 8, 3), Config(16, 16, 4, 1)),
    "rows": (Config(64, 64, 4, 3), Config(64, 32, 4, 3), Config(16, 32, 8, 1)),
    "walk": (Config(64, 64, 8, 1, False), Config(64, 64, 8, 1, False), Config(32, 64, 8, 1, False)),
}
"""Where documents lie in a row, and a bias is looked up by distance: with larger tiles registers spill."""

PACKED: Table = {
    "forward": (None, Config(64, 64, 4, 3), Config(64, 64, 8, 2)),
    "keys": (Config(32, 64, 4, 3), Config(32, 64, 4, 3), Config(16, 64, 8, 2)),
    "rows": (None, Config(64, 64, 4, 2)),
    "gates": (Config(64, 32, 8, 2, False), Config(64, 32, 8, 2, False)),
    "gates_rows": (Config(32, 32, 4, 2, False), Config(32, 32, 4, 2, False)),
    "gates_keys": (Config(32, 32, 4, 2, False), Config(32, 32, 4, 2, False)),
    "gates_far": (Config(32, 64, 4, 2), Config(32, 64, 8, 2)),
}
"""Where documents lie in a row, whatever else."""

CANDIDATES: dict[tuple[str, int], tuple[Config, ...]] = {
    ("forward", 64): (Config(64, 128, 4, 3), Config(64, 64, 4, 4)),
    ("forward", 128): (Config(64, 64, 4, 3), Config(128, 128, 8, 3), Config(128, 64, 8, 3)),
    ("keys", 64): (Config(32, 64, 4, 3), Config(32, 64, 4, 4), Config(64, 64, 4, 3)),
    ("keys", 128): (Config(32, 64, 4, 3), Config(64, 128, 8, 3), Config(64, 64, 4, 2)),
    ("rows", 64): (Config(64, 64, 4, 3),),
    ("rows", 128): (Config(128, 64, 8, 3), Config(64, 64, 4, 2)),
    ("walk", 64): (
        Config(64, 64, 4, 2), Config(64, 64, 4, 1, False), Config(128, 64, 8, 2), Config(64, 128, 8, 2),
        Config(128, 64, 8, 1, False),
    ),
    ("walk", 128): (
        Config(64, 64, 4, 1), Config(64, 64, 4, 1, False), Config(64, 64, 4, 2), Config(128, 64, 8, 2),
        Config(128, 64, 8, 1, False), Config(64, 32, 4, 2),
    ),
}  # fmt: skip
"""What the benchmark tries beside the choice made."""

_OVERRIDES: dict[str, Config] = {}


def blocks_of(n: int, size: int) -> int:
    """Return how many blocks of a size cover n. Triton's `cdiv` costs microseconds when called from the host."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """Return the least power of two that is n or more."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


def narrow(kernel: str, width: int) -> Config:
    """For float32 at full precision, where the registers hold the tiles: small ones, no tensor cores."""
    side = 32 if width <= 64 else 16
    if kernel == "forward":
        return Config(64 if width <= 64 else 32, 32 if width <= 128 else 16, 4, 1, False)
    return Config(side, 32 if width <= 64 else 16, 4, 1, False)


def choose(
    kernel: str, width: int, itemsize: int, looked_up: bool, packed: bool = False, products: int = 0,
    few_keys: bool = False, bent: bool = False, diagonal: bool = False, numbers: bool = False, little: bool = False,
) -> Config:  # fmt: skip
    """Return the configuration of a kernel at a head width (the larger of the keys' and the values').

    looked_up: a bias by distance. packed: documents. products: vectors by distance, 3 for those of queries and of keys.
    few_keys: a window, or a short text. bent: a slope, or a cap. diagonal: vectors whose products are in that layout.
    numbers: two of each head that the bias follows from. little: a GPU for which `has_little` is true.
    """
    if kernel in _OVERRIDES:
        return _OVERRIDES[kernel]
    if itemsize > 2:
        return narrow(kernel, width)
    place = WIDTHS.index(max(64, width))
    for holds, table in (
        (products == 3 and diagonal, BOTH_DIAGONAL), (diagonal, DIAGONAL),
        (products > 0 and packed, WITH_PRODUCTS_PACKED), (products == 3, WITH_BOTH_PRODUCTS),
        (products > 0, WITH_PRODUCTS), (looked_up and packed, WITH_TABLE_PACKED),
        (looked_up and few_keys, WITH_TABLE_NARROW), (numbers, WITH_NUMBERS), (looked_up, WITH_TABLE),
        (packed, PACKED), (few_keys, NARROW),
        (few_keys and little, NARROW_IN_LITTLE), (bent, BENT), (True, CHOSEN),
    ):  # fmt: skip
        found = table.get(kernel, ())[place : place + 1] if holds else ()
        if found and found[0] is not None:
            return found[0]
    raise KeyError(kernel)


@functools.cache
def has_little(device: torch.device) -> bool:
    """True if a GPU has less shared memory for a block than 9.0: 99 KiB from compute capability 12.0 on, not 227."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (12, 0)


def overridden() -> dict[str, Config]:
    """Return the configurations that are used in place of those chosen."""
    return _OVERRIDES


@contextlib.contextmanager
def override(**configs: Config) -> Generator[None]:
    """Use other configurations for a while, by kernel: for measuring."""
    before = dict(_OVERRIDES)
    _OVERRIDES.update(configs)
    try:
        yield
    finally:
        _OVERRIDES.clear()
        _OVERRIDES.update(before)
