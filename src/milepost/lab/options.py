"""What `milepost compare` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Schemes = Annotated[
    list[str] | None,
    typer.Argument(help="Names such as rope or alibi, or expressions: 'Rope(dim, theta=1e5) + LogN(trained)'."),
]
Dial = Annotated[str, typer.Option("--size", help="demo, small, base or large: width, depth, batch and steps.")]
Text = Annotated[Path | None, typer.Option(help="A text file, a .gz, or a folder of texts.")]
Dataset = Annotated[str | None, typer.Option(help="A dataset by name, through the datasets library.")]
TrainBytes = Annotated[int | None, typer.Option(help="Train on the first so many bytes only.")]
Out = Annotated[Path, typer.Option(help="Where the store, the checkpoints and the report are kept.")]
Seeds = Annotated[int, typer.Option(help="How many seeds each scheme is trained with.")]
Free = Annotated[bool, typer.Option("--free/--no-free", help="Judge training-free rows on RoPE and ALiBi too.")]
Every = Annotated[
    bool, typer.Option("--every", help="Judge every stretch and place there, not the leading ones alone.")
]
Rows = Annotated[
    list[str] | None,
    typer.Option("--row", help="A training-free row of your own, after its scheme: 'rope: Rope(dim) + Rerope(32)'."),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local; ray for a cluster; torchrun inside torchrun -m milepost compare …")
]
JobCount = Annotated[int, typer.Option("--jobs", help="How many cells the local engine works on at a time.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU if there is one.")]
Threads = Annotated[int, typer.Option(help="CPU threads of one model; the numbers depend on it.")]
Length = Annotated[int | None, typer.Option(help="The length trained at.")]
Longest = Annotated[int | None, typer.Option(help="The longest length judged at.")]
Whole = Annotated[int | None, typer.Option(help="Overrides the dial.")]
Rate = Annotated[float | None, typer.Option(help="Overrides the dial.")]
Compiled = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile; on for a GPU.")]
Judged = Annotated[int | None, typer.Option("--judge", help="About how many bytes are judged at each length.")]
Recall = Annotated[str | None, typer.Option(help="Distances to recall over, such as 256,3072.")]
Tasks = Annotated[
    str | None,
    typer.Option(
        help="Tasks to train and judge each scheme on too, such as copy,needle. There are copy, reverse, sort, "
        "addition, counting, needle, passkey, and fifteen of the Chomsky hierarchy, such as parity-check."
    ),
]
ToJson = Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")]
ToCsv = Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV.")]
Board = Annotated[Path | None, typer.Option("--tensorboard", help="Write TensorBoard logs to this folder.")]
