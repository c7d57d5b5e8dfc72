"""One call of `attend`, with every default filled in and every input checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from milepost.call.documents import over_keys
from milepost.call.tokens import Tokens
from milepost.seams.arguments import spell
from milepost.seams.parts import Parts
from milepost.seams.verbs import OfRows, Regime


class CannotRun(RuntimeError):  # noqa: N818
    """A backend was asked by name for what it cannot do."""


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a call stand in the text, known from its shapes: both count up by one in every row."""

    first: int
    """The index of the first query."""
    key_first: int
    """The index of the first key."""

    @property
    def offset(self) -> int:
        """How far the first query lies behind the first key."""
        return self.first - self.key_first


@dataclass
class Call:
    """What a backend gets. Tensors that describe tokens carry a batch axis of b, or of 1 where all rows agree."""

    q: Tensor
    """[b h t d], raw."""
    k: Tensor
    """[b g s d], raw, or turned already; h is a multiple of g."""
    v: Tensor
    """[b g s dv]."""
    scheme: Parts
    queries: Tokens
    keys: Tokens
    documents: Tensor | None
    """[b|1 t], or None for one document without padding."""
    key_documents: Tensor | None
    x: Tensor | None
    dropout: float
    seed: Tensor | None
    """What decides which weights are dropped; None without dropout."""
    return_lse: bool
    keys_turned: bool
    """Whether k comes out of a cache that turned it already."""
    index_given: bool
    """Whether an index was given; if not, every index is below the number of keys."""
    given_length: Tensor | None = None
    """[b|1 1], or [b|1 t] for as many queries as keys, where the length was said."""
    lengths: tuple[Tensor, Tensor] | None = None
    """Of the queries and of the keys; made when asked for."""
    key_order: Tensor | None = None
    """[b s], which of the keys that were handed over each one is, where they were put in the order of their index."""

    def __post_init__(self) -> None:
        if self.scheme.unread_place is not None:
            raise ValueError(f"attend: {self.scheme.unread_place}")
        part = self.scheme.needs_whole_rows if self.return_lse and not self.is_whole else None
        if part is not None:
            raise ValueError(
                f"attend(return_lse=True): {spell(part)} needs whole rows of scores, so that results over some of the "
                f"keys cannot be merged. Leave return_lse out, or attend over a whole text at once: as many queries as "
                f"keys, without index, key_index, documents and length"
            )

    @property
    def is_whole(self) -> bool:
        """Whether keys are known to be all of a text: as many as queries, and nothing was given of their order."""
        alone = not self.index_given and self.documents is None and self.given_length is None
        return alone and self.queries.count == self.keys.count

    @property
    def layout(self) -> Layout | None:
        """Where queries and keys stand, if the shapes tell: no documents, and indices that count up by one."""
        if self.documents is not None or self.queries.first is None or self.keys.first is None:
            return None
        return Layout(self.queries.first, self.keys.first)

    @property
    def at_index(self) -> bool:
        """Whether tokens stand at their indices."""
        return self.queries.at_index and self.keys.at_index

    @property
    def position_is_index(self) -> bool:
        """Whether no token has a position other than its index, not even a shifted one."""
        return self.position is self.index and self.key_position is self.key_index

    @property
    def over_itself(self) -> bool:
        """Whether queries are the keys' own tokens: as many, of the same documents, with the same indices."""
        alike = self.queries.count == self.keys.count and self.documents is self.key_documents
        return alike and not self.index_given and self.at_index

    @property
    def span(self) -> int | None:
        """The largest size that a distance between tokens can have, where that needs no look at the positions."""
        if not self.scheme.reads_span:
            return 0
        layout = self.layout
        if self.at_index and layout is not None:
            return max(layout.offset + self.queries.count - 1, self.keys.count - 1 - layout.offset, 0)
        return self.keys.count - 1 if self.at_index and not self.index_given else None

    @property
    def index(self) -> Tensor:
        """[b|1 t], the true order of the queries."""
        return self.queries.index

    @property
    def key_index(self) -> Tensor:
        """[b|1 s]."""
        return self.keys.index

    @property
    def position(self) -> Tensor:
        """[b|1 t] or [b|1 t axes], where the queries stand."""
        return self.queries.position

    @property
    def key_position(self) -> Tensor:
        """[b|1 s] or [b|1 s axes]."""
        return self.keys.position

    def places(self, regime: Regime) -> tuple[Tensor, Tensor]:
        """Return where queries and keys stand in a regime, [b|1 t] and [b|1 s], or with axes."""
        if regime.by_index:
            return regime.query(self.index), regime.key(self.key_index)
        return regime.query(self.position), regime.key(self.key_position)

    def of_rows(self, rows: slice = slice(None), keys: slice = slice(None)) -> OfRows:
        """Return the indices and positions of some queries and keys."""
        return {
            "index": self.index[:, rows],
            "key_index": self.key_index[:, keys],
            "position": self.position[:, rows],
            "key_position": self.key_position[:, keys],
        }

    @property
    def length(self) -> Tensor:
        """[b|1 t|1], 1 + the largest key index of each query's document, unless it was said."""
        return self._both_lengths()[0]

    @property
    def key_length(self) -> Tensor:
        """[b|1 s|1], the same for the keys."""
        return self._both_lengths()[1]

    def _both_lengths(self) -> tuple[Tensor, Tensor]:
        if self.lengths is None:
            if self.given_length is not None:
                self.lengths = self.given_length, self.given_length
            elif self.documents is None and self.keys.first is not None:
                known = torch.full((1, 1), self.keys.first + self.keys.count, device=self.q.device)
                self.lengths = known, known
            else:
                own, keys = over_keys(self.key_index, "amax", self.documents, self.key_documents)
                self.lengths = own + 1, keys + 1
        return self.lengths

    @property
    def score_dtype(self) -> torch.dtype:
        """The dtype in which scores are formed: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient may be asked of this call."""
        if not torch.is_grad_enabled():
            return False
        return any(each.requires_grad for each in (self.q, self.k, self.v, *self.scheme.weights()))

    def learns(self, verb: str) -> bool:
        """Whether a part that answers the verb has weights whose gradient may be asked for."""
        parts = self.scheme.answering(verb)
        weights = (weight for part in parts if isinstance(part, nn.Module) for weight in part.parameters())
        return torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)

    def factor(self) -> Tensor | float:
        """Return the softmax scale of each query: a number, or [b|1 h|1 t|1 1] in the dtype of scores."""
        scale, sharpness = self.scheme.scale(self.q.shape[-1]), self.sharpness()
        if sharpness is None:
            return scale
        wide = sharpness.to(torch.promote_types(sharpness.dtype, self.score_dtype))
        return (scale * wide).to(self.score_dtype)[..., None]

    def sharpness(self) -> Tensor | None:
        """Return what the scores of each query are multiplied by, [b|1 h|1 t|1], or None."""
        if not self.scheme.answering("sharpen"):
            return None
        return self.scheme.sharpen(self.index, self.length, *self.q.shape[:2])


def span_of(p: Tensor, r: Tensor) -> int:
    """The largest size of a distance between queries at p and keys at r."""
    if torch.compiler.is_compiling():
        raise CannotRun(
            "attend: inside torch.compile a scheme with a table for every distance must know how far apart tokens can "
            "stand; leave out index and position, so that it follows from the shapes"
        )
    if not p.numel() or not r.numel():
        return 0
    return math.ceil(max(float(p.max() - r.min()), float(r.max() - p.min()), 0.0))
