"""Complex order: words as waves whose phase grows with the position (Wang et al., 2020, arXiv:1912.12333)."""

from typing import Literal

import torch
from torch import Tensor, nn

from milepost.seams import demand
from milepost.seams.arguments import Learner


class ComplexOrder(Learner):
    """Embed each word as complex numbers whose phases turn with its position.

        f(w, i)[n]  =  size_w[n] · (cos a_n + √−1 · sin a_n),   a_n = i · ω_w[n] + ϑ_w[n]   for the word w at index i
        real=True:   in real channels [ size · cos a | size · sin a ]
        frequencies="shared":  ω_w[n] is the same for all words
        phases="none":  ϑ_w[n]  =  0

    It takes token numbers [b t] and makes the embeddings themselves, [b t 2·model_dim], or complex [b t model_dim] with
    real=False, for `complex_attend`. frequencies="shared" gives all words the same ω, phases="none" no ϑ. Sizes start
    in U(−1, 1), frequencies at 10000^(−n/model_dim) for every word, phases at zero.
    """

    relative = False

    def __init__(
        self,
        vocabulary: int,
        model_dim: int,
        *,
        frequencies: Literal["words", "shared"] = "words",
        phases: Literal["words", "none"] = "words",
        real: bool = True,
    ) -> None:
        super().__init__()
        self.vocabulary, self.model_dim, self.real = vocabulary, model_dim, real
        self.frequencies, self.phases = frequencies, phases
        demand.whole(self, "vocabulary", vocabulary)
        demand.whole(self, "model_dim", model_dim)
        demand.one_of(self, "frequencies", frequencies, ("words", "shared"))
        demand.one_of(self, "phases", phases, ("words", "none"))
        demand.flag(self, "real", real)
        self.size = nn.Parameter(torch.empty(vocabulary, model_dim).uniform_(-1, 1))
        # As offsets from exact frequencies, which no cast of the model can touch.
        self.offset = nn.Parameter(torch.zeros(vocabulary if frequencies == "words" else 1, model_dim))
        self.phase = nn.Parameter(torch.zeros(vocabulary, model_dim)) if phases == "words" else None

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: token numbers [b t], index: [t] or [b t]; returns [b t 2·model_dim], or complex [b t model_dim]."""
        if x.dim() != 2 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise TypeError(
                f"ComplexOrder(vocabulary={self.vocabulary}): it embeds token numbers, integers [b, t]; given "
                f"{x.dtype} {list(x.shape)}"
            )
        if demand.checking_values(x.device) and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < self.vocabulary:
            raise ValueError(
                f"ComplexOrder(vocabulary={self.vocabulary}): token numbers run from {int(x.min())} to {int(x.max())}"
            )
        index = demand.order(self, x[..., None], index)
        n = torch.arange(self.model_dim, dtype=torch.float64, device=x.device)
        omega = (
            10000.0 ** (-n / self.model_dim) + (self.offset[x] if self.frequencies == "words" else self.offset).double()
        )
        angle = index.double()[..., None] * omega
        if self.phase is not None:
            angle = angle + self.phase[x].double()
        waves = angle.cos().to(self.size.dtype), angle.sin().to(self.size.dtype)
        parts = [self.size[x] * wave for wave in waves]
        return torch.cat(parts, -1) if self.real else torch.complex(*parts)
