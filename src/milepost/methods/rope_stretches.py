"""Stretches of RoPE: other frequencies, to reach past the trained length."""

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from milepost.seams import demand


class _Stretch:
    """A stretch that changes no sizes of queries and keys."""

    relative = True

    @property
    def times(self) -> float:
        """How many times the trained length it is set to reach; 1 where it follows the text, or no number says it."""
        return 1.0

    def magnitude(self, length: Tensor) -> float:
        return 1.0


class _ByFactor(_Stretch):
    """A stretch whose factor is the ratio of lengths."""

    factor: float

    @property
    def times(self) -> float:
        return self.factor


@dataclass(frozen=True)
class Interpolate(_ByFactor):
    """Slow every frequency by the same factor, as if positions were divided by it.

        θ_n  ←  θ_n / factor

    Every pair slows alike, so near tokens are harder to distinguish; it wants fine-tuning.
    """

    paper = "Position interpolation: squeeze positions into the trained range (Chen et al., 2023, arXiv:2306.15595)."
    factor: float

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / self.factor


@dataclass(frozen=True)
class DynamicLinear(_Stretch):
    """Interpolate the positions of a text of length L into the trained range.

        θ_n  ←  θ_n / max(1, L/trained),   L the length of the text

    Within the trained length nothing changes. Every token's angles depend on L; `attend` is given raw keys, so a cache
    stays exact.
    """

    paper = "Dynamic linear scaling: interpolated as the text needs (emozilla, 2023; the YaRN authors' code)."
    trained: int
    by_length = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / (length / self.trained).clamp(min=1)[..., None]


@dataclass(frozen=True)
class Ntk(_Stretch):
    """Raise the base θ to θ · factor^(d/(d − 2)).

        θ_n  ←  base^(−2n/d),   base = θ · factor^(d/(d − 2))

    The first pair keeps its frequency and the last is divided by factor, exactly. Pairs between are divided by less
    than factor, so it must exceed the ratio of lengths.
    """

    paper = "NTK-aware scaling: a larger base, which interpolates slow pairs and nearly keeps fast ones (bloc97, 2023)."
    factor: float

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f * raised(torch.as_tensor(self.factor, dtype=f.dtype, device=f.device), f)


def raised(factor: Tensor, f: Tensor) -> Tensor:
    """factor^(−n/(pairs − 1)) for every pair n: [...] → [... pairs]."""
    pairs = f.shape[-1]
    if pairs < 2:
        raise ValueError("NTK-aware stretching needs at least two pairs of channels: the exponent divides by d − 2")
    n = torch.arange(pairs, dtype=f.dtype, device=f.device)
    return factor[..., None] ** (-n / (pairs - 1))


@dataclass(frozen=True)
class DynamicNtk(_Stretch):
    """Stretch as Ntk does, by a factor that follows the length L.

        θ_n  ←  θ_n · a^(−2n/(d − 2)),   a = max(1, factor · L/trained − (factor − 1)),   L the length of the text

    `factor` is transformers' factor, not the ratio of lengths: at 1 the stretch is L/trained. The frequencies of every
    token depend on L, so keys are rotated again at each step; `attend` does that, because it is given raw keys.
    """

    paper = 'Dynamic NTK: the base grows with the length of the text (emozilla, 2023; transformers\' "dynamic").'
    trained: int
    _: KW_ONLY
    factor: float = 1.0
    by_length = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "factor", self.factor, least=1)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f * raised((self.factor * length / self.trained - (self.factor - 1)).clamp(min=1), f)


