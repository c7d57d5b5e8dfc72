"""One cell on a worker of a Ray cluster, in a folder of its own that nobody else sees."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

from milepost.lab.cells.cell import Cell, Known
from milepost.lab.cells.events import Event, Saved, Stepped
from milepost.lab.engines.local import Local
from milepost.lab.engines.parcels import Way, waited
from milepost.lab.engines.post import Letter
from milepost.lab.text.corpus import Corpus


def work_cell(
    number: int, attempt: int, cell: Cell, known: Known, corpus: Corpus, out: Path, device: str, carried: Way, post: Any
) -> None:
    """Go on with a cell from the driver's checkpoint of it, if there is one, and report to the driver.

    Every event is kept there before the cell goes on. out: the driver's folder, which need not be here.
    """
    marks = zip(itertools.repeat(number), itertools.repeat(attempt), itertools.count(), strict=False)

    def report(event: Event | None, parcel: Any = None) -> Any:
        return waited(post.put.remote(Letter(next(marks), event, parcel)))

    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        path = Path(folder) / f"{cell.key}.safetensors"
        newest = report(None)
        if newest is not None:
            carried.receive(newest, path)
            # Ray keeps it until nobody refers to it.
            del newest
        try:
            for _, event in Local(Path(folder), device).run([(cell, known)], corpus):
                parcel = carried.send(path) if isinstance(event, Saved) else None
                if isinstance(event, (Saved, Stepped)):
                    # It was sent, or read: a worker that is killed while it waits leaves no file behind.
                    with contextlib.suppress(OSError):
                        path.unlink()
                report(event, parcel)
        except ValueError as error:
            # A damaged checkpoint is damaged, and to be deleted, where it came from.
            raise ValueError(str(error).replace(str(path), str(out / path.name))) from error
