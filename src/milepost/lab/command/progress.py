"""What a sweep shows while it runs: a bar a model, with its loss, its speed and the time left, and the table so far."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.events import Died, Event, Stepped
from milepost.lab.cells.store import Score
from milepost.lab.command.shown import Column, Fitted
from milepost.lab.judging.scoring import VALIDATION
from milepost.lab.schemes.named import rates_in_words

# Lines of the live table; a terminal has no room for more.
ROWS = 24


class Whole:
    """How far a whole sweep has come, stage after stage; prints as `13 of 48 models done, about 12 min left`."""

    def __init__(self) -> None:
        self.done = self.open = self.later = 0
        self.begun = time.monotonic()

    def begin(self, count: int) -> None:
        """A stage begins in which so many models are worked on."""
        self.open = self.done + count

    @property
    def left(self) -> int:
        """Return how many models are left, in this stage and later."""
        return self.open + self.later - self.done

    def __str__(self) -> str:
        """Return how far it is; the time left is that of the models so far, for as many as are left."""
        of = f"{self.done} of {self.open + self.later} models done"
        if not self.done:
            return of
        each = (time.monotonic() - self.begun) / self.done
        return f"{of}, about {duration(each * self.left)} left"


class Watched:
    """Draws events as they come: bars and a live table in a terminal, a line now and then in a pipe."""

    def __init__(
        self,
        cells: Sequence[Cell],
        console: Console | None = None,
        left: Mapping[str, int] | None = None,
        whole: Whole | None = None,
    ) -> None:
        """left: by key, how many scores each cell still lacks; what is not there is done. whole: what these are of."""
        self.console = Console(file=sys.stderr) if console is None else console
        self.live = self.console.is_terminal
        self.bars = Progress(
            # Names are printed as they are: a sign such as [/bold] in one is no markup.
            TextColumn("{task.description}", justify="right", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=self.console,
            expand=True,
        )
        self.cells = {cell.key: cell for cell in cells}
        self.scores: dict[tuple[str, str], dict[int, float]] = {}
        self.tasks: dict[str, TaskID] = {}
        self.last: dict[str, float] = {}
        several = len({cell.seed for cell in cells}) > 1
        choosing = any(VALIDATION in cell.judging.protocols for cell in cells)
        self.names: dict[str, str] = {}
        for cell in cells:
            seed = f"seed {cell.seed}" if several else ""
            rates = rates_in_words(cell.recipe, cell.name) if choosing else ""
            self.names[cell.key] = " · ".join(filter(None, (cell.name, cell.task, seed, rates)))
        self.left = {cell.key: len(cell.wanted()) for cell in cells} if left is None else dict(left)
        self.whole = Whole() if whole is None else whole
        self.whole.begin(len(self.left))
        self._live: Live | None = None

    def __enter__(self) -> Watched:
        if self.live:
            self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._drawn)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, cell: Cell, event: Event) -> None:
        if isinstance(event, Stepped):
            self._stepped(cell, event)
        elif isinstance(event, Score):
            self._scored(cell, event)
        elif isinstance(event, Died):
            self._line(f"{self.names[cell.key]}: {event.why}; another worker resumes from its last checkpoint")

    def _stepped(self, cell: Cell, event: Stepped) -> None:
        name = self.names[cell.key]
        if cell.key not in self.tasks:
            self.tasks[cell.key] = self.bars.add_task(f"train {name}", total=cell.recipe.steps, status="")
        bits = event.losses[-1][1] / math.log(2) if event.losses else math.nan
        speed = event.tokens / event.seconds if event.seconds else 0.0
        unit = "tokens" if cell.task else "bytes"
        status = f"{bits:.3f} bits  {speed:,.0f} {unit}/s" if event.losses else ""
        self.bars.update(self.tasks[cell.key], completed=event.step, status=status)
        if event.done:
            self._judging(cell)
        elif event.step and not event.losses:
            self._line(f"train {name}: resumes at step {event.step} of {cell.recipe.steps}")
        if event.losses and (event.done or self._due(cell.key)):
            self._line(f"train {name}: step {event.step} of {cell.recipe.steps}, {status}")

    def _judging(self, cell: Cell) -> None:
        key, name = f"judge {cell.key}", self.names[cell.key]
        if key not in self.tasks:
            total = self.left.get(cell.key, len(cell.wanted()))
            self.tasks[key] = self.bars.add_task(f"judge {name}", total=total, status="")

    def _scored(self, cell: Cell, score: Score) -> None:
        self._judging(cell)
        if score.protocol in ("windows", VALIDATION):
            self.scores.setdefault((cell.key, score.variant), {})[score.length] = score.mean
        status = f"{score.variant or 'as trained'}: {score.mean:.3f} at {score.length:,}"
        self.bars.update(self.tasks[f"judge {cell.key}"], advance=1, status=status)
        if self._due(cell.key):
            self._line(f"judge {self.names[cell.key]}, {status} ({score.protocol})")
        self.left[cell.key] = self.left.get(cell.key, 1) - 1
        if not self.left[cell.key]:
            self.whole.done += 1
            if self.whole.left > 0:
                self._line(str(self.whole))

    def _due(self, key: str) -> bool:
        """True if five seconds have passed since the last line about a cell."""
        now = time.monotonic()
        due = now - self.last.get(key, -math.inf) >= 5
        if due:
            self.last[key] = now
        return due

    def waits(self, count: int) -> None:
        """Tell that other processes work on all cells that are left."""
        self._line(f"another process is at work on the last {count} in this folder; waiting for it", always=True)

    def _line(self, text: str, always: bool = False) -> None:
        if always or not self.live:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _drawn(self) -> Group:
        lengths = sorted({length for row in self.scores.values() for length in row})
        columns = [Column("bits per byte", name=True), *(Column(f"{length:,}", n) for n, length in enumerate(lengths))]
        shown = list(self.scores.items())[-ROWS:]
        rows: list[list[Text]] = []
        for (key, variant), row in shown:
            texts = [f"  {variant}" if variant else self.names[key]]
            texts += [f"{row[length]:.3f}" if length in row else "" for length in lengths]
            rows.append([Text(each, style="dim" if variant else "") for each in texts])
        # What is done gives up its bar.
        for task in self.bars.tasks:
            task.visible = not task.finished
        whole = Text(str(self.whole), style="dim")
        return Group(Fitted(columns, rows), self.bars, whole) if shown else Group(self.bars, whole)


def duration(seconds: float) -> str:
    """Return a time as people say it: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
