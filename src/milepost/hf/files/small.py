"""A small RoPE model, trained on the spot: what `milepost extend` works on where it is given none."""

from __future__ import annotations

from pathlib import Path

import torch

from milepost.hf.files.from_lab import write_lab_model
from milepost.hf.measuring.measure import bar
from milepost.lab.schemes.named import build
from milepost.lab.text.corpus import Corpus, of_python
from milepost.lab.training.model import Model
from milepost.lab.training.recipe import SIZES, Size
from milepost.lab.training.train import Trainer
from milepost.refusal import need

SMALL = "demo"
"""The lab's smallest size: about a minute on one core."""
FAR = 1024
"""Sixteen times what it is trained at."""


def train_small(
    folder: str | Path, size: Size | None = None, corpus: Corpus | None = None, seed: int = 0, progress: bool = True
) -> Corpus:
    """Train a model of bytes and write it into a folder of transformers; returns the text, whose end was not read.

    corpus: by default the source text of Python's standard library, which is on every machine.
    """
    need("train_small", "hf")
    size, corpus = size or SIZES[SMALL], corpus or of_python()
    recipe = size.recipe
    corpus.needs(recipe.length, size.longest)
    torch.manual_seed(seed)
    model = Model(size.shape, build("rope", size.shape, recipe.length, size.longest))
    trainer = Trainer(model, recipe, corpus.batches(seed, recipe.batch, recipe.length))
    with bar("train", recipe.steps, progress) as advance:
        while not trainer.done:
            loss = trainer.advance()
            if trainer.step % 20 == 0:
                advance(f"loss {float(loss):.3f} nats a byte", 20)
    write_lab_model(model, folder, recipe.length)
    return corpus
