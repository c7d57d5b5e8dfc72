"""`save` and `load`: an extended model in a folder, and out of it again.

The folder is what transformers writes: safetensors, and a config.json in which the model's config stores the extension
(`hf/model/settings.py`). Stock transformers runs the same model from it, or refuses it by naming milepost.
Nothing is unpickled, and no code of the folder is run.
"""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any, cast

from torch import nn

from milepost.configs import read
from milepost.configs.source import configuration, inside, read_json, text_of
from milepost.configs.stored import KEY, OLD_FILE, Plain, stored_in
from milepost.hf.model.extension import NEEDED, extended, extension_of
from milepost.hf.model.models import demand_model, undrawn
from milepost.hf.model.settings import stored_schedule
from milepost.hf.model.t5 import Stacks, has_buckets, put_stacks, stacks_of, stretched
from milepost.lab.training.train import FULL
from milepost.refusal import need
from milepost.schedule import Schedule, schedule_in, stock_schedule

WEIGHTS = "model.safetensors"
"""What transformers calls weights in one file."""


def save(model: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Write an extended model into a folder, as its `save_pretrained` does, whose options it takes.

    Weights that an earlier save left there are replaced. Models that are not extended or wrapped in another, and disks
    that are full, are refused before anything is written.
    """
    need("save", "hf", NEEDED)
    refuse(demand_model("save", model), Path(path))
    try:
        model.save_pretrained(path, **options)
    except Exception as error:
        # safetensors has errors of its own, which are no OSError.
        if getattr(error, "errno", None) in FULL or "No space left" in str(error):
            raise OSError(f"save({str(path)!r}): no disk space left; free some and save again") from error
        raise
    if both_forms(Path(path)):
        # transformers removes old shards beside a new file, and leaves the old file beside new shards, which it reads.
        (Path(path) / WEIGHTS).unlink()


def both_forms(folder: Path) -> bool:
    """True if a folder has weights in one file and in shards as well."""
    index = folder / f"{WEIGHTS}.index.json"
    if not ((folder / WEIGHTS).exists() and index.exists()):
        return False
    found = cast("Plain", read_json(index, "load")).get("weight_map", {})
    return all((folder / name).exists() for name in found.values())


def refuse(model: nn.Module, path: Path) -> None:
    """Refuse a model whose config says all by itself, one that is wrapped, and a disk with no room for the weights."""
    from transformers import PreTrainedModel

    stacks = stretched(model)
    if extension_of(model) is None and (stacks is None or not stacks.schedules):
        raise ValueError(
            "save: this model is not extended, or its table is grown or its buckets stretched, so transformers says "
            "all of it: model.save_pretrained(path)"
        )
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"save: this is a {type(model).__name__} around a model, and would be saved without it. Merge it first: "
            f"save(model.merge_and_unload(), path); or keep its own weights alone, model.save_pretrained(path), and "
            f"load them onto the same model, extended in the same way"
        )
    if stacks is None:
        stored_schedule(model.config, "save")
    else:
        schedules_in_stacks(model, stored_in(model.config) or {}, "save")
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    # Weights that are shared are written once; what is offloaded is written all the same.
    size, free = sum(each.nbytes for each in model.parameters()), shutil.disk_usage(there).free
    if free < size:
        raise OSError(
            f"save({str(path)!r}): the weights need {size / 1e9:.4f} GB, and {free / 1e9:.2f} GB are free there; free "
            f"some, or name a folder on another disk"
        )


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """Read a folder of an extended model; options are those of transformers' `from_pretrained`, such as dtype=…

    Folders of version 0.1, which have milepost.json beside config.json, are read as well.
    """
    need("load", "hf", NEEDED)
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"load({path!r}): give a folder that save wrote")
    folder, called = Path(path), f"load({str(path)!r})"
    config = config_in(folder, called)
    stored = layered(config).pop(KEY)
    model, info = read_weights(folder, config, options, called)
    wrong = [name for kind in ("missing_keys", "mismatched_keys", "unexpected_keys") for name in info.get(kind, ())]
    if wrong:
        raise ValueError(
            f"{called}: its config.json disagrees with its weights about {len(wrong)} of them, such as {wrong[0]}; "
            f"save the model again"
        )
    if has_buckets(model):
        reach = model.config.relative_attention_max_distance
        stacks, schedules = schedules_in_stacks(model, stored, called)
        put_stacks(model, reach, reach, stacks, schedules)
        return model
    own = stock_schedule(read(model.config, "load"))
    return extended(model, [schedule_in(stored, own, False, called)], through=stored["through"], stored=True)


def schedules_in_stacks(model: Any, stored: Plain, called: str) -> tuple[Stacks, dict[str, Schedule]]:
    """Return the stacks of a T5 and the schedules that are stored for them; raise where the config was edited since."""
    stacks = stacks_of(model, model.config.relative_attention_max_distance)
    with undrawn():
        return stacks, {
            name: schedule_in(stored, layers.own, name == "decoder", called) for name, layers in stacks.items()
        }


def config_in(folder: Path, called: str) -> Plain:
    """Return the config of a folder that stores an extension, without marks, or say what the folder is instead."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{called}: no such folder. Nothing is downloaded: give a folder that save wrote")
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{called}: the folder has no config.json, which save writes; it {inside(folder)}")
    config = cast("Plain", configuration(folder, called))
    stored: Any = layered(config).get(KEY)
    if stored is None and not (folder / OLD_FILE).exists():
        raise ValueError(
            f"{called}: its config.json stores no extension, so it is a model without one: "
            f"AutoModelForCausalLM.from_pretrained(path), then extend"
        )
    if not isinstance(stored, dict) or not {"schedule", "config", "through"} <= set(cast("Plain", stored)):
        raise ValueError(f"{called}: what it stores of an extension lacks the schedule, the config or the path")
    return dict(config)


def plain_config(config: Plain) -> Any:
    """Return the config object of a dict that `config_in` gave, without what it stores of an extension."""
    import transformers

    made = copy.deepcopy(config)
    layered(made).pop(KEY, None)
    return transformers.CONFIG_MAPPING[made["model_type"]].from_dict(made)


def layered(config: Plain) -> Plain:
    """Return the dict that stores an extension: that of a config, or of the text inside it."""
    text = text_of(config)
    return cast("Plain", text) if isinstance(text, dict) and KEY in text else config


def read_weights(folder: Path, config: Plain, options: dict[str, Any], called: str) -> tuple[Any, dict[str, Any]]:
    """Return the model of a folder, built from a config as the class that it was saved as, and what was missing."""
    import transformers

    names: list[str] = config.get("architectures") or []
    kind: Any = getattr(transformers, names[0], None) if names else transformers.AutoModelForCausalLM
    if kind is None:
        raise ValueError(f"{called}: this transformers has no {names[0]}; nothing else is run")
    weights = sorted(each.name for each in folder.iterdir() if each.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    if not any(name.endswith(".safetensors") for name in weights):
        raise ValueError(
            f"{called}: no safetensors among {', '.join(weights) or 'its files'}; pickled weights can run code, and "
            f"are not read"
        )
    if both_forms(folder):
        raise ValueError(
            f"{called}: the folder has {WEIGHTS} and shards as well, one of which an earlier save left there; remove "
            f"the older of them, or save the model into an empty folder"
        )
    given = {
        "config": plain_config(config),
        "use_safetensors": True,
        "local_files_only": True,
        "output_loading_info": True,
    }
    try:
        return kind.from_pretrained(folder, **(options | given))
    except RuntimeError as error:
        raise ValueError(
            f"{called}: its config.json disagrees with its weights: {error}. Save the model again"
        ) from error
