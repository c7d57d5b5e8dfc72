"""The groups of `milepost bench`, and a run of some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from milepost.bench import accuracy, attention, chunked, decoding, memory, models, rope
from milepost.bench.clock import short, tidy
from milepost.bench.contest import Contest
from milepost.bench.report import Report, Table
from milepost.bench.settings import Settings
from milepost.bench.shown import printed


@dataclass(frozen=True)
class Group:
    """Contests that belong together."""

    title: str
    note: str
    contests: Callable[[Settings], list[Contest]]
    on_gpu: bool = True


def _on_cpu(settings: Settings) -> list[Contest]:
    own = replace(settings, device="cpu", dtype=torch.float32)
    return [*rope.on_cpu(own), *decoding.on_cpu(own), *chunked.on_cpu(own)]


GROUPS: dict[str, Group] = {
    "attention": Group(
        "Attention",
        'As `attend` chooses by itself, plain causal by `backend="triton"`; gradients are those of q, k, v and of '
        "everything learned.",
        attention.attention,
    ),
    "packed": Group(
        "Packed documents", "Several documents in one row, beside the whole row as one text.", attention.packed
    ),
    "encoder": Group("Encoders and short rows", "Short rows are called eagerly, many in a burst.", attention.encoder),
    "rotary": Group(
        "The rotation of q and k alone",
        "As a share of the speed of a copy; with gradients, of two copies. A burst of eager calls, and a CUDA graph.",
        rope.rotary,
    ),
    "decoding": Group(
        "One token",
        "Through `Cache`, beside SDPA on keys already turned. A burst of eager calls, and a CUDA graph.",
        decoding.decoding,
    ),
    "memory": Group(
        "Memory", "The peak during a call, over what was allocated before it; the last call of two.", memory.memory
    ),
    "models": Group(
        "Whole models",
        "Each scheme with our kernels, as `attend` chooses, and without them, as it chose before there were any. The "
        "lab compiles its steps. Calls follow one another, one wait at the end. Nothing is compared with float64 here.",
        models.models,
    ),
    "accuracy": Group(
        "Accuracy",
        "Root mean square errors against float64, as shares of the norm, beside plain torch in the same dtype.",
        accuracy.accuracy,
    ),
    "cpu": Group("On the CPU", "In float32.", _on_cpu, on_gpu=False),
}


def contests_of(name: str, settings: Settings) -> list[Contest]:
    """The contests of a group, without the rows that were asked to be left out."""
    return [replace(contest, skip=settings.skip) for contest in GROUPS[name].contests(settings)]


def default_groups() -> list[str]:
    """All that need a GPU where there is one, otherwise those that need none."""
    return [name for name, group in GROUPS.items() if group.on_gpu == torch.cuda.is_available()]


def at_once(words: str) -> None:
    """Print without keeping anything back: a run takes minutes, and may be cut short."""
    print(words, flush=True)


def measure(
    names: Sequence[str], settings: Settings, report: Report, path: Path | None = None,
    say: Callable[[str], None] = at_once,
) -> Report:  # fmt: skip
    """Run every contest of these groups. What is found is written after each, so that a crash loses one table."""
    for name in names:
        start = time.perf_counter()
        for contest in contests_of(name, settings):
            table = _run(contest, settings if GROUPS[name].on_gpu else replace(settings, device="cpu"))
            report.tables.append(table)
            say(printed(table))
            if path is not None:
                report.write(path)
            tidy()
        say(f"{name}: {time.perf_counter() - start:.0f} s")
    return report


def _run(contest: Contest, settings: Settings) -> Table:
    try:
        return contest.run(settings.device, settings.rounds)
    except Exception as error:
        table = Table(contest.group, contest.title, contest.limit, contest.ratio, [])
        table.failed = short(error)
        return table
