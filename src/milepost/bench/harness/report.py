"""The results of `milepost bench` as data: tables of rows, written as JSON and read back."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

Ratio = Literal["times", "share"]
LIBRARIES = ("torch", "triton", "transformers", "liger_kernel", "flash_attn")


@dataclass(frozen=True)
class Measure:
    """One figure of a row, with the spread of the calls it is the median of."""

    value: float
    unit: str
    low: float
    """The first quartile."""
    high: float
    """The third."""
    calls: int
    """How many calls were timed; 1 where a call takes seconds."""
    host: float | None = None
    """Microseconds until a call is handed to the device."""
    ratio: float | None = None
    """Times the limit, or the share of its speed."""
    bound: float | None = None
    """The target of the ratio."""

    def misses(self, kind: Ratio) -> bool:
        """Return whether the ratio is on the wrong side of its target."""
        if self.ratio is None or self.bound is None:
            return False
        return self.ratio < self.bound if kind == "share" else self.ratio > self.bound


@dataclass(frozen=True)
class Agreement:
    """The error of a contender against float64, relative to the norm, and that of plain torch in the same dtype."""

    output: float
    plain_output: float
    gradients: float
    """Of the tensor whose gradient is worst compared with plain torch."""
    plain_gradients: float
    agrees: bool

    @property
    def times_plain(self) -> float:
        """Return the worse of both, in multiples of plain torch's error."""
        output = self.output / max(self.plain_output, 1e-30)
        return max(output, self.gradients / self.plain_gradients) if self.plain_gradients else output


@dataclass
class Row:
    """One contender of a table."""

    name: str
    who: str
    """`milepost`, `limit`, or whose code it is."""
    backend: str = ""
    measures: dict[str, Measure] = field(default_factory=dict[str, Measure])
    agreement: Agreement | None = None
    failed: str | None = None
    """Why the row, or a figure of it, is missing."""


@dataclass
class Table:
    """Contenders on the same tensors."""

    group: str
    title: str
    limit: str
    """The row that the others are compared with."""
    ratio: Ratio
    columns: list[str]
    rows: list[Row] = field(default_factory=list[Row])
    failed: str | None = None
    """Why rows or columns are missing altogether."""
    apart: str = ""
    """Date and command, where it is not from the run that the page is of."""


@dataclass
class Report:
    """Everything of one run, or of several that were put together."""

    machine: dict[str, str]
    tables: list[Table] = field(default_factory=list[Table])

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine(device: str, command: str) -> dict[str, str]:
    """Return the device, the versions and the command of a run."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    found = {"device": name, "cores": str(os.cpu_count()), "threads": str(torch.get_num_threads())}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    if device == "cuda":
        found["CUDA"] = str(torch.version.cuda)
        found["cuDNN"] = str(torch.backends.cudnn.version())
    now = datetime.now(timezone.utc)
    return {**found, "date": f"{now:%Y-%m-%d %H:%M} UTC", "command": command}


def read(path: Path) -> Report:
    """Return a report from its JSON."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Report(data["machine"], [_table(each) for each in data["tables"]])


def joined(reports: Sequence[Report]) -> Report:
    """Merge several runs, each table from the last run that has it; the machine is the first one's."""
    tables: dict[tuple[str, str], Table] = {}
    for report in reports:
        how = f"{report.machine.get('date', 'Another day')}, by `{report.machine.get('command', '')}`"
        apart = "" if report is reports[0] else how
        tables |= {(table.group, table.title): replace(table, apart=apart) for table in report.tables}
    return Report(reports[0].machine, list(tables.values()))


def _table(data: dict[str, Any]) -> Table:
    made: dict[str, Any] = {**data, "rows": [_row(each) for each in data["rows"]]}
    return Table(**made)


def _row(data: dict[str, Any]) -> Row:
    agreement = None if data["agreement"] is None else Agreement(**data["agreement"])
    measures = {name: Measure(**each) for name, each in data["measures"].items()}
    made: dict[str, Any] = {**data, "measures": measures, "agreement": agreement}
    return Row(**made)
