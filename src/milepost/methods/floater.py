"""FLOATER: positions flow along a learned differential equation (Liu et al., 2020, arXiv:2003.09229)."""

import torch
from torch import Tensor, nn

from milepost.methods.learned import at_index
from milepost.numerics.flow import Flow
from milepost.seams import demand
from milepost.seams.arguments import Learner


class Floater(Learner):
    """Add to each token embedding the state of a learned flow at the token's time.

        x_i  ←  x_i + p(i · step),   dp/dτ = h(τ, p),   h = W₂[relu(W₁[p, τ]), τ],   p(0) learned

    Integrated by Runge-Kutta in five steps a token, which needs torchdiffeq. Any length is defined, but a text of n
    tokens takes 5n steps one after the other; `table(n)` makes n vectors at once, to be kept while nothing is trained.
    An index past `longest` raises. `FloaterLayer` is the authors' form, with a position in every layer.
    """

    relative = False

    def __init__(self, model_dim: int, *, step: float = 0.01, longest: int = 8192) -> None:
        super().__init__()
        self.model_dim, self.step, self.longest = model_dim, step, longest
        demand.whole(self, "model_dim", model_dim)
        demand.finite(self, "step", step, above=0)
        demand.whole(self, "longest", longest)
        self.start = nn.Parameter(torch.empty(model_dim))
        nn.init.xavier_uniform_(self.start.data[None])
        self.flow = Flow(model_dim)

    def table(self, length: int) -> Tensor:
        """Return the vectors of positions 0 … length − 1, [length, model_dim]."""
        return self.flow.states(self.start, torch.arange(length, device=self.start.device), self.step)

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self.flow.states(self.start, at_index(self, x, index, self.longest), self.step).to(x.dtype)
