"""Losses and scores as TensorBoard logs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from milepost.lab.cells.store import Store
from milepost.lab.sweep.sweep import Sweep


def writer() -> Any:
    """TensorBoard's writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs tensorboard, which is not installed: pip install 'milepost[lab]'"
        ) from error
    return SummaryWriter


def log(store: Store, sweep: Sweep, folder: Path) -> None:
    """Write one run a cell: its loss by step, and its bits by length."""
    made = writer()
    for cell in sweep.cells():
        run = made(str(folder / cell.called.replace("/", "÷")))
        for step, loss in store.losses(cell.key):
            run.add_scalar("loss, bits" if cell.task else "loss, bits per byte", loss / math.log(2), step)
        for score in store.scores(cell.key):
            name = f"{score.protocol}/{score.variant or 'as trained'}"
            run.add_scalar(name, score.mean, score.length)
        run.close()
