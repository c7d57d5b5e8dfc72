"""`milepost plan` and `milepost check`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from milepost.refusal import need, refuse

Model = Annotated[str, typer.Argument(help="A folder with a config.json, that file, or a name of the hub.")]
To = Annotated[int, typer.Option("--to", help="How many tokens it should read.")]
Trained = Annotated[int | None, typer.Option("--trained", help="The trained length, where the config does not say it.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, with every field.")]


def plan(model: Model, to: To, trained: Trained = None, as_json: AsJson = False) -> None:
    """Say how to take a model further, from its config alone.

    Which pairs of channels have turned fully within the trained length, what each method would set, which to try first
    and why, and the exact rope_parameters. Nothing is loaded or changed.
    """
    from milepost.hf.plan import plan as planned

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

    Pairs, sign, base, partial size, YaRN's ramp, magnitude, softmax scale, ALiBi's slopes, T5's buckets. Ends with 1
    where something differs.
    """
    from milepost.hf.check import check as checked

    try:
        need("check", "hf")
        found = checked(a, b)
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    typer.echo(json.dumps(found.to_dict(), ensure_ascii=False, indent=2) if as_json else str(found))
    if found:
        raise SystemExit(1)
