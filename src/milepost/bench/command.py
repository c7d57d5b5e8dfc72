"""`milepost bench`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Groups = Annotated[
    list[str] | None,
    typer.Argument(
        help="attention, packed, encoder, rotary, decoding, memory, models, accuracy, which need a GPU, and cpu, which "
        "does not; without a name all that fit this machine."
    ),
]
Peers = Annotated[bool, typer.Option(help="Time FlexAttention, transformers, Liger and flash-attn beside, too.")]
Out = Annotated[Path, typer.Option(help="The folder that bench.json is written to.")]
Markdown = Annotated[Path | None, typer.Option(help="Write the tables as a page, too, such as docs/speed.md.")]
Stored = Annotated[
    list[Path] | None, typer.Option("--from", help="Measure nothing; write the page from these bench.json.")
]
Warm = Annotated[
    int | None, typer.Option(help="Processes that compile ahead; 0 for none.", show_default="all cores but two, ≤ 12")
]

Skip = Annotated[list[str] | None, typer.Option(help="Leave out rows with this in their names; may be given again.")]


def bench(
    groups: Groups = None, peers: Peers = True, out: Out = Path("out/bench"), markdown: Markdown = None,
    stored: Stored = None, warm: Warm = None, skip: Skip = None,
) -> None:  # fmt: skip
    """Time milepost beside its peers, in one process on one device.

    Whoever disagrees with float64 is not timed; whatever fails is a row with a reason.
    """
    from milepost.bench.running import run

    run(groups or [], peers=peers, out=out, markdown=markdown, stored=stored or [], warm=warm, skip=skip or [])
