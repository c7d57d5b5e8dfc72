"""A cache of keys, values and indices, for decoding one token at a time."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from milepost.call.tokens import CachedKeys, TokenNumbers, cached_keys, counted, token_numbers
from milepost.scheme import Scheme
from milepost.seams.demand import exact


class Cache:
    """Keep keys with their values, indices and positions.

        cache = Cache(scheme)
        for q, k, v in steps:
            cache.append(k, v)
            out = attend(q, cache.keys, cache.values, scheme)

    `Cache()` keeps keys as they came. `Cache(scheme)` turns a key once, when it is appended, where that is exact: where
    its angle follows from its position alone and nothing reads the raw key. Everywhere else (dynamic stretches, ReRoPE
    and its kin, xPos, tables by distance, turns that learn, classes that do not say `fixed = True`, a turn that changes
    the width of keys) they stay raw all the same, so that decoding equals a fresh pass. `keys` knows which it is, and
    of which tokens, through every operation that does not raise; a scheme that would turn otherwise raises.
    `keys.plain` is the ordinary tensor.
    `trim` drops keys that no later query can see, and `reorder` selects rows, as beam search does. The store grows by
    doubling, so appending costs no copy on average.
    """

    def __init__(self, scheme: Scheme | None = None) -> None:
        if scheme is not None and not isinstance(scheme, Scheme):
            raise TypeError(f"Cache({type(scheme).__name__}): give the Scheme that attend is given, or nothing")
        self._turned_by = scheme if scheme is not None and scheme.turns_keys_once else None
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._index: Tensor | None = None
        self._position: Tensor | None = None
        self._length = 0
        # While every row counts up by one from here, indices are known without being stored.
        self._first: int | None = 0
        self._next: Tensor | None = None
        # Whether the index of the first tokens was left out; None where one was given after that.
        self._counted: bool | None = True

    def __len__(self) -> int:
        return self._length

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        """Return a cache that grows by itself, with keys turned by the very same scheme."""
        twin = Cache()
        memo[id(self)] = twin
        memo.setdefault(id(self._turned_by), self._turned_by)
        twin.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        return twin

    def __copy__(self) -> Cache:
        """Return the same: two caches that grow cannot share a store."""
        return copy.deepcopy(self)

    @property
    def turned(self) -> bool:
        """True if keys are turned when they are appended; a turn that changes their width stops that at the first."""
        return self._turned_by is not None

    @property
    def keys(self) -> CachedKeys:
        """[b g s d], raw or turned."""
        keys = self._filled(self._keys)
        # A range needs no work on the device, and is all that attend asks for.
        index = self._stored(self._index) if self._first is None else range(self._first, self._first + self._length)
        assert index is not None
        return cached_keys(keys, index, self._stored(self._position), self._turned_by, self._counted)

    @property
    def values(self) -> Tensor:
        """[b g s dv]."""
        return self._filled(self._values)

    @property
    def index(self) -> TokenNumbers:
        """[b s], the true order of the keys, read-only."""
        keys = self._filled(self._keys)
        if self._first is not None:
            return token_numbers(counted(self._first, self._length, keys.shape[0], keys.device), self._first)
        index = self._stored(self._index)
        assert index is not None
        return token_numbers(index)

    @property
    def position(self) -> TokenNumbers | None:
        """[b s] or [b s axes], where keys stand, read-only; None where they stand at their indices."""
        position = self._stored(self._position)
        return None if position is None else token_numbers(position)

    def append(self, k: Tensor, v: Tensor, index: Tensor | range | None = None, position: Tensor | None = None) -> None:
        """Add keys [b g n d] and values [b g n dv].

        index: [n] or [b n] or a range; goes on after the largest of each row if left out, and then restarts in each of
        the `documents` of a call; one that was given stays, and so do those that go on from it. After keys without one
        it is refused where there are documents. position: [n], [b n] or [b n axes], where the keys stand if not at
        their indices; given once, it must be given with every append.
        """
        self._check(k, v)
        b, n = k.shape[0], k.shape[2]
        counts = self._counted
        if n and not self._length:
            counts = index is None
        elif n and counts and index is not None:
            # Documents would count these anew with those before them.
            counts = None
        first, given = self._order(index, b, n, k.device)
        position = self._placed(position, b, n, k.device)
        turned_by = self._turned_by
        if turned_by is not None and n:
            at = position if position is not None else given if first is None else torch.arange(first, first + n)
            assert at is not None
            turned = turned_by.turn(k, at.to(k.device), "key")
            if turned.requires_grad:
                raise ValueError(
                    f"Cache.append: a cache keeps no gradients, and {turned_by!r} learns how keys are turned; "
                    f"decode under torch.no_grad(), or keep raw keys: Cache()"
                )
            if turned.shape == k.shape and turned.dtype == k.dtype:
                k = turned
            else:
                # attend takes queries and keys of one width and dtype, and turns both.
                turned_by = None
        start, own, after = self._first, self._index, self._next
        if start is not None and (first is None or (self._length and n and first != start + self._length)):
            start, own, after = None, *self._numbered(b, k.device)
        if start is not None:
            assert first is not None
            start = start if self._length or not n else first
        else:
            stored = counted(first, n, b, k.device) if first is not None else given
            assert stored is not None
            if n:
                largest = stored.amax(-1, keepdim=True) + 1
                after = largest if after is None else torch.maximum(after, largest)
            own = self._put(own, stored, 1)
        placed = self._position if position is None else self._put(self._position, position, 1)
        keys, values = self._put(self._keys, k, 2), self._put(self._values, v, 2)
        # Nothing is counted before all of it has a place: an append that fails can be tried again.
        self._turned_by, self._first, self._index, self._next, self._position = turned_by, start, own, after, placed
        self._keys, self._values, self._length, self._counted = keys, values, self._length + n, counts

    def trim(self, scheme: Scheme) -> None:
        """Drop the keys that no later query can see under this scheme, such as those before a window.

        Rows of a batch keep the same number of keys, so one goes only when no row needs it.
        """
        if not isinstance(scheme, Scheme):
            raise TypeError(f"Cache.trim: trim by a Scheme, given {type(scheme).__name__}")
        if self._keys is None:
            return
        chosen = self._seen_later(scheme)
        if len(chosen) == self._length:
            return
        dropped = self._length - len(chosen)
        if self._first is not None and bool((chosen == torch.arange(dropped, self._length)).all()):
            # The last ones are left, and go on counting.
            self._first += dropped
        elif self._first is not None:
            self._index, self._next = self._numbered(self._keys.shape[0], self._keys.device)
            self._first = None
        chosen = chosen.to(self._keys.device)
        self._keys, self._values = self._filled(self._keys)[:, :, chosen], self.values[:, :, chosen]
        index, position = self._stored(self._index), self._stored(self._position)
        self._index = None if index is None else index[:, chosen]
        self._position = None if position is None else position[:, chosen]
        self._length = len(chosen)

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch, as beam search does: row n becomes what row rows[n] was. rows: [b] integers."""
        if self._keys is None:
            return
        rows = exact("Cache.reorder: rows", rows).to(self._keys.device)
        if rows.dim() != 1:
            raise ValueError(f"Cache.reorder: rows must be [b], given {list(rows.shape)}")
        for name in ("_keys", "_values", "_index", "_position", "_next"):
            store: Tensor | None = getattr(self, name)
            setattr(self, name, None if store is None else store[rows])

    def _seen_later(self, scheme: Scheme) -> Tensor:
        """Return the numbers of the keys that a query after the last key may still see."""
        if self._first is None:
            assert self._index is not None
            assert self._next is not None
            index, after = self._index[:, : self._length], self._next
        else:
            # Known without a look at the device.
            index = torch.arange(self._first, self._first + self._length)[None]
            after = torch.full((1, 1), self._first + self._length)
        kept = torch.ones_like(index, dtype=torch.bool)
        for part in scheme.answering("see"):
            keeps = getattr(part, "keeps", None)
            if keeps is not None:
                kept = kept & keeps(after, index)
        return kept.any(0).nonzero()[:, 0]

    def _check(self, k: Tensor, v: Tensor) -> None:
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("Cache.append: a cache keeps no gradients; decode under torch.no_grad()")
        if isinstance(k, CachedKeys):
            raise ValueError("Cache.append: these keys come out of a cache; append the layer's own")
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"Cache.append: k is [b g n d] and v [b g n dv]; given {list(k.shape)} and {list(v.shape)}"
            )
        if k.dtype != v.dtype or k.device != v.device:
            raise ValueError(
                f"Cache.append: k is {k.dtype} on {k.device} and v {v.dtype} on {v.device}; they must agree"
            )
        for name, store, new in (("k", self._keys, k), ("v", self._values, v)):
            if store is None:
                continue
            alike = store.shape[:2] + store.shape[3:] == new.shape[:2] + new.shape[3:]
            if not alike or store.dtype != new.dtype or store.device != new.device:
                raise ValueError(
                    f"Cache.append: {name} {list(new.shape)} {new.dtype} on {new.device} does not continue "
                    f"{list(store.shape[:2])} + [s, {store.shape[3]}] {store.dtype} on {store.device}"
                )

    def _order(
        self, index: Tensor | range | None, b: int, n: int, device: torch.device
    ) -> tuple[int | None, Tensor | None]:
        """Return the indices of new keys: the number they count from, or [b n]."""
        if index is None:
            if self._first is not None:
                return self._first + self._length, None
            start = torch.zeros(b, 1, dtype=torch.long, device=device) if self._next is None else self._next
            return None, start + torch.arange(n, device=device)
        if isinstance(index, TokenNumbers) and index.first is not None:
            index = range(index.first, index.first + index.plain.shape[-1])
        if isinstance(index, range):
            if len(index) != n:
                raise ValueError(f"Cache.append: index is {index!r}, {len(index)} indices for {n} keys")
            if index.step == 1 and index.start >= 0:
                return index.start, None
            index = torch.tensor(list(index))
        index = exact("Cache.append: index", index)
        if index.shape not in ((n,), (b, n)):
            raise ValueError(f"Cache.append: index must be [{n}] or [{b}, {n}], given {list(index.shape)}")
        return None, index.to(device).expand(b, n)

    def _placed(self, position: Tensor | None, b: int, n: int, device: torch.device) -> Tensor | None:
        """Return the positions of new keys, [b n] or [b n axes]."""
        if not self._length:
            self._position = None
        elif (position is None) != (self._position is None):
            also = "were given positions, so give them here too" if position is None else "stand at their indices"
            raise ValueError(f"Cache.append: the keys before these {also}")
        if position is None:
            return None
        position = exact("Cache.append: position", position, fractions=True)
        if position.dim() == 1:
            position = position[None]
        if position.shape[:2] not in ((b, n), (1, n)) or position.dim() > 3:
            raise ValueError(
                f"Cache.append: position must be [{n}], [{b}, {n}] or [{b}, {n}, axes], given {list(position.shape)}"
            )
        if self._position is not None and self._position.shape[2:] != position.shape[2:]:
            raise ValueError(
                f"Cache.append: position is {list(position.shape)}, but the keys before these stand at "
                f"{list(self._position.shape[2:])} axes; give the same number of axes with every append"
            )
        position = position.to(device).expand(b, *position.shape[1:])
        if self._position is not None and self._position.dtype != position.dtype:
            # Whole numbers and fractions, say: float64 has both.
            self._position, position = self._position.double(), position.double()
        return position

    def _numbered(self, b: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return the indices that were known without being stored, and the next of each row."""
        assert self._first is not None
        after = torch.full((b, 1), self._first + self._length, device=device) if self._length else None
        return counted(self._first, self._length, b, device).clone(), after

    def _stored(self, store: Tensor | None) -> Tensor | None:
        """Return what is filled of the indices or positions."""
        return None if store is None else store[:, : self._length]

    def _filled(self, store: Tensor | None) -> Tensor:
        if store is None:
            raise ValueError("this Cache is empty; append keys and values first")
        return store.narrow(2, 0, self._length)

    def _put(self, store: Tensor | None, new: Tensor, axis: int) -> Tensor:
        """Write `new` after what is there, into a store twice as large where it does not fit."""
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
