"""FLOATER: positions flow along a learned differential equation."""

import torch
from torch import Tensor, nn

from milepost.methods.learned import at_index
from milepost.numerics.flow import Flow
from milepost.seams import demand
from milepost.seams.arguments import Learner
from milepost.seams.verbs import Side


class Floater(Learner):
    """Add to each token embedding the state of a learned flow at the token's time.

        x_i  ←  x_i + p(i · step),   dp/dτ = h(τ, p),   h = W₂[relu(W₁[p, τ]), τ],   p(0) learned

    Integrated by Runge-Kutta in five steps a token, which needs torchdiffeq. Any length is defined, but a text of n
    tokens takes 5n steps one after the other; `table(n)` makes n vectors at once, to be kept while nothing is trained.
    An index past `longest` raises. `FloaterLayer` is the authors' form, with a position in every layer.
    """

    paper = "FLOATER: positions flow along a learned differential equation (Liu et al., 2020, arXiv:2003.09229)."
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


class FloaterLayer(Learner):
    """Add to queries, keys and values the states of a learned flow at each token's time.

        turn(q_i, i)  =  q_i + p⁰(i · step),   turn(k_j, j)  =  k_j + p¹(j · step)
        values=True:  turn(v_j, j)  =  v_j + p²(j · step)
        dp/dτ  =  h(τ, p),   h = W₂[relu(W₁[p, τ]), τ],   p⁰(0), p¹(0), p²(0) learned

    The three states [heads · head_dim] start apart and follow one flow. The authors share the flow over all layers:
    assign it, `layer.flow = first.flow`. With grouped queries key head n takes the state of the first query head it
    serves. values=False leaves the values alone. A position past `longest` raises.
    """

    paper = "FLOATER in every layer: flowing biases on queries, keys and values (Liu et al., 2020, arXiv:2003.09229)."
    relative = False

    def __init__(
        self, heads: int, head_dim: int, *, values: bool = True, step: float = 0.01, longest: int = 8192
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.values, self.step, self.longest = heads, head_dim, values, step, longest
        for name in ("heads", "head_dim", "longest"):
            demand.whole(self, name, getattr(self, name))
        demand.flag(self, "values", values)
        demand.finite(self, "step", step, above=0)
        self.start = nn.Parameter(torch.empty(3 if values else 2, heads * head_dim))
        nn.init.xavier_uniform_(self.start)
        self.flow = Flow(heads * head_dim)

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """x: [b h t d], position: [t] or [b t]; returns [b h t d] in the dtype of x."""
        if side == "value" and not self.values:
            return x
        if side == "value" and x.shape[-1] != self.head_dim:
            raise ValueError(
                f"FloaterLayer(head_dim={self.head_dim}): values have {x.shape[-1]} channels, and their states "
                f"{self.head_dim}; values=False leaves them alone"
            )
        demand.width(self, x, self.head_dim)
        if (
            demand.checking_values(x.device)
            and position.numel()
            and not 0 <= float(position.min()) <= float(position.max()) < self.longest
        ):
            raise ValueError(
                f"FloaterLayer(longest={self.longest}): positions run from {float(position.min()):g} to "
                f"{float(position.max()):.0f}; they must lie in 0 … {self.longest - 1}"
            )
        states = self.flow.states(self.start[("query", "key", "value").index(side)], position, self.step)
        by_head = states.view(*position.shape, self.heads, self.head_dim)[..., :: self.heads // x.shape[1], :]
        return x + by_head.transpose(-2, -3).to(x.dtype)
