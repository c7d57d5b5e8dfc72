"""Real checkpoints of transformers: extended where they stand, saved and loaded, planned, checked and measured.

Nothing here loads transformers before it is called.
"""

from milepost.hf.check import check as check
from milepost.hf.extend import extend as extend
from milepost.hf.extend import restore as restore
from milepost.hf.measure import measure as measure
from milepost.hf.memwalker import MemWalker as MemWalker
from milepost.hf.memwalker import asker as asker
from milepost.hf.nbce import nbce as nbce
from milepost.hf.plan import plan as plan
from milepost.hf.saving import load as load
from milepost.hf.saving import save as save

__all__ = ["MemWalker", "asker", "check", "extend", "load", "measure", "nbce", "plan", "restore", "save"]
