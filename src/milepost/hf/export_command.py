"""`milepost export`: a model of the lab as a folder, for the lab itself or for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.refusal import need, refuse


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
    from milepost.lab.exported import checkpoint_of, default_folder
    from milepost.lab.exported import export as as_folder

    try:
        folder = default_folder(out, name, seed) if to is None else to
        if transformers:
            need("export --transformers", "hf")
            from milepost.hf.export import export as as_checkpoint

            as_checkpoint(checkpoint_of(out, name, seed)[1], folder)
        else:
            as_folder(out, name, folder, seed)
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"export: {str(error).removeprefix('export: ')}")
    reader = "AutoModelForCausalLM.from_pretrained" if transformers else "milepost.lab.exported.load"
    typer.echo(f'{folder}: {reader}("{folder}")')
