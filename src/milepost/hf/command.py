"""`milepost plan`, `check`, `extend`, `export`. Only the command line loads this, once it knows that typer is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from milepost.refusal import HUB, demand_model, did_you_mean, need, no_such, refuse

Model = Annotated[str, typer.Argument(help="A folder with a config.json, that file, or a name of the hub.")]
To = Annotated[int, typer.Option("--to", help="How many tokens it should read.")]
Trained = Annotated[int | None, typer.Option("--trained", help="The trained length, where the config does not say it.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, with every field.")]


def plan(model: Model, to: To, trained: Trained = None, as_json: AsJson = False) -> None:
    """Say how to take a model further, from its config alone.

    Which pairs of channels have turned fully within the trained length, what each method would set, which to measure
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
        "--text",
        help="A text to measure on, longer than the target; the model of bytes has one.",
        exists=True,
        dir_okay=False,
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
    from milepost.hf.files.folder import demand_writable

    try:
        need("extend", "hf")
        demand_writable(out)
        done = command.extend(out, model, to, text, attempt or None, windows, last, thorough, method)
    except (ValueError, TypeError, OSError, ImportError, IndexError, KeyError) as error:
        refuse(str(error.args[0] if isinstance(error, KeyError) else error))
    except KeyboardInterrupt:
        typer.echo("\nmilepost: stopped; rerun the command to resume", err=True)
        raise SystemExit(130) from None
    if not done:
        raise SystemExit(1)


ENGINES = ("transformers", "vllm", "sglang", "gguf", "onnx", "torch", "milepost")
"""The engines of hf/exporting/engines.py, which is not loaded for --help."""


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder (a checkpoint, or one saved extended), a name of the hub, or the --out of "
            "a milepost compare.",
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which scheme of a milepost compare, as its report has it.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="ENGINE", help=", ".join(ENGINES) + ".")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write, new or empty.")] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option("--with", help="What to extend it with on the way, as 'Yarn(4, trained=8192)'; again for more."),
    ] = None,
    length: Annotated[int | None, typer.Option("--length", help="The length to reach, for a --with by name.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Which model of a milepost compare, by the random seed.", show_default="the first"),
    ] = None,
    transformers: Annotated[bool, typer.Option("--transformers", hidden=True)] = False,
) -> None:
    """Write a model for an engine, into a new folder, or say why it cannot run it and what is nearest.

    A README.md in the folder says how it is read without milepost, or that it cannot be. With --to milepost a model
    keeps any scheme, and milepost alone reads it.
    """
    _refuse_old_call(source, name, to, out, transformers)
    assert to is not None
    assert out is not None
    from milepost.hf.files.folder import demand_new
    from milepost.lab.cells.store import opened

    try:
        demand_new(out)
        if name is not None:
            # Refused before torch is loaded.
            opened(Path(source)).close()
            if parts and to == "milepost":
                raise ValueError("a model of the lab keeps its own scheme with --to milepost; leave --with out")
        need(f"export --to {to}", "hf")
        if name is not None and to == "milepost":
            said = _lab_folder(source, name, out, seed)
        else:
            from milepost.hf.exporting.export import export as written

            model = source
            if name is not None:
                from milepost.lab.exported import checkpoint_of

                model = str(checkpoint_of(Path(source), name, seed)[1])
            said = written(model, out, to=to, method=tuple(parts or ()), length=length)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        longer = "; here: --length N" if "the length to reach; say it" in str(error) else ""
        said = f"{error}{longer}"
        refuse(said if said.startswith("export") else f"export: {said}")
    typer.echo(f"saved: {out}\nread it with: {said}")


def _lab_folder(source: str, name: str, out: Path, seed: int | None) -> str:
    """Write a model of the lab as a folder that the lab reads; any scheme."""
    from milepost.hf.files.folder import written_whole
    from milepost.lab.exported import export as as_folder

    with written_whole(out) as part:
        as_folder(source, name, part, seed)
    return f'milepost.lab.exported.load("{out}")'


def _refuse_old_call(source: str, name: str | None, to: str | None, out: Path | None, transformers: bool) -> None:
    """Refuse what version 0.2 took (--to was a folder, --transformers a switch), and what is missing, with the call."""
    words = f"milepost export {source}" + ("" if name is None else f" {name}")
    engine = to if to in ENGINES else "transformers" if transformers or name is None else "milepost"
    folder = out if out is not None else to if to is not None and to not in ENGINES else "DIR"
    call = f"{words} --to {engine} --out {folder}"
    if transformers:
        refuse(f"export --transformers: it is an engine now: {call}")
    if to is None:
        refuse(f"export {source}: say for which engine, of {', '.join(ENGINES)}: {call}")
    if to not in ENGINES:
        looks_old = out is None and name is not None
        why = "a folder is named by --out now; --to names an engine" if looks_old else "no such engine"
        refuse(f"export --to {to}: {why}: there are {', '.join(ENGINES)}{did_you_mean(to, ENGINES)}. {call}")
    if out is None:
        refuse(f"export {source}: name the folder to write: {call}")
    if not Path(source).expanduser().exists() and not HUB.fullmatch(source):
        refuse(str(no_such(source, "export")))
    here = Path(source)
    if name is None and (here / "lab.sqlite").is_file():
        refuse(
            f"export {source}: this is the --out of a milepost compare; name one of its schemes: milepost export "
            f"{source} NAME --to {engine} --out {folder}"
        )
