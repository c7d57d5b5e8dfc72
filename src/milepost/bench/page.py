"""`docs/speed.md`, written from a report."""

from __future__ import annotations

from milepost.bench.groups import GROUPS
from milepost.bench.report import Report, Table
from milepost.bench.shown import markdown

HEAD = """# How fast

`milepost bench` writes this page, with `--markdown` as it measures, or with `--from` of what several runs measured;
nothing in it is written by hand. A peer that is not installed says so, and one that a command skips is not there.

Measured on one {device}, {versions}{date}, by

```
{command}
```

Every contender is first compared with float64: some rows of its output at the full shape, and the gradients that come
from them. One that disagrees is not timed. Then all take turns on the same tensors, in one process. A figure is the
median, in brackets the quartiles; "× limit" is that over the limit's own median, and behind it stands the mark that was
set for it, bold where it is missed. The error is that against float64, over that of plain torch in the same dtype; one
token of RoPE reads keys that were kept turned, and so rounded once more than plain torch's. Calls are queued one after
another without waiting and timed by the device's own clock; before each the device's cache is cleared with a write of
256 MiB, as many times as let the host be ahead when the call begins; "host" is how long the host takes to make such a
call, forward and then with gradients: the mean of ten after a wait, and less steady than the rest. Bursts, where a
table says so, are many calls and one wait, so that the slower of host and device shows. Where one call takes over two
seconds, that call is the figure.
"""


def page(report: Report) -> str:
    """The whole page."""
    known = report.machine
    names = ("torch", "triton", "transformers", "liger_kernel", "flash_attn", "CUDA", "cuDNN")
    versions = ", ".join(f"{name} {known[name]}" for name in names if name in known)
    date = f", {known['date']}" if "date" in known else ""
    parts = [HEAD.format(device=known["device"], versions=versions, command=known["command"], date=date)]
    for name, group in GROUPS.items():
        tables = [table for table in report.tables if table.group == name]
        if tables:
            parts += [f"## {group.title}\n\n{group.note}\n", *map(_shown, tables)]
    return "\n".join(parts)


def _shown(table: Table) -> str:
    """A table, and before it, where it is from another run, when that was."""
    return (f"The next table is from another run: {table.apart}.\n\n" if table.apart else "") + f"{markdown(table)}\n"
