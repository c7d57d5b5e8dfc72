"""Refuse keys that are sharded over devices: attention over one shard is not attention over the text."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_ATTENTION = F.scaled_dot_product_attention
"""torch's function, which `context_parallel()` replaces by one of its own: the one mark that all versions have."""


def refuse_shards(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise inside torch's `context_parallel()`, and for distributed tensors."""
    now = F.scaled_dot_product_attention
    # A graph that is traced can compare functions, and not ask a built-in one for its module.
    asked = now is not _ATTENTION or not torch.compiler.is_compiling()
    if asked and str(now.__module__).startswith("torch.distributed"):
        raise NotImplementedError(
            "attend: inside torch's context_parallel() each process has a shard of the keys, and attend would see no "
            "other; this is not supported yet. Leave context_parallel(), gather the keys and values of all processes, "
            "and give index and key_index"
        )
    for name, each in (("q", q), ("k", k), ("v", v)):
        if type(each) is not Tensor and hasattr(each, "placements"):
            raise NotImplementedError(
                f"attend: {name} is a DTensor, placed as {tuple(each.placements)}; this is not supported yet. Gather "  # pyright: ignore
                f"keys and values, k.full_tensor(), give queries as q.to_local(), and their index"
            )
