"""How a command says no: one sentence that names what was asked and what to do, and an end with 2."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

EXTRAS: dict[str, tuple[str, ...]] = {
    # Commands are declared together, and intervals are numpy's work.
    "cli": ("typer", "rich", "numpy"),
    # safetensors needs numpy to write what torch has.
    "lab": ("typer", "rich", "safetensors", "numpy", "scipy", "filelock", "jinja2"),
    "hf": ("transformers", "safetensors", "numpy", "scipy", "typer", "rich", "jinja2"),
    "eval": ("lm_eval", "transformers", "safetensors", "numpy", "scipy", "typer", "rich", "jinja2"),
    "tune": ("accelerate", "peft", "transformers", "safetensors", "numpy", "scipy", "typer", "rich", "jinja2"),
    "explore": ("typer", "rich", "numpy", "jinja2", "starlette", "uvicorn"),
    "floater": ("torchdiffeq",),
    "gguf": ("gguf",),
    "onnx": ("onnx", "onnxscript"),
    "wandb": ("wandb",),
    "ray": ("ray", "fsspec"),
    "datasets": ("datasets",),
}
"""What has to be there for all that an extra is for."""


HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""The form of a name on the hub: a model, or its owner and a model."""


def refuse(message: str) -> NoReturn:
    """Say what is wrong with what was asked, and end with 2."""
    if isinstance(sys.exc_info()[1], BrokenPipeError):
        # Whoever read the output has had enough, `head` say; what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1)
    print(f"milepost: {message}", file=sys.stderr)
    raise SystemExit(2)


def no_such(given: object, asked: str) -> FileNotFoundError:
    """Return the error for a folder of a model that is not there."""
    return FileNotFoundError(
        f"{asked}({str(given)!r}): no such file or folder. Nothing is downloaded: give a folder with a config.json, "
        f"the file itself, or a config: transformers.AutoConfig.from_pretrained({str(given)!r})"
    )


def demand_model(given: str, asked: str) -> None:
    """Refuse a path at which nothing is, and that is no name of the hub, before any library is loaded for it."""
    if not Path(given).expanduser().exists() and not HUB.fullmatch(given):
        refuse(str(no_such(given, asked)))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the names that a user may have meant, as the tail of an error."""
    name = str(name)
    lower = {each.lower(): each for each in known}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), list(lower), n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def need(what: str, extra: str, modules: Sequence[str] = ()) -> None:
    """See that the libraries of an extra, or some of them, are installed; an ImportError says how to install them."""
    lacking = [name for name in modules or EXTRAS[extra] if not _installed(name)]
    if lacking:
        raise ImportError(
            f"{what} needs {' and '.join(lacking)}, which {'is' if len(lacking) == 1 else 'are'} not installed: "
            f"pip install 'milepost[{extra}]', or in a checkout pip install '.[{extra}]'"
        )


def _installed(name: str) -> bool:
    """Whether a library can be imported; it is not imported to find out, which may take seconds."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
    except ValueError:
        # It is loaded, by something that does not say where it is from.
        return True
