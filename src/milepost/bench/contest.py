"""A contest: contenders over the same tensors. First each is compared with float64, then they are timed in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from milepost.bench.clock import How, Work, race, short, tidy
from milepost.bench.report import Agreement, Measure, Ratio, Row, Table

FORWARD, BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Column:
    """A figure of every contender: which pass, and how it is taken."""

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
    """A contender by name, made when its turn comes: what cannot be made is a row with a reason."""

    name: str
    who: str
    make: Callable[[], Works]


def passes(run: Callable[[], Tensor], leaves: tuple[Tensor, ...], grad: Tensor) -> dict[str, Callable[[], object]]:
    """Forward alone, and forward with every gradient."""

    def forward() -> object:
        with torch.no_grad():
            return run()

    def both() -> object:
        return torch.autograd.grad(run(), leaves, grad, allow_unused=True)

    return {FORWARD: forward, BOTH: both}


def no_bound(name: str, column: str, limit: float) -> float | None:
    """Nothing is asked."""
    return None


@dataclass
class Contest:
    """What becomes one table. `entries` makes the tensors, so that nothing is allocated before it is needed."""

    group: str
    title: str
    columns: tuple[Column, ...]
    entries: Callable[[], list[Entry]]
    limit: str = ""
    ratio: Ratio = "times"
    bound: Callable[[str, str, float], float | None] = field(default=no_bound)
    """What the ratio of a row and column must come to, given the limit's own value."""
    skip: tuple[str, ...] = ()
    """Contenders with any of these in their names are left out."""

    def contenders(self) -> list[Entry]:
        """Everybody who takes part."""
        return [entry for entry in self.entries() if not any(word.lower() in entry.name.lower() for word in self.skip)]

    def run(self, device: str, rounds: int) -> Table:
        """Check everybody, time those who agree, and say why the others have no figures."""
        table = Table(self.group, self.title, self.limit, self.ratio, [column.label for column in self.columns])
        ready: dict[str, Works] = {}
        for entry in self.contenders():
            row = Row(entry.name, entry.who)
            table.rows.append(row)
            try:
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
            try:
                self._time(column, ready, rows, device, rounds)
            except Exception as error:
                # The device itself has failed; what was found before stays.
                table.failed = f"{column.label}: {short(error)}"
        return table

    def _time(self, column: Column, ready: dict[str, Works], rows: dict[str, Row], device: str, rounds: int) -> None:
        """Fill a column."""
        works_of = {name: works.passes[column.of] for name, works in ready.items() if column.of in works.passes}
        for name, found in race(works_of, column.how, device, rounds).items():
            if isinstance(found, str):
                rows[name].failed = "; ".join(filter(None, (rows[name].failed, f"{column.label}: {found}")))
            else:
                rows[name].measures[column.label] = found
        self._weigh(rows, column.label)

    def _weigh(self, rows: dict[str, Row], label: str) -> None:
        """Set every figure of a column beside the limit's."""
        limit = rows[self.limit].measures.get(label) if self.limit in rows else None
        if limit is None:
            return
        for name, row in rows.items():
            if label in row.measures:
                row.measures[label] = self._beside(row.measures[label], limit, name, label)

    def _beside(self, own: Measure, limit: Measure, name: str, label: str) -> Measure:
        ratio = own.value / limit.value if self.ratio == "times" else limit.value / own.value
        return replace(own, ratio=ratio, bound=self.bound(name, label, limit.value))

    def warm_up(self, share: int, shares: int) -> None:
        """Run every so many contenders once, so that what they compile is found compiled later."""
        for entry in self.contenders()[share::shares]:
            try:
                for work in entry.make().passes.values():
                    work()
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
            except Exception:
                # Its row will say so.
                tidy()


def _apart(found: Agreement) -> str:
    return (
        f"output off by {found.output:.1e} of its norm (plain torch {found.plain_output:.1e}), "
        f"gradients by {found.gradients:.1e} ({found.plain_gradients:.1e})"
    )
