"""Log-n scaling: sharper softmax for longer texts (Su, 2021, kexue.fm/archives/8823; Chiang and Cholak, 2022)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.numerics.precision import float64, returned
from milepost.seams import demand


@dataclass(frozen=True)
class LogN:
    """Multiply the softmax scale by the logarithm of how many keys there are, against the trained length.

        clip=True, trained=…:      sharpen(i)  =  max(1, ln n / ln trained)
        clip=True, trained=None:   sharpen(i)  =  max(1, ln n)
        clip=False, trained=…:     sharpen(i)  =  ln n / ln trained
        clip=False, trained=None:  sharpen(i)  =  ln n
        count="index", most=None:   n  =  i + 1
        count="index", most=…:      n  =  min(i + 1, most)
        count="length", most=None:  n  =  the length of the text
        count="length", most=…:     n  =  min(the length of the text, most)

    n is the query's index + 1 (count="index", causal models) or the length of the text (count="length", encoders), and
    never above `most`: with a window of w keys, most=w counts the keys that are seen.
    clip=True never blunts a query, so a model that was trained without the factor can use it; clip=False is the form to
    train with, and trained=None its first form, ln n by itself (Chiang and Cholak). It sharpens dot products only: what
    bends scores afterwards, such as ALiBi, is left as it is.
    """

    trained: int | None
    _: KW_ONLY
    clip: bool = True
    count: Literal["index", "length"] = "index"
    most: int | None = None
    relative = True

    def __post_init__(self) -> None:
        if self.trained is not None:
            demand.whole(self, "trained", self.trained, least=2)
        demand.flag(self, "clip", self.clip)
        if self.most is not None:
            demand.whole(self, "most", self.most)
        demand.one_of(self, "count", self.count, ("index", "length"))

    @property
    def by_length(self) -> bool:
        """True if the factor depends on the number of tokens."""
        return self.count == "length"

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        n = float64(index + 1 if self.count == "index" else length)
        factor = torch.log(n.clamp(1, self.most))
        factor = factor if self.trained is None else factor / math.log(self.trained)
        return returned(factor.clamp(min=1) if self.clip else factor, index.device)
