"""Real checkpoints of transformers: extended where they stand, saved and loaded, planned, checked and measured.

Nothing here loads transformers before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.hf.check import check as check
from milepost.hf.choosing import choose as choose
from milepost.hf.export import export as export
from milepost.hf.extend import extend as extend
from milepost.hf.extension import restore as restore
from milepost.hf.measure import measure as measure
from milepost.hf.memwalker import MemWalker as MemWalker
from milepost.hf.memwalker import asker as asker
from milepost.hf.nbce import nbce as nbce
from milepost.hf.plan import plan as plan
from milepost.hf.saving import load as load
from milepost.hf.saving import save as save
from milepost.refusal import need

if TYPE_CHECKING:
    from milepost.hf.streaming import StreamingCache as StreamingCache

__all__ = [
    "MemWalker", "StreamingCache", "asker", "check", "choose", "export", "extend", "load", "measure", "nbce", "plan",
    "restore", "save",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is a class of transformers' is made when it is asked for."""
    if name != "StreamingCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("StreamingCache", "hf", ("transformers",))
    from milepost.hf.streaming import StreamingCache as Made

    return Made
