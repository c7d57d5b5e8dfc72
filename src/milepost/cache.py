"""A cache of raw keys, values and indices, for decoding one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.scheme import Scheme


class Cache:
    """Keys as they came, before any turning, with their values and indices.

        cache = Cache()
        for q, k, v in steps:
            cache.append(k, v)
            out = attend(q, cache.keys, cache.values, scheme, key_index=cache.index)

    Because keys are raw, methods that place or turn them by the length decode exactly what a fresh pass computes.
    `trim` drops keys that no later query can see. The store grows by doubling, so appending costs no copy on average.
    """

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._index: Tensor | None = None
        self._length = 0
        self._next: Tensor | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor:
        """[b g s d]."""
        return self._held(self._keys)

    @property
    def values(self) -> Tensor:
        """[b g s dv]."""
        return self._held(self._values)

    @property
    def index(self) -> Tensor:
        """[b s], the true order of the keys."""
        if self._index is None:
            raise ValueError("this Cache is empty; append keys and values first")
        return self._index[:, : self._length]

    def append(self, k: Tensor, v: Tensor, index: Tensor | None = None) -> None:
        """Add keys [b g n d] and values [b g n dv]; index [n] or [b n] goes on from the last one if left out."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("Cache.append: a cache keeps no gradients; decode under torch.no_grad()")
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"Cache.append: k is [b g n d] and v [b g n dv]; given {list(k.shape)} and {list(v.shape)}"
            )
        if k.dtype != v.dtype or k.device != v.device:
            raise ValueError(
                f"Cache.append: k is {k.dtype} on {k.device} and v {v.dtype} on {v.device}; they must agree"
            )
        b, n = k.shape[0], k.shape[2]
        if self._keys is not None and self._values is not None:
            for name, held, new in (("k", self._keys, k), ("v", self._values, v)):
                alike = held.shape[:2] + held.shape[3:] == new.shape[:2] + new.shape[3:]
                if not alike or held.dtype != new.dtype or held.device != new.device:
                    raise ValueError(
                        f"Cache.append: {name} {list(new.shape)} {new.dtype} on {new.device} does not continue "
                        f"{list(held.shape[:2])} + [s, {held.shape[3]}] {held.dtype} on {held.device}"
                    )
        if index is None:
            start = torch.zeros(b, 1, dtype=torch.long, device=k.device) if self._next is None else self._next
            index = start + torch.arange(n, device=k.device)
        else:
            if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
                raise TypeError(f"Cache.append: index must be integers, given {index.dtype}")
            if index.shape not in ((n,), (b, n)):
                raise ValueError(f"Cache.append: index must be [{n}] or [{b}, {n}], given {list(index.shape)}")
            index = index.to(k.device, torch.long).expand(b, n)
        self._next = index[:, -1:] + 1 if n else self._next
        self._keys = self._put(self._keys, k, 2)
        self._values = self._put(self._values, v, 2)
        self._index = self._put(self._index, index, 1)
        self._length += n

    def trim(self, scheme: Scheme) -> None:
        """Drop the keys that no later query can see under this scheme, such as those before a window.

        Rows of a batch keep the same number of keys, so one goes only when no row needs it.
        """
        if not isinstance(scheme, Scheme):
            raise TypeError(f"Cache.trim: trim by a Scheme, given {type(scheme).__name__}")
        if self._next is None:
            return
        kept = torch.ones_like(self.index, dtype=torch.bool)
        for part in scheme.answering("see"):
            keeps = getattr(part, "keeps", None)
            if keeps is not None:
                kept = kept & keeps(self._next, self.index)
        chosen = kept.any(0).nonzero()[:, 0]
        self._keys, self._values = self.keys[:, :, chosen], self.values[:, :, chosen]
        self._index = self.index[:, chosen]
        self._length = len(chosen)

    def _held(self, store: Tensor | None) -> Tensor:
        if store is None:
            raise ValueError("this Cache is empty; append keys and values first")
        return store[:, :, : self._length]

    def _put(self, store: Tensor | None, new: Tensor, axis: int) -> Tensor:
        """Write `new` after what is held, into a store twice as large where it does not fit."""
        needed = self._length + new.shape[axis]
        if store is None or store.shape[axis] < needed:
            shape = list(new.shape)
            shape[axis] = max(needed, 2 * self._length)
            grown = new.new_empty(shape)
            if store is not None:
                grown.narrow(axis, 0, self._length).copy_(store.narrow(axis, 0, self._length))
            store = grown
        store.narrow(axis, self._length, new.shape[axis]).copy_(new)
        return store
