"""Real checkpoints of transformers: extended in place, saved and loaded, planned, checked and measured.

Names are imported when they are first used; `__init__.pyi` lists them. transformers is loaded when it is needed.
"""

from milepost.exports import lazy

lazy(__name__, needs={"StreamingCache": ("hf", ("transformers",))})
del lazy
