"""Two pages of `milepost bench`, figure by figure: `python -m benchmarks.compare_pages docs/speed.md out/gpu/speed.md`.

Times and memory that grew by more than 5 % are printed, then rows and tables that only one page has.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

Key = tuple[str, str, str]
"""The title of the table, the row, the column."""
GROWN = 1.05


def figures(page: str) -> dict[Key, float]:
    """Return every median of a page."""
    found: dict[Key, float] = {}
    title, head = "", [""]
    for line in page.splitlines():
        if line.startswith("**"):
            title, head = line.split("**")[1], [""]
        if not line.startswith("| "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|  | by"):
            head = cells
            continue
        for column, cell in zip(head[2:], cells[2:], strict=False):
            number = re.match(r"[\d.,]+", cell)
            if number and column.split(", ")[-1] in ("ms", "µs", "MiB") and not column.startswith("host"):
                found[title, cells[0], column] = float(number[0].replace(",", ""))
    return found


def main(before: str, after: str) -> int:
    """Print what grew, and return 1 if anything did."""
    old, new = (figures(Path(each).read_text("utf-8").replace("turned", "rotated")) for each in (before, after))
    ratios = {key: new[key] / old[key] for key in new if key in old}
    for key, ratio in sorted(ratios.items(), key=lambda pair: -pair[1]):
        if ratio > GROWN:
            print(f"{ratio:.2f} × {old[key]:g} → {new[key]:g}  {', '.join(key)}")
    grown = sum(ratio > GROWN for ratio in ratios.values())
    print(f"{len(ratios)} figures compared, {grown} grown by more than {GROWN - 1:.0%}")
    for name, one, other in (("before", old, new), ("after", new, old)):
        alone = sorted({key[:2] for key in one} - {key[:2] for key in other})
        print(f"only {name}: {len(alone)} rows", *(f"  {title}: {row}" for title, row in alone), sep="\n")
    return min(grown, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
