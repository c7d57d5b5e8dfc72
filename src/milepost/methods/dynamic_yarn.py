"""Dynamic YaRN: YaRN whose factor follows the length of the text (Peng et al., 2023, arXiv:2309.00071, section 3.3)."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.methods.by_parts import Ramp, check_ramp, share_kept


@dataclass(frozen=True)
class DynamicYarn:
    """Stretch as Yarn does, by max(1, L/trained) for a text of length L.

        θ_n  ←  γ_n · θ_n + (1 − γ_n) · θ_n/s,   s = max(1, L/trained),   L the length of the text
        ramp="code":   γ_n  =  (high − n)/(high − low), kept within 0 … 1
        ramp="code":   low, high  =  the n with trained · θ_n/2π = fast and slow turns, within 0 … d − 1
        ramp="code", truncate=True:  low, high  ←  ⌊low⌋, ⌈high⌉
        ramp="paper":  γ_n  =  (trained · θ_n/2π − slow)/(fast − slow), kept within 0 … 1
        turn(x, p)  ←  turn(x, p) · magnitude,   magnitude = 0.1 · ln(s) + 1

    Within the trained length nothing changes.
    """

    trained: int
    _: KW_ONLY
    ramp: Ramp = "code"
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    relative = True
    by_length = True

    def __post_init__(self) -> None:
        check_ramp(self, self.trained, self.ramp, self.fast, self.slow, self.truncate)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        kept = share_kept(f, self.trained, self.ramp, self.fast, self.slow, self.truncate)
        return (1 - kept) * f / self._factor(length)[..., None] + kept * f

    def magnitude(self, length: Tensor) -> Tensor:
        return 0.1 * self._factor(length).log() + 1

    def _factor(self, length: Tensor) -> Tensor:
        return (length / self.trained).clamp(min=1)
