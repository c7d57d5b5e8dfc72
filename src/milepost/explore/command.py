"""`milepost look`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.refusal import demand_model, need, refuse

MOST = 4096
"""How many tokens are read where no number is given."""


def look(
    model: Annotated[str, typer.Argument(help="A folder with weights and a tokenizer, or a name of the hub.")],
    text: Annotated[Path, typer.Option("--text", help="A text to read.", exists=True, dir_okay=False)],
    given: Annotated[
        str | None,
        typer.Option("--with", help="A method to compare with, as extend takes it: 'Rerope(256)', 'ReRoPE, pivot'."),
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="How many tokens are read.", show_default="all, at most 4,096")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="LAYER.HEAD, of which scores are drawn by distance; again for more.",
            show_default="the head of a middle layer that looks furthest",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", help="How many of the queries are looked at.")] = 1024,
    out: Annotated[Path, typer.Option("--out", help="The page to write; its numbers go beside it, as .json.")] = Path(
        "look.html"
    ),
) -> None:
    """Look at where every head of a model attends: effective windows, entropy, sinks, far keys.

    Writes one HTML page. Any model that milepost.hf.extend serves; it reads the text in one pass.
    """
    demand_model(model, "look")
    try:
        need("look", "hf")
        from milepost.explore.heads import demand_possible, meanings_of
        from milepost.explore.heads import look as looked
        from milepost.explore.page import write_page
        from milepost.hf.files.read import read_model
        from milepost.hf.measuring.trials import tokens_of

        if out.suffix != ".html":
            raise ValueError(f"--out {out}: name a page, such as look.html")
        heads = [_head(each) for each in head] if head else None
        loaded, tokenizer = read_model(model, "look", lambda bare: demand_possible(bare, given, heads or ()))
        ids = tokens_of(text.read_text(encoding="utf-8", errors="replace"), tokenizer)
        ids = ids[:MOST] if length is None else ids
        found = looked(loaded, ids, given=given, length=length, rows=rows, heads=heads)
        asked = f"{model} reading the first {length or len(ids):,} tokens of {text.name}."
        write_page(found, out, "look", asked, meanings_of(found))
        found.save(out.with_suffix(".json"))
    except (ValueError, TypeError, OSError, ImportError, IndexError) as error:
        refuse(str(error))
    typer.echo(found.says)
    typer.echo(f"\npage: {out}\nnumbers: {out.with_suffix('.json')}")


def _head(given: str) -> tuple[int, int]:
    """Return the layer and the head that LAYER.HEAD names."""
    layer, _, number = given.partition(".")
    if not (layer.isdecimal() and number.isdecimal()):
        raise ValueError(f"--head {given}: give LAYER.HEAD, such as 4.3")
    return int(layer), int(number)
