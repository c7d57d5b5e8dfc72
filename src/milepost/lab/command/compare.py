"""`milepost compare`: train one small model for each scheme, judge each far past its length, and report."""

# Options are declared as defaults, as typer reads them.
# ruff: noqa: B008

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option
from typer.core import TyperCommand

from milepost.lab.command import asked
from milepost.lab.command.files import ERRORS, Files, ToCsv, ToJson, ToMarkdown, check_out, note, write
from milepost.lab.command.settings import check_words, settings_of
from milepost.refusal import need, refuse

if TYPE_CHECKING:
    from milepost.lab.cells.cell import Cell
    from milepost.lab.cells.store import Store
    from milepost.lab.sweep.sweep import Engine, Sweep

DEFAULT = ("rope", "alibi", "alibi-steep", "t5", "kerple")
"""The schemes that are compared where none is named."""


def compare(
    schemes: list[str] | None = Argument(
        None,
        metavar="SCHEMES",
        help="Ways of telling a model where tokens stand: names such as rope or alibi, or expressions such as "
        "'Rope(dim, theta=1e5) + LogN(trained)'; where layers differ, one for each: '[Rope(dim) + window(64)] * "
        "(layers - 1) + [Nope()]'.",
        show_default=" ".join(DEFAULT),
    ),
    size: str = Option(
        "demo", "--size", help="How large the models are and how long they train: demo, small, base or large."
    ),
    given: list[str] | None = Option(
        None,
        "--set",
        metavar="<name=value,…>",
        help="Change what the size sets, such as steps=3000,width=256; all settings are listed below. Can be given "
        "several times.",
        show_default="as --size has it",
    ),
    text: Path | None = Option(
        None,
        help="What models read: a text file, a .gz, or a folder of texts.",
        show_default="milepost's own sources and documents, with passages that come again",
    ),
    dataset: str | None = Option(
        None, help="What models read, from the Hugging Face hub: NAME or NAME:PART, with a column called text."
    ),
    train_bytes: int | None = Option(
        None, help="How many bytes to train on, from the start of the text.", show_default="all but those judged"
    ),
    out: Path = Option(Path("out/compare"), help="The folder for the scores, the checkpoints and the report."),
    seeds: int = Option(1, help="How many models are trained for each scheme, each from another random seed."),
    free: bool = Option(
        True,
        "--free/--no-free",
        help="Judge changes that need no training, such as YaRN or ReRoPE, on the trained RoPE and ALiBi, or not.",
    ),
    every: bool = Option(False, "--every", help="Judge all of these changes, not only the leading ones."),
    row: list[str] | None = Option(
        None,
        "--row",
        metavar="<str>",
        help="Judge a trained model under another scheme, without training: the scheme that it was trained with, "
        "and the whole of the other one, 'rope: Rope(dim) + Rerope(32)', or with a name for the tables, 'rope: "
        "near = Rope(dim) + Rerope(32)'. What parts of one class learned goes along. Can be given several times.",
    ),
    methods: list[Path] | None = Option(
        None,
        "--methods",
        metavar="<path>",
        help="A file with methods of your own, which schemes and rows may then name; 'mine.py:WaveBias(heads)' "
        "does the same for one. Can be given several times.",
    ),
    search: int = Option(
        0,
        "--search",
        help="Choose each scheme's learning rates, its model's and that of what it learns, from so many runs on "
        "validation text that is never judged: 3 or more, such as 6. With 0, rates are the same for all.",
    ),
    tune: bool = Option(
        False,
        "--tune",
        help="Choose the settings of changes without training on validation text, from three for each. In a --row, "
        "write settings to choose from as {0.25|0.5|1}; they are chosen without this option.",
    ),
    engine: str = Option(
        "local",
        "--engine",
        help="Where models are trained: local, on this machine; ray, on a Ray cluster; torchrun, each over all "
        "processes of torchrun -m milepost compare …",
    ),
    jobs: int = Option(1, "--jobs", help="How many models the local engine trains at the same time."),
    gpus_per_cell: float | None = Option(
        None,
        "--gpus-per-cell",
        help="With --engine ray, the share of a GPU that each model has: with 0.25, four must fit into one.",
        show_default="1 with --device cuda",
    ),
    checkpoints: str | None = Option(
        None,
        "--checkpoints",
        metavar="<url>",
        help="With --engine ray, what checkpoints travel through on their way to --out and back to another worker: "
        "a folder that all nodes share, or an address that fsspec knows, such as s3://bucket/folder.",
        show_default="Ray's object store",
    ),
    device: str | None = Option(None, help="cpu or cuda.", show_default="cuda if there is a GPU"),
    threads: int = Option(
        2, help="CPU threads for each model. With another number, scores change in their last digits."
    ),
    recall: str | None = Option(
        None,
        help="Distances in bytes over which models must recall what they read, such as 256,3072.",
        show_default="some from half the length trained at up to the longest",
    ),
    tasks: str | None = Option(
        None,
        help="Tasks that each scheme is also trained on and judged by, such as copy,needle. There are copy, "
        "reverse, sort, addition, counting, needle, passkey, and fifteen of the Chomsky hierarchy, such "
        "as parity-check.",
    ),
    json: ToJson = None,
    csv: ToCsv = None,
    markdown: ToMarkdown = None,
    tensorboard: Path | None = Option(
        None, "--tensorboard", help="A folder to write losses and scores to, for TensorBoard."
    ),
    wandb: Path | None = Option(
        None, help="A folder to write losses and scores to, as offline runs of Weights & Biases (wandb sync)."
    ),
) -> None:
    """Train each scheme at a short length, judge it at long ones.

    One small language model is trained for each scheme, all under the same conditions, and judged at lengths that
    double, up to 16 or 32 times its own. A table is printed, and a report written: one HTML file.

    Stop it at any moment: rerun the command to resume; the numbers are the same.
    """
    try:
        # What needs no tensor is checked before torch is loaded.
        settings = settings_of(given or ())
        if text is not None and dataset is not None:
            raise ValueError("--text and --dataset: one text at a time; leave one out")
        asked.check_choices(size, engine, jobs, gpus_per_cell, checkpoints)
        if not free and (every or tune):
            which = "every --no-free: all" if every else "tune --no-free: settings of"
            raise ValueError(f"--{which} the training-free rows, or none; leave one out")
        chosen_here = search or tune or any("{" in each for each in row or [])
        if engine == "torchrun" and chosen_here:
            raise ValueError("--engine torchrun: it chooses no rates and no settings; use the local engine, or ray")
        for option, count in (("--seeds", seeds), ("--jobs", jobs), ("--train-bytes", train_bytes)):
            if count is not None and count < 1:
                raise ValueError(f"{option} {count}: give at least 1")
        names = asked.tasks_of(tasks)
        _installed(engine, dataset, tensorboard, wandb)
        written = Files(json, csv, markdown, tensorboard, wandb)
        written.check()
        made = [each for each in astuple(written) if each is not None]
        device = _device(device, engine, gpus_per_cell)
        chosen = asked.size_of(size, settings, device)
        corpus = asked.corpus_of(text, dataset, [out, *made], bool(chosen_here)).first(train_bytes)
        follow, sweep = _sweep(
            asked.with_files(schemes or DEFAULT, row or (), methods or ()), engine, out, device,
            size=chosen, corpus=corpus, seeds=tuple(range(seeds)),
            judging=asked.judging_of(chosen, settings.get("judge"), recall),
            free=free, threads=threads, tasks=names, every=every, search=search, tune=tune,
        )  # fmt: skip
        check_out(out, made)
        if follow is not None:
            return follow()
        from milepost.lab.cells.store import Store

        store = Store(out / "lab.sqlite")
        cores = os.cpu_count() or 1
        if device == "cpu" and engine == "local" and jobs > 1 and jobs * threads > cores:
            note(f"{jobs} jobs of {threads} threads each on {cores} cores are slower than with --threads 1")
        made_engine = partial(asked.engine_of, engine, out, device, jobs, gpus_per_cell, checkpoints)
    except ERRORS as error:
        refuse(f"compare: {error}")
    _work(sweep, store, out, made_engine, written)


