"""Raw keys and values in the pages of a server: written token by token, gathered by copy, and attended to.

A page holds `size` tokens of every key head; a text has a row of page numbers, its block table. Keys are not rotated:
their indices follow from their places in the text, so that `attend` places and rotates them as in one pass over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from milepost import Scheme, attend


@dataclass(frozen=True)
class Texts:
    """The texts of one step: each has new tokens, the last of those it has in the pages."""

    starts: Sequence[int]
    """Where the new tokens of each text begin among all new tokens, and at last where they end."""
    lengths: Sequence[int]
    """How many tokens each text has, new ones included."""
    tables: Tensor
    """[texts pages], the numbers of the pages that hold them, in order."""

    def __post_init__(self) -> None:
        news = [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]
        if len(news) != len(self.lengths) or any(new > length for new, length in zip(news, self.lengths, strict=False)):
            raise ValueError(
                f"Texts: {news} new tokens and {list(self.lengths)} tokens in all do not fit; a text has no more new "
                f"tokens than tokens"
            )


def write(pages: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Put keys and values into their slots.

    pages: [pages g size d+dv]; key: [n g d]; value: [n g dv]; slots: [n], page · size + place in it, −1 for padding.
    """
    key, value = key[: len(slots)], value[: len(slots)]
    if bool((slots < 0).any()):
        real = slots >= 0
        key, value, slots = key[real], value[real], slots[real]
    size = pages.shape[2]
    pages[slots // size, :, slots % size] = torch.cat((key, value), -1).to(pages.dtype)


def gather(pages: Tensor, table: Tensor, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the keys [1 g s width] and the values of a text of s = length tokens, copied out of its pages in order."""
    numbers = table[: -(-length // pages.shape[2])]

    def copied(part: Tensor) -> Tensor:
        # Not index_select, which makes a copy of all pages first where a part of them is not contiguous.
        return part[numbers].transpose(0, 1).flatten(1, 2)[None, :, :length]

    return copied(pages[..., :width]), copied(pages[..., width:])


def attend_in_pages(q: Tensor, pages: Tensor, texts: Texts, scheme: Scheme, out: Tensor) -> Tensor:
    """Attend from the new tokens of every text to all of its tokens, in the pages, and write the result into out.

    q: [n h d], raw, and out: [n h dv], the new tokens of all texts one after the other. Rows past the last text stay.
    scheme: a causal one. Texts of similar length that have one new token each are attended to in one call.
    """
    steps: dict[int, list[int]] = {}
    for n, length in enumerate(texts.lengths):
        first, end = texts.starts[n], texts.starts[n + 1]
        if end - first == 1:
            steps.setdefault(length.bit_length(), []).append(n)
        elif first < end:
            keys, values = gather(pages, texts.tables[n], length, q.shape[2])
            # Queries are the last tokens of the keys, which count up from 0: that is what attend takes them for.
            found = attend(q[first:end].transpose(0, 1)[None], keys, values, scheme)
            out[first:end] = found[0].transpose(0, 1)
    for alike in steps.values():
        step(q, pages, texts, scheme, out, alike)
    return out


def step(q: Tensor, pages: Tensor, texts: Texts, scheme: Scheme, out: Tensor, alike: Sequence[int]) -> None:
    """Attend from the only new token of some texts in one call: what lies past a text is ahead of it, and hidden."""
    lengths = [texts.lengths[n] for n in alike]
    longest = max(lengths)
    gathered = [gather(pages, texts.tables[n], length, q.shape[2]) for n, length in zip(alike, lengths, strict=True)]
    keys, values = (
        torch.cat([pad(each[part], (0, 0, 0, longest - each[part].shape[2])) for each in gathered]) for part in (0, 1)
    )
    at = torch.tensor([texts.starts[n] for n in alike], device=q.device)
    # Where all are as long, attend finds out by itself that they are the last.
    index = None if min(lengths) == longest else torch.tensor(lengths, device=q.device)[:, None] - 1
    out[at] = attend(q[at][:, :, None], keys, values, scheme, index=index)[:, :, 0]
