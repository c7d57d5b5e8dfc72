"""Every served model type under every method: saved, and read by stock transformers without milepost.

    python -m tests.sweeps.saved [--types llama,phi3] [--out docs/sweeps/saved.md]

Stock transformers must give the logits of the extended model past its trained length, or an error that names milepost.
`make sweep-saved` runs all of it and writes a page; `tests/hf/test_saving.py` runs a sample.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

import milepost as mp
from milepost.hf import extend, load, restore
from milepost.hf.model.models import KNOWN, REPLACED
from tests.hf.tiny import tiny, tokens

TRAINED, LENGTH = 64, 96
CLOSE = 1e-5
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "falcon with ALiBi": {"alibi": True},
    "llama with Llama3": {"rope_parameters": LLAMA3},
}
"""What else a model is made with."""
TYPES = tuple(sorted({*KNOWN, *REPLACED, *OWN}))
READER = Path(__file__).with_name("stock_reader.py")


@dataclass(frozen=True)
class Outcome:
    """What became of one model type under one method."""

    model_type: str
    method: str
    worst: float | None = None
    """How far the logits of stock transformers are from ours, where it reads the folder."""
    error: str = ""
    """What stock transformers raised."""
    refused: str = ""
    """Why `extend` refused the method; nothing is saved then."""
    loaded: float = 0.0
    """How far the logits of `milepost.hf.load` are from ours."""
    effect: float = 0.0
    """How far the logits are from those of the model as it was."""

    @property
    def kind(self) -> str:
        """read, names milepost, refused by extend, or wrong."""
        if self.refused:
            return "refused by extend"
        if self.loaded > CLOSE:
            return "wrong"
        if self.error:
            return "names milepost" if "milepost" in self.error else "wrong"
        return "read" if self.worst is not None and self.worst <= CLOSE else "wrong"

    def __str__(self) -> str:
        return f"{self.model_type}, {self.method}: {self.kind} ({self.worst}, load {self.loaded}, {self.error[:200]})"


def model_of(model_type: str) -> Any:
    """Return a small model, with weights at which float32 gives logits to some 1e-6 and a method moves them by 1."""
    return tiny(model_type.split()[0], initializer_range=0.1, **OWN.get(model_type, {}))


def methods(model: Any) -> dict[str, tuple[object, ...]]:
    """Return every method, sized for a model; those that it cannot be given are refused by `extend`."""
    n, heads = mp.Scheme.of(model.config).trained or TRAINED, model.config.num_attention_heads
    turn = next((part for layer in range(2) for part in mp.Scheme.of(model.config, layer=layer).parts
                 if getattr(part, "rotary", False)), None)  # fmt: skip
    d = 8 if turn is None else turn.head_dim
    rope = mp.Rope(d) if turn is None else turn.method if isinstance(turn, mp.Partial) else turn
    pairs = rope.head_dim // 2
    slow = tuple(1.0 + 3 * i / max(1, pairs - 1) for i in range(pairs))
    assert n <= TRAINED
    return {
        "Interpolate": (mp.Interpolate(4.0),),
        "Ntk": (mp.Ntk(4.0),),
        "NtkMixed": (mp.NtkMixed(4.0),),
        "ByParts": (mp.ByParts(4, n),),
        "ByParts, not truncated": (mp.ByParts(4, n, truncate=False),),
        "Yarn": (mp.Yarn(4, n),),
        "Yarn, not truncated": (mp.Yarn(4, n, truncate=False),),
        "Yarn, the paper's ramp": (mp.Yarn(4, n, ramp="paper"),),
        "Yarn, other ramp and magnitude": (mp.Yarn(4, n, fast=16.0, slow=2.0, scaled=1.2),),
        "Llama3": (mp.Llama3(4.0, n),),
        "LongRope": (mp.LongRope((1.0,) * pairs, slow, n, factor=4.0),),
        "LongRope, magnitude": (mp.LongRope((1.0,) * pairs, slow, n, factor=4.0, scaled=1.1),),
        "Proportional": (mp.Proportional(0.5),),
        "Proportional, slower": (mp.Proportional(0.75, factor=2.0),),
        "DynamicNtk": (mp.DynamicNtk(n),),
        "DynamicNtk, factor": (mp.DynamicNtk(n, factor=2.0),),
        "DynamicLinear": (mp.DynamicLinear(n),),
        "DynamicYarn": (mp.DynamicYarn(n),),
        "Rope, larger base": (with_base(turn, rope),),
        "Partial": (mp.Partial(mp.Rope(max(2, d // 4 * 2)), of=d),),
        "Xpos": (mp.Xpos(d, fade=16.0, pairs="halves"),),
        "FusedRope": (mp.FusedRope(d),),
        "LearnedRope": (mp.LearnedRope(d),),
        "AxialRope": (mp.AxialRope(d, (d // 4, d // 2 - d // 4)),),
        "TwoPartRope": (mp.TwoPartRope(d // 4 * 4),),
        "Nope": (mp.Scheme(mp.Nope(), mp.causal),),
        "Rerope": (mp.Rerope(16),),
        "LeakyRerope": (mp.LeakyRerope(16, 4.0),),
        "SelfExtend": (mp.SelfExtend(4, 16),),
        "DualChunk": (mp.DualChunk(48, 8),),
        "Stream": (mp.Stream(4, 16),),
        "Pivot": (mp.Pivot(mp.Rerope(16), n),),
        "Dilute": (mp.Dilute(mp.Rerope(min(16, n // 2)), n),),
        "KeepSinks": (
            mp.Dilute(
                mp.Pivot(mp.KeepSinks(mp.Rerope(min(16, n // 2), at=4), sinks=2), n, strength=0.5), n, strength=0.25
            ),
        ),
        "Yarn and Rerope": (mp.Yarn(4, n), mp.Rerope(16)),
        "Yarn and LogN": (mp.Yarn(4, n), mp.LogN(n)),
        "LogN": (mp.LogN(n),),
        "LogN, by length": (mp.LogN(n, count="length"),),
        "Llama4Scale": (mp.Llama4Scale(chunk=16, weight=0.5),),
        "DeepseekScale": (mp.DeepseekScale(4.0),),
        "Yarn and DeepseekScale": (mp.Yarn(4, n), mp.DeepseekScale(4.0)),
        "Scale": (mp.Scale(0.7),),
        "SoftCap": (mp.SoftCap(2.0),),
        "SoftmaxOne": (mp.SoftmaxOne(heads),),
        "SinkLogit": (mp.SinkLogit(heads),),
        "window and sinks": (mp.causal & (mp.window(16) | mp.sinks(4)),),
        "Alibi": (mp.Alibi(heads),),
        "AlibiNtk": (mp.AlibiNtk(4.0),),
        "AlibiInterpolate": (mp.AlibiInterpolate(4.0),),
        "AlibiDynamicNtk": (mp.AlibiDynamicNtk(n),),
        "AlibiNtk and LogN": (mp.AlibiNtk(4.0), mp.LogN(n)),
        "OffsetAlibi": (mp.OffsetAlibi(heads),),
        "SplitAlibi": (mp.SplitAlibi(heads),),
        "LearnedAlibi": (mp.LearnedAlibi(heads),),
        "Sandwich": (mp.Sandwich(heads, d),),
        "Nezha": (mp.Nezha(d),),
        "Kerple": (mp.Kerple(heads),),
        "Fire": (mp.Fire(heads),),
        "T5Bias": (mp.T5Bias(heads),),
        "Shaw": (mp.Shaw(d),),
        "Cope": (mp.Cope(d, 16),),
    }


OTHERS = frozenset({
    "ComplexOrder", "Floater", "Hierarchical", "Learned", "Multiplied", "Recurrent", "Sinusoidal", "Deberta",
    "TransformerXL", "FloaterLayer", "QkNorm", "Pose", "Randomized",
})  # fmt: skip
"""Methods that no trained decoder is given: they act on embeddings, learn, or are samplers; `extend` refuses them."""


def with_base(turn: Any, rope: mp.Rope) -> Any:
    """A rotation with twice the base."""
    larger = mp.Rope(rope.head_dim, theta=2 * rope.theta, pairs=rope.pairs)
    return mp.Partial(larger, of=turn.of) if isinstance(turn, mp.Partial) else larger


def saved(cases: Sequence[tuple[str, str]], folder: Path) -> Iterator[tuple[Path, Outcome]]:
    """Save each model type under each method in a folder of its own, where `extend` takes it."""
    models, before = dict[str, Any](), torch.zeros(())
    ids = tokens(2, LENGTH)
    for number, (model_type, method) in enumerate(cases):
        if model_type not in models:
            models = {model_type: model_of(model_type)}
            # GPT-J has no angles for later tokens until it is extended, and MPT refuses them.
            before = models[model_type](ids[:, :TRAINED] if model_type in ("gptj", "mpt") else ids).logits
        model, here = models[model_type], folder / str(number)
        given = methods(model)[method]
        try:
            extend(model, *given)
        except (ValueError, TypeError) as error:
            yield here, Outcome(model_type, method, refused=str(error))
            continue
        logits = model(ids).logits
        model.save_pretrained(here)
        torch.save((ids, logits), here / "expected.pt")
        again = load(here).eval()
        assert mp.Schedule.of(here).same_as(mp.Schedule.of(model)), (model_type, method)
        off = float((again(ids).logits - logits).abs().max())
        effect = float((logits[:, : before.shape[1]] - before).abs().max())
        yield here, Outcome(model_type, method, loaded=off, effect=effect)
        restore(model)


@torch.no_grad()
def outcomes(cases: Sequence[tuple[str, str]]) -> list[Outcome]:
    """Save all cases, and read them in one process that cannot import milepost."""
    place = Path(tempfile.mkdtemp(prefix="saved-"))
    try:
        made = list(saved(cases, place))
        folders = [str(here) for here, outcome in made if not outcome.refused]
        # -I: the files beside the reader are no modules; one of them is called as a module of Python.
        command = [sys.executable, "-I", str(READER)]
        done = subprocess.run(command, input="\n".join(folders), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        answers = {each["folder"]: each for each in map(json.loads, done.stdout.splitlines())}
    finally:
        shutil.rmtree(place)
    return [
        outcome if outcome.refused else replace(
            outcome, worst=answers[str(here)].get("worst"), error=answers[str(here)].get("error", "")
        )
        for here, outcome in made
    ]  # fmt: skip


# The page


def page(found: Sequence[Outcome], commit: str, date: str) -> str:
    """Return the sweep as Markdown."""
    counts = Counter(each.kind for each in found)
    worst = max((each.worst or 0.0 for each in found if each.kind == "read"), default=0.0)
    types = list(dict.fromkeys(each.model_type for each in found))
    lines = [
        "# Saved models, read by stock transformers", "",
        f"`make sweep-saved`, {date}, commit {commit}, torch {torch.__version__.partition('+')[0]}, transformers "
        f"{transformers.__version__}.", "",
        f"{len(types)} model types (two layers, random weights, trained length {TRAINED}) under "
        f"{len({each.method for each in found})} methods. Each model is extended, saved with `save_pretrained`, and "
        f"read with `AutoModelForCausalLM` in a process that cannot import milepost, on {LENGTH} tokens.", "",
        "| outcome | cases |", "|---|---|",
        f"| stock transformers gives the same logits (largest difference {worst:.1e}) | {counts['read']} |",
        f"| stock transformers raises an error that names milepost | {counts['names milepost']} |",
        f"| `extend` refuses the method, nothing is saved | {counts['refused by extend']} |",
        f"| other logits, or another error | {counts['wrong']} |", "",
        f"In the median a method moves the logits by {median(each.effect for each in found if not each.refused):.2g}.",
        "In every case that was saved `milepost.hf.load` gives the same logits, and `Schedule.of(folder)` the same "
        "schedule.", "", "## By method", "",
        "| method | same logits | names milepost | refused by `extend` | wrong |", "|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        row(name, [each for each in found if each.method == name]) for name in dict.fromkeys(e.method for e in found)
    ]
    lines += ["", "## By model type", "", "| model type | same logits | names milepost | refused by `extend` | wrong |",
              "|---|---|---|---|---|"]  # fmt: skip
    lines += [row(name, [each for each in found if each.model_type == name]) for name in types]
    bad = [each for each in found if each.kind == "wrong"]
    lines += ["", "## Wrong", "", *(f"- {each}" for each in bad)] if bad else []
    return "\n".join(lines) + "\n"


def row(name: str, found: Sequence[Outcome]) -> str:
    """Return one line of a table."""
    counts = Counter(each.kind for each in found)
    kinds = ("read", "names milepost", "refused by extend", "wrong")
    return f"| {name} | {' | '.join(str(counts[kind]) for kind in kinds)} |"


def commit_now() -> str:
    """Return the commit that is checked out, and whether the source differs from it."""
    run = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()  # noqa: E731
    return run("rev-parse", "--short=12", "HEAD") + (" with changes" if run("status", "--porcelain", "src") else "")


def quiet() -> None:
    """Leave out transformers' warnings and progress bars."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def main() -> None:
    """Run the sweep, type by type, and write its page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES)
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    quiet()
    names = asked.methods or list(methods(model_of("llama")))
    # Read first: the checkout may move on in the hour that this takes.
    commit, date = commit_now(), datetime.now(timezone.utc).strftime("%Y-%m-%d")
    found: list[Outcome] = []
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn"), initializer=quiet) as pool:
        for some in pool.map(outcomes, [[(each, name) for name in names] for each in asked.types]):
            found += some
            print(some[0].model_type, dict(Counter(each.kind for each in some)), flush=True)
    for each in found:
        if each.kind == "wrong":
            print(each)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(page(found, commit, date), encoding="utf-8")
    sys.exit(any(each.kind == "wrong" for each in found))


if __name__ == "__main__":
    main()
