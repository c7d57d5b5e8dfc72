"""Losses and scores for TensorBoard, and as runs of Weights & Biases that are written here and sent by nobody."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Store
from milepost.lab.sweep.sweep import Sweep


def writer() -> Any:
    """TensorBoard's writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs tensorboard, which is not installed: "
            "pip install 'milepost[lab]', or in a checkout pip install '.[lab]'"
        ) from error
    return SummaryWriter


def log(store: Store, sweep: Sweep, folder: Path) -> None:
    """Write one run a cell for TensorBoard: its loss by step, and its bits by length."""
    made = writer()
    for cell in sweep.cells():
        run = made(str(folder / cell.called.replace("/", "÷")))
        for name, value, _, at in _values(store, cell):
            run.add_scalar(name, value, at)
        run.close()


def log_wandb(store: Store, sweep: Sweep, folder: Path) -> None:
    """Write the same as offline runs of Weights & Biases; `wandb sync` sends them, if that is wanted."""
    wandb: Any = importlib.import_module("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False, disable_git=True)
    for cell in sweep.cells():
        config = {"scheme": cell.name, "seed": cell.seed, **asdict(cell.recipe), **asdict(cell.shape)}
        run = wandb.init(
            mode="offline", dir=str(folder), project="milepost", name=cell.called, config=config, settings=settings
        )
        for name, value, axis, at in _values(store, cell):
            run.log({name: value, axis: at})
        run.finish()


def _values(store: Store, cell: Cell) -> Iterator[tuple[str, float, str, int]]:
    """Yield every loss, in bits, and every score: its name, its value, and its step or length."""
    for step, loss in store.losses(cell.key):
        yield "loss, bits" if cell.task else "loss, bits per byte", loss / math.log(2), "step", step
    for score in store.scores(cell.key):
        yield f"{score.protocol}/{score.variant or 'as trained'}", score.mean, "length", score.length
