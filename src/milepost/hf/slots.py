"""Which token stands in which slot of a cache: what the mask function says and the attention function reads.

Between the two transformers carries one tensor through caches, checkpoints and devices, and takes it for a finished
mask if it has four axes. So it is one, of whole numbers, [b, 1, 2, s + t]: for the s keys and then the t queries, in
the first row their indices, in the second their documents, −1 for padding and for slots that are not filled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from milepost.call.options import Options

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A mask function of transformers: batch, head, slot of the query and slot of the key to whether it is seen."""


def slots(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Seen | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **others: Any,
) -> Tensor | None:
    """The mask function that is registered: which tokens the queries and the keys of a call are.

    Queries stand in the slots q_offset …, keys in kv_offset …; attention_mask [b, n] is True for what is no padding.
    None where queries are the last of the keys, there is no padding and one text only: `attend` then knows the rest.
    """
    if use_vmap:
        raise ValueError(
            "milepost: this call brings a mask of its own (or_mask_function or and_mask_function), which no scheme "
            "says; leave it out, or restore(model) first"
        )
    causal = getattr(others.get("config"), "is_causal", True) is not False
    if causal and q_length > 1 and bool(_seen(mask_function, batch_size, q_offset, q_length, 1, device).any()):
        raise ValueError(
            "milepost: this call shows some tokens what comes after them (an image or another block that is seen both "
            "ways), and the layers' schemes are causal; leave the block out, or restore(model) first"
        )
    whole = isinstance(q_offset, int) and kv_offset == 0 and q_offset + q_length == kv_length
    padded = attention_mask is not None and not _all(attention_mask)
    if whole and not padded:
        first = attention_mask is None and q_offset == 0 and q_length > 1
        starts = _starts(mask_function, batch_size, q_length, device) if first else None
        return None if starts is None else _packed(starts)
    total = kv_offset + kv_length
    real = torch.ones(batch_size, total, dtype=torch.bool, device=device)
    if attention_mask is not None:
        # Past its end nothing has been written yet, or it is what is being written: filled says which.
        given = attention_mask[:, :total].to(device, torch.bool)
        real = torch.cat((given, real[:, given.shape[1] :]), 1)
    index = (real.cumsum(-1) - 1).clamp(min=0)
    filled = torch.arange(total, device=device) < q_offset + q_length
    documents = torch.where(real & filled, 0, -1)
    own = (torch.arange(q_length, device=device) + q_offset).expand(batch_size, -1)
    both = (torch.cat((each[:, kv_offset:], each.gather(1, own)), 1) for each in (index, documents))
    return torch.stack(tuple(both), 1)[:, None]


def read(mask: Tensor | None, t: int, s: int) -> Options:
    """What `attend` is given for a mask that `slots` made, t queries and s keys."""
    if mask is None or is_empty(mask):
        return {}
    if mask.dtype != torch.long or mask.dim() != 4 or mask.shape[2] != 2 or mask.shape[3] != s + t:
        raise ValueError(
            f"milepost: the attention mask is {mask.dtype} {list(mask.shape)} for {t} queries and {s} keys; an "
            f"extended model takes the mask of padding, [b, n] with 1 for every token that counts, and makes the rest"
        )
    index, documents = mask[:, 0, 0], mask[:, 0, 1]
    return {
        "key_index": index[:, :s], "index": index[:, s:],
        "key_documents": documents[:, :s], "documents": documents[:, s:],
    }  # fmt: skip


def is_empty(mask: Tensor) -> bool:
    """Whether it is a mask of `slots` with nothing in it: the shapes say all."""
    return mask.dtype == torch.long and mask.dim() == 4 and mask.shape[3] == 0


def _all(mask: Tensor) -> bool:
    """Whether nothing is padding, as far as that can be known: a traced graph does not look at values."""
    return not torch.compiler.is_compiling() and bool(mask.all())


def _starts(seen: Seen | None, b: int, n: int, device: Any) -> Tensor | None:
    """Where texts packed into one row start, [b n], or None where every row is one text.

    transformers finds them in the positions and says so in its mask function alone: there a token does not see the one
    before it.
    """
    joined = _seen(seen, b, 1, n, -1, device)
    if joined.shape[1] == 0 or bool(joined.all()):
        return None
    return torch.cat((torch.ones(b, 1, dtype=torch.bool, device=device), ~joined), 1)


def _seen(seen: Seen | None, b: int, first: int | Tensor, n: int, step: int, device: Any) -> Tensor:
    """Whether each of n − 1 tokens from `first` on sees the one `step` after it, [b n − 1]; [b 0] where nobody says."""
    if seen is None or torch.compiler.is_compiling():
        return torch.zeros(b, 0, dtype=torch.bool, device=device)
    rows, here = torch.arange(b, device=device)[:, None], torch.arange(n - 1, device=device)[None] + first
    return torch.as_tensor(seen(rows, torch.zeros_like(rows), here, here + step)).expand(b, n - 1)


def _packed(starts: Tensor) -> Tensor:
    """The slots of rows of packed texts: each counts from its own start."""
    order = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    index = order - torch.where(starts, order, 0).cummax(-1).values
    both = (torch.cat((each, each), 1) for each in (index, starts.long().cumsum(-1) - 1))
    return torch.stack(tuple(both), 1)[:, None]
