"""The smallest Transformer that reads well: RMSNorm, SwiGLU, grouped queries, and any scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from milepost.attend import attend, explain
from milepost.cache import Cache
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Shape as Shape
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import arguments


class Attention(nn.Module):
    """Self-attention under the scheme of its layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.into = nn.Linear(shape.width, (shape.heads + 2 * shape.groups) * shape.dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.dim, shape.width, bias=False)
        self.queries, self.keys = (nn.RMSNorm(shape.dim, eps=1e-6) if shape.normed else None for _ in range(2))

    def forward(
        self, x: Tensor, scheme: Scheme, cache: Cache | None, position: Tensor | None, backend: str | None
    ) -> Tensor:
        """x: [b t D], position: [t] or [b t]; returns [b t D]."""
        heads, groups = self.shape.heads, self.shape.groups
        parts = self.into(x).view(*x.shape[:2], -1, self.shape.dim).transpose(1, 2)
        q, k, v = parts.split((heads, groups, groups), 1)
        if self.queries is not None and self.keys is not None:
            q, k = self.queries(q).to(v.dtype), self.keys(k).to(v.dtype)
        index = None
        if cache is not None:
            cache.append(k, v)
            k, v, index = cache.keys, cache.values, cache.index
        out = attend(q, k, v, scheme, key_index=index, position=position, key_position=position, backend=backend)
        return self.out(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention, then a SwiGLU, each behind a norm and beside the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.up = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        self.first, self.second = (nn.RMSNorm(shape.width, eps=1e-6) for _ in range(2))

    def forward(
        self, x: Tensor, scheme: Scheme, cache: Cache | None, position: Tensor | None, backend: str | None
    ) -> Tensor:
        """x: [b t D]; returns [b t D]."""
        x = x + self.attention(self.first(x), scheme, cache, position, backend)
        gate, value = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Model(Reader):
    """Tokens to logits. Whether it is a decoder or an encoder is the scheme's business: causal, or not."""

    def __init__(self, shape: Shape, schedule: Schedule | Scheme) -> None:
        super().__init__()
        self.shape = shape
        self.schedule = _fitted(shape, schedule)
        self.attention = [scheme.attention for scheme in self.schedule]
        """What attention does in each layer: its scheme without what acts on the embeddings."""
        self.backends: list[str | None] = [None] * shape.layers
        """The backend of each layer; milepost's own choice if None."""
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self._start()

    def _start(self) -> None:
        start, width, layers = self.shape.start, self.shape.width, self.shape.layers
        nn.init.normal_(self.tokens.weight, std={"small": 0.02, "inputs": 0.1, "torch": 0.07}[start])
        if start == "torch":
            return
        for name, weight in self.layers.named_parameters():
            if weight.dim() > 1:
                std = weight.shape[1] ** -0.5 if start == "inputs" else 0.02
                # What joins the stream starts small, so that depth does not make it grow.
                joins = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=std / (2 * layers) ** 0.5 if joins else std)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=width**-0.5 if start == "inputs" else 0.02)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None, position: Tensor | None = None) -> Tensor:
        """tokens: [b t]; with caches, one a layer, they follow what came before. Returns logits [b t vocabulary]."""
        return self.logits(self.states(tokens, caches, position))

    def states(self, tokens: Tensor, caches: list[Cache] | None = None, position: Tensor | None = None) -> Tensor:
        """Return the last layer's normed states [b t D], before they meet the vocabulary."""
        start = int(caches[0].index.max()) + 1 if caches and len(caches[0]) else 0
        index = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.schedule[0].embed(self._embedded(tokens), index if position is None else position)
        for number, layer in enumerate(self.layers):
            cache, backend = None if caches is None else caches[number], self.backends[number]
            x = layer(x, self.attention[number], cache, position, backend)
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        weight = self.tokens.weight if self.head is None else self.head.weight
        return F.linear(states, weight.to(states.dtype))

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, [b t D].

        On a GPU, as a product with ones and zeros: thousands of tokens share a few hundred rows, and a table's gradient
        would add them to the same places one after the other.
        """
        weight = self.tokens.weight
        if not weight.is_cuda or self.shape.vocabulary > 1024:
            return self.tokens(tokens)
        # The stream stays in float32, whatever the layers work in.
        with torch.autocast("cuda", enabled=False):
            return F.one_hot(tokens, self.shape.vocabulary).to(weight.dtype) @ weight

    def using(self, schedule: Schedule | Scheme) -> Model:
        """Return the same weights under another schedule, without copying them; what its parts learned goes along."""
        other = Model.__new__(Model)
        nn.Module.__init__(other)
        fitted = _fitted(self.shape, schedule).to(self.tokens.weight.device)
        other.shape, other.schedule = self.shape, carried(self.schedule, fitted)
        other.attention = [scheme.attention for scheme in other.schedule]
        other.backends = [None] * self.shape.layers
        other.tokens, other.layers, other.norm, other.head = self.tokens, self.layers, self.norm, self.head
        return other.train(self.training)

    def uncompiled(self) -> Model:
        """Choose backends that are not compiled by themselves: where lengths vary, each would be compiled anew."""
        weight = self.tokens.weight
        q, k = (weight.new_zeros(1, heads, 2, self.shape.dim) for heads in (self.shape.heads, self.shape.groups))
        for number, scheme in enumerate(self.attention):
            found = explain(q, k, k, scheme)
            # What a GPU has kernels for is weighed at every length; elsewhere one backend gives the same bits at all.
            fused = weight.is_cuda and found.backend in ("sdpa", "triton")
            self.backends[number] = None if fused else "sdpa" if "sdpa" in found.able else "chunked"
        return self

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, choose: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Continue tokens [b t] by `count` more, with a cache; choose: logits [b vocabulary] to tokens [b]."""
        choose = (lambda logits: logits.argmax(-1)) if choose is None else choose
        caches = [Cache() for _ in self.layers]
        logits = self(tokens, caches)[:, -1]
        made: list[Tensor] = []
        for _ in range(count):
            made.append(choose(logits))
            logits = self(made[-1][:, None], caches)[:, -1]
        return torch.cat([tokens, torch.stack(made, 1)], 1) if made else tokens

    def learned(self) -> Iterator[nn.Parameter]:
        return self.schedule.parameters()

    def biases(self) -> Iterator[nn.Parameter]:
        return bias_weights(self.schedule)

    def equation(self) -> str:
        return str(self.schedule[0])

    def parts(self) -> Iterable[nn.Module]:
        return self.layers


