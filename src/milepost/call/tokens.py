"""The tokens of a call: their true order and where they stand, known without a look at the device where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from milepost.seams.parts import Parts


FEW = 16
"""Queries up to which they are a step of a text that grows: keys are then many, and split over programs on a GPU."""


class CountedIndex(Tensor):
    """Indices [b n] that count up by one from `first`: a plain tensor to everyone who does not ask.

    What is computed from it is a plain tensor again.
    """

    first: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def __deepcopy__(self, memo: dict[int, Any]) -> CountedIndex:
        return counted(self.first, self.shape[1], self.shape[0], self.device)


def counted(first: int, count: int, rows: int, device: torch.device) -> CountedIndex:
    """The indices first … first + count − 1 for every row."""
    index = torch.arange(first, first + count, device=device).expand(rows, count).as_subclass(CountedIndex)
    index.first = first
    return index


class CachedKeys(Tensor):
    """Keys out of a `Cache`, with what the cache knows of them: `attend` reads it, so nothing has to be passed on.

    A copy knows the same. A part of them is still turned by the same scheme; which tokens it holds is not known.
    """

    plain: Tensor
    """The same keys, as a tensor that knows nothing."""
    token_index: Tensor | range | None
    token_position: Tensor | None
    turned_by: Parts | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore
            answer = func(*args, **(kwargs or {}))
        source, name = args[0] if args else None, getattr(func, "__name__", "")
        if name in _JOINS:
            return _joined(answer, source if source is not None else (kwargs or {}).get("tensors", ()))
        if not isinstance(answer, Tensor) or not isinstance(source, CachedKeys):
            return answer
        if name in _COPIES:
            return cached_keys(answer, source.token_index, source.token_position, source.turned_by)
        return cached_keys(answer, None, None, source.turned_by) if name in _PICKS else answer

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedKeys:
        return self.clone()  # pyright: ignore


# What moves or copies all keys, and what picks some. Anything else makes numbers that are no keys any more.
_COPIES = {"bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "to"}
_PICKS = {
    "__getitem__", "expand", "flip", "index_select", "narrow", "permute", "repeat", "repeat_interleave", "reshape",
    "squeeze", "take_along_dim", "transpose", "unsqueeze", "view",
}  # fmt: skip


_JOINS = {"cat", "concat", "concatenate"}


def _joined(answer: Tensor, sources: Any) -> Tensor:
    """Keys joined with others: turned if all of them are, by one scheme; which tokens they are is not known."""
    by = [source.turned_by if isinstance(source, CachedKeys) else None for source in sources]
    if all(each is None for each in by):
        return answer
    if any(each is not by[0] for each in by):
        raise ValueError(
            "these keys were turned by their cache when they were appended, and cannot be joined with keys that were "
            "not; give the new ones to the cache: cache.append(k, v), or keep raw keys: Cache()"
        )
    return cached_keys(answer, None, None, by[0])


def cached_keys(
    keys: Tensor, index: Tensor | range | None, position: Tensor | None, turned_by: Parts | None
) -> CachedKeys:
    """Keys with what a cache knows of them."""
    marked = keys.as_subclass(CachedKeys)
    marked.plain, marked.token_index, marked.token_position, marked.turned_by = keys, index, position, turned_by
    return marked


class Tokens:
    """The queries or the keys of one call.

    first: the index of the first one where they count up by one in every row, else None. at_index: whether they stand
    at their indices, but for a shift that all tokens of the call share. Tensors are made when asked for: many calls
    never need them.
    """

    def __init__(
        self, count: int, device: torch.device, first: int | None, index: Tensor | Callable[[], Tensor] | None
    ) -> None:
        self.count, self.device, self.first = count, device, first
        self.at_index = True
        self._index = index
        self._position: Tensor | None = None

    @property
    def index(self) -> Tensor:
        """[b|1 n], the true order."""
        if self._index is None:
            assert self.first is not None
            self._index = torch.arange(self.first, self.first + self.count, device=self.device)[None]
        elif not isinstance(self._index, Tensor):
            self._index = self._index()
        return self._index

    @property
    def position(self) -> Tensor:
        """[b|1 n] or [b|1 n axes], where they stand."""
        return self.index if self._position is None else self._position

    def stand_at(self, position: Tensor, shifted: bool = False) -> None:
        """Say where they stand; shifted where every token of the call moves alike."""
        self._position, self.at_index = position, shifted

    def reorder(self, index: Tensor, position: Tensor | None) -> None:
        """Put them in another order; position is None where they stand at their indices."""
        self.first, self._index, self._position = None, index, position
