"""What is exported: a model's config, the scheme of every layer, and its weights, which are read last of all."""

from __future__ import annotations

import copy
import importlib
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Schedule, Scheme
from milepost.configs import read
from milepost.configs.source import from_disk, text_of
from milepost.configs.stored import KEY, stored_in, unmarked, unread_in
from milepost.hf.config.far_layers import reach
from milepost.hf.config.source import config_of
from milepost.hf.files.read import TOKENIZERS, demand_causal_type
from milepost.hf.files.saving import load
from milepost.hf.model.extension import as_it_was, extended, extension_of
from milepost.hf.model.models import Layers, layers_of, undrawn
from milepost.hf.model.parts import schedule_for
from milepost.hf.model.settings import Settings, stock_config
from milepost.schedule import schedule_in
from milepost.seams.arguments import spell

BESIDE = (*TOKENIZERS, "special_tokens_map.json", "added_tokens.json", "chat_template*", "generation_config.json")
"""Files of a checkpoint that are copied as they are."""
FETCHED = ("*.json", "*.safetensors", *BESIDE)


@dataclass(frozen=True)
class Source:
    """A model to export. Nothing but its config was read yet."""

    name: str
    """What a command calls it."""
    layers: Layers
    """Its layers, without weights, and what they do by themselves."""
    schedule: Schedule
    """What its layers do in the exported model."""
    given: tuple[object, ...] = ()
    """What it is extended with on the way."""
    length: int | None = None
    trained_as: Path | None = None
    """The folder that it is in; None for a name of the hub and for a model in memory."""
    loaded: Any = None
    """The model in memory."""

    @property
    def called(self) -> str:
        """Whom errors name."""
        return f"export {self.name}"

    @property
    def model_type(self) -> str:
        """The type of its layers' config."""
        return self.layers.model_type

    @property
    def config(self) -> Any:
        """The config of its layers, without an extension and without marks."""
        return self.layers.config

    @property
    def before(self) -> Settings:
        """What the config says of the rotation."""
        return Settings.of(self.config)

    @property
    def trained(self) -> int | None:
        """The length that it was trained at."""
        return self.layers.own.trained

    @property
    def reaches(self) -> int | None:
        """How many tokens it is made to read; None where no trained length is known."""
        if self.trained is None:
            return None
        schemes = [each for each in self.schedule.schemes if isinstance(each, Scheme)]
        return max(self.length or 0, reach(read(self.config, "export"), schemes, self.trained))

    @property
    def unextended(self) -> bool:
        """True if its layers do what the config says."""
        return all(own.same_as(scheme) for own, scheme in zip(self.layers.own, self.schedule, strict=True))

    def under(self, *parts: object) -> Source:
        """Return the same model extended with other parts."""
        return replace(self, schedule=schedule_for(self.layers, parts, None), given=parts)

    def unchanged(self) -> Source:
        """Return the same model without an extension."""
        return replace(self, schedule=self.layers.own, given=())

    @cached_property
    def folder(self) -> Path | None:
        """The folder of its files; a model of the hub is fetched here. None for a model in memory."""
        if self.loaded is not None or self.trained_as is not None:
            return self.trained_as
        hub: Any = importlib.import_module("huggingface_hub")
        return Path(hub.snapshot_download(self.name, allow_patterns=list(FETCHED)))

    def demand_weights(self) -> None:
        """Refuse a folder without weights in safetensors."""
        if self.folder is not None and not any(self.folder.glob("*.safetensors")):
            raise ValueError(f"{self.called}: the folder has no weights in safetensors; others are not read")

    def model(self, dtype: Any = "auto") -> Any:
        """Return the model with its weights, extended, in evaluation mode; one in memory as it is."""
        if self.loaded is not None:
            return self.loaded
        from transformers import AutoModelForCausalLM

        self.demand_weights()
        assert self.folder is not None
        if unread_in(_text(from_disk(self.folder, self.called))) is not None:
            model = load(self.folder, dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=dtype, use_safetensors=True, local_files_only=True
            )
        return (extended(model, self.given, self.length) if self.given else model).eval()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each weight and the tensor, one after the other, as they are stored."""
        if self.loaded is not None:
            # The state of an extended model has the names of stock transformers.
            with as_it_was(self.loaded):
                yield from ((name, each.detach()) for name, each in self.loaded.state_dict().items())
            return
        from safetensors import safe_open

        self.demand_weights()
        assert self.folder is not None
        for file in sorted(self.folder.glob("*.safetensors")):
            with cast("Any", safe_open)(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    yield name, opened.get_tensor(name)

    def copy_beside(self, folder: Path) -> None:
        """Copy the tokenizer and what else is no weight and no config."""
        for pattern in BESIDE if self.folder is not None else ():
            for file in cast("Path", self.folder).glob(pattern):
                if file.is_file() and not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)

    def line(self, engine: str, parts: Sequence[object] | None = None) -> str:
        """Return the command that exports it to an engine, with other parts where they are given."""
        if parts is None:
            parts = self.given
        texts = (each if isinstance(each, str) else spell(each, whole=True) for each in parts)
        added = "".join(f" --with {shlex.quote(each.replace(chr(39), chr(34)))}" for each in texts)
        added += f" --length {self.length}" if parts == self.given and self.length else ""
        return f"milepost export {self.name}{added} --to {engine} --out DIR"


def source_of(given: object, parts: Sequence[object] = (), length: int | None = None) -> Source:
    """Return what is to be exported: a model of transformers, the folder of one, stock or extended, or a hub's name.

    parts: what it is extended with on the way, as `extend` takes it, or as text. Only the config is read.
    """
    if isinstance(given, nn.Module):
        return _of_model(given, parts, length)
    name = str(given)
    asked = f"export {name}"
    here = Path(name).expanduser()
    config_of(name, "export")
    plain = from_disk(here, asked) if here.exists() else None
    model = _bare(name if plain is None else here, plain)
    layers = layers_of(model)
    stored = None if plain is None else unread_in(_text(plain))
    if parts:
        schedule = schedule_for(layers, parts, length)
    elif stored is not None:
        schedule = schedule_in(stored, layers.own, False, asked)
    else:
        schedule = layers.own
    return Source(name, layers, schedule, tuple(parts), length, here if here.exists() else None)


def _of_model(model: Any, parts: Sequence[object], length: int | None) -> Source:
    name = f"({type(model).__name__})"
    if parts or length is not None:
        raise ValueError(f"export{name}: a model in memory is extended first: extend(model, …), then export(model, …)")
    done = extension_of(model)
    if done is None:
        layers = layers_of(model)
        return Source(name, layers, layers.own, loaded=model)
    with as_it_was(model):
        config = copy.deepcopy(done.layers.config)
    layers = layers_of(_built(stock_config(config, {})))
    return Source(name, layers, done.schedule, loaded=model)


def _bare(name: str | Path, plain: dict[str, Any] | None) -> Any:
    """Return a model without weights, by its config without an extension."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if plain is None or stored_in(_text(plain)) is None:
        options = {} if plain is None else {"local_files_only": True}
        return _built(AutoConfig.from_pretrained(name, trust_remote_code=False, **options))
    stock: dict[str, Any] = {key: each for key, each in unmarked(plain).items() if key != KEY}
    return _built(cast("Any", CONFIG_MAPPING)[stock["model_type"]].from_dict(stock))


def _built(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    demand_causal_type(config, "export")
    with torch.no_grad(), undrawn("meta"):
        return cast("Any", AutoModelForCausalLM).from_config(config)


def _text(plain: dict[str, Any]) -> Any:
    return text_of(plain) or plain
