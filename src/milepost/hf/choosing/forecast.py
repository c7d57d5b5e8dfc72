"""How long a choice will take, before it starts: two layers of each kind of pass are timed at its full length.

A pass is stopped once every kind of layer has run behind the first, which is slower than the others; what the rest of
the layers cost is then known, whatever the method does at that length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from milepost.hf.measuring.judged import AsItWas, Row, Under, judge


class TimedEnoughError(Exception):
    """Raised inside a forward pass that has been timed for long enough."""


def seconds_of(row: Row, ids: Tensor, last: int) -> float:
    """Return how long `judge(row, ids, last)` will take, about; of a model without a list of layers it is run whole."""
    model: Any = row.model.model if isinstance(row.model, (AsItWas, Under)) else row.model
    layers = layers_in(model)
    kinds = kinds_of(model, len(layers))
    begun = time.monotonic()
    ended: list[float] = []

    def note(module: nn.Module, given: object, out: object) -> None:
        if ids.is_cuda or next(module.parameters(), ids).is_cuda:
            torch.cuda.synchronize()
        ended.append(time.monotonic())
        # The first layer is slower than others: memory is taken there.
        if set(kinds) <= set(kinds[1 : len(ended)]):
            raise TimedEnoughError

    hooks = [each.register_forward_hook(note) for each in layers]
    try:
        judge(row, ids, last)
    except TimedEnoughError:
        took = {kind: later - earlier for kind, earlier, later in zip(kinds[1:], ended, ended[1:], strict=False)}
        # Embedding and head are as much as another layer, about.
        return (ended[0] - begun) + sum(took[kind] for kind in kinds[1:]) + took[kinds[1]]
    finally:
        for hook in hooks:
            hook.remove()
    return time.monotonic() - begun


def layers_in(model: nn.Module) -> Sequence[nn.Module]:
    """Return the layers of a model, in order: its longest list of modules; none where it has no list."""
    lists = [list(each.children()) for each in model.modules() if isinstance(each, nn.ModuleList)]
    return max(lists, key=len) if lists else []


def kinds_of(model: Any, count: int) -> list[str]:
    """Return the type of each layer, by which layers take equally long."""
    config = getattr(model, "config", None)
    named = getattr(config, "layer_types", None) or getattr(getattr(config, "text_config", None), "layer_types", None)
    kinds = list(named) if named and len(named) == count else [""] * count
    # A kind that only the first layer has is taken to be that of the second.
    return [kinds[1] if count > 1 and kinds.count(kinds[0]) == 1 else kinds[0], *kinds[1:]] if kinds else []
