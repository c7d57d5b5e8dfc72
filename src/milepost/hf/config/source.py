"""Configurations by folder, file, object or name on the hub."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from milepost import Schedule
from milepost.configs.source import configuration, text_of
from milepost.configs.stored import stored_in
from milepost.refusal import HUB, need
from milepost.schedule import read_schedule


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


def schedules_in(given: object) -> list[Schedule]:
    """Return the schedules of a folder or a config that stores an extension: one, or one for each stack of T5."""
    config = configuration(given, "schedules_in")
    stored = stored_in(text_of(config) or config)
    if stored is None:
        return []
    plain: dict[str, Any] = stored["schedule"]
    stacks = [plain] if "schedule" in plain else [plain[name] for name in ("encoder", "decoder") if name in plain]
    return [read_schedule(each) for each in stacks]


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type where it has no words."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
