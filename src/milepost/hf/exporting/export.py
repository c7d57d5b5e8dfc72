"""`export`: carry a model away, into a folder that another engine reads, or say why that engine cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from milepost.hf.exporting.card import write_card
from milepost.hf.exporting.engines import engines
from milepost.hf.exporting.refused import demand_runs
from milepost.hf.exporting.source import source_of
from milepost.hf.files.folder import demand_new, written_whole
from milepost.hf.files.from_lab import write_lab_model
from milepost.hf.model.extension import NEEDED
from milepost.lab.training.model import Model
from milepost.refusal import did_you_mean, need


def export(
    model: Any,
    out: str | os.PathLike[str],
    trained: int | None = None,
    *,
    to: str = "transformers",
    method: object | Sequence[object] = (),
    length: int | None = None,
) -> str:
    """Write a model into a new folder that an engine reads, and return how it is read there.

        export(model, "folder", to="gguf")                                    # as it is in memory, extended or stock
        export("checkpoint", "folder", to="vllm", method=mp.Yarn(4, trained=8192))
        export("checkpoint", "folder", to="onnx", method="Rerope(2048) + LogN(8192)")

    model: a model of transformers, the folder of one (stock, or saved extended), a name of the hub; or a RoPE model of
    the lab or its checkpoint. to: transformers, vllm, sglang, gguf, onnx, torch or milepost. method: what it is
    extended with on the way, as `extend` takes it, for a model that is not in memory; length: the length to reach, for
    rows of the lab by name. trained: the trained length of a model of the lab.

    What the engine cannot run is refused by name, with the nearest method that it can, before weights are read. The
    folder gets its name when all is written; a README.md in it says how it is read without milepost, or that it cannot.
    """
    known = engines()
    if to not in known:
        raise ValueError(f"export(to={to!r}): there are {', '.join(known)}{did_you_mean(to, known)}")
    engine, folder = known[to], Path(out).expanduser()
    need(f"export(to={to!r})", "hf", NEEDED)
    demand_new(folder, "export: the folder")
    parts = tuple(cast("Sequence[object]", method)) if isinstance(method, (list, tuple)) else (method,)
    with TemporaryDirectory() as place:
        if isinstance(model, Model) or str(model).endswith(".safetensors"):
            write_lab_model(model, place, trained)
            model = place
        elif not _is_model(model) and not isinstance(model, (str, os.PathLike)):
            raise TypeError(
                f"export({type(model).__name__}): give a model of transformers or of the lab, the folder of one, or "
                f"the path of a checkpoint that milepost compare wrote"
            )
        source = source_of(cast("object", model), parts, length)
        if engine.needs:
            need(f"export --to {to}", to, engine.needs)
        demand_runs(engine, source, known)
        with written_whole(folder, "export: the folder") as part:
            return write_card(source, to, part, folder, engine.write(source, part))


def _is_model(given: object) -> bool:
    return hasattr(given, "config") and hasattr(given, "state_dict")
