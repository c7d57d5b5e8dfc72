"""A trained model as a folder of its own: weights, scheme, shape and recipe, and the methods it was made with.

milepost export out/compare t5 --to milepost --out folder

from milepost.lab.exported import load
model = load("folder")        # a milepost.lab.training.model.Model
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import milepost
from milepost.lab.cells.cell import Cell, make
from milepost.lab.cells.store import Store, opened
from milepost.lab.schemes import own
from milepost.lab.schemes.expressions import spelled
from milepost.lab.schemes.naming import proper
from milepost.lab.schemes.own import Source
from milepost.lab.sweep.recorded import recorded
from milepost.lab.sweep.search import as_chosen
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.train import read_checkpoint, write_checkpoint
from milepost.refusal import need
from milepost.schedule import Schedule

WEIGHTS, ABOUT = "model.safetensors", "milepost.json"


def export(out: str | os.PathLike[str], name: str, folder: str | os.PathLike[str], seed: int | None = None) -> Path:
    """Write a model that `milepost compare --out` trained into a folder; returns the checkpoint it is from.

    name: the scheme, as it was given to compare, or as the report calls it. seed: the first there is, if None.
    """
    need("export", "lab", ("safetensors", "numpy"))
    cell, checkpoint = checkpoint_of(Path(out), name, seed)
    made = Path(folder)
    own.use(cell.own)
    model = _with(make(cell), read_checkpoint(checkpoint)[0], "model.")
    about = {
        "milepost": milepost.__version__, "scheme": cell.written, "schedule": model.schedule.to_dict(),
        "shape": asdict(model.shape), "recipe": asdict(cell.recipe), "seed": cell.seed, "task": cell.task,
        "corpus": cell.corpus, "methods": [asdict(each) for each in cell.own],
    }  # fmt: skip
    _refuse_other(made, about)
    made.mkdir(parents=True, exist_ok=True)
    write_checkpoint(made / WEIGHTS, {name: weight.detach() for name, weight in model.named_parameters()}, {})
    (made / ABOUT).write_text(json.dumps(about, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return checkpoint


def _refuse_other(folder: Path, about: dict[str, Any]) -> None:
    """Write over the model of an earlier export, but not over another one."""
    if not (folder / ABOUT).is_file():
        return
    there: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    here: dict[str, Any] = json.loads(json.dumps(about))
    # Folders of earlier versions may know less.
    other = [key for key in ("scheme", "seed", "corpus", "task", "shape", "recipe")
             if key in there and there[key] != here[key]]  # fmt: skip
    if other:
        raise ValueError(
            f"{folder} has another model, {there['scheme']} of seed {there['seed']}, which differs in its "
            f"{' and '.join(other)}; give another folder"
        )


def load(folder: str | os.PathLike[str]) -> Model:
    """Return the model of a folder that `milepost export` wrote, ready to read: `load(folder)(tokens)` gives logits.

    Methods of the user's own that are in the folder are run as Python; load no folder whose maker you do not trust.
    """
    path = Path(folder)
    if not (path / ABOUT).is_file():
        raise FileNotFoundError(f"load({str(folder)!r}): there is no {ABOUT} in it; milepost export writes one")
    about: dict[str, Any] = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    methods = [each for source in about["methods"] for each in own.methods_of(Source(**source)).values()]
    model = Model(Shape.of(about["shape"]), Schedule.from_dict(about["schedule"], methods=methods))
    return _with(model, read_checkpoint(path / WEIGHTS)[0], "").eval()


def _with(model: Model, tensors: dict[str, torch.Tensor], before: str) -> Model:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"{before}{name}"])
    return model


def checkpoint_of(out: Path, name: str, seed: int | None = None) -> tuple[Cell, Path]:
    """Return the model of that name, trained to its end, and the file of its weights."""
    with contextlib.closing(opened(out)) as store:
        cell = _chosen(store, name, seed)
        if not store.progress(cell.key)[1]:
            raise ValueError(
                f"{name} is not trained to its end yet; rerun the milepost compare that began it to resume"
            )
    checkpoint = out / f"{cell.key}.safetensors"
    if not checkpoint.is_file():
        raise FileNotFoundError(f"{name}: its checkpoint {checkpoint} is gone; train it again to export it")
    return cell, checkpoint


def _chosen(store: Store, name: str, seed: int | None) -> Cell:
    """Return the model of language of that name, from that seed."""
    sweep, _ = recorded(store)
    cells = [cell for cell in as_chosen(sweep, store).cells() if not cell.task]
    plain, _ = own.apart(name)
    found = [cell for cell in cells if plain in (cell.name, proper(cell.name)) or _same(plain, cell.name)]
    if not found:
        there = ", ".join(dict.fromkeys(cell.name for cell in cells))
        raise ValueError(f"{name}: no model of that name is in {store.path.parent}; there are {there}")
    chosen = [cell for cell in found if seed is None or cell.seed == seed]
    if not chosen:
        there = ", ".join(str(cell.seed) for cell in found)
        raise ValueError(f"{name}, seed {seed}: there are the seeds {there}")
    return chosen[0]


def _same(one: str, other: str) -> bool:
    """True if two names or expressions are one scheme."""
    try:
        return spelled(one) == spelled(other)
    except ValueError:
        return False
