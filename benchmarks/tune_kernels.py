"""Configurations of the kernels on a GPU, compared with float64 and timed: `python -m benchmarks.tune_kernels`.

    python -m benchmarks.tune_kernels [attention] [rotary] [decoding] [--out out/tune]

Each table has the configuration in use first, and candidates after it. The tables are written to tune.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from milepost.backends.triton.decoding import decode
from milepost.backends.triton.rotary import rotate
from milepost.backends.triton.runtime import configs
from milepost.bench.harness.clock import Work, tidy
from milepost.bench.harness.contest import Contest, Entry, Works
from milepost.bench.harness.report import Report, machine
from milepost.bench.harness.settings import Settings, Shape, shaped
from milepost.bench.harness.tables import printed
from milepost.bench.suites import decoding, rotary
from milepost.bench.suites.attention import COLD, entry, tensors
from milepost.bench.suites.schemes import WINDOW, Make, causal_schemes

SCHEMES = ("ALiBi", "T5", "KERPLE, log", "soft cap", WINDOW)
CHOSEN = "as chosen"
ROTATION = ((4, 4, 16), (4, 4, 4), (4, 2, 8), (8, 8, 4), (8, 4, 8), (2, 4, 16), (2, 2, 4))
DECODING = (
    (32, 2, 3, 512), (32, 4, 3, 264), (64, 4, 3, 528), (64, 4, 4, 528), (128, 8, 3, 264), (32, 4, 4, 528),
    (64, 4, 3, 264), (64, 8, 3, 528), (64, 4, 3, 1056), (128, 4, 2, 528),
)  # fmt: skip
Under = Callable[[], AbstractContextManager[Any]]


def under(name: str, around: Under, entry: Entry) -> Entry:
    """Return a contender whose every call is made in a context."""

    def within(work: Callable[[], Any]) -> Work:
        def run() -> object:
            with around():
                return work()

        return run

    def works() -> Works:
        made: Works = within(entry.make)()  # pyright: ignore
        check: Any = None if made.check is None else within(made.check)
        return Works({label: within(work) for label, work in made.passes.items()}, check, made.backend)

    return Entry(name, "milepost", works)


def overridden(kernel: str, config: configs.Config) -> Under:
    return lambda: configs.override(**{kernel: config})


def rotating(shares: rotate.Shares) -> Under:
    return lambda: mock.patch.object(rotate, "shares_of", return_value=shares)


def stepping(setting: decode.Setting) -> Under:
    return lambda: mock.patch.dict(decode.SETTINGS, dict.fromkeys(decode.SETTINGS, setting))


def attention(settings: Settings) -> list[Contest]:
    """Return each kernel of attention, under schemes that read other facets."""

    def contest(shape: Shape, name: str, make: Make, kernel: str) -> Contest:
        def entries() -> list[Entry]:
            q, k, v, grad = tensors(settings, *shape)
            plain = entry(CHOSEN, make, (q, k, v, grad), settings, backend="triton")
            tried = configs.CANDIDATES[kernel, shape[3]]
            return [
                plain,
                *(under(str(each), lambda each=each: configs.override(**{kernel: each}), plain) for each in tried),
            ]

        return Contest("attention", f"{name}, {kernel}, {shaped(*shape)}", COLD, entries, CHOSEN)

    return [
        contest(shape, name, causal_schemes(*shape[1::2])[name], kernel)
        for shape in (settings.sizes.a, settings.sizes.b)
        for name in SCHEMES
        for kernel in configs.KERNELS
        if kernel != "walk" or name == "T5"
    ]


def others(contests: list[Contest], kinds: dict[str, Under]) -> list[Contest]:
    """Return contests with our rows alone, as they are and in each context."""

    def entries(of: Contest) -> list[Entry]:
        found = of.entries()
        ours = [each for each in found if each.who == "milepost"]
        return [
            found[0],
            *ours,
            *(under(f"{one.name}, {name}", kind, one) for one in ours for name, kind in kinds.items()),
        ]

    return [replace(each, entries=lambda each=each: entries(each)) for each in contests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["attention", "rotary", "decoding"])
    parser.add_argument("--out", type=Path, default=Path("out/tune"))
    asked = parser.parse_args()
    settings = Settings(peers="without")
    rotations = {str(each): rotating(rotate.Shares(*each)) for each in ROTATION}
    steps = {str(each): stepping(decode.Setting(*each)) for each in DECODING}
    parts: dict[str, Callable[[], list[Contest]]] = {
        "attention": lambda: attention(settings),
        "rotary": lambda: others(rotary.rotary(settings), rotations),
        "decoding": lambda: others(decoding.decoding(settings), steps),
    }
    report = Report(machine(settings.device, "python -m benchmarks.tune_kernels"))
    for name in asked.parts or parts:
        for contest in parts[name]():
            report.tables.append(contest.run(settings.device, settings.rounds))
            print(printed(report.tables[-1]), flush=True)
            report.write(asked.out / "tune.json")
            tidy()


if __name__ == "__main__":
    main()
