"""`milepost plan`, `check`, `extend`, `export`. Only the command line loads this, once it knows that typer is there."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from milepost.refusal import HUB, demand_model, did_you_mean, need, no_such, refuse

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
    from milepost.hf.files.folder import demand_new
    from milepost.hf.files.saving import save
    from milepost.hf.model.extension import extended
    from milepost.hf.planning.choosing import choose

    try:
        need("extend", "hf")
        demand_new(out)
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
        refuse(f"export: {str(error).removeprefix('export: ')}{longer}")
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
