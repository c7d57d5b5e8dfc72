"""Where a configuration comes from: all that `Scheme.of` reads, and names of the hub."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from torch import nn

from milepost.configs.source import configuration
from milepost.refusal import need

HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What a name of the hub looks like: a model, or its owner and a model."""


def config_of(given: object, asked: str) -> Any:
    """The config object or dict behind a model, a config, a dict, a folder, a file, or a name of the hub.

    No code of the model's own is run, whatever its config asks for.
    """
    if isinstance(given, str) and not Path(given).expanduser().exists() and HUB.fullmatch(given):
        return _from_hub(given, asked)
    # The classes of mT5's and umT5's models say a model_type, as configs do.
    own = getattr(given, "config", None) if isinstance(given, nn.Module) else None
    return configuration(given if own is None else own, asked)


def _from_hub(name: str, asked: str) -> Any:
    need(f"{asked}({name!r}) is no folder here, so it is looked up on the hub, which", "hf", ("transformers",))
    transformers: Any = importlib.import_module("transformers")
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{asked}({name!r}): there is no such folder here, and the hub did not give a configuration of that name "
            f"({first}). Give a folder with a config.json, that file, or a config object"
        ) from error
