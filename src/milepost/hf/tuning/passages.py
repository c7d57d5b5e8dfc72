"""The texts that a model is tuned on: passages of token ids, each a pure function of the seed and its number."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from milepost import Pose

IGNORED = -100
"""The label of a token that is not judged, as transformers has it."""


class Passages(Dataset[dict[str, Tensor]]):
    """Passages of `length` tokens from anywhere in a text, so many of them.

    Number n is the same whenever it is asked for, which is what resuming goes by. first: a token that every passage
    begins with, such as a model's bos. trained: with a number, only so many tokens of each passage are read, at the
    skipped positions of PoSE.
    """

    def __init__(
        self, ids: Tensor, length: int, count: int, seed: int, first: int | None = None, trained: int | None = None
    ) -> None:
        if len(ids) <= length:
            raise ValueError(
                f"tune: the text to train on has {len(ids):,} tokens, and {length:,} are read at once; give a longer "
                f"text, or a shorter length"
            )
        self.ids, self.length, self.count, self.seed = ids, length, count, seed
        self.first, self.trained = first, trained

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        start = int(torch.randint(0, len(self.ids) - self.length, (), generator=generator))
        passage = self.ids[start : start + self.length]
        if self.first is not None:
            passage = torch.cat((passage.new_tensor([self.first]), passage[1:]))
        if self.trained is None:
            return {"input_ids": passage, "labels": passage}
        taken, position = Pose(self.length).cut(self.length, self.trained, generator=generator)
        cut = passage[taken]
        # Nothing tells what comes after the skip.
        labels = torch.where(taken.diff(prepend=taken[:1] - 1) == 1, cut, IGNORED)
        # With a mask a row is one text; without one, positions that skip would begin another.
        return {"input_ids": cut, "labels": labels, "position_ids": position, "attention_mask": torch.ones_like(cut)}
