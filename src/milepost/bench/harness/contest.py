"""A contest: contenders over the same tensors. Each is first compared with float64, then they are timed in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from milepost.bench.harness.clock import Budget, How, Work, race, short, tidy, wait
from milepost.bench.harness.report import Agreement, Ratio, Row, Table

FORWARD, BOTH = "forward", "forward+backward"
OURS = ("milepost", "limit", "torch")
"""Whose rows are no peers."""
Peers = Literal["with", "without", "only"]


@dataclass(frozen=True)
class Column:
    """A figure of every contender: the pass, and how it is measured."""

    label: str
    of: str
    how: How


@dataclass
class Works:
    """A contender that is ready to run."""

    passes: dict[str, Work]
    check: Callable[[], Agreement] | None = None
    backend: str = ""


@dataclass(frozen=True)
class Entry:
    """A contender by name, made when its turn comes; one that cannot be made is a row with a reason."""

    name: str
    who: str
    make: Callable[[], Works]


def passes(
    run: Callable[[], Tensor], leaves: tuple[Tensor, ...] = (), grad: Tensor | None = None
) -> dict[str, Callable[[], object]]:
    """Return forward alone and, where there are leaves, forward with every gradient."""

    def forward() -> object:
        with torch.no_grad():
            return run()

    def both() -> object:
        return torch.autograd.grad(run(), leaves, grad, allow_unused=True)

    return {FORWARD: forward, BOTH: both} if leaves else {FORWARD: forward}


@dataclass
class Contest:
    """One table to be. `entries` makes the tensors, so that nothing is allocated before it is needed."""

    group: str
    title: str
    columns: tuple[Column, ...]
    entries: Callable[[], list[Entry]]
    limit: str = ""
    ratio: Ratio = "times"
    bound: Callable[[str, str, float], float | None] = lambda name, column, limit: None
    """The bound on the ratio of a row in a column, from the limit's own value."""
    skip: tuple[str, ...] = ()
    """Contenders with any of these in their names are left out."""
    peers: Peers = "with"

    def contenders(self) -> list[Entry]:
        """Return the contenders that take part."""
        return [entry for entry in self.entries() if self._wanted(entry)]

    def _wanted(self, entry: Entry) -> bool:
        if any(word.lower() in entry.name.lower() for word in self.skip):
            return False
        is_peer = entry.who not in OURS
        return self.peers == "with" or entry.name == self.limit or is_peer == (self.peers == "only")

    def run(self, device: str, rounds: int, budget: Budget | None = None) -> Table:
        """Check every contender, time those that agree, and record why the others have no figures."""
        table = Table(self.group, self.title, self.limit, self.ratio, [column.label for column in self.columns])
        budget = budget or Budget()
        ready: dict[str, Works] = {}
        for entry in self.contenders():
            row = Row(entry.name, entry.who)
            table.rows.append(row)
            try:
                budget.check()
                works = entry.make()
                row.backend = works.backend
                row.agreement = None if works.check is None else works.check()
                if row.agreement is not None and not row.agreement.agrees:
                    row.failed = f"disagrees with float64: {_apart(row.agreement)}; not timed"
                else:
                    ready[entry.name] = works
            except Exception as error:
                row.failed = short(error)
                tidy()
        rows = {row.name: row for row in table.rows}
        for column in self.columns:
            works_of = {name: works.passes[column.of] for name, works in ready.items() if column.of in works.passes}
            try:
                for name, found in race(works_of, column.how, device, rounds, budget).items():
                    if isinstance(found, str):
                        rows[name].failed = "; ".join(filter(None, (rows[name].failed, f"{column.label}: {found}")))
                    else:
                        rows[name].measures[column.label] = found
                self._weigh(rows, column.label)
            except Exception as error:
                # The device itself has failed; what was found before stays.
                table.failed = f"{column.label}: {short(error)}"
        return table

    def _weigh(self, rows: dict[str, Row], label: str) -> None:
        """Compare every figure of a column with the limit's."""
        limit = rows[self.limit].measures.get(label) if self.limit in rows else None
        if limit is None:
            return
        for name, row in rows.items():
            if label in row.measures:
                own = row.measures[label]
                ratio = own.value / limit.value if self.ratio == "times" else limit.value / own.value
                row.measures[label] = replace(own, ratio=ratio, bound=self.bound(name, label, limit.value))

    def warm_up(self, share: int, shares: int) -> None:
        """Run every so many contenders once, so that what they compile is on disk later."""
        for entry in self.contenders()[share::shares]:
            try:
                for work in entry.make().passes.values():
                    work()
                    wait("cuda" if torch.cuda.is_available() else "cpu")
            except Exception:
                # Its row will have the reason.
                tidy()


def _apart(found: Agreement) -> str:
    return (
        f"output off by {found.output:.1e} of its norm (plain torch {found.plain_output:.1e}), "
        f"gradients by {found.gradients:.1e} ({found.plain_gradients:.1e})"
    )