def bias_weights(schedule: Schedule) -> Iterator[nn.Parameter]:
    """What the parts that bend scores learn, or what is inside them; a weight that layers share comes once for each."""
    for scheme in schedule:
        for part in scheme.answering("bend"):
            for each in (part, *arguments(part).values()):
                if isinstance(each, nn.Module):
                    yield from each.parameters()


@torch.no_grad()
def carried(old: Schedule, new: Schedule) -> Schedule:
    """Return the new schedule with what the old one learned; refused where it would need what was never trained."""
    learned = dict(old.named_parameters())
    for name, weight in new.named_parameters():
        found, part = learned.get(name), name.rpartition(".")[0]
        if (
            found is None
            or found.shape != weight.shape
            or type(old.get_submodule(part)) is not type(new.get_submodule(part))
        ):
            layer = next(n for n, scheme in enumerate(new) if any(each is weight for each in scheme.parameters()))
            raise ValueError(
                f"its layer {layer} is {new[layer]!r}, and the checkpoint's layer {layer} has not learned the "
                f"{name.split('.')[-1]} of that; a row without training has the learned parts of its scheme, layer by "
                f"layer and in their order, and others that learn nothing"
            )
        weight.copy_(found)
    return new


def _fitted(shape: Shape, schedule: Schedule | Scheme) -> Schedule:
    """Return a schedule with one scheme a layer."""
    schedule = Schedule([schedule] * shape.layers) if isinstance(schedule, Scheme) else schedule
    if len(schedule) != shape.layers:
        raise ValueError(f"Model: {shape.layers} layers, but the schedule has {len(schedule)}")
    return schedule
