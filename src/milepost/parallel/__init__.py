"""A text that is longer than one device holds: attention over the tokens of all ranks of a mesh.

Names are imported when they are first used; `__init__.pyi` lists them.
"""

from milepost.exports import lazy

lazy(__name__)
del lazy
