"""`milepost bench`. Only the command line loads this module, after it has checked that typer is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Groups = Annotated[
    list[str] | None,
    typer.Argument(
        help="attention, packed, encoder, host, rotary, decoding, memory, models, accuracy, which need a GPU, and cpu "
        "and compiled, which do not; without a name all that fit this machine."
    ),
]
Peers = Annotated[bool, typer.Option(help="Also time FlexAttention, transformers, Liger and flash-attn.")]
Out = Annotated[Path, typer.Option(help="The folder that bench.json is written to.")]
Markdown = Annotated[Path | None, typer.Option(help="Also write the tables as a page, such as docs/speed.md.")]
Stored = Annotated[
    list[Path] | None, typer.Option("--from", help="Measure nothing; write the page from these bench.json.")
]
Warm = Annotated[
    int | None, typer.Option(help="Processes that compile ahead; 0 for none.", show_default="all cores but two, ≤ 12")
]
Skip = Annotated[list[str] | None, typer.Option(help="Leave out rows with this in their names; may be repeated.")]
Rounds = Annotated[int, typer.Option(help="How often each row is timed; the figure is the median.")]
Seconds = Annotated[float | None, typer.Option(help="Stop after so many seconds, and keep what was measured.")]


def bench(
    groups: Groups = None, peers: Peers = True, out: Out = Path("out/bench"), markdown: Markdown = None,
    stored: Stored = None, warm: Warm = None, skip: Skip = None, rounds: Rounds = 15, seconds: Seconds = None,
) -> None:  # fmt: skip
    """Time milepost and its peers, in one process on one device.

    A row that disagrees with float64 is not timed; a row that fails has the reason.
    """
    from milepost.bench.run import run

    run(
        groups or [], peers=peers, out=out, markdown=markdown, stored=stored or [], warm=warm, skip=skip or [],
        rounds=rounds, seconds=seconds,
    )  # fmt: skip
