"""Documents: several texts in one row, none of which sees another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

COUNTING: dict[str, Callable[[Tensor], Tensor | None]] = {}
"""By kind of device, a quicker way to number tokens, or None where it does not serve; attached from above."""


def documents_of(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the cumulative lengths of a varlen batch into (documents, index), both [t].

    >>> documents_of(torch.tensor([0, 3, 5]))
    (tensor([0, 0, 0, 1, 1]), tensor([0, 1, 2, 0, 1]))
    """
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"documents_of({cu_seqlens!r}): expected a tensor of integers; wrap it: torch.tensor(…)")
    counts = not (cu_seqlens.is_floating_point() or cu_seqlens.is_complex() or cu_seqlens.dtype == torch.bool)
    if cu_seqlens.dim() != 1 or not counts or len(cu_seqlens) < 2:
        raise ValueError(
            f"documents_of(cu_seqlens): expected integers [n + 1] such as [0, 3, 5], "
            f"given {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        )
    lengths = cu_seqlens.diff()
    if int(cu_seqlens[0]) != 0 or bool((lengths < 0).any()):
        raise ValueError(f"documents_of({list(map(int, cu_seqlens))}): cumulative lengths start at 0 and never fall")
    names = torch.arange(len(lengths), device=cu_seqlens.device)
    documents = torch.repeat_interleave(names, lengths)
    index = torch.arange(len(documents), device=cu_seqlens.device) - cu_seqlens[:-1].long()[documents]
    return documents, index


def order_within(documents: Tensor) -> Tensor:
    """Number the tokens of each document 0, 1, 2 …; documents [b t] need not lie together in the row."""
    quick = COUNTING.get(documents.device.type)
    counted = None if quick is None else quick(documents)
    if counted is not None:
        return counted
    ordered, order = documents.sort(dim=-1, stable=True)
    count = torch.arange(documents.shape[-1], device=documents.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, count)
    return rank - _less(ordered, documents)


def _less(ordered: Tensor, names: Tensor) -> Tensor:
    """Count the sorted names [b s] that are less than each of names [b t]."""
    if torch.compiler.is_exporting():
        # torch.onnx cannot translate the search.
        return (ordered[:, None, :] < names[:, :, None]).sum(-1)
    return torch.searchsorted(ordered, names.contiguous())


def lies_together(documents: Tensor) -> Tensor:
    """Return, for each token of documents [b t] but the first, whether its document goes on from the token before it.

    It may also begin there. Of padding it is always true.
    """
    begins = documents[:, 1:] != documents[:, :-1]
    return ~begins | (documents[:, 1:] < 0) | (order_within(documents)[:, 1:] == 0)


def over_keys(
    values: Tensor, how: Literal["amax", "amin"], documents: Tensor | None, key_documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The largest or smallest of the keys' values in each token's own document, for the queries and for the keys.

    values: [b|1 s]; documents [b|1 t] and key_documents [b|1 s], or None for a single document.
    Returns [b|1 t|1] and [b|1 s|1]. No document is ever counted, so shapes do not depend on the data.
    """
    if values.shape[-1] == 0:
        return values.new_full((1, 1), -1), values.new_full((1, 1), -1)
    if documents is None or key_documents is None:
        reduced = values.amax(-1, keepdim=True) if how == "amax" else values.amin(-1, keepdim=True)
        return reduced, reduced
    # One row stands for all of them, and for none.
    rows = next((each.shape[0] for each in (values, documents, key_documents) if each.shape[0] != 1), 1)
    values, documents = values.expand(rows, -1), documents.expand(rows, -1)
    key_documents = key_documents.expand(rows, -1)
    # Where a document's name first stands among the sorted names is a number of its own below s.
    ordered = key_documents.sort(dim=-1).values
    mine, keys = _less(ordered, documents), _less(ordered, key_documents)
    found = values.new_zeros(rows, values.shape[-1] + 1)
    found = found.scatter_reduce(-1, keys, values, how, include_self=False)
    return found.gather(-1, mine), found.gather(-1, keys)
