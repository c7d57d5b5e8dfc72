"""How far a model goes without training: settings tried on one part of a text, the best judged on another.

    python examples/tune_and_judge.py MODEL --text FILE --to 32768 --out DIR

The first third of the text tunes: every setting of the grid is read at the target, and of those whose recall over
nearly the whole length stays within half a bit of recall inside the trained length the one with the lowest loss is
kept (of all, where none recalls). With --by-layer the grid is another one: far keys are diluted in all layers, and
less so, with a pivot, in some; which ones is found layer by layer. The rest judges: the same last tokens at every
length, beside stock, a window and a window with sinks, in pairs; recall by distance; pass keys by depth.
docs/extended.md has what came of it.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost import Dilute, Pivot, Rerope, Schedule, Scheme
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


Row = str | Schedule | None
"""What a model is extended by: a row of the lab, a scheme for each layer, or nothing."""


def under(model: Any, row: Row, to: int, last: int) -> Callable[[Tensor], Tensor]:
    """The model's logits under a row, and the model as it was again."""

    def logits(ids: Tensor) -> Tensor:
        if isinstance(row, Schedule):
            extend(model, row)
        elif row is not None:
            extend(model, row, to=to)
        try:
            return model(input_ids=ids.to(model.device), use_cache=False, logits_to_keep=last).logits
        finally:
            restore(model)

    return logits


class Tried(NamedTuple):
    """What a setting came to on the tuning text: nats a token, and bits of a second copy inside and outside."""

    nats: float
    inside: float
    outside: float

    @property
    def recalls(self) -> bool:
        return self.outside < self.inside + 0.5


def tried(model: Any, ids: Tensor, name: str, row: Row, trained: int, to: int, asked: argparse.Namespace) -> Tried:
    """Read the tuning text under a row."""
    inside, outside = trained // 2, to - 4 * asked.passage
    found = measure(
        {name: under(model, row, to, max(asked.last, asked.passage))}, ids, trained=trained, lengths=[to],
        last=asked.last, windows=max(2, asked.windows // 4), window=0, distances=(inside, outside),
        passage=asked.passage, trials=max(2, asked.trials // 3), needle=(), progress=False,
    )  # fmt: skip
    near, far = (found.recall[name][each].second.mean / math.log(2) for each in (inside, outside))
    answer = Tried(found.nats[name][to].mean, near, far)
    print(f"tried {name}: {answer.nats:.4f} nats a token, second copies {near:.2f} and {far:.2f} bits", flush=True)
    return answer


def best_of(found: dict[str, Tried]) -> str:
    """Of those that recall, or of all where none does, the one with the lowest loss."""
    return min([name for name in found if found[name].recalls] or found, key=lambda name: found[name].nats)


def tuned(model: Any, ids: Tensor, trained: int, to: int, asked: argparse.Namespace) -> tuple[str, Row]:
    """The best setting of the grid, and its name."""
    rows: dict[str, Row] = dict(grid(trained))
    best = best_of({name: tried(model, ids, name, row, trained, to, asked) for name, row in rows.items()})
    return best, rows[best]


# Layer by layer


def opened(model: Any, trained: int, near: int, layers: Iterable[int], closed: float) -> Schedule:
    """ReRoPE whose far keys are diluted by a strength of `closed`, and in these layers by half of 1, with a pivot."""
    moved = Rerope(near, trained // 4)
    own, some = Schedule.of(model.config), set(layers)
    places = Dilute(moved, trained, closed), Dilute(Pivot(moved, trained, 0.25), trained, 0.5)
    schemes = [Scheme(*own[n].parts, places[n in some]) for n in range(len(own))]
    return Schedule(schemes)


def tuned_by_layer(model: Any, ids: Tensor, trained: int, to: int, asked: argparse.Namespace) -> tuple[str, Row]:
    """Layers in the order in which one alone brings recall, then the best of the first few, at several windows."""
    widest, count = 15 * trained // 16, len(Schedule.of(model.config))
    alone = {
        n: tried(model, ids, f"layer {n}", opened(model, trained, widest, [n], 2.0), trained, to, asked)
        for n in range(count)
    }
    order = sorted(alone, key=lambda n: alone[n].outside)
    print("layers by what they recall alone:", *order, flush=True)
    rows: dict[str, Row] = {}
    for near, closed in itertools.product((widest, 3 * trained // 4, trained // 2), (1.0, 2.0)):
        for many in sorted({1, 2, 3, 4, 6, 8, count // 3, count // 2, count}):
            if many <= count and (many < count or closed == 1.0):
                some = sorted(order[:many])
                name = f"ReRoPE {near}, diluted {closed}, open in {','.join(map(str, some)) if many < count else 'all'}"
                rows[name] = opened(model, trained, near, some, closed)
    best = best_of({name: tried(model, ids, name, row, trained, to, asked) for name, row in rows.items()})
    return best, rows[best]


def judged(model: Any, tokenizer: Any, ids: Tensor, trained: int, rows: dict[str, Row], to: int,
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
    parser.add_argument("--by-layer", action="store_true", help="choose the layers that look far")
    parser.add_argument("--no-needles", action="store_true", help="leave out the pass keys, which take longest")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    asked = parser.parse_args(arguments)
    model: Any = AutoModelForCausalLM.from_pretrained(asked.model, dtype=getattr(torch, asked.dtype)).to(asked.device)
    tokenizer: Any = AutoTokenizer.from_pretrained(asked.model)
    ids = torch.tensor(tokenizer(asked.text.read_text(errors="replace"), add_special_tokens=False)["input_ids"])
    trained = plan(model.config, asked.to).trained
    tune = tuned_by_layer if asked.by_layer else tuned
    best, row = tune(model, ids[: len(ids) // 3], trained, asked.to, asked)
    rows: dict[str, Row] = {"stock": None, best: row} | {name: name for name in BESIDE}
    found = judged(model, tokenizer, ids[len(ids) // 3 :], trained, rows, asked.to, asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "measured.json").write_text(found.to_json())
    print(found, f"\nthe page is {found.to_html(asked.out / 'measured.html')}")


if __name__ == "__main__":
    main()
