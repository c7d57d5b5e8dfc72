"""The small JSON that travels beside the weights, where transformers has no words for what a model was given."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from milepost.hf.falcon import FalconSlopes
from milepost.schedule import Schedule

NAME = "milepost.json"


def write(folder: str | os.PathLike[str], plain: dict[str, Any]) -> None:
    """Write it into a folder that has the model."""
    (Path(folder) / NAME).write_text(json.dumps({"milepost": plain}, indent=1) + "\n", encoding="utf-8")


def schedules_in(given: object) -> list[Schedule]:
    """The schedules of a folder that was saved extended: one, or one for each stack of T5. None of anything else."""
    file = Path(cast("str | os.PathLike[str]", given)) / NAME if isinstance(given, (str, os.PathLike)) else None
    if file is None or not file.is_file():
        return []
    plain: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["milepost"]["schedule"]
    return [read_schedule(each) for each in ([plain] if "schedule" in plain else plain.values())]


def read_schedule(plain: dict[str, Any]) -> Schedule:
    """A schedule as it was saved, Falcon's slopes among what is known."""
    return Schedule.from_dict(plain, methods=[FalconSlopes])


class SavesBoth:
    """`save_pretrained` of one extended model: transformers' own, and then the JSON, so that `load` reads the folder.

    Trainers and users call it by that name, and would otherwise write a model without its extension. It is an attribute
    of the model at hand; its class is as it was.
    """

    def __init__(self, model: Any, plain: dict[str, Any]) -> None:
        self.model, self.plain = model, plain

    def __call__(self, save_directory: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        """What transformers' method takes and answers."""
        done = cast("Any", type(self.model)).save_pretrained(self.model, save_directory, *args, **options)
        if options.get("is_main_process", True):
            write(save_directory, self.plain)
        return done


def put(model: Any, plain: dict[str, Any]) -> None:
    """Let a model save both."""
    model.__dict__["save_pretrained"] = SavesBoth(model, plain)


def take_back(model: Any) -> None:
    """Let a model save as its class does."""
    if isinstance(model.__dict__.get("save_pretrained"), SavesBoth):
        del model.__dict__["save_pretrained"]
