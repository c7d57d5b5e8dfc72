"""Configurations by folder, file, object or name on the hub."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

from milepost import Schedule
from milepost.configs import read
from milepost.configs.source import configuration, text_of
from milepost.configs.stored import stored_in
from milepost.refusal import HUB, need
from milepost.schedule import schedule_in, stock_schedule


def config_of(given: object, asked: str) -> Any:
    """Return the config object or dict behind a model, a config, a dict, a folder, a file, or a name on the hub.

    No code of the model's own is run, whatever its config asks for.
    """
    if not isinstance(given, str) or Path(given).expanduser().exists() or not HUB.fullmatch(given):
        return configuration(given, asked)
    need(f"{asked}({given!r}) is no folder here, so it is looked up on the hub, which", "hf", ("transformers",))
    transformers: Any = importlib.import_module("transformers")
    try:
        return configuration(transformers.AutoConfig.from_pretrained(given, trust_remote_code=False), asked)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{asked}({given!r}): there is no such folder here, and the hub did not give a configuration of that name "
            f"({first_line(error)}). Give a folder with a config.json, that file, or a config object"
        ) from error


def schedules_in(given: object, asked: str) -> list[Schedule]:
    """Return the schedules of a folder or a config that stores an extension: one, or one for each stack of T5.

    A config whose rest was edited since is refused.
    """
    config = configuration(given, asked)
    text = text_of(config)
    source = config if text is None else text
    stored = stored_in(source)
    if stored is None:
        return []
    plain: dict[str, Any] = stored["schedule"]
    if "schedule" in plain:
        return [schedule_in(stored, stock_schedule(read(config, asked)), False, asked)]
    fields: dict[str, Any] = cast("Any", source if isinstance(source, dict) else cast("Any", source).to_dict())
    found: list[Schedule] = []
    for name, decodes in (("encoder", False), ("decoder", True)):
        if name in plain:
            own = stock_schedule(read(fields | {"is_decoder": decodes}, asked))
            found.append(schedule_in(stored, own, decodes, asked))
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type where it has no words."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
