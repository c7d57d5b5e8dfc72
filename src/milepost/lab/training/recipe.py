"""How large a model is and how it is trained, for each --size. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from milepost.seams import values

Start = Literal["small", "inputs", "torch"]


@dataclass(frozen=True)
class Shape:
    """How large a model is."""

    width: int = 384
    layers: int = 6
    heads: int = 6
    key_heads: int | None = None
    """How many heads the keys have; as many as the queries if None."""
    hidden: int | None = None
    """The width inside the SwiGLU; four times the model's if None."""
    vocabulary: int = 256
    normed: bool = True
    """Whether queries and keys are brought to one size before they meet, which steadies training."""
    tied: bool = True
    """Whether the output's matrix is that of the embeddings."""
    start: Start = "small"
    """The spread that weights start with: all 0.02 ("small"); matrices 1/√inputs, embeddings 0.1 ("inputs", with which
    narrow models learn to look back within a few hundred steps), both less where they join the stream; or as torch
    starts matrices, 1/√(3 · inputs), and embeddings 0.07 ("torch")."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "vocabulary"):
            values.whole(self, name, getattr(self, name))
        for name in ("key_heads", "hidden"):
            if getattr(self, name) is not None:
                values.whole(self, name, getattr(self, name))
        values.flag(self, "normed", self.normed)
        values.flag(self, "tied", self.tied)
        values.one_of(self, "start", self.start, ("small", "inputs", "torch"))
        if self.width % self.heads:
            raise ValueError(f"Shape(width={self.width}, heads={self.heads}): heads must divide the width")
        if self.heads % self.groups:
            raise ValueError(f"Shape(heads={self.heads}, key_heads={self.groups}): key_heads must divide heads")

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Shape:
        """Return a shape as it was written down, by this version or an earlier one."""
        named = dict(plain)
        if named.pop("scaled", False):
            named["start"] = "inputs"
        return cls(**named)

    @property
    def dim(self) -> int:
        """Return the width of a head."""
        return self.width // self.heads

    @property
    def groups(self) -> int:
        """Return how many heads the keys have."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def inner(self) -> int:
        """Return the width inside the SwiGLU."""
        return 4 * self.width if self.hidden is None else self.hidden


@dataclass(frozen=True)
class Recipe:
    """Everything that training depends on besides the scheme, the text and the machine."""

    length: int = 512
    batch: int = 64
    steps: int = 1500
    rate: float = 1e-3
    bias_rate: float = 10.0
    """How many times the rate is that of what bends scores: a few numbers by distance, which must move by whole units,
    while the rate suits matrices, whose entries are hundredths."""
    learned_rate: float = 1.0
    """The same for all else that schemes learn: vectors by distance, tables of positions, frequencies."""
    warmup: int = 100
    floor: float = 0.1
    """The share of the rate that the cosine ends at."""
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    """In how many parts a batch is worked through."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is autocast: weights stay float32."""
    compiled: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        # Half of a text is judged by its ends, and of one byte nothing is left.
        for name, least in (("length", 2), ("batch", 1), ("steps", 1), ("accumulate", 1)):
            values.whole(self, name, getattr(self, name), least=least)
        for name in ("rate", "bias_rate", "learned_rate"):
            values.finite(self, name, getattr(self, name), above=0)
        values.one_of(self, "precision", self.precision, ("float32", "bfloat16"))
        if self.batch % self.accumulate:
            raise ValueError(f"Recipe(batch={self.batch}, accumulate={self.accumulate}): parts must be of one size")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then half a cosine down to the floor."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True)
class Size:
    """What `--size` stands for."""

    shape: Shape
    recipe: Recipe
    longest: int
    judged: int = 1 << 17
    """About how many bytes are judged at each length."""
    ends: int | None = None
    """At how many fixed ends the last bytes are judged; None: by how much is judged."""
    copies: int | None = None
    """How many pairs of copies are made for each distance of recall; likewise."""


SIZES: dict[str, Size] = {
    "demo": Size(
        Shape(width=64, layers=2, heads=2, hidden=128, start="inputs"),
        Recipe(length=64, batch=16, steps=1500, rate=4e-3),
        longest=1024,
        judged=1 << 15,
        # Short texts have few bytes at each end, and small models are unsure of them.
        ends=192,
        copies=32,
    ),
    "small": Size(
        Shape(width=192, layers=4, heads=6, hidden=512),
        Recipe(length=256, batch=16, steps=4000, rate=2e-3),
        longest=4096,
    ),
    "base": Size(
        # Read as well as x-transformers' model of that size, which the smaller start with one matrix did not.
        Shape(width=384, layers=6, heads=6, tied=False, start="torch"),
        Recipe(length=512, batch=64, steps=1500, precision="bfloat16"),
        longest=16384,
        judged=1 << 20,
    ),
    "large": Size(
        Shape(width=768, layers=12, heads=12),
        Recipe(length=1024, batch=64, steps=5000, rate=6e-4, warmup=300, precision="bfloat16"),
        longest=32768,
        judged=1 << 20,
    ),
}
