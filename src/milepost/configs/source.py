"""Load a configuration from a model, a folder, a file, a config object or a dict."""

import json
import os
from pathlib import Path
from typing import Any, cast

from torch import nn

from milepost.configs.reader import look_up
from milepost.configs.stored import KEY, LOADED_BY, OLD_FILE, unmarked, unread_in
from milepost.refusal import no_such

NAME = "config.json"


def configuration(given: object, asked: str) -> object:
    """Return the config object or dict behind what a user gave: itself, a model's own, or what a file has.

    Marks of an extension that milepost saved are taken off; what it stores stays.
    """
    if isinstance(given, (str, os.PathLike)):
        return unmarked(from_disk(Path(cast("str | os.PathLike[str]", given)), asked))
    # A config has no config. The classes of some models (mT5, umT5) have a model_type, as configs do.
    own = getattr(given, "config", None) if isinstance(given, nn.Module) or not look_up(given, "model_type") else None
    if isinstance(given, nn.Module) and own is not None:
        refuse_unextended(given, own, asked)
    return unmarked(given if own is None else own)


def refuse_unextended(model: nn.Module, config: object, asked: str) -> None:
    """Refuse a model whose config stores an extension that the model does not have."""
    text = text_of(config)
    if unread_in(config if text is None else text) is None or any(KEY in each.__dict__ for each in model.modules()):
        return
    raise ValueError(
        f"{asked}({type(model).__name__}): its config stores an extension by milepost, and the model was built without "
        f"it; read the folder with {LOADED_BY}(folder), or build the model from a config of its own"
    )


def text_of(config: object) -> object | None:
    """Return the config of the text, or of one stack of two, where a config contains several; else None."""
    thinker = look_up(config, "thinker_config")
    if thinker is not None:
        return look_up(thinker, "text_config")
    if look_up(config, "model_type") == "t5gemma":
        return look_up(config, "decoder" if look_up(config, "is_decoder") else "encoder")
    return look_up(config, "text_config", "llm_config")


def from_disk(path: Path, asked: str) -> dict[str, Any]:
    """Return the dict of a config.json, given the file or its folder, with what a folder of version 0.1 stores."""
    called, file = f"{asked}({str(path)!r})", path.expanduser()
    if not file.exists():
        raise no_such(path, asked)
    stored = None
    if file.is_dir():
        if not (file / NAME).exists():
            raise FileNotFoundError(f"{called}: the folder has no {NAME}; it {inside(file)}")
        file, old = file / NAME, file / OLD_FILE
        stored = read_json(old, called) if old.exists() else None
    found = read_json(file, called)
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise ValueError(
            f'{called}: {file} contains a {kind}, where a {NAME} contains an object, {{"model_type": "llama", …}}'
        )
    extension = look_up(stored, KEY)
    return cast("dict[str, Any]", found) | ({} if extension is None else {KEY: extension})


def read_json(file: Path, called: str) -> object:
    """Return what a JSON file has; infinities are written as transformers writes them."""
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_hook=_number)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{called}: {file} is not text; give a {NAME}, or the folder of a model, which has one beside its weights"
        ) from error
    except ValueError as error:
        raise ValueError(f"{called}: {file} is not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{called}: {file} is nested too deeply to be a config") from None


def _number(found: dict[str, Any]) -> Any:
    return float(found["__float__"]) if set(found) == {"__float__"} else found


def inside(folder: Path) -> str:
    """Return a short list of the files in a folder."""
    names = sorted(each.name for each in folder.iterdir())
    if not names:
        return "is empty"
    return f"has {', '.join(names[:6])}" + (f", … ({len(names)} in all)" if len(names) > 6 else "")
