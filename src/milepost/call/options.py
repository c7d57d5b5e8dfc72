"""The options of `attend`, in one place: everything that attends takes these."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    Index = Tensor | range


class Options(TypedDict, total=False):
    """What may be said about the tokens of a call, besides the tensors and the scheme."""

    index: Index | None
    """The true order of the queries: integers [t] or [b t], or a range. The last t of the keys if left out."""
    key_index: Index | None
    """The true order of the keys: integers [s] or [b s], or a range; 0 … s − 1 if left out."""
    position: Tensor | None
    """Where queries stand: [t], [b t] or [b t axes], whole numbers or fractions; the indices if left out. Methods that
    look vectors up by distance (Shaw, Nezha, TransformerXL, Deberta) take whole numbers only."""
    key_position: Tensor | None
    """Where keys stand. With as many queries as keys, one of the two stands for both."""
    documents: Tensor | None
    """Which document each query belongs to: [t] or [b t]; −1 is padding."""
    key_documents: Tensor | None
    """Which document each key belongs to. Each defaults from the other."""
    length: int | Tensor | None
    """How many tokens there are, a number or [b], where the keys at hand do not say it (shards of a text)."""
    x: Tensor | None
    """The layer inputs of all keys, [b s width], for methods that gate on them."""
    dropout: float
    """The share of attention weights to drop."""


NAMES = tuple(Options.__annotations__)
