"""What acts on token embeddings: waves, tables, and vectors made one from another."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from milepost.numerics.flow import Flow
from milepost.numerics.opaque import opaque
from milepost.numerics.precision import exact_device, float64
from milepost.seams import demand
from milepost.seams.arguments import Learner, spell
from milepost.seams.verbs import Side, verbs_of


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

    paper = "Sinusoidal positions: sines and cosines of geometric wavelengths (Vaswani et al., 2017, arXiv:1706.03762)."
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


class Learned(Learner):
    """Add a learned vector to each token embedding.

        x_i  ←  x_i + table[i],   i < length

    There is nothing past the end of the table: a longer text raises. Rows start at N(0, 0.02²), as in BERT and GPT-2.
    `grown` makes a longer table of a trained one, to fine-tune; `Hierarchical` reaches n² positions without new rows.
    """

    paper = "Learned positions: a table with one row for each (Gehring et al., 2017, arXiv:1705.03122; BERT, GPT)."
    relative = False

    def __init__(self, length: int, model_dim: int) -> None:
        super().__init__()
        self.length, self.model_dim = length, model_dim
        demand.whole(self, "length", length)
        demand.whole(self, "model_dim", model_dim)
        self.table = nn.Parameter(torch.empty(length, model_dim))
        nn.init.normal_(self.table, std=0.02)

    def grown(self, length: int, generator: torch.Generator | None = None) -> "Learned":
        """Return a longer table: the trained rows, then random ones, to be trained on longer texts."""
        demand.whole(self, "length", length)
        if length < self.length:
            raise ValueError(f"Learned(length={self.length}).grown({length}): a table grows; it does not shrink")
        longer = Learned(length, self.model_dim).to(self.table)
        with torch.no_grad():
            nn.init.normal_(longer.table, std=0.02, generator=generator)
            longer.table[: self.length] = self.table
        return longer

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self.table[at_index(self, x, index, self.length)].to(x.dtype)


def at_index(owner: object, x: Tensor, index: Tensor | None, length: int) -> Tensor:
    """Return the index of embeddings x [b t D]; raise unless it is integers from 0 to length − 1."""
    index = demand.order(owner, x, index)
    name = f"{type(owner).__name__}({'longest' if hasattr(owner, 'longest') else 'length'}={length})"
    if index.is_floating_point():
        raise TypeError(f"{name}: index must be integers, given {index.dtype}")
    if demand.checking_values(index) and index.numel():
        first, last = int(index.min()), int(index.max())
        if first < 0:
            raise ValueError(f"{name}: index {first} is before the table; indices count from 0")
        if last >= length:
            longer = "raise longest" if hasattr(owner, "longest") else "make a longer table"
            raise ValueError(
                f"{name}: index {last} is past the table, which ends at {length - 1}; "
                f"{longer}, or use a method that is defined everywhere, such as Sinusoidal"
            )
    return index


class Hierarchical(Learner):
    """Write a position in base n, and mix the two digits' vectors.

        x_i  ←  x_i + α · u[⌊i/n⌋] + (1 − α) · u[i mod n],   u = (table − α · table[0]) / (1 − α),   n rows in table

    The first n positions keep their vectors exactly, so a trained model is not disturbed; fine-tuning teaches it the
    rest. table is what was trained: a tensor [n, model_dim], an nn.Embedding or a `Learned`, whose weight it shares; or
    the shape (n, model_dim) of one to come.
    """

    paper = "Hierarchical positions: a table of n rows serves n² positions (Su, 2020, kexue.fm/archives/7947)."
    relative = False

    def __init__(self, table: Tensor | nn.Embedding | Learned | tuple[int, int], *, alpha: float = 0.4) -> None:
        super().__init__()
        self.alpha = alpha
        self.table = _weight(self, table)
        demand.finite(self, "alpha", alpha, above=0)
        if alpha >= 1 or alpha == 0.5:
            raise ValueError(
                f"Hierarchical(alpha={alpha!r}): alpha must lie between 0 and 1 and not be 0.5, where the two digits "
                f"could be exchanged without a trace"
            )

    @property
    def length(self) -> int:
        """The number of positions: the square of the table's rows."""
        return self.table.shape[0] ** 2

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        n, model_dim = self.table.shape
        demand.width(self, x, model_dim, "model_dim")
        index = at_index(self, x, index, self.length)
        # The same sum with the first digit's part written as a difference, so that it is exactly zero for digit 0.
        first = self.table[index // n] - self.table[0]
        mixed = self.table[index % n] + self.alpha / (1 - self.alpha) * first
        return x + mixed.to(x.dtype)


def _weight(owner: object, table: object) -> nn.Parameter:
    """Return the trained table as a parameter, shared where it already is one."""
    if isinstance(table, Learned):
        return table.table
    if isinstance(table, nn.Embedding):
        table = table.weight
    if isinstance(table, (tuple, list)):
        shape = cast("tuple[int, ...]", tuple(table))  # pyright: ignore
        for size in shape:
            demand.whole(owner, "table", size)
        table = torch.empty(shape).normal_(std=0.02)
    if not isinstance(table, Tensor):
        raise TypeError(
            f"Hierarchical(table={type(table).__name__}): table must be a tensor [n, model_dim], an nn.Embedding, "
            f"a Learned, or a shape (n, model_dim)"
        )
    if table.dim() != 2 or not table.is_floating_point():
        raise ValueError(f"Hierarchical: table must be floats [n, model_dim], given {table.dtype} {list(table.shape)}")
    return table if isinstance(table, nn.Parameter) else nn.Parameter(table.clone())


class Recurrent(Learner):
    """Add to each token embedding a vector that a small network makes from the vector before it.

        x_i  ←  x_i + p_i,   p_0 learned
        cell="gru":   p_{i+1}  =  GRU(0, p_i)
        cell="tanh":  p_{i+1}  =  tanh(W p_i + b)

    Any length is defined, but position i takes i steps one after the other; `table(n)` makes n vectors at once, to be
    kept while nothing is trained. An index past `longest` raises, since it would take as many steps.
    """

    paper = "Recurrent positions: each vector made from the one before (Su, 2021, kexue.fm/archives/8130, section 1.3)."
    relative = False

    def __init__(self, model_dim: int, *, cell: Literal["gru", "tanh"] = "gru", longest: int = 65536) -> None:
        super().__init__()
        self.model_dim, self.cell, self.longest = model_dim, cell, longest
        demand.whole(self, "model_dim", model_dim)
        demand.one_of(self, "cell", cell, ("gru", "tanh"))
        demand.whole(self, "longest", longest)
        gates = 3 if cell == "gru" else 1
        self.start = nn.Parameter(torch.empty(model_dim).normal_(std=0.02))
        self.weight = nn.Parameter(torch.empty(gates * model_dim, model_dim))
        self.bias = nn.Parameter(torch.zeros(gates * model_dim))
        # The candidate of a GRU has a bias outside its reset gate too.
        self.free = nn.Parameter(torch.zeros(model_dim)) if cell == "gru" else None
        bound = model_dim**-0.5
        for weight in (self.weight, self.bias):
            nn.init.uniform_(weight, -bound, bound)

    def table(self, length: int) -> Tensor:
        """Return the vectors of positions 0 … length − 1, [length, model_dim]."""
        return self._rows(torch.arange(length, device=self.start.device))

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        demand.width(self, x, self.model_dim, "model_dim")
        return x + self._rows(at_index(self, x, index, self.longest)).to(x.dtype)

    def _rows(self, index: Tensor) -> Tensor:
        weights = [self.start, self.weight, self.bias] + ([] if self.free is None else [self.free])
        return _steps(index, weights, self.cell)


def _walk(index: Tensor, weights: Sequence[Tensor], cell: str) -> Tensor:
    """p at each index [...], as [... model_dim]."""
    start, weight, bias = weights[:3]
    rows = [start]
    for _ in range(int(index.max()) if index.numel() else 0):
        before = rows[-1]
        pushed = weight @ before + bias
        if cell == "tanh":
            rows.append(pushed.tanh())
            continue
        reset, keep, new = pushed.chunk(3)
        candidate = (weights[3] + reset.sigmoid() * new).tanh()
        rows.append(torch.lerp(candidate, before, keep.sigmoid()))
    return torch.stack(rows)[index]


_steps = opaque("recurrent", _walk)


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
        if position.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"FloaterLayer(heads={self.heads}, head_dim={self.head_dim}): positions require a gradient, and the "
                f"flow gives them none; give position.detach()"
            )
        if (
            demand.checking_values(position)
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


@dataclass(frozen=True)
class Multiplied:
    """Multiply each token embedding by one plus what another method would have added.

        x_i  ←  x_i · (1 + p_i),   p_i what method adds to x_i

    The one keeps the signal alive where p is small or zero at first, as learned tables are.
    """

    paper = "Multiplied positions: embeddings scaled, not shifted, by their positions (Su, 2020, bert4keras)."
    method: Any
    relative = False

    def __post_init__(self) -> None:
        if isinstance(self.method, type) or verbs_of(self.method) != ("embed",) or hasattr(self.method, "vocabulary"):
            given = self.method.__name__ if isinstance(self.method, type) else repr(self.method)
            raise TypeError(
                f"Multiplied({given}): the method must add to token embeddings, such as Learned(512, 768) or "
                f"Sinusoidal(768)"
            )
        if isinstance(self.method, Multiplied):
            raise TypeError(f"{spell(self)}: a product of products; give Multiplied what adds to embeddings")

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """x: [b t D], index: [t] or [b t]; returns [b t D] in the dtype of x."""
        return x * self.method.embed(torch.ones_like(x), index)


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

    paper = "Complex order: words as waves whose phase grows with the position (Wang et al., 2020, arXiv:1912.12333)."
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
        if demand.checking_values(x) and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < self.vocabulary:
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
