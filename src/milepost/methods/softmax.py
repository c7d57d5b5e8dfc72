"""What changes the softmax: its scale, the sharpness of a query, a cap on scores, sinks."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from milepost.numerics.precision import float64, float_type, returned
from milepost.seams import demand
from milepost.seams.arguments import Learner


@dataclass(frozen=True)
class Scale:
    """Multiply dot products by a fixed number.

        scale  =  value  instead of  1/√d

    T5 uses 1.0.
    """

    paper = "A softmax scale in place of 1/√d."
    value: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "value", self.value)

    def scale(self, dim: int) -> float:
        return float(self.value)


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

    paper = "Log-n scaling: sharper for longer texts (Su, 2021, kexue.fm/archives/8823; Chiang and Cholak, 2022)."
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


@dataclass(frozen=True)
class Llama4Scale:
    """Sharpen a query by the logarithm of how many chunks lie behind it.

        sharpen(i)  =  1 + weight · ln(1 + ⌊(i + offset)/chunk⌋)

    i is the index of the query, so padding does not count. Llama 4 uses it on the layers without positions, with
    offset=1; Ministral 3 on every layer, with offset=0.
    """

    paper = "Llama 4's temperature: queries grow sharper with every chunk (Meta, 2025; transformers' Llama 4)."
    chunk: int = 8192
    _: KW_ONLY
    weight: float = 0.1
    offset: int = 1
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "chunk", self.chunk)
        demand.finite(self, "weight", self.weight, least=0)
        demand.whole(self, "offset", self.offset, least=0)

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        # Padding may have negative indices, which have no logarithm; it is hidden, but its gradient counts.
        counted = (index.clamp(min=0) + self.offset) // self.chunk
        return returned(1 + self.weight * float64(counted).log1p(), index.device)


@dataclass(frozen=True)
class DeepseekScale:
    """Sharpen every query by the square of YaRN's magnitude.

        sharpen(i)  =  (0.1 · weight · ln(max(1, factor)) + 1)²

    DeepSeek rotates part of each head only, so it puts the temperature on the whole score and takes it off the angles:
    Partial(Rope(64, stretch=Yarn(40, 4096, scaled=1.0)), of=192) next to DeepseekScale(40, weight=0.707). weight is its
    mscale_all_dim; where mscale differs, scaled is (0.1 · mscale · ln(factor) + 1) over the same with weight.
    """

    paper = "DeepSeek's half of YaRN's temperature: what sharpens the softmax (DeepSeek-AI, 2024, arXiv:2405.04434)."
    factor: float
    _: KW_ONLY
    weight: float = 1.0
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.finite(self, "weight", self.weight, least=0)

    def sharpen(self, index: Tensor, length: Tensor) -> Tensor:
        size = 0.1 * self.weight * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return torch.full((1, 1), size**2, dtype=float_type(index.device), device=index.device)


@dataclass(frozen=True)
class SoftCap:
    """Limit scores to ±cap, smoothly.

        score  ←  cap · tanh(score / cap)

    It acts where it is listed among the parts that bend: after a bias listed before it, before one listed after.
    """

    paper = "Soft capping: scores squashed into ±cap (Gemma Team, 2024, arXiv:2408.00118)."
    cap: float
    relative = True

    def __post_init__(self) -> None:
        demand.finite(self, "cap", self.cap, above=0)

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)


@dataclass(frozen=True)
class SoftmaxOne:
    """Add one to the softmax's denominator.

        weight_ij  =  e^score_ij / (1 + Σ_j e^score_ij)

    It is a key of score 0 and value 0 that every query sees. `SinkLogit` learns the score.
    """

    paper = "SoftMax₁: a query may attend to nothing (Miller, 2023; the zero sink of Xiao et al., arXiv:2309.17453)."
    heads: int
    relative = True

    def __post_init__(self) -> None:
        demand.whole(self, "heads", self.heads)

    def rest(self) -> Tensor:
        return torch.zeros(self.heads)


class SinkLogit(Learner):
    """Add a learned sink to the softmax, so that a head may attend to nothing.

        weight_ij  =  e^score_ij / (e^logit_h + Σ_j e^score_ij)

    The logits start at zero, which is SoftMax₁.
    """

    paper = "A learned sink: attending to nothing (gpt-oss, OpenAI, 2025, arXiv:2508.10925; SoftMax₁ at zero)."

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        demand.whole(self, "heads", heads)
        self.logit = nn.Parameter(torch.zeros(heads))

    def rest(self) -> Tensor:
        return self.logit
