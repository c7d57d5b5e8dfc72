"""`docs/speed.md`, written from a report."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.bench.harness.report import Report, Table
from milepost.bench.harness.tables import markdown

HEAD = """# How fast

`milepost bench` writes this page, with `--markdown` as it measures, or with `--from` of what several runs measured;
nothing in it is written by hand. A peer that is not installed is a row with that reason; one that a command skips is
absent.

Measured on one {device}, {versions}{date}, by

```
{command}
```

Every contender is first compared with float64: some rows of its output at the full shape, and the gradients that come
from them. One that disagrees is not timed. Then all take turns on the same tensors, in one process. A figure is the
median, with the quartiles in brackets; "× limit" is the ratio to the limit's own median, followed by its target, bold
where it is missed. The error is relative to float64, divided by that of plain torch in the same dtype; one token of
RoPE reads keys that were kept rotated, and so rounded once more than plain torch's. Calls are queued one after another
without waiting and timed by the device's own clock; before each the device's cache is cleared with a write of 256 MiB,
as many times as let the host be ahead when the call begins. "host" is the time that such a call occupies the host,
forward and then with gradients: the mean of ten after a wait, and less steady than the rest. Bursts, where a table
names them, are many calls and one wait, so that the slower of host and device shows. Where one call takes over two
seconds, that call is the figure.
"""


def page(report: Report, groups: Iterable[tuple[str, str, str]]) -> str:
    """Return the whole page. groups: the name, the title and a note on each, in order."""
    known = report.machine
    names = ("torch", "triton", "transformers", "liger_kernel", "flash_attn", "CUDA", "cuDNN")
    versions = ", ".join(f"{name} {known[name]}" for name in names if name in known)
    date = f", {known['date']}" if "date" in known else ""
    parts = [HEAD.format(device=known["device"], versions=versions, command=known["command"], date=date)]
    for name, title, note in groups:
        tables = [table for table in report.tables if table.group == name]
        if tables:
            parts += [f"## {title}\n\n{note}\n", *map(_section, tables)]
    return "\n".join(parts)


def _section(table: Table) -> str:
    """Return a table, after a line on its run where that was another one."""
    return (f"The next table is from another run: {table.apart}.\n\n" if table.apart else "") + f"{markdown(table)}\n"
