"""Findings as JSON, whole, and as CSV, one score a line."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, replace
from typing import Any, cast

from milepost.lab.statistics.findings import Findings, Measure
from milepost.lab.statistics.measures import Difference
from milepost.lab.statistics.table import table

COLUMNS = (
    "label", "scheme", "variant", "expression", "trivial", "whole", "seeds", "parameters", "reach",
    "protocol", "length", "mean", "half_over_windows", "half_over_seeds", "judged",
)  # fmt: skip


def to_json(findings: Findings) -> str:
    """Everything the report shows, rows sorted as in its table; what is no finite number is null."""
    rows: list[dict[str, Any]] = []
    for line in table(findings).lines:
        names = {"label": line.row.label, "trivial": line.row.trivial}
        reach = line.reach
        found = {
            "learned": line.learned,
            "reach": line.effective_length,
            "reach_at_least": None if reach is None else reach.least,
            "reach_at_most": None if reach is None else reach.most,
            "to_the_end": reach is not None and reach.to_the_end,
            "against_window": _difference(line.against),
            "against_best": _difference(line.behind),
        }
        scores = {name: {at: _measure(each) for at, each in of.items()} for name, of in line.row.scores.items()}
        gained = None if line.row.gained is None else _measure(line.row.gained)
        others = asdict(replace(line.row, scores={}, gained=None))
        rows.append(names | found | others | {"scores": scores, "gained": gained})
    tried = [asdict(each) | {"mean": each.mean} for each in findings.tried]
    whole = {"tolerance": findings.tolerance, "rows": rows, "ran": asdict(findings.ran), "tried": tried}
    return json.dumps(_plain(whole), ensure_ascii=False, indent=2, allow_nan=False)


def to_csv(findings: Findings) -> str:
    """Return one line for each score, rows sorted as in the table of the report."""
    written = io.StringIO()
    out = csv.writer(written, lineterminator="\n")
    out.writerow(COLUMNS)
    for line in table(findings).lines:
        row = line.row
        leading = [row.label, row.name, row.variant, row.text, int(row.trivial), int(row.whole), len(row.seeds)]
        leading += [row.parameters, "" if line.effective_length is None else line.effective_length]
        for protocol, scores in row.scores.items():
            for at, found in scores.items():
                halves = ["" if each is None else repr(each) for each in (found.half, found.between)]
                out.writerow([*leading, protocol, at, repr(found.mean), *halves, found.judged])
        for at, mean in row.last.items():
            out.writerow([*leading, "windows, last 256", at, repr(mean), "", "", ""])
    return written.getvalue()


def _measure(measure: Measure) -> dict[str, Any]:
    """Return a score without its windows, which the store has."""
    return {
        "mean": measure.mean,
        "half_over_windows": measure.half,
        "half_over_seeds": measure.between,
        "seeds": measure.seeds,
        "judged": measure.judged,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {"mean": difference.mean, "half_over_windows": difference.windows, "half_over_seeds": difference.seeds}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value
