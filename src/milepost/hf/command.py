"""`milepost plan`, `check` and `extend`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from milepost.refusal import demand_model, need, refuse

Model = Annotated[str, typer.Argument(help="A folder with a config.json, that file, or a name of the hub.")]
To = Annotated[int, typer.Option("--to", help="How many tokens it should read.")]
Trained = Annotated[int | None, typer.Option("--trained", help="The trained length, where the config does not say it.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, with every field.")]


def plan(model: Model, to: To, trained: Trained = None, as_json: AsJson = False) -> None:
    """Say how to take a model further, from its config alone.

    Which pairs of channels have turned fully within the trained length, what each method would set, which to try first
    and why, and the exact rope_parameters. Nothing is loaded or changed.
    """
    demand_model(model, "plan")
    from milepost.hf.planning.plan import plan as planned

    try:
        need("plan", "hf")
        found = planned(model, to, trained)
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    typer.echo(json.dumps(found.to_dict(), ensure_ascii=False, indent=2) if as_json else str(found))


def show(model: Model, as_json: AsJson = False) -> None:
    """Show what a model does now, layer by layer, as equations.

    Stock, extended or saved: the trained length, who can read the folder, which layers attend, and what each of them
    computes. It is read from the config alone; no weights are needed.
    """
    demand_model(model, "show")
    from milepost.hf.show import show as shown

    try:
        need("show", "hf")
        found = shown(model)
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    typer.echo(json.dumps(found.to_dict(), ensure_ascii=False, indent=2) if as_json else str(found))


A = Annotated[str, typer.Argument(help="A folder with a config.json, that file, or a name of the hub.")]
B = Annotated[str, typer.Argument(help="Another one.")]


def check(a: A, b: B, as_json: AsJson = False) -> None:
    """Find which convention differs between two models.

    Pairs, sign, base, partial size, YaRN's ramp, magnitude, softmax scale, ALiBi's slopes, T5's buckets, what is seen,
    and other parts. A folder that was saved extended is read as such. Ends with 1 where something differs,
    and with 2 where a model could not be run and nothing else was found.
    """
    for each in (a, b):
        demand_model(each, "check")
    from milepost.hf.checking.check import check as checked

    try:
        need("check", "hf")
        found = checked(a, b)
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    typer.echo(json.dumps(found.to_dict(), ensure_ascii=False, indent=2) if as_json else str(found))
    if found or found.not_run:
        raise SystemExit(1 if found else 2)


Given = Annotated[
    str | None,
    typer.Argument(help="A folder, or a name of the hub. Left out, a small model of bytes is trained on the spot."),
]
Far = Annotated[int | None, typer.Option("--to", help="How many tokens it should read; 1,024 for the model of bytes.")]
Text = Annotated[
    Path | None,
    typer.Option(
        "--text", help="A text to measure on, longer than the target; the model of bytes has one.", exists=True
    ),
]
Out = Annotated[Path, typer.Option("--out", help="A folder for the extended model and its report.")]
Try = Annotated[list[str] | None, typer.Option("--try", help="A candidate of the plan; again for more. Otherwise all.")]
Windows = Annotated[int, typer.Option("--windows", help="How many endings are judged.")]
Last = Annotated[
    int | None,
    typer.Option("--last", help="How many tokens of each ending are judged; 64, or half of the trained length."),
]


def extend(
    out: Out,
    model: Given = None,
    to: Far = None,
    text: Text = None,
    attempt: Try = None,
    windows: Windows = 16,
    last: Last = None,
) -> None:
    """Take a model further: measure the candidates of its plan on a text, keep the best, save it.

    All are judged on the same last tokens, beside the model as it is and a window with and without sinks. The best that
    sees every key is saved, and can be read with milepost.hf.load(folder); report.html and report.json stand beside it.
    Without MODEL a small one is trained first, on the source text of Python's standard library.
    """
    if model is not None:
        demand_model(model, "extend")
    from milepost.hf.files.saving import save
    from milepost.hf.model.extension import extended
    from milepost.hf.planning.choosing import choose

    try:
        need("extend", "hf")
        _refuse_out(out)
        loaded, tokenizer, words, target = _asked(model, to, text)
        found = choose(loaded, words, tokenizer, to=target, names=attempt or None, windows=windows, last=last)
        typer.echo(str(found))
        save(extended(loaded, found.best.parts), out)
        tokenizer.save_pretrained(out)
        found.measured.to_html(out / "report.html")
        (out / "report.json").write_text(found.measured.to_json(), encoding="utf-8")
    except (ValueError, TypeError, OSError, ImportError, IndexError, KeyError) as error:
        refuse(str(error.args[0] if isinstance(error, KeyError) else error))
    typer.echo(f"\nsaved: {out}\nread it with: milepost.hf.load({str(out)!r})\nreport: {out / 'report.html'}")


def _refuse_out(out: Path) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on what would go there."""
    if out.is_file():
        raise ValueError(f"--out {out}: this is a file; name a folder")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"--out {out}: this folder is not empty; name another")
    above = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"--out {out}: this folder cannot be made, since {above} cannot be written to; name another")


