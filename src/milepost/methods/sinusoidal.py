"""Sinusoidal positions: sines and cosines of geometric wavelengths (Vaswani et al., 2017, arXiv:1706.03762)."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from milepost.numerics.precision import exact_device, float64
from milepost.seams import demand


@dataclass(frozen=True)
class Sinusoidal:
    """Add fixed waves to each token embedding.

        layout="interleaved":   x_i[2n]  ←  x_i[2n] + a · sin(i · θ_n),   x_i[2n+1]  ←  x_i[2n+1] + a · cos(i · θ_n)
        layout="concatenated":  x_i[n]  ←  x_i[n] + a · sin(i · θ_n),   x_i[n+d/2]  ←  x_i[n+d/2] + a · cos(i · θ_n)
        denominator=None:  θ_n  =  θ^(−2n/d),   a = amplitude
        denominator=…:     θ_n  =  θ^(−n/denominator),   a = amplitude
        start=…:           i  ←  i + start

    layout="concatenated" puts all sines before all cosines (fairseq, tensor2tensor, Transformer-XL).
    denominator is what n is divided by in the exponent: d/2 in the paper, d/2 − 1 in fairseq and tensor2tensor.
    start is the position of the first token: 2 in fairseq, which counts from the row after that of the padding token.
    a is the amplitude. The paper multiplies the embeddings by √d and adds the waves as they are; where embeddings are
    small and not multiplied, amplitude=d ** -0.5 keeps the waves from drowning them.
    """

    model_dim: int
    _: KW_ONLY
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    theta: float = 10000.0
    denominator: float | None = None
    amplitude: float = 1.0
    start: float | None = None
    relative = False

    def __post_init__(self) -> None:
        demand.even(self, "model_dim", self.model_dim, "each wavelength gives a sine and a cosine")
        demand.one_of(self, "layout", self.layout, ("interleaved", "concatenated"))
        demand.finite(self, "theta", self.theta, above=1)
        demand.finite(self, "amplitude", self.amplitude, above=0)
        if self.denominator is not None:
            demand.finite(self, "denominator", self.denominator, above=0)
        if self.start is not None:
            demand.finite(self, "start", self.start)

    def table(self, position: Tensor) -> Tensor:
        """Return the waves at any positions [...], float64 [... d]; fractions and negatives are allowed."""
        over = self.model_dim / 2 if self.denominator is None else self.denominator
        n = torch.arange(self.model_dim // 2, dtype=torch.float64, device=exact_device(position.device))
        angle = (float64(position) + (self.start or 0))[..., None] * self.theta ** (-n / over)
        waves = self.amplitude * angle.sin(), self.amplitude * angle.cos()
        return torch.cat(waves, -1) if self.layout == "concatenated" else torch.stack(waves, -1).flatten(-2)

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self.table(demand.order(self, x, index)).to(x.dtype).to(x.device)
