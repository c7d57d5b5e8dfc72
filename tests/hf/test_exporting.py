"""Models carried away: what each engine is given, what is refused with which nearest, and that folders are whole."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.hf import export, extend, load
from milepost.hf.command import ENGINES
from milepost.hf.exporting.engines import engines
from milepost.hf.exporting.gguf_rope import written_in_gguf
from milepost.hf.exporting.gguf_tokenizer import Vocabulary, vocabulary_of
from milepost.hf.exporting.source import source_of
from milepost.serving.folders import unserved
from tests.hf.tiny import tiny, tokens

YARN = "Yarn(4, trained=64)"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama in a folder."""
    folder = tmp_path_factory.mktemp("checkpoint") / "llama"
    tiny("llama").save_pretrained(folder)
    return folder


@torch.no_grad()
def test_a_stretch_is_written_on_the_way_and_stock_transformers_reads_it(checkpoint: Path, tmp_path: Path):
    ids = tokens(1, 200)
    ours = extend(tiny("llama"), mp.Yarn(4, trained=64))(ids).logits
    for to in ("transformers", "vllm", "sglang", "milepost"):
        said = export(checkpoint, tmp_path / to, to=to, method=YARN)
        assert "without milepost" in said
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / to)(ids).logits
        assert (theirs - ours).abs().max() < 1e-5
        page = (tmp_path / to / "README.md").read_text()
        assert f"milepost export {checkpoint} --with 'Yarn(4, trained=64)' --to {to} --out DIR" in page
        assert "low, high  =  the n with 64 · θ_n/2π = 32 and 1 turns" in page
    assert f"vllm serve {tmp_path / 'vllm'} --max-model-len 256" in (tmp_path / "vllm" / "README.md").read_text()
    assert "(untested)" in (tmp_path / "sglang" / "README.md").read_text()


@torch.no_grad()
def test_vllm_gets_its_own_words_beside_those_of_transformers(checkpoint: Path, tmp_path: Path):
    export(checkpoint, tmp_path / "out", to="vllm", method=mp.Yarn(4, trained=64, scaled=1.2))
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]
    # vLLM multiplies its own magnitude, 0.1 ln 4 + 1, by attn_factor.
    assert settings["attn_factor"] * (0.1 * 1.3862943611198906 + 1) == pytest.approx(1.2)
    assert settings["attention_factor"] == 1.2
    ids = tokens(1, 200)
    ours = extend(tiny("llama"), mp.Yarn(4, trained=64, scaled=1.2))(ids).logits
    assert (load(tmp_path / "out")(ids).logits - ours).abs().max() < 1e-5


@torch.no_grad()
def test_a_saved_extension_is_exported_as_it_is_and_from_memory(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(16))
    model.save_pretrained(tmp_path / "saved")
    ids = tokens(1, 100)
    for number, given in enumerate((tmp_path / "saved", model)):
        said = export(given, tmp_path / str(number), to="milepost")
        assert "It cannot be read without milepost" in said
        assert torch.equal(load(tmp_path / str(number))(ids).logits, model(ids).logits)
        with pytest.raises(ValueError, match="milepost"):
            AutoModelForCausalLM.from_pretrained(tmp_path / str(number))
    with pytest.raises(ValueError, match=r"Rerope\(16\) in layer 0 changes more than the rotation"):
        export(model, tmp_path / "x", to="transformers")
    assert mp.Schedule.of(model)[0].parts[-1] == mp.Rerope(16)


def test_sinks_and_caps_go_along_where_the_architecture_has_them(tmp_path: Path):
    ids = tokens(1, 150)
    for model_type in ("gpt_oss", "gemma2"):
        model = extend(tiny(model_type), mp.Yarn(4, trained=64))
        export(model, tmp_path / model_type, to="vllm")
        with torch.no_grad():
            stock = AutoModelForCausalLM.from_pretrained(tmp_path / model_type, attn_implementation="eager")(ids).logits
            assert (stock - model(ids).logits).abs().max() < 1e-5


