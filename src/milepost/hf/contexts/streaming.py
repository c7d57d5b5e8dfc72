"""StreamingLLM as a cache of transformers: the first tokens and the last, raw, so that text goes on for ever.

Keys are kept as they came and turned at every step by the place they have in the cache (Xiao et al., 2023,
arXiv:2309.17453). `import milepost.hf` does not load this file: it needs transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from milepost import Stream
from milepost.seams.arguments import spell

Kept = Tensor | slice | None
"""Which slots stay: all, the sinks and a stretch at the end, or [b n] of them where rows differ."""


class StreamingLayer(DynamicLayer):
    """The keys and values of one layer, as many as a later query may see."""

    is_croppable = False

    def __init__(self, sinks: int) -> None:
        super().__init__()
        self.sinks, self.seen = sinks, 0

    def add(self, k: Tensor, v: Tensor, kept: Kept) -> tuple[Tensor, Tensor]:
        """Keys and values [b g s d] that this call sees, the new ones last; those in `kept` stay for the next."""
        if not self.is_initialized:
            self.lazy_initialization(k, v)
        assert self.keys is not None
        assert self.values is not None
        whole = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        self.keys, self.values = (_cut(each, kept, self.sinks) for each in whole)
        self.seen += k.shape[2]
        return whole

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.seen = 0


class StreamingCache(Cache):
    """The first `sinks` tokens and the last `window`, for a model that was extended with `Stream(sinks, window)`.

        extend(model, mp.Stream(4, 1020))
        model.generate(text, past_key_values=StreamingCache(4, 1020), max_new_tokens=100_000)

    Its size does not grow, whatever the length. Blocks of tokens give what single steps give, and rows padded on the
    left what they give alone: each row keeps its own first tokens. What left the window is forgotten, so nothing can be
    taken back: assisted decoding needs another cache.
    """

    def __init__(self, sinks: int = 4, window: int = 1020, evict: Literal["before", "after"] = "before") -> None:
        super().__init__(layers=[])
        self.stream = Stream(sinks, window, evict=evict)
        self._forget()

    def _forget(self) -> None:
        self.seen = 0
        self._index: Tensor | None = None
        self._next: Tensor | None = None
        self._padded = False
        self._kept: Kept = None

    def __repr__(self) -> str:
        return f"StreamingCache{spell(self.stream).removeprefix('Stream')}"

    @property
    def size(self) -> int:
        """How many tokens are kept between two calls once there are as many: those that a next token may see."""
        return self.stream.sinks + self.stream.reach - 1

    def begin(self, mask: Tensor | None, b: int, t: int, device: Any, by_slot: bool) -> Tensor:
        """Make room for t new tokens; returns which token is in which slot, in the form of `slots`: [b, 1, 2, s + t].

        mask: [b n], 0 for padding, of which the last t are the new tokens. by_slot: whether the scheme of a single
        query comes out the same if the keys at hand are taken to be the whole text. Nothing stands in the tensor,
        [b, 1, 2, 0], where the shapes say all of it.
        """
        real = torch.ones(b, t, dtype=torch.bool, device=device)
        if mask is not None:
            real = mask[:, -t:].to(device, torch.bool)
        self._padded = self._padded or not bool(real.all())
        if self._index is None or self._next is None:
            self._index, self._next = real.new_zeros(b, 0, dtype=torch.long), real.new_zeros(b, 1, dtype=torch.long)
        own = torch.where(real, self._next + real.cumsum(-1) - 1, -1)
        index = torch.cat((self._index.to(device), own), 1)
        whole = index.shape[1] == self.seen + t
        self.seen += t
        self._next = self._next + real.sum(-1, keepdim=True)
        self._kept = self._keeping(index)
        self._index = _cut(index, self._kept, self.stream.sinks)
        if not self._padded and (whole or (t == 1 and by_slot)):
            return index.new_zeros(b, 1, 2, 0)
        both = (index.clamp(min=0), torch.where(index < 0, -1, 0))
        return torch.stack([torch.cat((each, each[:, -t:]), 1) for each in both], 1)[:, None]

    def _keeping(self, index: Tensor) -> Kept:
        """Which of the slots [b s] stay: those that a later query may see, and as many in every row."""
        if index.shape[1] <= self.size:
            return None
        if not self._padded:
            return slice(index.shape[1] - self.stream.reach + 1, index.shape[1])
        assert self._next is not None
        seen = (index >= 0) & ((index > self._next - self.stream.reach) | (index < self.stream.sinks))
        # A row that has not as many tokens yet keeps some of its padding.
        order = torch.arange(index.shape[1], device=index.device) + seen * index.shape[1]
        return order.topk(self.size, dim=-1).indices.sort(-1).values

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What transformers calls in every layer, with raw keys."""
        while len(self.layers) <= layer_idx:
            self.layers.append(StreamingLayer(self.stream.sinks))
        layer: Any = self.layers[layer_idx]
        if layer.seen + key_states.shape[2] != self.seen:
            raise ValueError(
                f"milepost: {self!r} keeps raw keys, and this model did not say which tokens they are: first "
                f"extend(model, {spell(self.stream)}); after a call that failed, start with a new cache"
            )
        return layer.add(key_states, value_states, self._kept)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens there were, padding included; not how many are kept."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys the next call sees, and how many slots were dropped before them."""
        kept = 0 if self._index is None else self._index.shape[1]
        return kept + query_length, self.seen - kept

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """There is no longest text."""
        return -1

    get_max_cache_shape = get_max_length
    """What older releases of transformers call it."""

    def reset(self) -> None:
        """Start over."""
        super().reset()
        self._forget()

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Refused: what would have to come back was dropped."""
        raise ValueError(f"milepost: {self!r} cannot take tokens back (assisted decoding does); use a dynamic cache")

    def reorder_cache(self, beam_idx: Any) -> None:
        """Let each row go on from another (beam search)."""
        super().reorder_cache(beam_idx)
        self._rows(lambda each: each.index_select(0, beam_idx.to(each.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Let each row be several."""
        super().batch_repeat_interleave(repeats)
        self._rows(lambda each: each.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        super().batch_select_indices(indices)
        self._rows(lambda each: each[indices])

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._index is not None and self._next is not None:
            self._index, self._next = change(self._index), change(self._next)


def _cut(x: Tensor, kept: Kept, sinks: int) -> Tensor:
    """The slots of x, [b s] or [b g s d], that stay."""
    if kept is None:
        return x
    if isinstance(kept, slice):
        axis = min(2, x.dim() - 1)
        ends = x.narrow(axis, 0, sinks), x.narrow(axis, kept.start, kept.stop - kept.start)
        return torch.cat(ends, axis)
    if x.dim() == 2:
        return x.gather(1, kept)
    return x.gather(2, kept.to(x.device)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