def _asked(model: str | None, to: int | None, text: Path | None) -> tuple[Any, Any, object, int]:
    """A model, its tokenizer, what to measure on and how far to go; without a model, those of the lab."""
    from milepost.configs.source import text_of
    from milepost.configs.stored import unread_in
    from milepost.hf.config.source import config_of
    from milepost.hf.files.read import read_model
    from milepost.hf.planning.plan import plan as planned

    words = None if text is None else text.read_text(encoding="utf-8", errors="replace")
    if model is not None:
        if to is None or words is None:
            lacking = " and ".join(["--to N"] * (to is None) + ["--text FILE"] * (words is None))
            raise ValueError(f"extend {model}: give {lacking} as well: how far it should read, and what to measure on")
        if Path(model).exists():
            found = config_of(model, f"extend {model}")
            if unread_in(text_of(found) or found) is not None:
                raise ValueError(
                    f"extend {model}: this folder is extended already; give the folder that it was made of, or read it "
                    f"with milepost.hf.load({model!r}) and measure that"
                )
            # What the config alone shows to be wrong is said before the weights are read.
            planned(found, to)
        return *read_model(model, "extend"), words, to
    from milepost.hf.files.small import FAR, train_small

    with TemporaryDirectory() as folder:
        corpus = train_small(folder)
        typer.echo(f"trained a small model of bytes on {corpus.source}\n")
        # What was kept from training; any text is measured on where it is given.
        return *read_model(folder, "extend"), corpus.test.long() if words is None else words, to or FAR


def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The --out of a milepost compare.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A scheme that was trained there, as the report has it.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to write.", show_default="OUT/exported/NAME-seed-SEED")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which of its models, by the random seed.", show_default="the first")
    ] = None,
    transformers: Annotated[
        bool,
        typer.Option("--transformers", help="Write a folder of transformers, for a model that was trained with rope."),
    ] = False,
) -> None:
    """Write a trained model as a folder of its own: weights, scheme, shape and recipe.

    milepost.lab.exported.load(FOLDER) reads it back; with --transformers, AutoModelForCausalLM.from_pretrained(FOLDER).
    """
    from milepost.lab.cells.store import opened

    try:
        # Refused before torch is loaded.
        opened(out).close()
        from milepost.lab.exported import checkpoint_of, default_folder
        from milepost.lab.exported import export as as_folder

        folder = default_folder(out, name, seed) if to is None else to
        if transformers:
            need("export --transformers", "hf")
            from milepost.hf.files.export import export as as_checkpoint

            as_checkpoint(checkpoint_of(out, name, seed)[1], folder)
        else:
            as_folder(out, name, folder, seed)
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"export: {str(error).removeprefix('export: ')}")
    reader = "AutoModelForCausalLM.from_pretrained" if transformers else "milepost.lab.exported.load"
    typer.echo(f'{folder}: {reader}("{folder}")')
