"""The tables of a report, in a terminal and as the Markdown of `docs/speed.md`."""

from __future__ import annotations

from milepost.bench.harness.report import Measure, Ratio, Row, Table

MICROSECONDS = ("rotary", "decoding", "host")
"""Groups whose calls are short."""
Cells = list[list[str]]


def printed(table: Table) -> str:
    """Return a table for a terminal."""
    cells = _cells(table)
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    lines = [f"\n{table.title}" + (f"; the limit is {table.limit}" if table.limit else "")]
    for row in cells:
        first, *others = (
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *others]).rstrip())
    return "\n".join(lines + [f"  {line}" for line in failures(table)])


def markdown(table: Table) -> str:
    """Return a table for a page, with what failed beneath it."""
    head, *rows = _cells(table)
    lines = [f"**{table.title}**" + (f"; the limit is {table.limit}." if table.limit else "."), ""]
    lines += [_line(head), _line(["---", "---", *("---:" for _ in head[2:])]), *map(_line, rows)]
    failed = failures(table)
    return "\n".join([*lines, *(["", *(f"- {line}" for line in failed)] if failed else [])])


def failures(table: Table) -> list[str]:
    """Return why figures are missing, a line each."""
    whole = [f"the table is cut short: {table.failed}"] if table.failed else []
    return whole + [f"{row.name}: {row.failed}" for row in table.rows if row.failed]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(table: Table) -> Cells:
    """Return all cells, the head first."""
    unit = _unit(table)
    hosts = any(each.host is not None for row in table.rows for each in row.measures.values())
    errors = any(row.agreement for row in table.rows)
    weighed = "× limit" if table.ratio == "times" else "of its speed"
    head = ["", "by"]
    for column in table.columns:
        head += [f"{column}, {unit}", weighed]
    head += ["host, µs"] if hosts else []
    if errors:
        # Without times the table is one of errors.
        head += ["error ÷ plain torch's"] if table.columns else ["output", "gradients", "÷ plain torch's"]
    rows = [head]
    for row in table.rows:
        cells = [row.name, row.backend or row.who]
        for column in table.columns:
            cells += _figure(row.measures.get(column), unit, table.ratio)
        cells += [_hosts(row, table.columns)] if hosts else []
        cells += _errors(row, bool(table.columns)) if errors else []
        rows.append(cells)
    return rows


def _unit(table: Table) -> str:
    units = {each.unit for row in table.rows for each in row.measures.values()}
    return "MiB" if "bytes" in units else "µs" if table.group in MICROSECONDS else "ms"


def _figure(measure: Measure | None, unit: str, ratio: Ratio) -> list[str]:
    """Return the median with its quartiles, and the ratio."""
    if measure is None:
        return ["–", "–"]
    factor = {"MiB": 2**-20, "µs": 1e3, "ms": 1.0}[unit]
    words = _number(measure.value * factor)
    if measure.calls == 1 and unit != "MiB":
        words += " (one call)"
    elif measure.low != measure.high:
        words += f" ({_number(measure.low * factor)}–{_number(measure.high * factor)})"
    return [words, _ratio(measure, ratio)]


def _ratio(measure: Measure, kind: Ratio) -> str:
    """Return the ratio to the limit and its target, bold where that is missed."""
    if measure.ratio is None:
        return "–"
    form, sign = (".0%", "≥") if kind == "share" else (".2f", "≤")
    words = format(measure.ratio, form)
    words = f"**{words}**" if measure.misses(kind) else words
    return words if measure.bound is None else f"{words} ({sign} {measure.bound:{form}})"


def _hosts(row: Row, columns: list[str]) -> str:
    hosts = [row.measures[column].host for column in columns if column in row.measures]
    return " / ".join(f"{host:.0f}" for host in hosts if host is not None) or "–"


def _errors(row: Row, timed: bool) -> list[str]:
    found = row.agreement
    if found is None:
        return ["–"] if timed else ["–"] * 3
    times = f"{found.times_plain:.2f}"
    if timed:
        return [times]
    return [f"{found.output:.1e}", f"{found.gradients:.1e}" if found.plain_gradients else "–", times]


def _number(value: float) -> str:
    """Return three figures, and no more decimals than that."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}" if value < 1 else f"{value:.2f}"
