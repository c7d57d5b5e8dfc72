"""`milepost compare`: train one small model for each scheme, judge each far past its length, and report."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from milepost.lab.command import asked, options
from milepost.lab.command.settings import check_words, settings_of
from milepost.refusal import need, refuse

if TYPE_CHECKING:
    from milepost.lab.cells.cell import Cell
    from milepost.lab.cells.store import Store
    from milepost.lab.sweep.sweep import Engine, Sweep


def compare(
    schemes: options.Schemes = None,
    size: options.SizeName = "demo",
    given: options.Given = None,
    text: options.Text = None,
    dataset: options.Dataset = None,
    train_bytes: options.TrainBytes = None,
    out: options.Out = Path("out/compare"),
    seeds: options.Seeds = 1,
    free: options.Free = True,
    every: options.Every = False,
    row: options.Rows = None,
    methods: options.Methods = None,
    search: options.Search = 0,
    tune: options.Tune = False,
    engine: options.EngineName = "local",
    jobs: options.JobCount = 1,
    gpus_per_cell: options.GpusPerCell = None,
    checkpoints: options.Checkpoints = None,
    device: options.Device = None,
    threads: options.Threads = 2,
    recall: options.Recall = None,
    tasks: options.Tasks = None,
    json: options.ToJson = None,
    csv: options.ToCsv = None,
    markdown: options.ToMarkdown = None,
    tensorboard: options.Board = None,
    wandb: options.Wandb = None,
) -> None:
    """Train each scheme at a short length, judge it at long ones.

    One small language model is trained for each scheme, all under the same conditions, and judged at lengths that
    double, up to 16 or 32 times its own. A table is printed, and a report written: one HTML file.

    Stop it at any moment: the same command goes on where it stopped, and ends with the same numbers.
    """
    from milepost.lab.cells.store import Store
    from milepost.lab.engines.torchrun import Torchrun
    from milepost.lab.sweep.search import cells_of_rates, cells_of_rows
    from milepost.lab.sweep.sweep import Sweep
    from milepost.lab.training.parallel import world

    device = _device(device, engine)
    try:
        settings = settings_of(given or ())
        if text is not None and dataset is not None:
            raise ValueError("--text and --dataset: one text at a time; leave one out")
        _installed(engine, dataset, tensorboard, wandb)
        if jobs > 1 and engine != "local":
            raise ValueError(f"--jobs {jobs}: only the local engine takes it; leave it out")
        asked.check_cluster(engine, device, gpus_per_cell, checkpoints)
        if not free and (every or tune):
            which = "every --no-free: all" if every else "tune --no-free: settings of"
            raise ValueError(f"--{which} the training-free rows, or none; leave one out")
        if engine != "torchrun" and world(device).size > 1:
            raise ValueError(
                f"{world(device).size} processes were started together (WORLD_SIZE); add --engine torchrun"
            )
        chosen_here = search or tune or any("{" in each for each in row or [])
        if engine == "torchrun" and chosen_here:
            raise ValueError("--engine torchrun: it chooses no rates and no settings; use the local engine, or ray")
        written = Files(json, csv, markdown, tensorboard, wandb)
        _refuse_early({"--seeds": seeds, "--jobs": jobs, "--train-bytes": train_bytes}, written)
        chosen = asked.size_of(size, settings, device)
        made = [each for each in (out, *astuple(written)) if each is not None]
        corpus = asked.corpus_of(text, dataset, made, bool(chosen_here)).first(train_bytes)
        names, rows, files = asked.with_files(schemes or options.DEFAULT, row or (), methods or ())
        sweep = Sweep(
            names, chosen, corpus, tuple(range(seeds)), asked.judging_of(chosen, settings.judge, recall),
            free, threads, asked.tasks_of(tasks), every, rows, search, tune, own=files,
        )  # fmt: skip
        if chosen.longest < chosen.recipe.length:
            raise ValueError(
                f"--set longest={chosen.longest}: less than the {chosen.recipe.length} trained at; raise it"
            )
        cells, _, _ = sweep.cells(), cells_of_rates(sweep), cells_of_rows(sweep)
        # A method that cannot be told from others has no key.
        _ = [cell.key for cell in cells if cell.seed == 0]
        if engine == "torchrun" and world(device).rank:
            # The first process has the store and tells; this one trains along.
            return Torchrun(out, device).follow(corpus)
        store = Store(out / "lab.sqlite")
        cores = os.cpu_count() or 1
        if device == "cpu" and engine == "local" and jobs > 1 and jobs * threads > cores:
            note(f"{jobs} jobs of {threads} threads each on {cores} cores are slower than with --threads 1")
        made_engine = partial(asked.engine_of, engine, out, device, jobs, gpus_per_cell, checkpoints)
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"compare: {error}")
    _work(sweep, store, out, made_engine, written)


class Compare(TyperCommand):
    """The command, which says how a setting is written to whoever writes it as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            check_words(args)
        except ValueError as error:
            refuse(f"compare: {error}")
        return super().parse_args(ctx, args)


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
        note(f"stopped; the same command goes on from {out}, each model from its last checkpoint")
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
            run(sweep, store, engine, watched, cells, _waits)

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


def _waits(count: int) -> None:
    note(f"another process is at work on the last {count} in this folder; waiting for it")


def note(message: str) -> None:
    """Say something beside the table, which others may read from stdout."""
    print(f"milepost: compare: {message}", file=sys.stderr)


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


def _refuse_early(counts: dict[str, int | None], files: Files) -> None:
    """Refuse what would fail only after everything is trained."""
    for option, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{option} {count}: give at least 1")
    for option, path in (("--json", files.json), ("--csv", files.csv), ("--markdown", files.markdown)):
        if path is not None and path.is_dir():
            raise ValueError(f"{option} {path}: that is a folder; name a file")
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{option} {path}: its folder cannot be made ({error.strerror}); name another") from None


def _device(device: str | None, engine: str) -> str:
    """The device asked for, or the best there is; that of a cluster's workers need not be here."""
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.split(":")[0] == "cuda" and engine != "ray" and not torch.cuda.is_available():
        refuse(f"compare --device {device}: torch sees no GPU here; leave --device out to use the CPU")
    try:
        torch.device(device)
    except RuntimeError:
        refuse(f"compare --device {device}: torch knows no such device; give cpu or cuda")
    return device


@dataclass(frozen=True)
class Files:
    """What is written besides the report, where it was asked for."""

    json: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None
    board: Path | None = None
    wandb: Path | None = None


def write(store: Store, sweep: Sweep, out: Path, files: Files, command: str, whole: bool = True) -> None:
    """Write the report of what is known so far, and print its table; one that is not whole is written and no more."""
    from rich.console import Console

    from milepost.lab.report import gather, to_csv, to_json, to_markdown
    from milepost.lab.report import write as write_page

    findings = gather(store, sweep, command=command)
    page = out / "report.html"
    if not whole and not findings.rows and not any(each.bits for each in findings.tried):
        return
    write_page(findings, page)
    for path, made in ((files.json, to_json), (files.csv, to_csv), (files.markdown, to_markdown)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made(findings), encoding="utf-8")
    if not whole:
        return note(f"the report of what was found so far: {page}")
    if files.board is not None:
        from milepost.lab.command.board import log

        log(store, sweep, files.board)
    if files.wandb is not None:
        from milepost.lab.command.board import log_wandb

        log_wandb(store, sweep, files.wandb)
    from milepost.lab.command.shown import table

    Console().print(table(findings))
    typer.echo(f"report: {page}")
