"""What is said of a whole text, and what attention of some of its queries to some of its keys is told of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from milepost.call.documents import lies_together, order_within
from milepost.call.options import Options
from milepost.parallel.collectives import Group
from milepost.parallel.layout import Layout, Span, joined
from milepost.scheme import Scheme
from milepost.seams.demand import exact

OPTIONS = ("index", "position", "documents", "length")
"""Those that are given for all tokens of the text, the same on every rank."""


class Text:
    """The tokens of a whole text under a scheme: their order, positions, documents and number, and who has them."""

    def __init__(
        self, scheme: Scheme, layout: Layout, group: Group, options: Mapping[str, Any], backend: str | None = None
    ) -> None:
        self.scheme, self.layout, self.group, self.backend = scheme, layout, group, backend
        self.rank = group.rank()
        self.position: Tensor | None = options.get("position")
        self.documents: Tensor | None = options.get("documents")
        self.length: int | Tensor | None = options.get("length")
        index: Tensor | range | None = options.get("index")
        if isinstance(index, range):
            index = None if index == range(layout.length) else torch.tensor([*index])
        self.index = index
        # An index, positions and documents may count less.
        counted = self.index is self.position is self.documents is None
        if isinstance(self.length, int) and self.length < layout.length and counted:
            raise ValueError(
                f"parallel.attend(length={self.length}): the layout has {layout.length} tokens; length is how many "
                f"there are, and at least that"
            )
        if isinstance(self.length, Tensor) and self.length.dim() > 1:
            raise ValueError(
                f"parallel.attend: length is {[*self.length.shape]}; give a number, or one for each row of the batch"
            )
        # Rows of the text are in the order of their index, unless an index is given.
        self.in_order = self.index is None
        for name, values in (("index", self.index), ("position", self.position), ("documents", self.documents)):
            if values is not None and not isinstance(values, Tensor):
                raise TypeError(f"parallel.attend: {name} must be a tensor, given {type(values).__name__}")
            if values is not None and values.shape[min(1, values.dim() - 1)] != layout.length:
                raise ValueError(
                    f"parallel.attend: {name} is {[*values.shape]}; give it for all {layout.length} tokens of the "
                    f"text, on every rank"
                )
        if self.documents is not None and self.index is None:
            self.documents = exact("parallel.attend: documents", self.documents)
            self.index = order_within(_rows(self.documents))

    def under(self, scheme: Scheme) -> Text:
        """Return the same text under another scheme."""
        other = copy.copy(self)
        other.scheme = scheme
        return other

    @property
    def counts_by_document(self) -> bool:
        """True if the length that a token goes by is that of its document, which only all keys tell."""
        return self.scheme.by_length and self.documents is not None and self.length is None

    @property
    def _lies_together(self) -> bool:
        """True if no document goes on behind another; it waits for the device."""
        return self.documents is not None and bool(lies_together(_rows(self.documents)).all())

    def sees(self, rows: Span) -> Span:
        """Return the span of keys that queries may see, as the visible parts alone can tell."""
        low, high = 0, self.layout.length
        if self.counts_by_document or not self.in_order:
            return low, high
        if self.documents is not None:
            return low, rows[1] if self.scheme.is_causal else high
        for part in self.scheme.answering("see"):
            within = getattr(part, "within", None)
            first, last = within(rows[0], rows[1] - 1) if within is not None else (0, high - 1)
            low, high = max(low, int(max(first, 0))), min(high, int(min(last, high - 1)) + 1)
        return (low, high) if low < high else (rows[0], rows[0] + 1)

    def near(self, rows: Span) -> list[Span] | None:
        """Return the keys that queries see, where what is visible is a band: neighbours, and perhaps sinks; or None.

        Sinks are left to whole rows: a part that reads these is given all keys at once.
        """
        band = self.scheme.band()
        if band is None or not self.in_order or self.counts_by_document:
            return None
        size = math.inf if band.chunk is None else band.chunk
        behind, ahead = min(band.behind, size), min(band.ahead, size - 1)
        if math.inf in (behind, ahead) or -math.inf in (behind, ahead) or behind + ahead <= 0:
            return None
        if self.documents is not None and (band.sinks or not self._lies_together):
            return None
        low, high = max(rows[0] - int(behind) + 1, 0), min(rows[1] + int(ahead), self.layout.length)
        if band.chunk is not None and self.documents is None:
            low, high = max(low, rows[0] // band.chunk * band.chunk), min(high, -(-rows[1] // band.chunk) * band.chunk)
        low, high = (low, high) if low < high else (rows[0], rows[0] + 1)
        if not band.sinks:
            return [(low, high)]
        found = joined([(0, min(band.sinks, self.layout.length)), (low, high)])
        return found if len(found) == 1 or self.scheme.needs_whole_rows is None else None

    def options(self, rows: Span, keys: Span) -> Options:
        """Return what `attend` is told of some queries and some keys."""
        whole = (0, self.layout.length)
        said: Options = {} if rows == keys == whole else {"index": range(*rows), "key_index": range(*keys)}
        if self.index is not None:
            said |= {"index": _cut(self.index, rows), "key_index": _cut(self.index, keys)}
        if self.position is not None:
            said |= {"position": _cut(self.position, rows), "key_position": _cut(self.position, keys)}
        if self.documents is not None:
            said |= {"documents": _cut(self.documents, rows), "key_documents": _cut(self.documents, keys)}
        if self.length is not None:
            said["length"] = self.length
        elif self.scheme.by_length and keys != whole:
            said["length"] = self.tokens
        return said

    @property
    def tokens(self) -> int | Tensor:
        """How many tokens the text has: a number, which keeps the layout of a call known, or [b]."""
        if self.length is not None:
            return self.length
        return self.layout.length if self.index is None else self.index.amax(-1) + 1

    def own_length(self, device: torch.device) -> Tensor:
        """Return how many tokens the text has, [b|1 1]."""
        return torch.as_tensor(self.tokens, device=device).reshape(-1, 1)

    def own_index(self, device: torch.device) -> Tensor:
        """Return the index of this rank's tokens, [b|1 t]."""
        spans = self.layout.spans[self.rank]
        if self.index is None:
            parts = [torch.arange(*span, device=device)[None] for span in spans]
        else:
            parts = [_rows(_cut(self.index, span)) for span in spans]
        return torch.cat(parts, 1) if parts else torch.zeros(1, 0, dtype=torch.int64, device=device)


def _rows(values: Tensor) -> Tensor:
    return values[None] if values.dim() == 1 else values


def _cut(values: Tensor, span: Span) -> Tensor:
    return values[slice(*span)] if values.dim() == 1 else values[:, slice(*span)]
