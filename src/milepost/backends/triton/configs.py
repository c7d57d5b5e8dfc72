"""Tile shapes, warps and stages of each kernel on compute capability 9.0: chosen by measurement, never at run time.

A choice depends on the kernel, the head width (the next power of two), the bytes of an element and the facets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import NamedTuple


class Config(NamedTuple):
    """A tile of `rows` × `keys`, worked on by `warps` warps, with `stages` tiles in flight."""

    rows: int
    keys: int
    warps: int
    stages: int
    tma: bool = True
    upright: bool = False
    lead: bool = False
    far: int = 0
    """Keys of a tile of far ones, where there are such; 0: as many as of near ones."""
    registers: int = 0
    """The most registers that a thread gets, so that more programs run at a time; 0: as many as it takes."""

    def __str__(self) -> str:
        flags = (" tma" if self.tma else "") + (" upright" if self.upright else "") + (" lead" if self.lead else "")
        flags += (f" far {self.far}" if self.far else "") + (f" r{self.registers}" if self.registers else "")
        return f"{self.rows}×{self.keys} w{self.warps} s{self.stages}{flags}"


KERNELS = ("forward", "keys", "rows", "walk")

CHOSEN: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 128, 4, 3),
    ("forward", 128): Config(64, 64, 4, 3),
    ("forward", 256): Config(128, 64, 8, 2),
    ("keys", 64): Config(64, 64, 4, 2),
    ("keys", 128): Config(64, 128, 8, 3),
    ("keys", 256): Config(32, 64, 8, 2),
    ("rows", 64): Config(64, 64, 4, 3),
    ("rows", 128): Config(128, 64, 8, 3),
    ("rows", 256): Config(64, 32, 8, 2),
    ("walk", 64): Config(64, 64, 4, 2),
    ("walk", 128): Config(64, 64, 4, 1),
    ("walk", 256): Config(64, 64, 4, 1),
    ("gates", 64): Config(64, 16, 4, 3, False, far=64),
    ("gates", 128): Config(64, 32, 4, 3, False, far=64),
    ("gates", 256): Config(64, 32, 8, 1, False),
    ("gates_rows", 64): Config(64, 32, 4, 2, False, far=32),
    ("gates_rows", 128): Config(64, 16, 4, 3, False, far=32),
    ("gates_rows", 256): Config(32, 32, 8, 1, False),
    ("gates_keys", 64): Config(16, 32, 4, 2, False),
    ("gates_keys", 128): Config(32, 32, 4, 2, False),
    ("gates_keys", 256): Config(32, 32, 8, 1, False),
    ("gates_far", 64): Config(64, 64, 4, 3),
    ("gates_far", 128): Config(64, 64, 4, 2),
    ("gates_far", 256): Config(32, 32, 8, 1, False),
}
"""Two bytes an element."""

NARROW: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 64, 4, 2, registers=128),
    ("forward", 128): Config(64, 64, 4, 3),
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(64, 64, 4, 2),
    ("rows", 64): Config(64, 64, 4, 2),
    ("rows", 128): Config(64, 64, 4, 2),
}
"""Where a block of rows sees few keys: programs are short, and several at a time hide how they start."""

BENT: dict[tuple[str, int], Config] = {
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(32, 128, 8, 3),
    ("keys", 256): Config(16, 64, 8, 2),
}
"""Where a score is more than a product, by a slope or a cap: with larger tiles registers spill."""

WITH_TABLE: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 64, 4, 2, registers=128),
    ("forward", 128): Config(128, 64, 8, 3),
    ("forward", 256): Config(128, 32, 8, 3),
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(64, 128, 8, 3),
    ("keys", 256): Config(16, 64, 8, 2),
    ("walk", 256): Config(32, 64, 8, 1, False),
}
"""Where a bias that is looked up by distance wants another choice: its entries take shared memory, too."""

WITH_TABLE_NARROW: dict[tuple[str, int], Config] = {
    ("forward", 128): Config(64, 32, 4, 3),
    ("keys", 128): Config(32, 64, 4, 3),
}
"""And where a window leaves little of it."""

WITH_NUMBERS: dict[tuple[str, int], Config] = {
    ("rows", 64): Config(64, 32, 4, 3),
    ("rows", 128): Config(64, 64, 4, 2),
}
"""And where it follows from two numbers a head, which learn: its derivative is looked up, too."""

WITH_PRODUCTS: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 32, 4, 2),
    ("forward", 128): Config(64, 32, 4, 2),
    ("forward", 256): Config(64, 32, 8, 2),
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(32, 64, 8, 3),
    ("keys", 256): Config(32, 64, 8, 2),
    ("rows", 64): Config(64, 32, 4, 2),
    ("rows", 128): Config(64, 32, 4, 2),
    ("rows", 256): Config(64, 32, 8, 2),
}
"""Where vectors by distance are added, one address a pair."""

WITH_BOTH_PRODUCTS: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 64, 4, 3),
    ("keys", 64): Config(32, 32, 4, 3),
    ("rows", 128): Config(64, 32, 8, 3),
}
"""Those of queries and those of keys."""

BY_EIGHTS: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 32, 4, 3),
    ("forward", 128): Config(64, 32, 4, 2),
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(16, 64, 4, 3),
    ("rows", 64): Config(64, 32, 4, 3),
    ("rows", 128): Config(64, 32, 4, 3),
}
"""Where they lie by eights of tokens, and are read in whole lines."""

BOTH_BY_EIGHTS: dict[tuple[str, int], Config] = {("forward", 128): Config(64, 32, 4, 3)}
"""Those of queries and those of keys."""

WITH_PRODUCTS_PACKED: dict[tuple[str, int], Config] = {("rows", 64): Config(64, 32, 8, 3)}
"""And where documents lie in the row besides."""

WITH_TABLE_PACKED: dict[tuple[str, int], Config] = {
    ("forward", 64): Config(64, 64, 4, 3),
    ("keys", 64): Config(32, 64, 4, 3),
    ("rows", 64): Config(64, 64, 4, 3),
    ("forward", 128): Config(64, 64, 4, 2),
    ("keys", 128): Config(32, 32, 8, 3),
    ("rows", 128): Config(64, 32, 4, 3),
    ("walk", 64): Config(64, 64, 8, 1, False),
    ("walk", 128): Config(64, 64, 8, 1, False),
    ("forward", 256): Config(64, 16, 8, 2),
    ("keys", 256): Config(16, 16, 4, 1),
    ("rows", 256): Config(16, 32, 8, 1),
    ("walk", 256): Config(32, 64, 8, 1, False),
}
"""Where documents lie in a row, and a bias is looked up by distance: with larger tiles registers spill."""

PACKED: dict[tuple[str, int], Config] = {
    ("forward", 128): Config(64, 64, 4, 3),
    ("keys", 64): Config(32, 64, 4, 3),
    ("keys", 128): Config(32, 64, 4, 3),
    ("rows", 128): Config(64, 64, 4, 2),
    ("forward", 256): Config(64, 64, 8, 2),
    ("keys", 256): Config(16, 64, 8, 2),
    ("gates", 64): Config(64, 32, 8, 2, False),
    ("gates", 128): Config(64, 32, 8, 2, False),
    ("gates_rows", 64): Config(32, 32, 4, 2, False),
    ("gates_rows", 128): Config(32, 32, 4, 2, False),
    ("gates_keys", 64): Config(32, 32, 4, 2, False),
    ("gates_keys", 128): Config(32, 32, 4, 2, False),
    ("gates_far", 64): Config(32, 64, 4, 2),
    ("gates_far", 128): Config(32, 64, 8, 2),
}
"""Where documents lie in a row, whatever else."""

CANDIDATES: dict[tuple[str, int], tuple[Config, ...]] = {
    ("forward", 64): (
        Config(64, 128, 4, 3), Config(64, 128, 4, 3, lead=True), Config(64, 64, 4, 4, lead=True),
        Config(128, 128, 8, 3, lead=True), Config(128, 64, 8, 4, lead=True), Config(64, 64, 4, 4),
    ),
    ("forward", 128): (
        Config(64, 64, 4, 3), Config(128, 128, 8, 3), Config(128, 128, 8, 2, lead=True),
        Config(128, 64, 8, 3, lead=True), Config(128, 64, 8, 3), Config(64, 64, 4, 3, lead=True),
    ),
    ("keys", 64): (
        Config(32, 64, 4, 3), Config(32, 64, 4, 3, lead=True), Config(64, 64, 4, 3, lead=True),
        Config(64, 128, 8, 3, lead=True), Config(32, 64, 4, 4), Config(64, 64, 4, 3),
    ),
    ("keys", 128): (
        Config(32, 64, 4, 3), Config(64, 128, 8, 3), Config(64, 128, 8, 3, lead=True), Config(64, 64, 4, 3, lead=True),
        Config(64, 64, 4, 2), Config(32, 64, 4, 3, lead=True),
    ),
    ("rows", 64): (
        Config(64, 64, 4, 3), Config(64, 64, 4, 3, lead=True), Config(128, 64, 8, 3, lead=True),
        Config(64, 128, 4, 3, lead=True),
    ),
    ("rows", 128): (
        Config(128, 64, 8, 3), Config(128, 64, 8, 3, lead=True), Config(64, 64, 4, 2, lead=True), Config(64, 64, 4, 2),
    ),
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
    """How many blocks of a size cover n. Triton's own `cdiv` costs a microsecond or ten, called from the host."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


