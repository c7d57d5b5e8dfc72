"""How a command says no: one sentence that names what was asked, and an end with 2."""

from __future__ import annotations

import sys
from typing import NoReturn


def refuse(message: str) -> NoReturn:
    """Say what is wrong with what was asked, and end with 2."""
    print(f"milepost: {message}", file=sys.stderr)
    raise SystemExit(2)
