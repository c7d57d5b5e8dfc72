"""Losses and scores for TensorBoard, and as runs of Weights & Biases that are written here and sent by nobody."""

from __future__ import annotations

import importlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Score, Store
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
    """Write one run a cell for TensorBoard: its loss by step, and its bits by length."""
    made = writer()
    for cell in sweep.cells():
        run = made(str(folder / cell.called.replace("/", "÷")))
        name, losses = _losses(store, cell)
        for step, loss in losses:
            run.add_scalar(name, loss, step)
        for score in store.scores(cell.key):
            run.add_scalar(_name(score), score.mean, score.length)
        run.close()


def log_wandb(store: Store, sweep: Sweep, folder: Path) -> None:
    """The same as offline runs of Weights & Biases; `wandb sync` sends them, if that is wanted."""
    wandb: Any = importlib.import_module("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False, disable_git=True)
    for cell in sweep.cells():
        config = {"scheme": cell.name, "seed": cell.seed, **asdict(cell.recipe), **asdict(cell.shape)}
        run = wandb.init(
            mode="offline", dir=str(folder), project="milepost", name=cell.called, config=config, settings=settings
        )
        name, losses = _losses(store, cell)
        for step, loss in losses:
            run.log({name: loss, "step": step})
        for score in store.scores(cell.key):
            run.log({_name(score): score.mean, "length": score.length})
        run.finish()


def _losses(store: Store, cell: Cell) -> tuple[str, list[tuple[int, float]]]:
    """Return what a loss is called, and the loss of every step, in bits."""
    name = "loss, bits" if cell.task else "loss, bits per byte"
    return name, [(step, loss / math.log(2)) for step, loss in store.losses(cell.key)]


def _name(score: Score) -> str:
    return f"{score.protocol}/{score.variant or 'as trained'}"
