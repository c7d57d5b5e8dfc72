"""Pictures as PNG, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from milepost.explore.pictures.picture import Picture


def write_png(title: str, pictures: Sequence[Picture], path: Path, settings: str = "") -> None:
    """Write pictures as one PNG, two in a line."""
    from matplotlib.figure import Figure

    across = min(len(pictures), 2)
    down = math.ceil(len(pictures) / across)
    figure = Figure(figsize=(6.4 * across, 4.6 * down), layout="constrained")
    for n, picture in enumerate(pictures):
        picture.onto(figure.add_subplot(down, across, n + 1))
    figure.suptitle(f"{title}\n{settings}".strip())
    figure.savefig(path, dpi=144)
