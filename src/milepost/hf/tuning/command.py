"""`milepost tune`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.refusal import demand_model, need, refuse

TRAIN, JUDGE = 32 << 20, 8 << 20
"""Bytes of a text that are made into tokens, to train and to judge on."""


def tune(
    model: Annotated[str, typer.Argument(help="A folder with weights and a tokenizer, or a name of the hub.")],
    given: Annotated[
        str,
        typer.Option(
            "--with", help="A method, as extend takes it: 'Yarn(4, trained=8192)'; or a preset: longchat, storywriter."
        ),
    ],
    text: Annotated[Path, typer.Option("--text", help="A file or folder to train on; its end is kept to judge on.")],
    to: Annotated[int, typer.Option("--to", help="How many tokens it should read.")],
    out: Annotated[Path, typer.Option("--out", help="A folder for the tuned model; rerun the command to resume.")],
    steps: Annotated[int, typer.Option("--steps", help="Steps of training.")] = 300,
    batch: Annotated[int, typer.Option("--batch", help="Texts of a step.")] = 1,
    rate: Annotated[
        float, typer.Option("--rate", help="The highest learning rate.", show_default="2e-4, --whole 2e-5")
    ] = 0.0,
    rank: Annotated[int, typer.Option("--rank", help="Of the low-rank weights (LoRA).")] = 16,
    whole: Annotated[bool, typer.Option("--whole", help="Train all weights.")] = False,
    pose: Annotated[bool, typer.Option("--pose", help="Read short cuts at skipped positions, not long texts.")] = False,
    judge: Annotated[Path | None, typer.Option("--judge", help="Another text to judge on.", exists=True)] = None,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Keep few activations: less memory, a third more time.")
    ] = False,
    save_every: Annotated[int, typer.Option("--save-every", help="Steps from one checkpoint to the next.")] = 50,
    seed: Annotated[int, typer.Option("--seed", help="Of the passages and of new weights.")] = 0,
) -> None:
    """Stretch a model and fine-tune it at length; measure its loss and its recall before and after.

    The folder is a model with the weights merged: of transformers alone where its config can say the method, else of
    milepost.hf.load. How long it takes is said first. Killed anywhere, the same command resumes, to the same losses.
    """
    demand_model(model, "tune")
    try:
        need("tune", "tune")
        import torch

        from milepost.hf.files.read import read_model
        from milepost.hf.show import show
        from milepost.hf.tuning.recipe import Recipe
        from milepost.hf.tuning.tune import tune as tuned

        # Its bars of files are no news, and ours is one bar.
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        recipe = Recipe(given, to, steps, batch, rate, 0 if whole else rank, pose, seed, checkpointing, save_every)
        torch.manual_seed(seed)
        first_read, tokenizer = read_model(model, "tune")
        waiting = [first_read]
        del first_read

        def read() -> Any:
            return waiting.pop() if waiting else read_model(model, "tune")[0]

        train, judged = _texts(text, judge, tokenizer)
        done = tuned(
            read, recipe, train, judged, out, tokenizer=tokenizer, first=_first(tokenizer), name=model,
            say=lambda words: typer.echo(words, err=True),
        )  # fmt: skip
        state = show(out).state_in_words
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        typer.echo("\nmilepost: stopped; rerun the command to resume", err=True)
        raise SystemExit(130) from None
    typer.echo(f"{done}\n\nsaved: {out}\n{state}\nreport: {out / 'report.html'}")


def _texts(text: Path, judge: Path | None, tokenizer: Any) -> tuple[Any, Any]:
    """Return the ids to train and to judge on."""
    import torch

    from milepost.hf.measuring.trials import encoder
    from milepost.lab.text.corpus import of_path

    corpus = of_path(text)
    parts = [(corpus.train, TRAIN), (corpus.test, JUDGE)]
    if judge is not None:
        other = of_path(judge)
        parts = [(torch.cat((corpus.train, corpus.test)), TRAIN), (torch.cat((other.train, other.test)), JUDGE)]
    encode = encoder(tokenizer, "tune")
    found: list[torch.Tensor] = []
    for part, most in parts:
        if len(part) > most:
            typer.echo(f"read: the first {most >> 20} MiB of {len(part) / (1 << 20):,.0f}", err=True)
        words = part[:most].numpy().tobytes().decode(errors="ignore")
        found.append(torch.tensor(encode(words), dtype=torch.long))
    return found[0], found[1]


def _first(tokenizer: Any) -> int | None:
    """Return the token that a tokenizer begins every text with."""
    ids: list[int] = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id if ids and ids[0] == tokenizer.bos_token_id else None
