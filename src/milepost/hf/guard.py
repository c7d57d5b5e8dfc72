"""What an extended model is asked to do that raw keys cannot: refused by name before the first layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from milepost.seams.demand import checking_values


class Guard:
    """Looks at the arguments of a forward pass: the cache, the mask and the positions."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise where keys would stand elsewhere than their slots say, or are not kept as they are."""
        cache = kwargs.get("past_key_values")
        refuse_quantised(cache)
        positions, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
        if isinstance(positions, Tensor) and not isinstance(mask, dict):
            check_positions(positions, mask, cache)


def refuse_quantised(cache: Any) -> None:
    """Refuse caches that keep keys in a few bits: raw keys are turned anew at every step."""
    for layer in [cache, *(getattr(cache, "layers", None) or ())]:
        if "Quantized" in type(layer).__name__:
            raise ValueError(
                f"milepost: {type(layer).__name__} keeps keys in a few bits, and an extended model reads them raw at "
                f"every step; use a dynamic, static or offloaded cache"
            )


def check_positions(positions: Tensor, mask: Tensor | None, cache: Any) -> None:
    """Refuse positions that do not count the tokens that are no padding: a cache does not keep them.

    Without a mask and without a cache, a position that starts over starts another text, as transformers has it.
    """
    if positions.dim() != 2 or torch.compiler.is_compiling() or (mask is None and cache is None):
        return
    t = positions.shape[1]
    if t == 1 and not checking_values(positions.device):
        return
    if mask is None:
        wrong = positions.diff(dim=-1) != 1
    elif mask.dim() == 2 and mask.shape[1] >= t:
        counts = mask.to(positions.device).long().cumsum(-1)[:, -t:]
        real = mask.to(positions.device)[:, -t:].bool()
        # Counted from the first token, or from the first slot; each row moved as a whole is the same.
        steps = positions.diff(dim=-1) - counts.diff(dim=-1)
        wrong = (steps != 0) & real[:, 1:] & real[:, :-1]
    else:
        return
    if bool(wrong.any()):
        raise ValueError(
            "milepost: position_ids do not count the tokens of each text one by one, and an extended model's cache "
            "keeps keys without positions; leave position_ids out. To pack texts, give no attention_mask and no cache"
        )
