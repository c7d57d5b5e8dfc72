"""Partial rotation: rotate some channels, leave the rest without position (GPT-NeoX, GPT-J; arXiv:2204.06745)."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from milepost.numerics.precision import returned
from milepost.numerics.rotation import Pairs
from milepost.seams import demand
from milepost.seams.arguments import spell
from milepost.seams.facets import Rotates, has_facet
from milepost.seams.rotary import over_heads, reached
from milepost.seams.verbs import Side, verbs_of


@dataclass(frozen=True)
class Partial:
    """Rotate the first channels by a method and leave the others as they are.

        temperature="rotary":  turn(x, p)  =  [ method.turn(x[:head_dim], p) | x[head_dim:of] ]
        temperature="logits":  turn(x, p)  =  [ method.turn(x[:head_dim], p) | method.magnitude · x[head_dim:of] ]

    A stretch's magnitude then scales the turned part alone, as in transformers. temperature="logits" lets it scale the
    other channels too, so that the whole score is sharpened, as YaRN's paper has it.
    """

    method: Any
    of: int
    _: KW_ONLY
    temperature: Literal["rotary", "logits"] = "rotary"
    _by_cosines: ClassVar[bool]

    def __post_init__(self) -> None:
        # A kernel reads one width: Partial(Partial(Rope(8), of=16), of=32) is written Partial(Rope(8), of=32).
        turns = "turn" in verbs_of(self.method) and hasattr(self.method, "head_dim")
        if not turns or isinstance(self.method, Partial):
            raise TypeError(f"Partial({self.method!r}): the method must turn channels, such as Rope(64)")
        demand.whole(self, "of", self.of)
        if self.of < self.method.head_dim:
            raise ValueError(
                f"Partial({spell(self.method)}, of={self.of}): the method turns {self.method.head_dim} channels, "
                f"and there are only {self.of}"
            )
        demand.one_of(self, "temperature", self.temperature, ("rotary", "logits"))
        # A subclass with a `turn` of its own no longer does what its base's cosines and sines say.
        object.__setattr__(self, "_by_cosines", has_facet(self.method, "cos_sin"))

    @property
    def relative(self) -> bool:
        return self.method.relative

    @property
    def rotary(self) -> bool:
        return getattr(self.method, "rotary", False)

    @property
    def by_length(self) -> bool:
        return getattr(self.method, "by_length", False)

    @property
    def centred(self) -> bool:
        return getattr(self.method, "centred", False)

    def widest(self, dtype: torch.dtype) -> float:
        """Return the longest span of positions without overflow."""
        return self.method.widest(dtype) if hasattr(self.method, "widest") else math.inf

    @property
    def axes(self) -> int | None:
        return getattr(self.method, "axes", None)

    # The facets of a rotation are the method's own, where it has them

    @property
    def cos_sin(self) -> Callable[..., tuple[Tensor, Tensor]] | None:
        return self.method.cos_sin if self._by_cosines else None

    @property
    def pairs(self) -> Pairs | None:
        return getattr(self.method, "pairs", None)

    @property
    def width(self) -> int:
        return self.method.head_dim

    @property
    def head_dim(self) -> int:
        return self.of

    @property
    def blocks(self) -> int:
        return getattr(self.method, "blocks", 1)

    def steps(self, device: torch.device) -> tuple[Tensor, float] | None:
        return self.method.steps(device) if hasattr(self.method, "steps") else None

    def beyond(self, position: Tensor, length: Tensor | int | None = None) -> Tensor | float | None:
        if self.temperature == "rotary" or not hasattr(self.method, "magnitude"):
            return None
        return self.method.magnitude(reached(position, length))

    def for_values(self, width: int) -> Rotates | None:
        """Return the rotation of values; of wider ones the first channels rotate, as many as of queries and keys."""
        return self.method.for_values(min(width, self.width)) if self.cos_sin is not None else None

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """x: [b h t of], position: [t] or [b t]; returns [b h t of] in the dtype of x."""
        if x.shape[-1] != self.of and side != "value":
            raise ValueError(f"Partial({spell(self.method)}, of={self.of}): given a tensor of {x.shape[-1]} channels")
        turned, rest = x[..., : self.width], x[..., self.width :]
        size = None if side == "value" else self.beyond(position, length)
        if size is not None:
            size = returned(over_heads(size[..., None]), x.device) if isinstance(size, Tensor) else size
            rest = (rest * size).to(x.dtype)
        return torch.cat((self.method.turn(turned, position, side, length), rest), -1)
