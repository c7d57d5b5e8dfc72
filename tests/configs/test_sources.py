"""A configuration may come as a model, a folder, a file, a config object or a dict; all mean the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from milepost import Rope, Schedule, Scheme
from tests.house.test_import import foreign, loaded_by

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "rope_theta": 500000.0,
    "max_position_embeddings": 8192, "intermediate_size": 16, "vocab_size": 8,
}  # fmt: skip
CALLS = [Rope.of, Scheme.of, Schedule.of]
IDS = ["Rope.of", "Scheme.of", "Schedule.of"]


def same(one: Any, other: Any) -> bool:
    return one.same_as(other) if hasattr(one, "same_as") else one == other


def text_of(given: Any, kind: type[Exception], call: Any = Scheme.of) -> str:
    with pytest.raises(kind) as caught:
        call(given)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_a_folder_and_its_file_by_name_and_by_path(call: Any, folder: Path):
    for given in (folder, folder / "config.json", str(folder), str(folder / "config.json")):
        assert same(call(given), call(LLAMA))


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_a_model_of_transformers(call: Any):
    config = LlamaConfig(**LLAMA)
    for model in (LlamaForCausalLM(config), LlamaForCausalLM(config).model, AutoModel.from_config(config)):
        assert same(call(model), call(LLAMA))


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_what_save_pretrained_writes(call: Any, tmp_path: Path):
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(tmp_path)
    assert same(call(tmp_path), call(LLAMA))


def test_anything_that_has_a_config_will_do():
    class Wrapped:
        config = LLAMA

    assert Rope.of(Wrapped()) == Rope(16, theta=500000.0)
    assert Rope.of(Wrapped(), layer=1) == Rope(16, theta=500000.0)


def test_a_layer_may_be_named_beside_a_folder(folder: Path):
    assert Scheme.of(folder, layer=1).same_as(Scheme.of(LLAMA))
    assert text_of(folder, IndexError, lambda given: Scheme.of(given, layer=2)).startswith("Scheme.of(layer=2): ")


def test_a_home_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    assert Rope.of("~/config.json") == Rope(16, theta=500000.0)


def test_no_such_file():
    assert text_of("meta-llama/Llama-3.1-8B", FileNotFoundError) == (
        "Scheme.of('meta-llama/Llama-3.1-8B'): no such file or folder. Nothing is downloaded: give a folder with a "
        "config.json, the file itself, or a config: transformers.AutoConfig.from_pretrained('meta-llama/Llama-3.1-8B')"
    )
    assert text_of(Path("no", "such.json"), FileNotFoundError, Rope.of).startswith("Rope.of(")


def test_a_folder_without_a_config(tmp_path: Path):
    assert text_of(tmp_path, FileNotFoundError) == (
        f"Scheme.of({str(tmp_path)!r}): the folder has no config.json; it is empty"
    )
    for name in ("params.json", "model.safetensors", ".hidden"):
        (tmp_path / name).touch()
    assert text_of(tmp_path, FileNotFoundError).endswith(
        "the folder has no config.json; it has .hidden, model.safetensors, params.json"
    )
    for n in range(20):
        (tmp_path / f"shard-{n:02}").touch()
    assert text_of(tmp_path, FileNotFoundError).endswith("params.json, shard-00, shard-01, shard-02, … (23 in all)")


def test_a_file_that_is_not_json(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text("{'model_type': 'llama'}", encoding="utf-8")
    assert text_of(tmp_path, ValueError) == (
        f"Scheme.of({str(tmp_path)!r}): {file} is not JSON: Expecting property name enclosed in double quotes: line 1 "
        f"column 2 (char 1)"
    )
    file.write_bytes(b"\x80\xff\x00\x01")
    assert f"{file} is not text" in text_of(file, ValueError)
    file.write_text("[1, 2]", encoding="utf-8")
    assert text_of(file, ValueError) == (
        f"Scheme.of({str(file)!r}): {file} contains a list, where a config.json contains an object, "
        f'{{"model_type": "llama", …}}'
    )


@pytest.mark.parametrize("given", [None, 3, [LLAMA], object()], ids=["None", "3", "list", "object"])
def test_what_is_none_of_these(given: Any):
    assert text_of(given, ValueError) == (
        f"Scheme.of: the {type(given).__name__} has no model_type, by which the rest is read; give a model or "
        f"a config of transformers, a folder with a config.json, that file, or its dict: {{'model_type': 'llama', …}}"
    )


@pytest.mark.slow
def test_a_folder_needs_no_transformers(folder: Path):
    (folder / "reads_it.py").write_text(f"import milepost\nmilepost.Scheme.of({str(folder)!r})\n", encoding="utf-8")
    assert foreign(loaded_by("reads_it", folder), own="milepost") == ["reads_it"]
