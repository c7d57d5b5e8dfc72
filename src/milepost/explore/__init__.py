"""Analyses of positions: named arrays with units, each with its picture.

Names are imported when they are first used; `__init__.pyi` lists them.
"""

from milepost.exports import lazy

lazy(__name__, needs={"*": ("explore", ("numpy", "jinja2"))})
del lazy
