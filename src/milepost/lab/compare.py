"""`milepost compare`: train one small model for each scheme, judge each far past its length, and report."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from milepost.lab import options
from milepost.refusal import need, refuse
from milepost.seams.arguments import did_you_mean

if TYPE_CHECKING:
    from milepost.lab.corpus import Corpus
    from milepost.lab.findings import Findings
    from milepost.lab.recipe import Size
    from milepost.lab.sweep import Engine, Sweep


def compare(
    schemes: options.Schemes = None,
    size: options.SizeName = "demo",
    text: options.Text = None,
    dataset: options.Dataset = None,
    train_bytes: options.TrainBytes = None,
    out: options.Out = Path("out/compare"),
    seeds: options.Seeds = 1,
    free: options.Free = True,
    every: options.Every = False,
    row: options.Rows = None,
    engine: options.EngineName = "local",
    jobs: options.JobCount = 1,
    device: options.Device = None,
    threads: options.Threads = 2,
    length: options.Length = None,
    longest: options.Longest = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    rate: options.Rate = None,
    width: options.Width = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    key_heads: options.KeyHeads = None,
    accumulate: options.Accumulate = None,
    compiled: options.Compiled = None,
    judged: options.Judged = None,
    recall: options.Recall = None,
    tasks: options.Tasks = None,
    json: options.ToJson = None,
    csv: options.ToCsv = None,
    tensorboard: options.Board = None,
) -> None:
    """Train each scheme at a short length, judge it at long ones.

    One small language model is trained for each scheme, all under the same conditions, and judged at lengths that
    double, up to 16 or 32 times its own. A table is printed, and a report written: one HTML file.

    Stop it at any moment: the same command goes on where it stopped, and ends with the same numbers.
    """
    from milepost.lab.parallel import world
    from milepost.lab.store import Store
    from milepost.lab.sweep import Sweep, missing, outdated, run
    from milepost.lab.torchrun import Torchrun

    device = _device(device, engine)
    own: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "key_heads": key_heads}
    training: dict[str, Any] = {"length": length, "steps": steps, "batch": batch, "rate": rate}
    training["accumulate"] = accumulate
    training["compiled"] = device.startswith("cuda") if compiled is None else compiled
    try:
        if text is not None and dataset is not None:
            raise ValueError("--text and --dataset: one text at a time; leave one out")
        _installed(engine, dataset, tensorboard)
        if jobs > 1 and engine != "local":
            raise ValueError(f"--jobs {jobs}: only the local engine takes it; leave it out")
        if every and not free:
            raise ValueError("--every --no-free: all the training-free rows, or none; leave one out")
        if engine != "torchrun" and world(device).size > 1:
            raise ValueError(
                f"{world(device).size} processes were started together (WORLD_SIZE); add --engine torchrun"
            )
        counts = {"--seeds": seeds, "--jobs": jobs, "--train-bytes": train_bytes, "--judge": judged}
        _refuse_early(counts, json, csv)
        chosen = _size(size, own, training, longest, device)
        made = [each for each in (out, json, csv, tensorboard) if each is not None]
        corpus = _corpus(text, dataset, made).first(train_bytes)
        sweep = Sweep(
            tuple(schemes or options.DEFAULT), chosen, corpus, tuple(range(seeds)), _judging(chosen, judged, recall),
            free, threads, _tasks(tasks), every, tuple(map(_row, row or [])),
        )  # fmt: skip
        if chosen.longest < chosen.recipe.length:
            raise ValueError(f"--longest {chosen.longest}: less than the {chosen.recipe.length} trained at; raise it")
        cells = sweep.cells()
        if engine == "torchrun" and world(device).rank:
            # The first process has the store and tells; this one trains along.
            return Torchrun(out, device).follow(corpus)
        store = Store(out / "lab.sqlite")
        cores = os.cpu_count() or 1
        if device == "cpu" and engine == "local" and jobs > 1 and jobs * threads > cores:
            note(f"{jobs} jobs of {threads} threads each on {cores} cores are slower than with --threads 1")
    except (ValueError, TypeError, OSError, ImportError) as error:
        refuse(f"compare: {error}")
    from milepost.lab.progress import Watched

    try:
        done = len(cells) - len(missing(sweep, store))
        again = outdated(store, cells)
        if again:
            note(f"{again} models were judged by an earlier version, and are judged again from their checkpoints")
        if done:
            note(f"{done} of {len(cells)} models are done already, in {out}")
        with Watched(cells) as watched:
            run(sweep, store, _engine(engine, out, device, jobs), watched)
        _report(store, sweep, out, json, csv, tensorboard)
    except KeyboardInterrupt:
        note(f"stopped; the same command goes on from {out}, each model from its last checkpoint")
        raise SystemExit(130) from None
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        refuse(f"compare: {error}")
    finally:
        store.close()


def note(message: str) -> None:
    """Say something beside the table, which others may read from stdout."""
    print(f"milepost: compare: {message}", file=sys.stderr)


def _installed(engine: str, dataset: str | None, board: Path | None) -> None:
    """Refuse what lacks a library, which would be found out only when everything is trained."""
    need("the lab", "lab")
    if engine == "ray":
        need("--engine ray", "ray")
    if dataset is not None:
        need("--dataset", "datasets")
    if board is not None:
        need("--tensorboard", "lab", ["tensorboard"])
        from milepost.lab.board import writer

        writer()


def _refuse_early(counts: dict[str, int | None], json: Path | None, csv: Path | None) -> None:
    """Refuse what would fail only after everything is trained."""
    for option, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{option} {count}: give at least 1")
    for option, path in (("--json", json), ("--csv", csv)):
        if path is not None and path.is_dir():
            raise ValueError(f"{option} {path}: that is a folder; name a file")


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


def _size(name: str, own: dict[str, Any], training: dict[str, Any], longest: int | None, device: str) -> Size:
    from milepost.lab.recipe import SIZES, Size

    if name not in SIZES:
        raise ValueError(f"--size {name}: there are {', '.join(SIZES)}{did_you_mean(name, SIZES)}")
    chosen = SIZES[name]
    given = {key: value for key, value in training.items() if value is not None}
    if device == "cpu":
        # On a CPU bfloat16 saves nothing and costs much.
        given["precision"] = "float32"
    recipe = replace(chosen.recipe, **given)
    ratio = chosen.longest // chosen.recipe.length
    return Size(
        replace(chosen.shape, **{key: value for key, value in own.items() if value is not None}),
        replace(recipe, warmup=min(recipe.warmup, max(1, recipe.steps // 10))),
        recipe.length * ratio if longest is None else longest,
        chosen.judged,
    )


def _judging(chosen: Size, judged: int | None, recall: str | None) -> Any:
    from milepost.lab.scoring import Judging

    length, longest = chosen.recipe.length, chosen.longest
    total = chosen.judged if judged is None else judged
    few = max(8, total // (2 * longest))
    # So short that two copies, and something between them, lie within the trained length.
    copied = min(128, max(1, length // 4))
    if recall is None:
        # Distances within the trained length, then others that double, past it and up to the longest.
        spread = [length // 2, *(3 * length // 4 << n for n in range(longest.bit_length()))]
        distances = sorted({each for each in spread if copied <= each <= longest - copied})
    else:
        distances = _numbers("--recall", recall)
        if max(distances) > longest - copied:
            raise ValueError(
                f"--recall {max(distances)}: the second copy would end past the longest length, {longest}; lower it, "
                f"or raise --longest"
            )
    ends, copies = min(64, 2 * few), min(32, few)
    return Judging(longest, total=total, ends=ends, recall=tuple(distances), copies=copies, copied=copied)


def _tasks(text: str | None) -> tuple[str, ...]:
    names = () if text is None else tuple(each.strip() for each in text.split(","))
    if not all(names):
        raise ValueError(f"--tasks {text!r}: an empty name; give some with commas between them, such as copy,needle")
    return names


def _row(text: str) -> tuple[str, str]:
    name, colon, expression = (each.strip() for each in text.partition(":"))
    if not (name and colon and expression):
        raise ValueError(
            f"--row {text!r}: name the scheme it is judged on, then a colon: 'rope: Rope(dim) + Rerope(32)'"
        )
    return name, expression


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: give whole numbers with commas between them, such as 256,3072") from None


def _corpus(text: Path | None, dataset: str | None, made: list[Path]) -> Corpus:
    from milepost.lab import corpus

    if text is not None:
        return corpus.of_path(text, made)
    return corpus.of_python() if dataset is None else corpus.of_dataset(dataset)


def _engine(name: str, out: Path, device: str, jobs: int) -> Engine:
    from milepost.lab.jobs import Jobs
    from milepost.lab.sweep import Local
    from milepost.lab.torchrun import Torchrun

    out.mkdir(parents=True, exist_ok=True)
    if name == "local":
        return Local(out, device) if jobs == 1 else Jobs(out, device, jobs)
    if name == "ray":
        from milepost.lab.ray_engine import Ray

        return Ray(out, device)
    if name == "torchrun":
        return Torchrun(out, device)
    raise ValueError(f"--engine {name}: there are local, ray and torchrun")


def _report(store: Any, sweep: Sweep, out: Path, json: Path | None, csv: Path | None, board: Path | None) -> None:
    from rich.console import Console

    from milepost.lab.report import gather, to_csv, to_json, write

    findings: Findings = gather(store, sweep, command=shlex.join(["milepost", *sys.argv[1:]]))
    page = out / "report.html"
    write(findings, page)
    for path, made in ((json, to_json), (csv, to_csv)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made(findings), encoding="utf-8")
    if board is not None:
        from milepost.lab.board import log

        log(store, sweep, board)
    from milepost.lab.shown import table

    Console().print(table(findings))
    typer.echo(f"report: {page}")
