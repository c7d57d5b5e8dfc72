"""Where a configuration comes from: a model, a folder, a file, a config object or a dict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from milepost.configs.reader import look_up

NAME = "config.json"


def configuration(given: object, asked: str) -> object:
    """The config object or dict behind what a user gave: itself, a model's own, or what a file holds."""
    if isinstance(given, (str, os.PathLike)):
        return from_disk(Path(cast("str | os.PathLike[str]", given)), asked)
    # A model has no model_type of its own, and a config no config.
    own = getattr(given, "config", None) if look_up(given, "model_type") is None else None
    return given if own is None else own


def text_of(config: object) -> object | None:
    """The config of the text, or of one stack of two, where a config has several inside; None where it is whole."""
    thinker = look_up(config, "thinker_config")
    if thinker is not None:
        return look_up(thinker, "text_config")
    if look_up(config, "model_type") == "t5gemma":
        return look_up(config, "decoder" if look_up(config, "is_decoder") else "encoder")
    return look_up(config, "text_config", "llm_config")


def from_disk(path: Path, asked: str) -> dict[str, Any]:
    """The dict of a config.json, given the file or its folder."""
    called, file = f"{asked}({str(path)!r})", path.expanduser()
    if not file.exists():
        raise FileNotFoundError(
            f"{called}: no such file or folder. Nothing is downloaded: give a folder with a {NAME}, the file itself, "
            f"or a config: transformers.AutoConfig.from_pretrained({str(path)!r})"
        )
    if file.is_dir():
        if not (file / NAME).exists():
            raise FileNotFoundError(f"{called}: the folder has no {NAME}; it {inside(file)}")
        file = file / NAME
    try:
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{called}: {file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise ValueError(
            f'{called}: {file} holds a {kind}, where a {NAME} holds an object, {{"model_type": "llama", …}}'
        )
    return cast("dict[str, Any]", found)


def inside(folder: Path) -> str:
    """What a folder holds, in a few words."""
    names = sorted(each.name for each in folder.iterdir())
    if not names:
        return "is empty"
    return f"has {', '.join(names[:6])}" + (f", … ({len(names)} in all)" if len(names) > 6 else "")
