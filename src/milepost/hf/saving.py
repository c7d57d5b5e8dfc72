"""`save` and `load`: an extended model in a folder, and out of it again.

Where transformers has words for a stretch, its own config.json says all, and stock transformers reads it without us.
Beside it stands a small JSON with the scheme of every layer. Weights are safetensors; nothing is unpickled, and no code
of the folder is run.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

from torch import nn

from milepost.configs.source import inside
from milepost.hf.buckets import has_buckets, put_stacks, stretched
from milepost.hf.companion import NAME, read_schedule, write
from milepost.hf.extension import NEEDED, extended, extension_of
from milepost.hf.models import demand_model
from milepost.hf.t5 import stacks_of
from milepost.lab.training.train import FULL
from milepost.refusal import need
from milepost.schedule import Schedule


def save(model: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Write an extended model into a folder; options are those of transformers' `save_pretrained`."""
    need("save", "hf", NEEDED)
    plain = said(demand_model("save", model))
    refuse_wrapped(model)
    refuse_full(model, Path(path))
    try:
        model.save_pretrained(path, **options)
    except Exception as error:
        # safetensors has errors of its own, which are no OSError.
        if getattr(error, "errno", None) in FULL or "No space left" in str(error):
            raise OSError(f"save({str(path)!r}): no disk space left; free some and save again") from error
        raise
    write(path, plain)


def said(model: Any) -> dict[str, Any]:
    """What stands beside the weights."""
    done = extension_of(model)
    if done is not None:
        return done.to_dict()
    stacks = stretched(model)
    if stacks is None or not stacks.schedules:
        raise ValueError(
            "save: this model is not extended, or its table is grown or its buckets stretched, so transformers says "
            "all of it: model.save_pretrained(path)"
        )
    return stacks.to_dict()


def refuse_full(model: nn.Module, path: Path) -> None:
    """Refuse, before anything is written, a disk that has no room for the weights."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    # Weights that are shared are written once; what is offloaded is written all the same.
    size, free = sum(each.nbytes for each in model.parameters()), shutil.disk_usage(there).free
    if free < size:
        raise OSError(
            f"save({str(path)!r}): the weights need {size / 1e9:.4f} GB, and {free / 1e9:.2f} GB are free there; free "
            f"some, or name a folder on another disk"
        )


def refuse_wrapped(model: Any) -> None:
    """Refuse what is no model of transformers itself: its folder would have an adapter and no model."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"save: this is a {type(model).__name__} around a model, and would be saved without it. Merge it first: "
            f"save(model.merge_and_unload(), path); or keep its own weights alone, model.save_pretrained(path), and "
            f"load them onto the same model, extended in the same way"
        )


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """Read a folder that `save` wrote; options are those of transformers' `from_pretrained`, such as dtype=…"""
    need("load", "hf", NEEDED)
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"load({path!r}): give a folder that save wrote")
    folder = Path(path)
    plain = saved(folder)
    model, said = read(folder, options)
    missing = [name for kind in ("missing_keys", "mismatched_keys", "unexpected_keys") for name in said.get(kind, ())]
    if missing:
        raise ValueError(
            f"load({str(path)!r}): its config.json disagrees with its weights about {len(missing)} of them, such as "
            f"{missing[0]}; save the model again"
        )
    if has_buckets(model):
        reach = model.config.relative_attention_max_distance
        stacks = stacks_of(model, reach)
        for name, layers in stacks.items():
            refuse_edited(path, plain["config"].get(name), layers.own)
        put_stacks(model, reach, reach, stacks, {name: read_schedule(plain["schedule"][name]) for name in stacks})
        return model
    refuse_edited(path, plain["config"], Schedule.of(model.config))
    return extended(model, [read_schedule(plain["schedule"])], through=plain["through"])


def refuse_edited(path: str | os.PathLike[str], kept: dict[str, Any] | None, now: Schedule) -> None:
    """Refuse a config that does not say what it said when the folder was written."""
    if kept is None or not Schedule.from_dict(kept).same_as(now):
        raise ValueError(
            f"load({str(path)!r}): its config.json was changed after {NAME} was written, and now says {now!r}; to "
            f"extend it anew: extend(AutoModelForCausalLM.from_pretrained(path), …)"
        )


def saved(folder: Path) -> dict[str, Any]:
    """What `save` wrote beside the weights, or an error that says what the folder is instead."""
    called = f"load({str(folder)!r})"
    if not folder.is_dir():
        raise FileNotFoundError(f"{called}: no such folder. Nothing is downloaded: give a folder that save wrote")
    file = folder / NAME
    if not file.exists():
        hint = ""
        if (folder / "config.json").exists():
            hint = ". It is a model without an extension: AutoModelForCausalLM.from_pretrained(path), then extend"
        raise FileNotFoundError(f"{called}: the folder has no {NAME}, which save writes; it {inside(folder)}{hint}")
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{called}: {file} is not JSON: {error}") from error
    plain = cast("dict[str, Any]", found).get("milepost") if isinstance(found, dict) else None
    if not isinstance(plain, dict) or not {"schedule", "config", "through"} <= set(cast("dict[str, Any]", plain)):
        raise ValueError(f"{called}: {file} was not written by save: it lacks the schedule, the config or the path")
    return cast("dict[str, Any]", plain)


def read(folder: Path, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model of a folder under the class that it was saved as, and what was missing."""
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names: list[str] = config.get("architectures") or []
    kind: Any = getattr(transformers, names[0], None) if names else transformers.AutoModelForCausalLM
    if kind is None:
        raise ValueError(f"load({str(folder)!r}): this transformers has no {names[0]}; nothing else is run")
    weights = sorted(each.name for each in folder.iterdir() if each.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    if not any(name.endswith(".safetensors") for name in weights):
        raise ValueError(
            f"load({str(folder)!r}): no safetensors among {', '.join(weights) or 'its files'}; pickled weights can run "
            f"code, and are not read"
        )
    given = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    try:
        return kind.from_pretrained(folder, **(options | given))
    except RuntimeError as error:
        raise ValueError(
            f"load({str(folder)!r}): its config.json disagrees with its weights: {error}. Save the model again"
        ) from error
