"""A model and its tokenizer, read for a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from milepost.configs.source import text_of
from milepost.configs.stored import unread_in
from milepost.hf.config.source import config_of

TOKENIZERS = ("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken", "tekken.json")
"""Files, one of which every tokenizer has."""


def read_model(name: str, asked: str, fits: Callable[[Any], object] | None = None) -> tuple[Any, Any]:
    """Return a causal model and its tokenizer, from a folder or the hub; weights are safetensors, no code is run.

    asked: whom errors name. fits: is given the model on the meta device before the weights are loaded, and refuses what
    cannot be done with it.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    # What is no model is said before its tokenizer is looked for.
    config = config_of(name, asked)
    demand_readable(config, name, asked)
    demand_causal_type(config, f"{asked} {name}")
    here = Path(name).is_dir()
    options = {"local_files_only": True} if here else {}
    if here and not any(Path(name).glob("*.safetensors")):
        raise ValueError(f"{asked} {name}: the folder has a config and no weights in safetensors; others are not read")
    tokenizer = read_tokenizer(name, asked)
    if fits is not None:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            bare: Any = cast("Any", AutoModelForCausalLM).from_config(AutoConfig.from_pretrained(name, **options))
        fits(bare)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True, **options)
    except SafetensorError as error:
        raise ValueError(
            f"{asked} {name}: its weights cannot be read, which happens where a download was cut off: {error}"
        ) from error
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def demand_readable(config: Any, name: str, asked: str) -> None:
    """Refuse a folder whose extension stock transformers has no words for."""
    if unread_in(text_of(config) or config) is not None:
        raise ValueError(
            f"{asked} {name}: this folder is extended already; give the folder that it was made of, or read it with "
            f"milepost.hf.load({name!r}) in Python"
        )


def demand_causal_type(config: Any, called: str) -> None:
    """Refuse a model type that transformers has no causal class of text for, in place of its list of all that have one.

    called: what is read, as errors name it.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    plain = cast("dict[str, Any]", config if isinstance(config, dict) else {"model_type": config.model_type})
    kind: object = plain.get("model_type")
    if kind not in cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        raise ValueError(
            f"{called}: AutoModelForCausalLM has no class for a {kind} model, and commands read no other. In Python: "
            f"milepost.hf.extend(model, …), where model is read by its own class (AutoModelForImageTextToText for one "
            f"of images and text), then model.save_pretrained(folder)"
        )


def read_tokenizer(name: str, asked: str) -> Any:
    """Return the tokenizer of a folder or the hub."""
    from transformers import AutoTokenizer

    here = Path(name).is_dir()
    try:
        return cast("Any", AutoTokenizer).from_pretrained(name, **({"local_files_only": True} if here else {}))
    except (OSError, ValueError, TypeError) as error:
        if here and not any(any(Path(name).glob(each)) for each in TOKENIZERS):
            raise ValueError(
                f"{asked} {name}: there is no tokenizer in it; copy tokenizer.json and tokenizer_config.json from the "
                f"model that it was made of"
            ) from error
        raise ValueError(f"{asked} {name}: its tokenizer cannot be read: {' '.join(str(error).split())}") from error


def read_with_table(name: str, asked: str) -> tuple[Any, Any]:
    """Return a model of any task, as the class that it was saved as, and its tokenizer."""
    import transformers

    config: Any = config_of(name, asked)
    plain = cast("dict[str, Any]", config if isinstance(config, dict) else vars(cast("object", config)))
    named: list[str] = plain.get("architectures") or []
    kind: Any = getattr(transformers, named[0], None) if named else transformers.AutoModel
    if kind is None:
        raise ValueError(f"{asked} {name}: this transformers has no {named[0]}; nothing else is run")
    options = {"local_files_only": True} if Path(name).is_dir() else {}
    return kind.from_pretrained(name, use_safetensors=True, **options).eval(), read_tokenizer(name, asked)
