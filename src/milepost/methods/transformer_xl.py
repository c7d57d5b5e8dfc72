"""Transformer-XL: sinusoids of the distance, projected, and two learned biases (Dai et al., 2019, arXiv:1901.02860)."""

from typing import Literal

import torch
from torch import Tensor, nn

from milepost.methods.sinusoidal import Sinusoidal
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Relation, Side, Table


class TransformerXL(Learner):
    """Score content against content and content against distance, each with a bias of its own.

        turn(q, p)  =  q + u
        relate(q, k, p − r)  =  (q + v) · W R_c,   R_c = [ sin(c · θ_m) | cos(c · θ_m) ]
        spacing="open":    θ_m  =  10000^(−m/(model_dim/2))
        spacing="closed":  θ_m  =  10000^(−m/(model_dim/2 − 1))
        reach=None:  c  =  p − r
        reach=…:     c  =  clip(p − r, −reach, reach)

    u and v are [heads, head_dim], W maps model_dim to all heads. Distances may have either sign, so the same method
    serves causal models with a memory (give the memory's keys first; queries are the last t) and bidirectional ones:
    XLNet is Scheme(TransformerXL(…)) without a mask. reach clamps distances (the authors' clamp_len).
    """

    # u belongs to the content, so a rotation in the same scheme rotates u with the query, and only distances matter.
    turns_first = True

    def __init__(
        self,
        model_dim: int,
        heads: int,
        head_dim: int,
        *,
        reach: int | None = None,
        spacing: Literal["open", "closed"] = "open",
    ) -> None:
        """spacing: where the frequencies of R end, 10000^(−n/(D/2)) as the authors have it ("open"), or with the last
        at 1/10000 itself, 10000^(−n/(D/2 − 1)), as tensor2tensor's waves ("closed"); D is model_dim."""
        super().__init__()
        self.model_dim, self.heads, self.head_dim, self.reach = model_dim, heads, head_dim, reach
        self.spacing = spacing
        demand.even(self, "model_dim", model_dim, "each wavelength gives a sine and a cosine")
        demand.one_of(self, "spacing", spacing, ("open", "closed"))
        if spacing == "closed" and model_dim == 2:
            raise ValueError('TransformerXL(model_dim=2, spacing="closed"): one wavelength has no first and last')
        demand.whole(self, "heads", heads)
        demand.whole(self, "head_dim", head_dim)
        if reach is not None:
            demand.whole(self, "reach", reach)
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))
        self.project = nn.Linear(model_dim, heads * head_dim, bias=False)
        for weight in (self.u, self.v):
            nn.init.normal_(weight, std=0.02)

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Give queries their content bias u; x: [b h t d]."""
        if side != "query":
            return x
        demand.width(self, x, self.head_dim)
        return x + self.u.to(x.dtype)[:, None]

    def relate(self, span: int) -> Relation:
        weight, span = self.project.weight, span if self.reach is None else self.reach
        distances = torch.arange(-span, span + 1, device=weight.device)
        over = self.model_dim / 2 - (self.spacing == "closed")
        waves = Sinusoidal(self.model_dim, layout="concatenated", denominator=over).table(distances).to(weight.dtype)
        rows = self.project(waves).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1)
        row = torch.arange(2 * span + 1, dtype=torch.int32, device=weight.device)
        return Relation(keys=Table(rows, row, -span), shift=self.v)
