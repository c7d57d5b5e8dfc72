"""Position encodings and length extrapolation for attention in PyTorch: `attend(q, k, v, scheme)`.

Names are imported when they are first used. `__init__.pyi` lists them.
"""

from milepost.exports import lazy

__version__ = "0.2.0"


def _prepare(found: object) -> None:
    from milepost.seams.arguments import refuse_names_of_0_1

    refuse_names_of_0_1(found)


lazy(__name__, prepare=_prepare)
del lazy
