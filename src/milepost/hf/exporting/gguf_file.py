"""GGUF files, written by the gguf package: llama.cpp and what is built on it read them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milepost.hf.exporting.gguf_model import in_gguf, refused_model, tensors_in
from milepost.hf.exporting.gguf_tokenizer import Vocabulary, vocabulary_of
from milepost.hf.exporting.source import Source

FILE = "model.gguf"
SMALL = 1
"""Axes of a tensor that is kept in float32, as llama.cpp wants norms and biases."""


@dataclass(frozen=True)
class Gguf:
    """llama.cpp: Llama, Qwen 2, Qwen 3 and Gemma 3 under stretches that do not follow the text."""

    name: str = "gguf"
    needs: tuple[str, ...] = ("gguf",)

    def refuses_model(self, source: Source) -> str | None:
        return refused_model(source)

    def refuses(self, source: Source) -> str | None:
        try:
            in_gguf(source)
        except ValueError as error:
            return str(error)
        return None

    def write(self, source: Source, folder: Path) -> dict[str, str]:
        vocabulary = vocabulary_of(source)
        notes = write_gguf(source, folder / FILE, vocabulary)
        length = "" if source.reaches is None else f" -c {source.reaches}"
        start = f"llama-server -m DIR/{FILE}{length}"
        found = {"Read it with": f"llama.cpp, without milepost:\n\n    {start}"}
        if not isinstance(vocabulary, Vocabulary):
            notes.append(
                f"The file has no tokenizer: {vocabulary}. Programs that take token ids read it; llama-cli and "
                f"llama-server do not"
            )
        return found | ({"Note": "\n".join(f"- {note}." for note in notes)} if notes else {})


def write_gguf(source: Source, file: Path, vocabulary: Vocabulary | str) -> list[str]:
    """Write a model into one file; returns what a user should know of it. vocabulary: or why there is none.

    Tensors keep their dtype, but for float32 where llama.cpp wants it. One tensor at a time is in memory.
    """
    gguf: Any = importlib.import_module("gguf")
    made = in_gguf(source)
    writer = gguf.GGUFWriter(file, made.architecture)
    writer.add_name(Path(source.name).name)
    for key, value in made.keys.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{made.architecture}.{key}", value)
    if isinstance(vocabulary, Vocabulary):
        vocabulary.add(writer)
    else:
        writer.add_tokenizer_model("none")
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == made.architecture)
    names = gguf.get_tensor_name_map(kind, source.config.num_hidden_layers)
    shapes: list[tuple[str, Any]] = []
    for name, weight in tensors_in(source, made):
        called = name if name in made.rope.tensors else names.get_name(name, (".weight", ".bias"))
        if called is None:
            raise ValueError(f"{source.called} --to gguf: llama.cpp's {made.architecture} has no place for {name}")
        array, raw = as_array(weight)
        writer.add_tensor_info(called, array.shape, array.dtype, array.nbytes, raw)
        shapes.append((name, array.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (name, weight), (known, shape) in zip(tensors_in(source, made), shapes, strict=True):
        array, _ = as_array(weight)
        assert (name, array.shape) == (known, shape)
        writer.write_tensor_data(array)
    writer.close()
    return made.notes


def as_array(weight: Tensor) -> tuple[Any, Any]:
    """Return a tensor as the gguf package takes it, and the type it has there where numpy has none."""
    gguf: Any = importlib.import_module("gguf")
    weight = weight.detach().cpu().contiguous()
    if weight.dim() <= SMALL:
        return weight.float().numpy(), None
    if weight.dtype == torch.bfloat16:
        return weight.view(torch.uint8).numpy(), gguf.GGMLQuantizationType.BF16
    if weight.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"a weight of {weight.dtype} is not written into a GGUF file; save the model in bfloat16")
    return weight.numpy(), None
