"""Real checkpoints of transformers: plan how to extend them, check their conventions, measure how far they hold.

Nothing here loads transformers before it is called.
"""

from milepost.hf.check import check as check
from milepost.hf.measure import measure as measure
from milepost.hf.memwalker import MemWalker as MemWalker
from milepost.hf.memwalker import asker as asker
from milepost.hf.nbce import nbce as nbce
from milepost.hf.plan import plan as plan

__all__ = ["MemWalker", "asker", "check", "measure", "nbce", "plan"]
