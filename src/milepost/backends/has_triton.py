"""Whether there is a Triton that runs the kernels."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re

OLDEST = (3, 6)
"""The oldest version that the kernels were tested with; torch 2.9 brings an older one along."""


@functools.cache
def no_triton() -> str | None:
    """Return why there is no Triton for the kernels; None where there is one."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'milepost[triton]'"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        # Built with torch, or under another name.
        import triton

        version = str(triton.__version__)
    found = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        return f"its kernels are tested with Triton {OLDEST[0]}.{OLDEST[1]} and later, and this is {version}"
    return None


# A graph asks once, as it is traced.
no_triton._dynamo_marked_constant = True  # pyright: ignore
