"""A cell at work: trained, going on from its checkpoint, then judged, all told as a stream of events.

Where a cell runs is not its business: the local engine reads its events as they come, Ray sends them from far away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Described, Event, Saved, Stepped
from milepost.lab.cells.store import Score
from milepost.lab.judging.costs import Cost, cost_of
from milepost.lab.schemes import own
from milepost.lab.schemes.named import build
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Model
from milepost.lab.training.parallel import World, spread_over
from milepost.lab.training.reader import Reader
from milepost.lab.training.train import Trainer, precision, read_checkpoint

# Steps between two reports of the loss.
REPORT = 10
# Seconds between two checkpoints of a model in training; more where writing one takes long.
SAVE = 2.0


def work(
    cell: Cell, corpus: Corpus, folder: Path, device: str, known: Known, here: World | None = None, spread: str = "ddp"
) -> Iterator[Event]:
    """Train the cell, going on from its checkpoint, then judge what is not known yet.

    Where there are more processes `here`, each calls this and trains along, spread by `spread`; the first alone judges
    and tells events.
    """
    torch.set_num_threads(cell.threads)
    own.use(cell.own)
    here = World(0, 1, torch.device(device)) if here is None else here
    model = cell.model()
    if here.rank == 0:
        yield Described(model.count(), model.equation())
    path = folder / f"{cell.key}.safetensors"
    for event in _train(cell, model, corpus, path, here, spread):
        if here.rank == 0:
            yield event
    if here.rank == 0:
        yield from judged(cell, model if here.size == 1 else load(cell, path, here.device), corpus, known)


def _train(cell: Cell, model: Reader, corpus: Corpus, path: Path, here: World, spread: str) -> Iterator[Event]:
    source, tokens = cell.batches(corpus.on(here.device)), 0

    def batch(step: int) -> tuple[Tensor, Tensor]:
        nonlocal tokens
        found = source(step)
        tokens += found[0].numel()
        return found

    if cell.task:
        model = model.to(here.device).uncompiled()
    if cell.recipe.compiled:
        # What was compiled for the cells before is never called again, and counts against a limit.
        torch.compiler.reset()
    trainer = Trainer(model, cell.recipe, batch, here.device, spread_over(here, spread))
    if trainer.spread.agreed(path.exists()):
        trainer.load(path)
    yield Stepped(trainer.step, [], 0.0, 0, trainer.done)
    losses: list[tuple[int, Tensor]] = []
    saved = begun = time.monotonic()
    pause = SAVE
    while not trainer.done:
        losses.append((trainer.step, trainer.advance()))
        if len(losses) < REPORT and not trainer.done:
            continue
        known = [(step, float(loss)) for step, loss in losses]
        now = time.monotonic()
        # Reported before it is saved: a loss that was saved and not reported would not be computed again.
        yield Stepped(trainer.step, known, now - begun, tokens, trainer.done)
        if trainer.spread.agreed(trainer.done or now - saved > pause):
            trainer.save(path)
            # Whoever sends it elsewhere does so now, and the time that takes counts.
            yield Saved(trainer.step)
            saved = time.monotonic()
            # At most a hundredth of the time goes into them.
            pause = SAVE * max(1.0, 50 * (saved - now))
        losses, tokens, begun = [], 0, time.monotonic()


def load(cell: Cell, path: Path, device: str | torch.device) -> Reader:
    """Return the trained model of a cell."""
    model = cell.model()
    tensors, _ = read_checkpoint(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"model.{name}"])
    return model.to(device).eval()


def judged(cell: Cell, model: Reader, corpus: Corpus, known: Known) -> Iterator[Score | Cost]:
    """Scores of the model as trained, then of every training-free row, and what each of the lab's own costs."""
    device = model.device
    for label, each in _rows(cell, model):
        each.uncompiled()
        left = [found for found in cell.asked(label) if (label, *found) not in known]
        if device.type == "cuda":
            # What training and the last row held for their own use, others who share the GPU may need.
            torch.cuda.empty_cache()
        for protocol, length in left:
            with torch.no_grad(), precision(cell.recipe, device):
                found = cell.scored(each, corpus, protocol, length)
            detail = found.detail | {"asked": cell.depends(label, protocol)}
            yield Score(cell.key, label, protocol, length, found.mean, found.half, found.count, detail, found.windows)
        if isinstance(each, Model) and any(protocol == "windows" for protocol, _ in left):
            with precision(cell.recipe, device):
                yield Cost(cell.key, label, cost_of(each, cell.judging.longest))


def _rows(cell: Cell, model: Reader) -> Iterator[tuple[str, Reader]]:
    """Yield the model as trained, then under the scheme of every training-free row, by label."""
    yield "", model
    for label, text in cell.variants:
        if not isinstance(model, Model):
            raise TypeError(f"{cell.called}: the row {label} changes a scheme, and {type(model).__name__} has none")
        yield label, model.using(build(text, cell.shape, cell.recipe.length, cell.judging.longest))
