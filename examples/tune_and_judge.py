"""How far a model goes without training: settings tried on one part of a text, the best judged on another.

    python examples/tune_and_judge.py MODEL --text FILE --to 32768 --out DIR

The first third of the text tunes: every setting of the grid is read at the target, and of those whose recall over
nearly the whole length stays within half a bit of recall inside the trained length the one with the lowest loss is
kept (of all, where none recalls). The rest judges: the same last tokens at every length, beside stock, a window and a
window with sinks, in pairs; recall by distance; pass keys by depth. docs/extended.md has what came of it.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.hf import extend, measure, plan, restore
from milepost.hf.measured import Measured

PIVOT = "Rope(dim) + Pivot({inner}, trained, {strength})"
DILUTED = "Rope(dim) + Dilute({inner}, trained, {strength})"
BESIDE = ("ReRoPE", "ReRoPE, log-n", "self-extend", "YaRN", "dynamic NTK")
"""Rows of the lab that are judged beside the best, as they come."""


def grid(trained: int) -> dict[str, str]:
    """The settings tried: how far near keys reach, where far ones stand, how strongly these are set off against
    them, and how much less more of them weigh.
    """
    found: dict[str, str] = {}
    for near in (trained // 4, trained // 2, 3 * trained // 4):
        for strength in (0.1, 0.25, 0.5, 1.0):
            found[f"ReRoPE {near}, pivot {strength}"] = PIVOT.format(inner=f"Rerope({near})", strength=strength)
    for near in (trained // 4, trained // 2):
        for inner, name in ((f"LeakyRerope({near}, 16)", "leaky"), (f"SelfExtend(8, {near})", "self-extend")):
            found[f"{name} {near}, pivot 0.25"] = PIVOT.format(inner=inner, strength=0.25)
    for near, at in ((trained // 2, trained // 2), (trained // 2, trained // 4), (trained // 2, trained // 8)):
        inner, name = f"Rerope({near}, {at})", f"ReRoPE {near} at {at}"
        for strength in (0.5, 1.0, 2.0):
            found[f"{name}, diluted {strength}"] = DILUTED.format(inner=inner, strength=strength)
        for strength in (0.25, 0.5):
            both = DILUTED.format(inner=f"Pivot({inner}, trained, 0.25)", strength=strength)
            found[f"{name}, pivot 0.25, diluted {strength}"] = both
    # Nearly all of the trained length as it was trained, and far keys where the model recalls well.
    for at, pivot, strength in itertools.product((trained // 4, trained // 8), (0.25, 0.5), (0.25, 0.5, 1.0)):
        inner = f"Rerope({15 * trained // 16}, {at})"
        both = DILUTED.format(inner=f"Pivot({inner}, trained, {pivot})", strength=strength)
        found[f"ReRoPE {15 * trained // 16} at {at}, pivot {pivot}, diluted {strength}"] = both
    return found


def under(model: Any, row: str | None, to: int, last: int) -> Callable[[Tensor], Tensor]:
    """The model's logits under a row, and the model as it was again."""

    def logits(ids: Tensor) -> Tensor:
        if row is not None:
            extend(model, row, to=to)
        try:
            return model(input_ids=ids.to(model.device), use_cache=False, logits_to_keep=last).logits
        finally:
            restore(model)

    return logits


def tuned(model: Any, ids: Tensor, trained: int, to: int, asked: argparse.Namespace) -> tuple[str, str]:
    """The best setting of the grid, and its name."""
    inside, outside = trained // 2, to - 4 * asked.passage
    losses: dict[str, float] = {}
    recalls: set[str] = set()
    rows = grid(trained)
    for name, row in rows.items():
        found = measure(
            {name: under(model, row, to, max(asked.last, asked.passage))}, ids, trained=trained, lengths=[to],
            last=asked.last, windows=max(2, asked.windows // 4), window=0, distances=(inside, outside),
            passage=asked.passage, trials=max(2, asked.trials // 3), needle=(), progress=False,
        )  # fmt: skip
        near, far = (found.recall[name][each].second.mean / math.log(2) for each in (inside, outside))
        losses[name] = found.nats[name][to].mean
        if far < near + 0.5:
            recalls.add(name)
        print(f"tried {name}: {losses[name]:.4f} nats a token, second copies {near:.2f} and {far:.2f} bits", flush=True)
    best = min(recalls or losses, key=lambda name: losses[name])
    return best, rows[best]


def judged(model: Any, tokenizer: Any, ids: Tensor, trained: int, rows: dict[str, str | None], to: int,
           asked: argparse.Namespace) -> Measured:  # fmt: skip
    """Everything that `measure` knows of these rows."""
    lengths = [trained * 2**n for n in range(int(math.log2(to / trained)) + 1)]
    distances = [trained // 4, 3 * trained // 4, 3 * trained // 2, to - 4 * asked.passage]
    return measure(
        {name: under(model, row, to, max(asked.last, asked.passage)) for name, row in rows.items()}, ids, tokenizer,
        trained=trained, lengths=lengths, last=asked.last, windows=asked.windows, distances=distances,
        passage=asked.passage, trials=asked.trials, needle=() if asked.no_needles else [trained // 2, *lengths],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune, judge, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--last", type=int, default=256)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--passage", type=int, default=64)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--no-needles", action="store_true", help="leave out the pass keys, which take longest")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    asked = parser.parse_args(arguments)
    model: Any = AutoModelForCausalLM.from_pretrained(asked.model, dtype=getattr(torch, asked.dtype)).to(asked.device)
    tokenizer: Any = AutoTokenizer.from_pretrained(asked.model)
    ids = torch.tensor(tokenizer(asked.text.read_text(errors="replace"), add_special_tokens=False)["input_ids"])
    trained = plan(model.config, asked.to).trained
    best, row = tuned(model, ids[: len(ids) // 3], trained, asked.to, asked)
    rows: dict[str, str | None] = {"stock": None, best: row} | {name: name for name in BESIDE}
    found = judged(model, tokenizer, ids[len(ids) // 3 :], trained, rows, asked.to, asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "measured.json").write_text(found.to_json())
    print(found, f"\nthe page is {found.to_html(asked.out / 'measured.html')}")


if __name__ == "__main__":
    main()
