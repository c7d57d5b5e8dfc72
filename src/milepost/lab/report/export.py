"""Findings as JSON, whole, and as CSV, one score a line."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from typing import Any, cast

from milepost.lab.findings import Findings
from milepost.lab.table import table

COLUMNS = (
    "label", "scheme", "variant", "trivial", "whole", "seeds", "parameters", "reach",
    "protocol", "length", "mean", "half", "judged",
)  # fmt: skip


def to_json(findings: Findings) -> str:
    """Everything the report shows, rows sorted as in its table; what is no finite number is null."""
    rows: list[dict[str, Any]] = []
    for line in table(findings).lines:
        names = {"label": line.row.label, "trivial": line.row.trivial}
        found = {"reach": line.effective_length, "held_to_the_end": line.to_the_end, "against_window": line.against}
        rows.append(names | found | asdict(line.row))
    whole = {"tolerance": findings.tolerance, "rows": rows, "ran": asdict(findings.ran)}
    return json.dumps(_plain(whole), ensure_ascii=False, indent=2, allow_nan=False)


def to_csv(findings: Findings) -> str:
    """One line for each score, rows sorted as in the table of the report."""
    written = io.StringIO()
    out = csv.writer(written, lineterminator="\n")
    out.writerow(COLUMNS)
    for line in table(findings).lines:
        row = line.row
        length = "" if line.effective_length is None else line.effective_length
        leading = [
            row.label,
            row.name,
            row.variant,
            int(row.trivial),
            int(row.whole),
            len(row.seeds),
            row.parameters,
            length,
        ]
        for protocol, scores in row.scores.items():
            for at, found in scores.items():
                half = "" if found.half is None else repr(found.half)
                out.writerow([*leading, protocol, at, repr(found.mean), half, found.judged])
        for at, mean in row.last.items():
            out.writerow([*leading, "windows, last 256", at, repr(mean), "", ""])
    return written.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value
