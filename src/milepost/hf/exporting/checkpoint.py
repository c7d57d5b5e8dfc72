"""Folders of transformers: for transformers itself, for vLLM and SGLang, which read the same, and for milepost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from milepost import LongRope, Schedule
from milepost.configs.rope_types import OF_VLLM, by_layer_type
from milepost.hf.config.rope_parameters import Settings as Changes
from milepost.hf.exporting.refused import beyond_rotation
from milepost.hf.exporting.source import Source
from milepost.hf.files.saving import save
from milepost.hf.model.extension import extension_of
from milepost.hf.model.rotary import turn_of
from milepost.hf.model.settings import proposed, written
from milepost.serving.engine import RUN_WITH
from milepost.serving.folders import unserved

CACHED = (
    "the rotation follows the length of the text, and cached keys keep the angles they were rotated with, so decoding "
    "differs from one pass over the text by about 10⁻² in the logits"
)

READ_BACK = {
    "What was checked": "The rope settings were read back as the rotation below, by milepost and by the rotary module "
    "of transformers built from them."
}


@dataclass(frozen=True)
class Transformers:
    """Stock transformers: what `rope_parameters` say, and what the architecture has by itself."""

    name: str = "transformers"
    needs: tuple[str, ...] = ()

    def refuses_model(self, source: Source) -> str | None:
        return None

    def refuses(self, source: Source) -> str | None:
        if written(source.layers, source.schedule, source.before) is not None or source.unextended:
            return None
        why = beyond_rotation(source)
        if why is None:
            note = proposed(source.layers, source.schedule, source.before).note
            why = note or f"the rotary module of {source.model_type} does not rotate so, whatever its config says"
        return f"stock transformers reads rope_parameters and no code, and {why}"

    def write(self, source: Source, folder: Path) -> dict[str, str]:
        put(source, folder)
        read = 'AutoModelForCausalLM.from_pretrained("DIR")'
        found = {"Read it with": f"transformers, without milepost:\n\n    {read}"} | READ_BACK
        return found | ({"Note": f"Without a cache it is exact; with one, {CACHED}."} if follows(source) else {})


@dataclass(frozen=True)
class Served:
    """vLLM and SGLang, which read a folder of transformers by code of their own."""

    name: str
    command: str
    option: str
    tested: str
    plug_in: Callable[[str, Schedule], str | None] | None = None
    """Why a plug-in of milepost's does not serve an architecture under a schedule that rope_parameters cannot say."""
    needs: tuple[str, ...] = ()

    def refuses_model(self, source: Source) -> str | None:
        return None

    def refuses(self, source: Source) -> str | None:
        why = beyond_rotation(source)
        if why is not None:
            unserved = "" if self.plug_in is None else self.plug_in(architecture_of(source), source.schedule)
            if unserved is None:
                return None
            also = f"; milepost's plug-in does not serve it either: {unserved}" if unserved else ""
            return f"{self.name} reads rope_parameters alone, and {why}{also}"
        if source.unextended and not follows(source):
            return None
        if follows(source):
            return f"{self.name} rotates by one table for all lengths, and this stretch follows the length of the text"
        if changes_for_both(source) is None:
            note = proposed(source.layers, source.schedule, source.before).note
            return f"{self.name} reads rope_parameters alone, and {note or 'these cannot say this scheme'}"
        if written(source.layers, source.schedule, source.before) is None:
            return f"the config of {source.model_type} does not take these rope_parameters"
        return None

    def write(self, source: Source, folder: Path) -> dict[str, str]:
        length = "" if source.reaches is None else f" {self.option} {source.reaches}"
        if beyond_rotation(source) is not None:
            put(source, folder)
            further = source.reaches is not None and source.trained is not None and source.reaches > source.trained
            # A method that no config says seldom names a length, and vLLM would stop at the trained one.
            length = length if further else f" {self.option} N"
            read = (
                f"{self.name} {RUN_WITH} on a CPU, with milepost installed beside it, whose plug-in it finds by itself"
                + ("" if further else "; N is how many tokens it shall read")
            )
            return {"Read it with": f"{read}:\n\n    {self.command} DIR{length}"}
        put(source, folder, changes_for_both(source))
        found = {"Read it with": f"{self.name}, without milepost ({self.tested}):\n\n    {self.command} DIR{length}"}
        found |= READ_BACK
        switch = two_tables(source)
        if switch is not None:
            found["Note"] = (
                f"A server that is started for more than {switch.trained:,} tokens rotates short texts by the factors "
                f"for long ones too; transformers and milepost take those for short texts there."
            )
        return found


@dataclass(frozen=True)
class Milepost:
    """milepost itself, which runs every scheme that it can put into a model."""

    name: str = "milepost"
    needs: tuple[str, ...] = ()

    def refuses_model(self, source: Source) -> str | None:
        return None

    def refuses(self, source: Source) -> str | None:
        return None

    def write(self, source: Source, folder: Path) -> dict[str, str]:
        put(source, folder)
        if written(source.layers, source.schedule, source.before) is not None or source.unextended:
            read = 'AutoModelForCausalLM.from_pretrained("DIR")'
            return {"Read it with": f"transformers, without milepost:\n\n    {read}"}
        read = 'milepost, in Python:\n\n    milepost.hf.load("DIR")\n\n'
        read += "It cannot be read without milepost: `AutoModel` raises an error that names it, and so should servers."
        return {"Read it with": read}


def put(source: Source, folder: Path, changes: Changes | None = None) -> None:
    """Write a model, its tokenizer and its config into a folder. changes: to the config that is written."""
    model = source.model()
    if extension_of(model) is None:
        model.save_pretrained(folder)
    else:
        save(model, folder)
    source.copy_beside(folder)
    if changes is not None:
        file = folder / "config.json"
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        inner = config.get("text_config", config)
        inner.update(changes)
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def architecture_of(source: Source) -> str:
    """Return the class of transformers that a causal model of its type has."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES).get(source.model_type))


def changes_for_both(source: Source) -> Changes | None:
    """Return what of the config is written so that vLLM and transformers rotate alike, or None.

    Of a model as its config has it nothing is written, but where vLLM has other words for what it says.
    """
    if not source.before.values.get("rope_parameters"):
        return None
    found = proposed(source.layers, source.schedule, source.before).vllm
    if found is None or not source.unextended:
        return found
    settings = found["rope_parameters"]
    own = (settings, *by_layer_type(settings).values())
    return found if any(word in each for each in own for word in OF_VLLM) else None


def follows(source: Source) -> bool:
    """True if a rotation depends on the length of the text, other than by one switch at the trained length."""
    return any(_rope(scheme) is not None and _rope(scheme).by_length for scheme in source.schedule) and (
        two_tables(source) is None
    )


def two_tables(source: Source) -> LongRope | None:
    """Return a LongRoPE whose factors differ for short and long texts, or None."""
    stretches = (getattr(_rope(scheme), "stretch", None) for scheme in source.schedule)
    return next((each for each in stretches if isinstance(each, LongRope) and each.short != each.long), None)


def _rope(scheme: Any) -> Any:
    turn = turn_of(scheme)
    return getattr(turn, "method", turn)


ENGINES = (
    Transformers(),
    Served("vllm", "vllm serve", "--max-model-len", "not run by this export", unserved),
    Served("sglang", "python -m sglang.launch_server --model-path", "--context-length", "untested"),
    Milepost(),
)
