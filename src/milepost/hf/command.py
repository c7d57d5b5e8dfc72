"""`milepost plan`, `check` and `extend`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

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
Try = Annotated[list[str] | None, typer.Option("--try", help="A candidate of the plan; again for more.")]
Windows = Annotated[
    int | None,
    typer.Option("--windows", help="How many endings are judged.", show_default="3, or more where texts are short; 16"),
]
Last = Annotated[
    int | None,
    typer.Option(
        "--last", help="How many tokens of each ending.", show_default="512, or a quarter of the trained length"
    ),
]
Thorough = Annotated[bool, typer.Option("--thorough", help="Measure all candidates on all endings, at all lengths.")]
Method = Annotated[
    str | None, typer.Option("--method", help="Save this candidate, whatever the rule chooses; it is measured as well.")
]


def extend(
    out: Out,
    model: Given = None,
    to: Far = None,
    text: Text = None,
    attempt: Try = None,
    windows: Windows = None,
    last: Last = None,
    thorough: Thorough = False,
    method: Method = None,
) -> None:
    """Take a model further: measure candidates of its plan on a text, choose by one rule, save what was chosen.

    All are judged on the same endings, beside a window with sinks. The rule: of the rows that see every token and read
    at most 0.02 nats worse than the window (one-sided 95 % interval), the one that recalls best. Where none does, none
    is saved, and the command ends with 1: --method saves one all the same. At most eight long passes are made, or all
    with --thorough; how long that takes is said first. What is measured is kept: rerun the command to resume.
    report.html and report.json stand in the folder, which milepost.hf.load(folder) reads.
    Without MODEL a small one is trained first, on the source text of Python's standard library. Learned tables of
    positions (GPT-2, BERT) are grown: there is nothing to choose.
    """
    if model is not None:
        demand_model(model, "extend")
    from milepost.hf.choosing import command

    try:
        need("extend", "hf")
        refuse_unwritable(out)
        done = command.extend(out, model, to, text, attempt or None, windows, last, thorough, method)
    except (ValueError, TypeError, OSError, ImportError, IndexError, KeyError) as error:
        refuse(str(error.args[0] if isinstance(error, KeyError) else error))
    except KeyboardInterrupt:
        typer.echo("\nmilepost: stopped; rerun the command to resume", err=True)
        raise SystemExit(130) from None
    if not done:
        raise SystemExit(1)


def refuse_unwritable(out: Path) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on what would go there."""
    if out.is_file():
        raise ValueError(f"--out {out}: this is a file; name a folder")
    above = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"--out {out}: this folder cannot be made, since {above} cannot be written to; name another")


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