@dataclass(frozen=True)
class NtkMixed(_ByFactor):
    """Slow pair n by a factor that grows with n, up to `factor` for the last.

        θ_n  ←  θ_n · exp(−a · (n + 1)^b),   a = ln(factor)/(d/2)^b

    b=1 is Su's NTK-fixed, b=0 is position interpolation, and the default lies between. Every pair is slowed a little,
    the first by factor^((2/d)^b).
    """

    paper = "NTK-mixed: slow pairs slowed more than fast ones, by one exponent (Su, 2023, kexue.fm/archives/9706)."
    factor: float
    _: KW_ONLY
    b: float = 0.625

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.finite(self, "b", self.b, least=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        pairs = f.shape[-1]
        n = torch.arange(1, pairs + 1, dtype=f.dtype, device=f.device)
        return f * self.factor ** -((n / pairs) ** self.b)


@dataclass(frozen=True)
class Proportional(_ByFactor):
    """Keep the frequencies of the first pairs and set those of the others to zero.

        θ_n  ←  θ_n/factor  for n < ⌊share · (d/2)⌋,   0  beyond

    Unlike `Partial`, exponents count over the whole width, so the pairs that rotate are RoPE's fastest; the others
    carry content without position. share=1 is RoPE, share=0 is no position at all.
    """

    paper = 'p-RoPE: only the fast pairs rotate (Barbero et al., 2024, arXiv:2410.06205; "proportional").'
    share: float
    _: KW_ONLY
    factor: float = 1.0

    def __post_init__(self) -> None:
        demand.finite(self, "share", self.share, least=0)
        if self.share > 1:
            raise ValueError(f"Proportional(share={self.share}): share is a part of the pairs, at most 1")
        demand.finite(self, "factor", self.factor, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        n = torch.arange(f.shape[-1], device=f.device)
        return torch.where(n < int(self.share * 2 * f.shape[-1] // 2), f / self.factor, 0.0)


@dataclass(frozen=True)
class Llama3(_ByFactor):
    """Blend by the number of turns a pair makes within the trained length.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/factor
        γ_n  =  (trained · θ_n/2π − low)/(high − low), kept within 0 … 1

    Pairs that make more than `high` turns are kept, those that make fewer than `low` divided.
    """

    paper = "Llama 3.1's stretch: slow pairs slowed, fast kept, a blend between (Meta, 2024, arXiv:2407.21783)."
    factor: float
    trained: int
    _: KW_ONLY
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        demand.finite(self, "factor", self.factor, above=0)
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "low", self.low, above=0)
        demand.finite(self, "high", self.high, above=self.low)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        turns = self.trained * f / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - kept) * f / self.factor + kept * f


@dataclass(frozen=True)
class LongRope(_ByFactor):
    """Divide each frequency by its own factor, chosen by the length L of the text.

        θ_n  ←  θ_n/short[n]  for texts of up to trained tokens,   θ_n/long[n]  for longer ones
        scaled=None:  turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = √(1 + ln(max(1, factor))/ln trained)
        scaled=…:     turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = scaled

    factor is the longest length over the trained one; it sets the magnitude, which rides on short texts too, as in
    Phi-3. scaled overrides the magnitude. Crossing the trained length while decoding changes the angles of every key;
    `attend` is given raw keys, so nothing has to be thrown away.
    """

    paper = "LongRoPE: a searched factor for every pair, by length (Ding et al., 2024, arXiv:2402.13753)."
    short: tuple[float, ...]
    long: tuple[float, ...]
    trained: int
    _: KW_ONLY
    factor: float = 1.0
    scaled: float | None = None
    by_length = True

    def __post_init__(self) -> None:
        for name in ("short", "long"):
            demand.several(self, name, getattr(self, name))
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for value in getattr(self, name):
                demand.finite(self, name, value, above=0)
        if len(self.short) != len(self.long):
            raise ValueError(
                f"LongRope: {len(self.short)} short factors but {len(self.long)} long ones; one of each for every pair"
            )
        demand.whole(self, "trained", self.trained, least=2)
        demand.finite(self, "factor", self.factor, above=0)
        if self.scaled is not None:
            demand.finite(self, "scaled", self.scaled, above=0)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        if len(self.short) != f.shape[-1]:
            raise ValueError(
                f"LongRope: {len(self.short)} factors for {f.shape[-1]} pairs of channels; give one for every pair"
            )
        short, long = (torch.tensor(each, dtype=f.dtype, device=f.device) for each in (self.short, self.long))
        return f / torch.where(length[..., None] > self.trained, long, short)

    def magnitude(self, length: Tensor) -> float:
        if self.scaled is not None:
            return self.scaled
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.trained))