def narrow(kernel: str, width: int) -> Config:
    """For float32 at full precision, where the registers hold the tiles: small ones, no tensor cores."""
    side = 32 if width <= 64 else 16
    if kernel == "forward":
        return Config(64 if width <= 64 else 32, 32 if width <= 128 else 16, 4, 1, False)
    return Config(side, 32 if width <= 64 else 16, 4, 1, False)


def choose(
    kernel: str, width: int, itemsize: int, looked_up: bool, packed: bool = False, products: int = 0,
    few_keys: bool = False, bent: bool = False, eights: bool = False, numbers: bool = False,
) -> Config:  # fmt: skip
    """The configuration of a kernel at a head width (the larger of the keys' and the values').

    looked_up: a bias by distance. packed: documents. products: vectors by distance, 3 for those of queries and of keys.
    few_keys: a window, or a short text. bent: a slope, or a cap. eights: vectors whose products lie by eights.
    numbers: two of each head that the bias follows from.
    """
    if kernel in _OVERRIDES:
        return _OVERRIDES[kernel]
    if itemsize > 2:
        return narrow(kernel, width)
    known = max(64, width)
    for holds, table in (
        (products == 3 and eights, BOTH_BY_EIGHTS), (eights, BY_EIGHTS),
        (products > 0 and packed, WITH_PRODUCTS_PACKED), (products == 3, WITH_BOTH_PRODUCTS),
        (products > 0, WITH_PRODUCTS), (looked_up and packed, WITH_TABLE_PACKED),
        (looked_up and few_keys, WITH_TABLE_NARROW),
        (numbers, WITH_NUMBERS), (looked_up, WITH_TABLE), (packed, PACKED), (few_keys, NARROW),
        (bent, BENT),
    ):  # fmt: skip
        if holds and (kernel, known) in table:
            return table[kernel, known]
    return CHOSEN[kernel, known]


def overridden() -> dict[str, Config]:
    """The configurations that are used in place of those chosen."""
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
