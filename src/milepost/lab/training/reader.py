"""What the lab asks of a model that it trains and judges, its own or another library's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Reader(nn.Module):
    """A model that reads, whoever wrote it: tokens to states, and states to logits.

    The lab's own is `Model`. Another library's is trained and judged just as that one is, in cells whose `model` makes
    it: derive from `Cell`.
    """

    def states(self, tokens: Tensor) -> Tensor:
        """Return the states of tokens [b t], ready to meet the vocabulary, [b t D]."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """Return what states […, D] say of the next token, […, vocabulary]."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [b t]; returns logits [b t vocabulary]."""
        return self.logits(self.states(tokens))

    def learned(self) -> Iterable[nn.Parameter]:
        """Return what its scheme learns: that does not decay, is never sharded, and has a rate of its own."""
        return ()

    def biases(self) -> Iterable[nn.Parameter]:
        """Return those of the learned that bend scores, and have yet another rate."""
        return ()

    def equation(self) -> str:
        """Return what its scheme computes, in words."""
        return type(self).__name__

    def parts(self) -> Iterable[nn.Module]:
        """Return what a run over several devices compiles and shards one by one."""
        return ()

    def uncompiled(self) -> Reader:
        """Itself, with nothing in it that is compiled by itself and would be anew at every length."""
        return self

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def count(self) -> int:
        """Return how many numbers are learned, each once."""
        return sum(weight.numel() for weight in self.parameters())
