"""The options of `milepost compare`: what each one sets, and what holds if it is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT = ("rope", "alibi", "alibi-steep", "t5", "kerple")
"""The schemes that are compared where none is named."""


Schemes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCHEMES",
        help="Ways of telling a model where tokens stand: names such as rope or alibi, or expressions such as "
        "'Rope(dim, theta=1e5) + LogN(trained)'; where layers differ, one for each: '[Rope(dim) + window(64)] * "
        "(layers - 1) + [Nope()]'.",
        show_default=" ".join(DEFAULT),
    ),
]
SizeName = Annotated[
    str,
    typer.Option("--size", help="How large the models are and how long they train: demo, small, base or large."),
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="<name=value,…>",
        help="Change what the size sets, such as steps=3000,width=256; all settings are listed below. Can be given "
        "several times.",
        show_default="as --size has it",
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        help="What models read: a text file, a .gz, or a folder of texts.",
        show_default="milepost's own sources and documents, with passages that come again",
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="What models read, from the Hugging Face hub: NAME or NAME:PART, with a column called text."),
]
TrainBytes = Annotated[
    int | None,
    typer.Option(help="How many bytes to train on, from the start of the text.", show_default="all but those judged"),
]
Out = Annotated[Path, typer.Option(help="The folder for the scores, the checkpoints and the report.")]
Seeds = Annotated[int, typer.Option(help="How many models are trained for each scheme, each from another random seed.")]
Free = Annotated[
    bool,
    typer.Option(
        "--free/--no-free",
        help="Whether changes that need no training, such as YaRN or ReRoPE, are judged on the trained RoPE and ALiBi.",
    ),
]
Every = Annotated[bool, typer.Option("--every", help="Judge all of these changes, not only the leading ones.")]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="<str>",
        help="Judge a trained model under another scheme, without training: the scheme that it was trained with, and "
        "the whole of the other one, 'rope: Rope(dim) + Rerope(32)', or with a name for the tables, 'rope: near = "
        "Rope(dim) + Rerope(32)'. What parts of one class learned goes along. Can be given several times.",
    ),
]
Search = Annotated[
    int,
    typer.Option(
        "--search",
        help="Choose each scheme's learning rates, its model's and that of what it learns, from so many runs on "
        "validation text that is never judged: 3 or more, such as 6. With 0, rates are the same for all.",
    ),
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune",
        help="Choose the settings of changes without training on validation text, from three for each. In a --row, "
        "write settings to choose from as {0.25|0.5|1}; they are chosen without this option.",
    ),
]
Methods = Annotated[
    list[Path] | None,
    typer.Option(
        "--methods",
        metavar="<path>",
        help="A file with methods of your own, which schemes and rows may then name; 'mine.py:WaveBias(heads)' does "
        "the same for one. Can be given several times.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where models are trained: local, on this machine; ray, on a Ray cluster; torchrun, each over all "
        "processes of torchrun -m milepost compare …",
    ),
]
JobCount = Annotated[int, typer.Option("--jobs", help="How many models the local engine trains at the same time.")]
GpusPerCell = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-cell",
        help="With --engine ray, how much of a GPU each model has: with 0.25, four share one, and must fit into it.",
        show_default="1 with --device cuda",
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="<url>",
        help="With --engine ray, what checkpoints travel through on their way to --out and back to another worker: a "
        "folder that all nodes share, or an address that fsspec knows, such as s3://bucket/folder.",
        show_default="Ray's object store",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is a GPU")]
Threads = Annotated[
    int, typer.Option(help="CPU threads for each model. With another number, scores change in their last digits.")
]
Recall = Annotated[
    str | None,
    typer.Option(
        help="Distances in bytes over which models must recall what they read, such as 256,3072.",
        show_default="some from half the length trained at up to the longest",
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        help="Tasks that each scheme is also trained on and judged by, such as copy,needle. There are copy, reverse, "
        "sort, addition, counting, needle, passkey, and fifteen of the Chomsky hierarchy, such as parity-check.",
    ),
]
ToJson = Annotated[Path | None, typer.Option("--json", help="A file to write all results to, as JSON.")]
ToCsv = Annotated[Path | None, typer.Option("--csv", help="A file to write every score to, as CSV.")]
ToMarkdown = Annotated[
    Path | None, typer.Option("--markdown", help="A file to write the headlines and the tables to, as Markdown.")
]
Board = Annotated[
    Path | None, typer.Option("--tensorboard", help="A folder to write losses and scores to, for TensorBoard.")
]
Wandb = Annotated[
    Path | None,
    typer.Option(help="A folder to write losses and scores to, as offline runs of Weights & Biases (wandb sync)."),
]
