"""Modules whose weights are read where they are used, so that nothing about them may wait for `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

MAKERS = "torch.nn.utils."
"""Where torch's hooks are that make a weight before `forward`: weight_norm, spectral_norm, prune."""


class ReadWeights(nn.Module):
    """A module that is read and not called: it refuses hooks that would make its weights when it is called."""

    def register_forward_pre_hook(self, hook: Callable[..., Any], **options: Any) -> RemovableHandle:
        """Register a hook, unless it is one of torch's that make a weight before `forward`."""
        maker: Any = type(hook)
        if any(kind.__module__.startswith(MAKERS) for kind in maker.__mro__):
            own = type(self).__name__
            # What it has made already would stay as it is.
            vars(self).pop(str(getattr(hook, "_tensor_name", getattr(hook, "name", ""))), None)
            raise TypeError(
                f"{own}: {maker.__module__}.{maker.__name__} makes a weight whenever forward is called, and attention "
                f"reads the weights of {own} without it, so that no later change would be seen; make a new {own}, and "
                f"use torch.nn.utils.parametrize, or for norms torch.nn.utils.parametrizations"
            )
        return super().register_forward_pre_hook(hook, **options)


class Linear(ReadWeights, nn.Linear):
    """A linear layer whose weights are read."""
