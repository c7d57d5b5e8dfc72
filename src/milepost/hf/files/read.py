"""A model and its tokenizer, read for a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from milepost.hf.config.source import config_of


def read_model(name: str, asked: str) -> tuple[Any, Any]:
    """Return a causal model and its tokenizer, from a folder or the hub; weights are safetensors, no code is run.

    asked: whom errors name.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # What is no model is said before its tokenizer is looked for.
    config_of(name, f"{asked} {name}")
    here = Path(name).is_dir()
    options = {"local_files_only": True} if here else {}
    if here and not any(Path(name).glob("*.safetensors")):
        raise ValueError(f"{asked} {name}: the folder has a config and no weights in safetensors; others are not read")
    try:
        tokenizer: Any = cast("Any", AutoTokenizer).from_pretrained(name, **options)
    except (OSError, ValueError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{asked} {name}: there is no tokenizer in it; copy tokenizer.json and tokenizer_config.json from the "
            f"model that it was made of ({first})"
        ) from error
    model: Any = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True, **options)
    return model.eval(), tokenizer
