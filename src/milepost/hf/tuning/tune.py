"""`tune`: stretch a model, train it at length, save it, and measure what it brought."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from milepost import Schedule
from milepost.hf.files.saving import save
from milepost.hf.measuring.judged import STOCK
from milepost.hf.measuring.measure import bar, measure
from milepost.hf.measuring.measured_page import Measured
from milepost.hf.measuring.trials import ending_tokens
from milepost.hf.model.extension import changed_by
from milepost.hf.tuning.passages import Passages
from milepost.hf.tuning.recipe import Recipe, stretched
from milepost.hf.tuning.training import CHECKPOINTS, last_whole, seconds_a_step, step_of, trained, with_low_rank
from milepost.lab.command.progress import duration
from milepost.refusal import need

ASKED, LOSSES, REPORT = "tune.json", "losses.json", "report.json"
LAST, WINDOWS, PASSAGE, TRIALS = 256, 16, 64, 8
"""Tokens of an ending that are judged, endings, tokens of a passage that comes again, and such passages."""
NEEDED = ("accelerate", "peft", "transformers", "safetensors")
Say = Callable[[str], object]


@dataclass(frozen=True)
class Tuned:
    """A tuned model, the loss of each step, and what was measured before and after."""

    model: Any
    losses: list[float]
    measured: Measured

    def __str__(self) -> str:
        tenth = max(1, len(self.losses) // 10)
        first, last = (sum(part) / tenth for part in (self.losses[:tenth], self.losses[-tenth:]))
        steps = f"{len(self.losses)} steps: the loss fell from {first:.3f} to {last:.3f} nats a token"
        return f"{self.measured}\n\n{steps} (means of the first and the last {tenth})"


def tune(
    read: Callable[[], Any],
    recipe: Recipe,
    train: Tensor,
    judge: Tensor,
    out: Path,
    *,
    tokenizer: Any = None,
    first: int | None = None,
    name: str = "",
    windows: int = WINDOWS,
    say: Say = print,
    progress: bool = True,
) -> Tuned:
    """Stretch a model by a recipe, train it on a text, save it into a folder, and measure it beside what it was.

    read: gives the model; it is read twice, the second time to measure how it was. train, judge: token ids of texts
    that share nothing. first: a token that every text begins with. The folder keeps the optimizer, the place in the
    data and the random states: called again with the same arguments it resumes, to the same losses as a run that was
    not interrupted. Low-rank weights are merged: alone they would be put onto a model without the method, in silence.

    What is measured: the loss of the last tokens, and the cost of a passage that comes again, of the model as it was,
    of a window on it, of the stretched model, and of the tuned one.
    """
    need("tune", "tune", NEEDED)
    asked = demand_same(out, recipe, train, name)
    model = read()
    own = Schedule.of(model)
    stretched(model, recipe)
    short = own.trained or recipe.to
    sizes = judging(judge, short, recipe.to, windows)
    passages = Passages(
        train, recipe.to, recipe.steps * recipe.batch, recipe.seed, first, short if recipe.pose else None
    )
    # From here on the folder is of this call: what was refused before leaves it as it was.
    out.mkdir(parents=True, exist_ok=True)
    (out / ASKED).write_text(json.dumps(asked, indent=2), encoding="utf-8")
    model = with_low_rank(model, recipe.rank, recipe.seed)
    resumed = step_of(last_whole(out))
    if resumed < recipe.steps:
        each = seconds_a_step(model, passages, recipe.batch)
        left = recipe.steps - resumed
        at = f"resumes at step {resumed} of {recipe.steps}; " if resumed else ""
        say(f"{at}about {duration(each * left)} for {left} steps of {each:.3g} s, and then the measuring")
    with bar("tune", recipe.steps, progress) as advance:
        if resumed:
            advance(f"resumed at step {resumed}", resumed)
        losses = trained(model, passages, recipe, out, lambda step, loss: advance(f"loss {loss:.3f} nats a token"))
    model = merged(model)
    written(model, out, tokenizer)
    (out / LOSSES).write_text(json.dumps(losses), encoding="utf-8")
    before = stretched(read(), recipe)
    rows = {f"{recipe.given}, untuned": before, f"{recipe.given}, tuned": model}
    if changed_by(before) is None:
        rows = {STOCK: before, f"{recipe.given}, tuned": model}
    last, count, passage = sizes
    measured = measure(
        rows, judge, lengths=[short, recipe.to], trained=short, last=last, windows=count, passage=passage,
        distances=[recipe.to // 4, recipe.to - 2 * passage], needle=(), trials=TRIALS, first=first, seed=recipe.seed,
        progress=progress,
    )  # fmt: skip
    done = Tuned(model, losses, measured)
    measured.to_html(out / "report.html")
    (out / REPORT).write_text(measured.to_json(), encoding="utf-8")
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    return done


def demand_same(out: Path, recipe: Recipe, train: Tensor, name: str) -> dict[str, Any]:
    """Refuse a folder that was not begun by the same call, or is done; return what the folder keeps of a call."""
    digest = hashlib.sha256(train.numpy().tobytes()).hexdigest()[:16]
    asked = {"model": name, "text": digest, "recipe": recipe.to_dict()}
    file = out / ASKED
    if not file.exists():
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"--out {out}: this folder is not empty, and no tuning was begun in it; name another")
        return asked
    try:
        there: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        other = recipe.other(there["recipe"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--out {out}: its {ASKED} cannot be read ({error}); name another folder") from error
    other = other or ", ".join(key for key in ("model", "text") if there.get(key) != asked[key])
    if other:
        raise ValueError(
            f"--out {out}: this folder was begun otherwise ({other}); give the same again, or name another"
        )
    if (out / REPORT).exists():
        raise ValueError(f"--out {out}: this tuning is done; its report is {out / 'report.html'}. Name another folder")
    return asked


def judging(judge: Tensor, short: int, to: int, windows: int) -> tuple[int, int, int]:
    """Return the tokens of an ending, the endings, and the tokens of a passage, as there is room for."""
    last, passage = min(LAST, max(1, short // 4)), min(PASSAGE, max(1, short // 8))
    fitting = next((n for n in range(windows, 1, -1) if ending_tokens(to, n, last) <= len(judge)), 0)
    if not fitting:
        raise ValueError(
            f"tune: the text to judge on has {len(judge):,} tokens, and {ending_tokens(to, 2, last):,} are needed; "
            f"give a longer --text, of which the last twentieth is kept from training, or another text with --judge"
        )
    return last, fitting, passage


def merged(model: Any) -> Any:
    """The model with what was trained in its own weights."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def written(model: Any, out: Path, tokenizer: Any) -> None:
    """Write a tuned model and its tokenizer."""
    if changed_by(model) is None:
        model.save_pretrained(out)
    else:
        save(model, out)
    if tokenizer is not None:
        tokenizer.save_pretrained(out)
