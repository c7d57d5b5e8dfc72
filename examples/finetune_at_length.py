"""Fine-tune a model at a longer length by the recipes of LongChat and MPT-StoryWriter.

    python examples/finetune_at_length.py --out DIR

A small model of bytes is trained on the spot, then tuned twice. For a model and a text of yours:

    milepost tune MODEL --with longchat --text FILE --to 16384 --out DIR

LongChat: positions are squeezed into the trained range (position interpolation), then the model is tuned at length.
StoryWriter: ALiBi, whose penalties are defined at every distance; it replaces the rotation of a RoPE model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoModelForCausalLM

from milepost.hf.files.small import FAR, train_small
from milepost.hf.tuning.recipe import PRESETS, Recipe
from milepost.hf.tuning.tune import tune


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a small model, tune it by each recipe, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the model and the tuned ones")
    parser.add_argument("--to", type=int, default=FAR, help="the length to reach")
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args(arguments)
    folder = asked.out / "model"
    corpus = train_small(folder)
    for preset in PRESETS:
        recipe = Recipe(preset, asked.to, asked.steps, batch=2, rate=3e-3)
        print(
            tune(
                lambda: AutoModelForCausalLM.from_pretrained(folder), recipe, corpus.train.long(), corpus.test.long(),
                asked.out / preset,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