class Compare(TyperCommand):
    """The command, which corrects a setting that is written as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            check_words(args)
        except ValueError as error:
            refuse(f"compare: {error}")
        return super().parse_args(ctx, args)


def _sweep(
    asked_for: tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[Any, ...]],
    engine: str,
    out: Path,
    device: str,
    **settings: Any,
) -> tuple[Callable[[], None] | None, Sweep]:
    """Return the sweep, every cell of it checked, and what a process does instead that torchrun did not start first."""
    from milepost.lab.engines.torchrun import Torchrun
    from milepost.lab.sweep.search import cells_of_rates, cells_of_rows
    from milepost.lab.sweep.sweep import Sweep
    from milepost.lab.training.parallel import world

    here = world(device)
    if engine != "torchrun" and here.size > 1:
        raise ValueError(f"{here.size} processes were started together (WORLD_SIZE); add --engine torchrun")
    names, rows, files = asked_for
    sweep = Sweep(names, rows=rows, own=files, **settings)
    size = sweep.size
    if size.longest < size.recipe.length:
        raise ValueError(f"--set longest={size.longest}: less than the {size.recipe.length} trained at; raise it")
    cells, _, _ = sweep.cells(), cells_of_rates(sweep), cells_of_rows(sweep)
    # A method that cannot be told from others has no key.
    _ = [cell.key for cell in cells if cell.seed == 0]
    # The first process has the store; the others train along.
    follows = engine == "torchrun" and here.rank
    return (partial(Torchrun(out, device).follow, sweep.corpus) if follows else None), sweep


def _work(sweep: Sweep, store: Store, out: Path, engine: Callable[[], Engine], files: Files) -> None:
    """Choose what is to be chosen, then train and judge; what was found is written however it ends."""
    from milepost.lab.sweep.recorded import record

    command = shlex.join(["milepost", *sys.argv[1:]])
    ended: BaseException | None = None
    try:
        record(store, sweep, command)
        # Ray prints what it has to say of dead workers; stdout is for the table.
        with contextlib.redirect_stdout(sys.stderr):
            sweep = _all(sweep, store, out, engine())
    except (KeyboardInterrupt, ValueError, OSError, ImportError, RuntimeError) as error:
        ended = error
    try:
        write(store, sweep, out, files, command, whole=ended is None)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        # What went wrong first is what matters.
        ended = ended or error
    finally:
        store.close()
    if isinstance(ended, KeyboardInterrupt):
        note(f"stopped; rerun the command to resume from {out}, each model from its last checkpoint")
        raise SystemExit(130) from None
    if ended is not None:
        refuse(f"compare: {ended}")


def _all(sweep: Sweep, store: Store, out: Path, engine: Engine) -> Sweep:
    """Work through a sweep stage by stage; returns it as it was chosen to be."""
    from milepost.lab.command.progress import Watched, Whole
    from milepost.lab.sweep.search import cells_of_rows, firsts, rounds_of_rates, with_rates, with_settings
    from milepost.lab.sweep.sweep import missing, outdated, run

    whole, searched = Whole(), 0

    def stage(cells: list[Cell], what: str, later: int = 0) -> None:
        whole.later = later
        open_cells = missing(sweep, store, cells)
        done = len(cells) - len(open_cells)
        again = outdated(store, cells)
        if again:
            note(f"{again} models were judged by an earlier version, and are judged again from their checkpoints")
        if done:
            note(f"{done} of {len(cells)} {what} are done already, in {out}")
        left = {cell.key: len(cell.wanted() - known) for cell, known in open_cells}
        with Watched(cells, left=left, whole=whole) as watched:
            run(sweep, store, engine, watched, cells, watched.waits)

    last = len(sweep.cells())
    choosing = last + len(cells_of_rows(sweep))
    for cells in rounds_of_rates(sweep, store):
        searched += len(cells)
        stage(cells, "runs that choose rates", sweep.search * len(firsts(sweep)) - searched + choosing)
    sweep = with_rates(sweep, store)
    if cells := cells_of_rows(sweep):
        stage(cells, "models that choose settings", last)
        sweep = with_settings(sweep, store)
    stage(sweep.cells(), "models")
    return sweep


def _installed(engine: str, dataset: str | None, board: Path | None, wandb: Path | None) -> None:
    """Refuse what lacks a library, which would be found out only when everything is trained."""
    need("the lab", "lab")
    if engine == "ray":
        need("--engine ray", "ray")
    if dataset is not None:
        need("--dataset", "datasets")
    if wandb is not None:
        need("--wandb", "wandb")
    if board is not None:
        need("--tensorboard", "lab", ["tensorboard"])
        from milepost.lab.command.board import writer

        writer()


def _device(device: str | None, engine: str, gpus: float | None) -> str:
    """Return the device asked for, or the best there is; that of a cluster's workers need not be here."""
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.split(":")[0] == "cuda" and engine != "ray" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch sees no GPU here; leave --device out to use the CPU")
    try:
        torch.device(device)
    except RuntimeError:
        raise ValueError(f"--device {device}: torch knows no such device; give cpu or cuda") from None
    if gpus is not None and not device.startswith("cuda"):
        raise ValueError(f"--gpus-per-cell {gpus:g}: these models are trained on {device}; add --device cuda")
    return device
