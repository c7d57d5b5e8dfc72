"""Extend a model without training: tune settings on one part of a text, judge the best on another.

    python examples/tune_and_judge.py MODEL --text FILE --to 32768 --out DIR

The first third of the text tunes: every setting of the grid is read at the target, and of those whose recall over
nearly the whole length stays within 0.4 bits of what the model as it is recalls inside its trained length the one with
the lowest loss is kept (where none does, the one that recalls best). The rest judges: the same last tokens at every
length, compared with stock, a window and a window with sinks, in pairs; recall by distance; pass keys by depth.
docs/extended.md has the results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.hf import extend, measure, plan, restore
from milepost.hf.measuring.measured_page import Measured

BESIDE = ("ReRoPE, diluted pivot", "self-extend", "YaRN")
"""Rows of the lab that are judged next to the best, with their default settings."""


def grid(trained: int) -> dict[str, str]:
    """The settings tried: how far near keys reach, how strongly far ones are set off against these and the sinks, and
    how much less more of them weigh; far keys are at a quarter of the trained length. Two do not keep the sinks.
    """
    half, widest = trained // 2, 15 * trained // 16
    spaces = itertools.product((half, 3 * trained // 4, widest), (0.5, 1.0), (0.0, 0.25))
    found = [(f"{near}, sinks kept", f"KeepSinks(Rerope({near}, {trained // 4}))", *rest) for near, *rest in spaces]
    lowered = str(half), f"Rerope({half}, {trained // 4})"
    return {
        f"ReRoPE {name}, pivot {pivot}, diluted {diluted}": written(moved, pivot, diluted)
        for name, moved, pivot, diluted in (*found, (*lowered, 0.25, 0.5), (*lowered, 1.0, 0.0))
    }


def written(moved: str, pivot: float, diluted: float) -> str:
    """A setting as an expression of the lab."""
    place = f"Pivot({moved}, trained, {pivot})"
    return f"Rope(dim) + {f'Dilute({place}, trained, {diluted})' if diluted else place}"


def under(model: Any, row: str | None, to: int, last: int) -> Callable[[Tensor], Tensor]:
    """The model's logits under a row of the lab, and the model as it was again."""

    def logits(ids: Tensor) -> Tensor:
        if row is not None:
            extend(model, row, to=to)
        try:
            return model(input_ids=ids.to(model.device), use_cache=False, logits_to_keep=last).logits
        finally:
            restore(model)

    return logits


class Tried(NamedTuple):
    """What a row came to on the tuning text: nats a token, and bits of a second copy inside and outside."""

    nats: float
    inside: float
    outside: float

    def cost(self, stock: Tried) -> tuple[bool, float]:
        """First recall, by what the model itself recalls inside its length; then the loss."""
        recalls = self.outside < stock.inside + 0.4
        return not recalls, self.nats if recalls else self.outside


def tried(
    model: Any, ids: Tensor, name: str, row: str | None, trained: int, to: int, asked: argparse.Namespace
) -> Tried:
    """Read the tuning text under a row; of the model as it is, what a window reads counts."""
    inside, outside, last = 3 * trained // 4, to - 4 * asked.passage, min(4 * asked.last, trained // 2)
    found = measure(
        {name: under(model, row, to, max(last, asked.passage))}, ids, trained=trained, lengths=[to], last=last,
        windows=max(2, asked.windows // 3), window=trained if row is None else 0,
        distances=(inside, outside), passage=asked.passage, trials=asked.trials, needle=(), progress=False,
    )  # fmt: skip
    near, far = (found.recall[found.rows[-1]][each].second.mean / math.log(2) for each in (inside, outside))
    return Tried(found.nats[found.rows[-1]][to].mean, near, far)


def tuned(model: Any, ids: Tensor, trained: int, to: int, asked: argparse.Namespace) -> str:
    """The name of the best setting of the grid. What was tried is kept, and not tried again after a stop."""
    rows: dict[str, str | None] = {"window with sinks": None, **grid(trained)}
    kept, question = asked.out / "tuned.json", {name: str(value) for name, value in vars(asked).items()}
    before = json.loads(kept.read_text()) if kept.exists() else {}
    known: dict[str, Sequence[float]] = before["tried"] if before.get("asked") == question else {}
    for number, (name, row) in enumerate(rows.items()):
        if name not in known:
            known[name] = tried(model, ids, name, row, trained, to, asked)
            kept.with_suffix(".new").write_text(json.dumps({"asked": question, "tried": known}, indent=2))
            kept.with_suffix(".new").replace(kept)
        nats, near, far = known[name]
        told = f"{nats:.4f} nats a token, second copies {near:.2f} and {far:.2f} bits"
        print(f"tried {number + 1} of {len(rows)}, {name}: {told}", flush=True)
    stock, *_ = found = [Tried(*known[name]) for name in rows]
    return min(zip(list(rows)[1:], found[1:], strict=True), key=lambda each: each[1].cost(stock))[0]


def judged(model: Any, tokenizer: Any, ids: Tensor, trained: int, rows: dict[str, str | None], to: int,
           asked: argparse.Namespace) -> Measured:  # fmt: skip
    """Everything that `measure` knows of these rows."""
    lengths = [trained * 2**n for n in range(int(math.log2(to / trained)) + 1)]
    distances = [trained // 4, 3 * trained // 4, 3 * trained // 2, to - 4 * asked.passage]
    return measure(
        {name: under(model, row, to, max(asked.last, asked.passage)) for name, row in rows.items()}, ids, tokenizer,
        trained=trained, lengths=lengths, last=asked.last, windows=asked.windows, distances=distances,
        passage=asked.passage, trials=asked.trials, needle=() if asked.no_needles else lengths,
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
    asked.out.mkdir(parents=True, exist_ok=True)
    best = tuned(model, ids[: len(ids) // 3], trained, asked.to, asked)
    rows = {"stock": None, best: grid(trained)[best]} | {name: name for name in BESIDE}
    found = judged(model, tokenizer, ids[len(ids) // 3 :], trained, rows, asked.to, asked)
    (asked.out / "measured.json").write_text(found.to_json())
    print(found, f"\nthe page is {found.to_html(asked.out / 'measured.html')}")


if __name__ == "__main__":
    main()
