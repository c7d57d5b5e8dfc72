"""What vLLM is told of an extended folder, and what is refused before an engine starts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import milepost as mp
from milepost.hf import extend
from milepost.serving.engine import UNTRIED, demand_engine
from milepost.serving.folders import is_ours, served
from tests.hf.tiny import tiny

TRAINED = 64


def config_of(*parts: object, kind: str = "llama", **more: Any) -> dict[str, Any]:
    """The config.json of a small model under an extension."""
    model = tiny(kind, **more)
    extend(model, *parts)
    return model.config.to_dict() | {"architectures": [type(model).__name__]}


def test_a_marked_folder_is_told_without_marks_and_of_an_architecture_of_ours():
    given = config_of(mp.Rerope(20))
    made = served(copy.deepcopy(given))
    assert is_ours(given)
    assert made["architectures"] == ["MilepostLlamaForCausalLM"]
    assert "milepost.hf" not in json.dumps({key: each for key, each in made.items() if key != "milepost"})
    assert made["rope_parameters"]["rope_type"] == "default"
    assert made["max_position_embeddings"] == TRAINED
    assert mp.Scheme.of(made).same_as(mp.Scheme.of(given))


def test_what_stock_reads_is_left_to_vllm():
    assert not is_ours(config_of(mp.Yarn(4, trained=TRAINED)))
    assert not is_ours(tiny("llama").config.to_dict())


@pytest.mark.parametrize(
    ("parts", "kind", "error"),
    [
        ((mp.Rerope(20), mp.Yarn(4, trained=TRAINED, scaled=None)), "gemma2", "the architecture Gemma2ForCausalLM was"),
        ((mp.Rerope(20), mp.DynamicNtk(TRAINED)), "llama", "DynamicNtk.* follows the length of the text"),
        ((mp.Pivot(mp.Rerope(20), TRAINED, count="length"),), "llama", "Pivot.* follows the length of the text"),
    ],
)
def test_a_folder_that_was_not_run_is_refused_by_name(parts: tuple[Any, ...], kind: str, error: str):
    with pytest.raises(ValueError, match=rf"^milepost in vLLM: .*{error}.*milepost\.hf\.load"):
        served(config_of(*parts, kind=kind))


def test_a_config_that_was_edited_is_refused():
    given = config_of(mp.Rerope(20))
    given["rope_parameters"]["rope_theta"] = 5e5
    with pytest.raises(ValueError, match="was changed after milepost stored an extension"):
        served(given)


def test_an_extension_of_a_text_within_a_model_is_refused():
    with pytest.raises(ValueError, match="stored in the config of the text of a model that reads more"):
        served({"model_type": "gemma3", "text_config": config_of(mp.Rerope(20))})


def engine(**more: Any) -> Any:
    """What is read of a VllmConfig, as vLLM has it by default."""
    made: dict[str, Any] = {
        "parallel_config": SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        "cache_config": SimpleNamespace(cache_dtype="auto"),
        "model_config": SimpleNamespace(quantization=None, runner_type="generate"),
        "speculative_config": None,
        "lora_config": None,
        "kv_transfer_config": None,
    }
    return SimpleNamespace(**(made | more))


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"parallel_config": SimpleNamespace(tensor_parallel_size=2)}, "tensor_parallel_size=2: leave --tensor-par"),
        ({"cache_config": SimpleNamespace(cache_dtype="fp8")}, "keys kept as fp8: leave --kv-cache-dtype out"),
        (
            {"speculative_config": SimpleNamespace(method="eagle")},
            "drafts by eagle: draft by n-grams of the prompt, or",
        ),
        ({"lora_config": object()}, "lora_config: leave --enable-lora out"),
        ({"kv_transfer_config": object()}, "kv_transfer_config: leave --kv-transfer-config out"),
        ({"model_config": SimpleNamespace(quantization="awq", runner_type="generate")}, "weights in awq: serve"),
        ({"model_config": SimpleNamespace(quantization=None, runner_type="pooling")}, "runner pooling: serve"),
    ],
)
def test_an_engine_that_was_not_run_is_refused_by_name(more: dict[str, Any], error: str):
    with pytest.raises(ValueError, match=f"^milepost in vLLM: not run with this extension: {error}"):
        demand_engine(engine(**more), "0.32.0", "cpu")


def test_another_release_or_device_is_refused_unless_it_is_tried_on_purpose(monkeypatch: pytest.MonkeyPatch):
    demand_engine(engine(), "0.32.1", "cpu")
    with pytest.raises(ValueError, match=r"run with vLLM 0\.32, and this is 0\.320\.0; install that, or set MILEPOST"):
        demand_engine(engine(), "0.320.0", "cpu")
    with pytest.raises(ValueError, match="run on the CPU alone, and this is cuda"):
        demand_engine(engine(), "0.32.0", "cuda")
    monkeypatch.setenv(UNTRIED, "1")
    demand_engine(engine(), "0.33.0", "cuda")
    with pytest.raises(ValueError, match="not run with this extension"):
        demand_engine(engine(lora_config=object()), "0.33.0", "cuda")


def test_the_entry_point_is_declared():
    root = Path(mp.__file__).parents[2]
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."vllm.general_plugins"]\nmilepost = "milepost.serving.plugin:register"' in text


def test_without_vllm_the_entry_point_is_imported_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    import sys

    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "milepost.serving.doors", raising=False)
    from milepost.serving.plugin import register

    register()
    assert "milepost: the plug-in does not fit this vLLM" in caplog.text