def test_what_the_plug_in_of_vllm_serves_is_written_with_its_marks(checkpoint: Path, tmp_path: Path):
    said = export(checkpoint, tmp_path / "out", to="vllm", method="Rerope(16)")
    assert "with milepost installed beside it" in said
    assert f"vllm serve {tmp_path / 'out'} --max-model-len N" in said
    assert "N is how many tokens it shall read" in said
    with pytest.raises(ValueError, match="milepost"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = tokens(1, 200)
    with torch.no_grad():
        ours = extend(tiny("llama"), mp.Rerope(16))(ids).logits
        assert (load(tmp_path / "out")(ids).logits - ours).abs().max() < 1e-5
    assert unserved("LlamaForCausalLM", mp.Schedule.of(tmp_path / "out")) is None
    with pytest.raises(ValueError, match="the architecture GPTNeoXForCausalLM was never run by the plug-in"):
        export(extend(tiny("gpt_neox"), mp.Rerope(16)), tmp_path / "other", to="vllm")


REFUSED: dict[str, tuple[str, str, str]] = {
    "rotary beyond": ("transformers", "Rerope(16)", "Rerope(16) in layer 0 changes more than the rotation"),
    "rope_parameters alone": (
        "sglang",
        "SelfExtend(4, 16)",
        "reads rope_parameters alone, and SelfExtend(4, 16)",
    ),
    "a plug-in": (
        "vllm",
        "LogN(64, count='length')",
        "plug-in does not serve it either: layer 0 of this folder has LogN(64, count='length'), which follows",
    ),
    "follows the text": ("vllm", "DynamicNtk(64)", "this stretch follows the length of the text"),
    "no rope type": ("sglang", "DynamicYarn(64)", "this stretch follows the length of the text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_nearest_and_its_command_works(name: str, checkpoint: Path, tmp_path: Path):
    to, method, why = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        export(checkpoint, tmp_path / "out", to=to, method=method)
    told = re.search(rf"Nearest that {to} runs: YaRN, which is static, milepost (.*?) --out DIR", str(caught.value))
    assert told is not None
    assert not list(tmp_path.iterdir())
    words = told[1].replace("'", "").replace("Yarn(4, 64)", "Yarn(4,64)").split()
    found = CliRunner().invoke(app(), [*words, "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.stderr
    assert "As it is: milepost export" in str(caught.value)


def test_gguf_says_which_models_and_which_stretches_it_has(checkpoint: Path, tmp_path: Path):
    gguf = engines()["gguf"]
    source = source_of(checkpoint)
    for method, why in (
        (mp.Rerope(16), "Rerope(16) in layer 0 changes more than the rotation"),
        (mp.DynamicYarn(64), "DynamicYarn(64) follows the length"),
    ):
        assert why in str(gguf.refuses(source.under(method)))
    assert gguf.refuses(source.under(mp.NtkMixed(4.0))) is None
    other = source_of(extend(tiny("qwen3", use_sliding_window=False, layer_types=None), mp.NtkMixed(4.0)))
    assert "qwen3 reads no factor for each pair of channels, which NtkMixed(4) needs" in str(gguf.refuses(other))
    assert "GGUF files are written for llama, qwen2" in str(gguf.refuses_model(source_of(tiny("gpt_neox"))))
    assert "no layers with a window" in str(gguf.refuses_model(source_of(tiny("qwen3"))))


def test_weights_are_not_read_before_a_refusal(checkpoint: Path, tmp_path: Path):
    folder = tmp_path / "hollow"
    folder.mkdir()
    shutil.copy(checkpoint / "config.json", folder)
    with pytest.raises(ValueError, match="reads rope_parameters alone"):
        export(folder, tmp_path / "out", to="sglang", method="Rerope(16)")
    with pytest.raises(ValueError, match="no weights in safetensors"):
        export(folder, tmp_path / "out", to="vllm", method=YARN)
    assert {each.name for each in tmp_path.iterdir()} == {"hollow"}


def test_what_is_there_is_never_written_over(checkpoint: Path, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="this folder is not empty; name another"):
        export(checkpoint, tmp_path / "mine")
    with pytest.raises(ValueError, match="this is a file; name a folder"):
        export(checkpoint, tmp_path / "mine" / "thesis.txt")
    (tmp_path / "empty").mkdir()
    export(checkpoint, tmp_path / "empty")
    assert {each.name for each in tmp_path.iterdir()} == {"mine", "empty"}


def test_the_old_call_is_answered_with_the_new_one(checkpoint: Path):
    told = {
        ("out", "rope", "--to", "folder"): "milepost export out rope --to milepost --out folder",
        ("out", "rope", "--transformers"): "milepost export out rope --to transformers --out DIR",
        ("out", "rope"): "milepost export out rope --to milepost --out DIR",
        (str(checkpoint), "--to", "gguf"): f"milepost export {checkpoint} --to gguf --out DIR",
        (str(checkpoint), "--to", "onx", "--out", "x"): "did you mean onnx",
    }
    for words, says in told.items():
        found = CliRunner().invoke(app(), ["export", *words])
        assert found.exit_code == 2
        assert says in found.stderr
    assert set(ENGINES) == set(engines())


@torch.no_grad()
def test_a_program_of_torch_takes_and_returns_its_cache(tmp_path: Path):
    model = extend(tiny("llama", num_hidden_layers=1), mp.Yarn(4, trained=64), mp.LogN(64))
    export(model, tmp_path / "out", to="torch")
    step: Any = torch.export.load(tmp_path / "out" / "model.pt2").module(check_guards=False)
    ids, mask = tokens(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, :3] = 0
    wanted, at = model(input_ids=ids, attention_mask=mask, use_cache=False).logits, 0
    cache = [(torch.zeros(2, 2, 0, 8), torch.zeros(2, 2, 0, 8))]
    for n in (90, 1, 1, 8):
        logits, cache = step(ids[:, at : at + n], mask[:, : at + n], cache)
        real = mask[:, at : at + n].bool()
        assert (logits - wanted[:, at : at + n])[real].abs().max() < 1e-5
        at += n
    assert cache[0][0].shape == (2, 2, 100, 8)


# GGUF


def test_a_rotation_is_said_in_llama_cpps_own_words_where_it_has_them():
    rope = mp.Rope(32, theta=500.0)
    scaled = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    told: dict[Any, dict[str, Any]] = {
        None: {},
        mp.Interpolate(4.0): {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        mp.Yarn(4, 64): scaled,
        # llama.cpp multiplies by 0.1 ln 4 + 1 itself.
        mp.ByParts(4, 64): scaled | {"rope.scaling.attn_factor": 1 / 1.138629436111989},
    }
    for stretch, keys in told.items():
        found = written_in_gguf(mp.Rope(32, theta=500.0, stretch=stretch), 64)
        assert found.keys == pytest.approx(keys)
        assert not found.tensors
        assert found.base == rope.theta
    by_pair = written_in_gguf(mp.Rope(32, stretch=mp.Llama3(4.0, 64)), 64)
    assert list(by_pair.tensors) == ["rope_freqs.weight"]
    assert by_pair.tensors["rope_freqs.weight"][-1] == pytest.approx(4.0)
    two = written_in_gguf(mp.Rope(4, stretch=mp.LongRope((1.0, 1.0), (1.0, 3.0), 64, factor=4.0)), 64)
    assert two.tensors == {"rope_factors_long.weight": (1.0, 3.0), "rope_factors_short.weight": (1.0, 1.0)}
    assert "rope.scaling.factor" not in two.keys
    assert "takes the factors for long texts" in two.note


def test_a_gguf_file_is_read_back(tmp_path: Path):
    gguf: Any = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    model = tiny("llama", tie_word_embeddings=True)
    extend(model, mp.NtkMixed(4.0))
    said = export(model, tmp_path / "out", to="gguf")
    assert "llama-server -m" in said
    assert "has no tokenizer" in (tmp_path / "out" / "README.md").read_text()
    found = gguf.GGUFReader(tmp_path / "out" / "model.gguf")
    assert found.fields["general.architecture"].contents() == "llama"
    assert found.fields["llama.context_length"].contents() == 256
    assert found.fields["llama.attention.head_count_kv"].contents() == 2
    tensors = {each.name: torch.tensor(each.data) for each in found.tensors}
    assert "output.weight" not in tensors
    assert torch.equal(tensors["token_embd.weight"], model.model.embed_tokens.weight.detach())
    # Channels n and n + 4 of a head of 8 stand beside each other.
    own = model.model.layers[1].self_attn.k_proj.weight.detach()
    assert torch.equal(tensors["blk.1.attn_k.weight"][8:16], own[8 + torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])])
    plain = 10000.0 ** (-torch.arange(4) / 4)
    stretched = plain * mp.NtkMixed(4.0).frequencies(plain.double(), torch.tensor([256.0])).flatten() / plain
    assert torch.allclose(tensors["rope_freqs.weight"].double(), plain.double() / stretched, rtol=1e-6)


def test_a_tokenizer_is_written_by_what_its_file_describes(checkpoint: Path, tmp_path: Path):
    from milepost.hf.exporting.gguf_tokenizer import SPLITS

    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    source = source_of(folder)
    assert vocabulary_of(source) == "there is no tokenizer.json beside the model"
    split = {"type": "Split", "pattern": {"Regex": SPLITS["qwen2"][0]}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    words: dict[str, Any] = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 3, "content": "<end>", "special": True}],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
    }
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (folder / "tokenizer.json").write_text(json.dumps(words))
    found = vocabulary_of(source)
    assert isinstance(found, Vocabulary)
    assert (found.model, found.pre, found.merges, found.special) == ("gpt2", "qwen2", ["a b"], {"eos": 3})
    assert found.tokens[:5] == ["a", "b", "ab", "<end>", "[PAD4]"]
    assert found.types[:5] == [1, 1, 1, 3, 5]
    assert len(found.tokens) == 48
    words["pre_tokenizer"] = split | {"pattern": {"Regex": "."}}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    assert "none of those that are known here by llama.cpp's names" in str(vocabulary_of(source))
    words |= {"model": words["model"] | {"byte_fallback": True}, "pre_tokenizer": None}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    pieces = vocabulary_of(source)
    assert isinstance(pieces, Vocabulary)
    assert (pieces.model, pieces.scores[:3]) == ("llama", [-2.0, -2.0, 0.0])


def test_a_model_as_its_config_has_it_keeps_its_length(tmp_path: Path):
    llama3 = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = tiny("llama", rope_parameters=llama3, max_position_embeddings=128)
    export(model, tmp_path / "out", to="vllm")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["max_position_embeddings"] == 128
    assert config["rope_parameters"] == llama3


def test_a_program_is_traced_in_float32_and_the_model_stays_as_it_is(tmp_path: Path):
    model = tiny("llama").bfloat16()
    with pytest.raises(ValueError, match=r"this model is in torch.bfloat16 on cpu; export a folder, or give"):
        export(model, tmp_path / "out", to="torch")
    assert model.dtype == torch.bfloat16
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("to", "broken", "why"), [
    ("torch", "traced", "torch.export cannot trace this model: KeyError: 'an operator'. Nearest that works: milepost "),
    ("onnx", "write_onnx", "torch.onnx cannot translate this model: KeyError: 'an operator'. Nearest that works: mile"),
])  # fmt: skip
def test_what_torch_cannot_trace_is_refused_and_leaves_nothing(
    to: str, broken: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from milepost.hf.exporting import export as exporting
    from milepost.hf.exporting import onnx_file

    def fail(*given: object) -> None:
        try:
            raise KeyError("an operator")
        except KeyError as error:
            raise RuntimeError("step 3/3") from error

    monkeypatch.setattr(onnx_file, "traced", lambda step: None)
    monkeypatch.setattr(onnx_file, broken, fail)
    monkeypatch.setattr(exporting, "need", lambda *given: None)
    with pytest.raises(ValueError, match=re.escape(why)):
        export(tiny("llama"), tmp_path / "out", to=to)
    assert not list(tmp_path.iterdir())
