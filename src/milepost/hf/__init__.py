"""Real checkpoints of transformers: extended where they stand, saved and loaded, planned, checked and measured.

Nothing here loads transformers before it is called.
"""

from milepost.refusal import need

need("milepost.hf", "hf")

from milepost.hf.check import check as check  # noqa: E402
from milepost.hf.extend import extend as extend  # noqa: E402
from milepost.hf.extend import restore as restore  # noqa: E402
from milepost.hf.measure import measure as measure  # noqa: E402
from milepost.hf.memwalker import MemWalker as MemWalker  # noqa: E402
from milepost.hf.memwalker import asker as asker  # noqa: E402
from milepost.hf.nbce import nbce as nbce  # noqa: E402
from milepost.hf.plan import plan as plan  # noqa: E402
from milepost.hf.saving import load as load  # noqa: E402
from milepost.hf.saving import save as save  # noqa: E402

__all__ = ["MemWalker", "asker", "check", "extend", "load", "measure", "nbce", "plan", "restore", "save"]
