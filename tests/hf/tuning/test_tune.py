"""`milepost tune`: trained at length, killed and resumed to the same losses, saved for whoever can read it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import milepost as mp
from milepost.hf import extend, load
from milepost.hf.model.extension import extension_of
from milepost.hf.tuning.passages import IGNORED, Passages
from milepost.hf.tuning.recipe import Recipe, stretched
from milepost.hf.tuning.training import last_whole, seconds_a_step
from milepost.hf.tuning.tune import tune
from tests.hf.folders import tokenizer, write
from tests.hf.tiny import tiny

pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

WORDS = "the cat sat on a mat and saw that the rat ran far. "
RECIPE = Recipe("Yarn(4, trained=64)", to=256, steps=6, rate=1e-2, rank=2, save_every=2)


def ids(count: int) -> Tensor:
    return torch.tensor(tokenizer().encode(WORDS * count))


def model() -> Any:
    torch.manual_seed(0)
    return tiny("llama", eos_token_id=2)


def run(recipe: Recipe, out: Path, **more: Any) -> Any:
    read = more.pop("read", model)
    quiet: dict[str, Any] = {"say": lambda words: None, "progress": False, "windows": 2} | more
    return tune(read, recipe, ids(40), ids(10), out, **quiet)


def logits(given: Any) -> Tensor:
    with torch.no_grad():
        return given.eval()(ids(8)[None, :300], use_cache=False).logits


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("tuned") / "out"
    return run(RECIPE, out, tokenizer=tokenizer()), out


def test_the_loss_falls_and_stock_transformers_reads_the_folder(done: tuple[Any, Path]):
    tuned, out = done
    assert tuned.losses[-1] < tuned.losses[0]
    rows = tuned.measured.rows
    assert rows[:3] == ("stock", "Yarn(4, trained=64), untuned", "Yarn(4, trained=64), tuned")
    assert [each.split()[0] for each in rows[3:]] == ["window", "window"]
    assert tuned.measured.nats[rows[2]][256].mean < tuned.measured.nats[rows[1]][256].mean
    assert sorted(tuned.measured.recall[rows[2]]) == [64, 240]
    stock = AutoModelForCausalLM.from_pretrained(out)
    assert extension_of(stock) is None
    assert (logits(stock) - logits(tuned.model)).abs().max() < 1e-5
    assert not (out / "checkpoints").exists()
    assert json.loads((out / "losses.json").read_text()) == tuned.losses


class KilledError(Exception):
    pass


@pytest.mark.parametrize("rank", [2, 0], ids=["low-rank", "whole"])
def test_a_run_that_was_killed_resumes_to_the_same_losses(
    rank: int, done: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = replace(RECIPE, rank=rank, given="Rerope(16)") if rank == 0 else RECIPE
    unbroken = done[0].losses if rank else run(recipe, tmp_path / "whole").losses
    out = tmp_path / "killed"

    asked: list[int] = []

    def die(self: Passages, number: int) -> Any:
        # One is read for the estimate, and one ahead.
        asked.append(number)
        if len(asked) == 7:
            raise KilledError
        return given(self, number)

    given = Passages.__getitem__
    with monkeypatch.context() as patched:
        patched.setattr(Passages, "__getitem__", die)
        with pytest.raises(KilledError):
            run(recipe, out)
    # What a kill leaves of a checkpoint that was being written.
    (out / "checkpoints" / "checkpoint-6").mkdir()
    found = last_whole(out)
    assert found is not None and found.name == "checkpoint-4"  # noqa: PT018
    said: list[str] = []
    assert run(recipe, out, say=said.append).losses == unbroken
    assert said[0].startswith("resumes at step 4 of 6; about ")
    if not rank:
        # No config can say ReRoPE, so milepost reads the folder.
        assert extension_of(load(out)) is not None


def test_a_folder_that_was_begun_otherwise_is_refused(done: tuple[Any, Path], tmp_path: Path):
    with pytest.raises(ValueError, match=r"this folder was begun otherwise \(steps 6, now 7\); give the same again"):
        run(replace(RECIPE, steps=7), done[1])
    with pytest.raises(ValueError, match=r"this tuning is done; its report is .*report\.html"):
        run(RECIPE, done[1])
    (tmp_path / "own").write_text("")
    with pytest.raises(ValueError, match=r"this folder is not empty, and no tuning was begun in it"):
        run(RECIPE, tmp_path)


@pytest.mark.parametrize(("preset", "parts"), [
    ("longchat", (mp.Rope(8, stretch=mp.Interpolate(4.0)), mp.causal)), ("storywriter", (mp.Alibi(4), mp.causal)),
])  # fmt: skip
def test_presets_are_the_published_recipes(preset: str, parts: tuple[object, ...]):
    assert mp.Schedule.of(stretched(model(), replace(RECIPE, given=preset)))[0].parts == parts


def test_storywriter_leaves_alibi_as_it_is_and_longchat_squeezes_it():
    for preset, factor in (("storywriter", None), ("longchat", 4.0)):
        made = tiny("bloom")
        made.config.max_position_embeddings = 64
        found = mp.Schedule.of(stretched(made, replace(RECIPE, given=preset)))[0].parts[0]
        assert getattr(getattr(found, "stretch", None), "factor", None) == factor


@pytest.mark.parametrize("given", ["Yarn(4, trained=64)", "Rerope(16)"], ids=["rotary", "attend"])
def test_pose_reads_short_cuts_as_one_text_at_skipped_positions(given: str):
    passages = Passages(ids(40), 256, 8, 0, first=1, trained=64)
    rows = [passages[n] for n in range(8)]
    assert all(torch.equal(passages[n]["position_ids"], row["position_ids"]) for n, row in enumerate(rows))
    row = next(row for row in rows if (row["labels"] == IGNORED).any())
    skip = int((row["labels"] == IGNORED).nonzero())
    assert (len(row["input_ids"]), int(row["input_ids"][0])) == (64, 1)
    assert row["position_ids"].diff()[skip - 1] > 1
    assert torch.equal(row["labels"][:skip], row["input_ids"][:skip])
    # What comes after the skip sees what came before it: another first token changes it.
    made, batch = extend(model(), given), {name: each[None] for name, each in row.items()}
    other = batch | {"input_ids": torch.cat((torch.tensor([[9]]), batch["input_ids"][:, 1:]), 1)}
    with torch.no_grad():
        one, two = (made(**each, use_cache=False).logits[0, -1] for each in (batch, other))
    assert (one - two).abs().max() > 1e-6


def test_the_estimate_leaves_weights_and_random_numbers_alone():
    made, state = model(), torch.get_rng_state()
    before = {name: each.clone() for name, each in made.state_dict().items()}
    assert seconds_a_step(made, Passages(ids(40), 256, 2, 0), 2) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(each, before[name]) for name, each in made.state_dict().items())
    assert all(each.grad is None for each in made.parameters())
    assert not made.training


def test_what_cannot_be_tuned_is_refused_before_anything_is_read(tmp_path: Path):
    with pytest.raises(ValueError, match=r"the text to train on has 51 tokens, and 256 are read at once"):
        Passages(ids(1), 256, 2, 0)
    with pytest.raises(ValueError, match=r"the text to judge on has 51 tokens, and 273 are needed; give a longer"):
        tune(model, RECIPE, ids(40), ids(1), tmp_path / "a", progress=False)
    assert not (tmp_path / "a").exists(), "the call that is mended would be refused as another"
    with pytest.raises(ValueError, match=r"tune\(to=64\): this model was trained at 64 tokens; ask for more"):
        stretched(model(), replace(RECIPE, to=64))


@pytest.mark.slow
def test_the_command_says_what_it_takes_and_what_came_of_it(tmp_path: Path):
    write(tmp_path / "model")
    (tmp_path / "text").write_text(WORDS * 200)
    given = [str(tmp_path / "model"), "--with", "longchat", "--text", str(tmp_path / "text"), "--to", "128"]
    more = ["--out", str(tmp_path / "out"), "--steps", "2", "--rank", "2", "--rate", "0.01"]
    done = subprocess.run(
        [sys.executable, "-m", "milepost", "tune", *given, *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "for 2 steps of " in done.stderr
    assert "longchat, untuned" in done.stdout and "2 steps: the loss fell from" in done.stdout  # noqa: PT018
    assert "transformers alone reads it" in done.stdout
    assert (tmp_path / "out" / "tokenizer.json").exists()
