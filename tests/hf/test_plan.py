"""`milepost plan`: what a config says about reach, and settings that transformers itself reads back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import milepost as mp
from milepost.cli import app
from milepost.configs import read
from milepost.hf import plan
from milepost.hf.config.far_layers import reach
from milepost.hf.config.rope_parameters import expressed
from milepost.hf.planning.plan import Plan
from tests.configs.published import PUBLISHED

transformers = pytest.importorskip("transformers")
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "rope_theta": 10000.0,
}  # fmt: skip
SERVED = ("interpolation, fixed", "NTK", "NTK, mixed", "dynamic NTK", "by parts", "YaRN", "Llama 3", "LongRoPE")


def theirs(config_class: Any, base: dict[str, Any], config: dict[str, Any], length: int, kind: str | None = None):
    """The frequencies and the magnitude that transformers makes of a config, in a text of so many tokens."""
    made = config_class(**{**base, **json.loads(json.dumps(config))})
    settings = made.rope_parameters[kind] if kind else made.rope_parameters
    if settings["rope_type"] == "default":
        share = settings.get("partial_rotary_factor", 1.0)
        dim = int((getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads) * share)
        f = [settings["rope_theta"] ** (-2 * n / dim) for n in range(dim // 2)]
        return torch.tensor(f, dtype=torch.float64), 1.0
    f, size = ROPE_INIT_FUNCTIONS[settings["rope_type"]](made, "cpu", seq_len=length, layer_type=kind)
    return f.double(), float(size)


def assert_reads_back(found: Plan, name: str, config_class: Any, base: dict[str, Any], kind: str | None = None):
    candidate = found[name]
    assert candidate.config is not None
    f, size = theirs(config_class, base, candidate.config, found.target, kind)
    ours = torch.tensor(candidate.frequencies, dtype=torch.float64)
    assert ours.shape == f.shape
    torch.testing.assert_close(f, ours, rtol=1e-5, atol=1e-6)
    assert size == pytest.approx(candidate.sets["magnitude"], rel=1e-6)


# What it gives, transformers reads


@pytest.mark.parametrize("name", SERVED)
def test_transformers_makes_the_same_frequencies_of_the_settings(name: str):
    base = {key: value for key, value in LLAMA.items() if key not in ("model_type", "rope_theta")}
    assert_reads_back(plan(LLAMA, 16384), name, transformers.LlamaConfig, base)


@pytest.mark.parametrize("name", SERVED)
def test_a_partial_rotation_stays_partial(name: str):
    config = {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000.0}
    del config["rope_theta"]
    base = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert_reads_back(plan(config, 16384), name, transformers.GPTNeoXConfig, base)


@pytest.mark.parametrize("name", SERVED)
def test_where_layers_differ_only_the_far_seeing_ones_are_stretched(name: str):
    own = transformers.Gemma3TextConfig(num_hidden_layers=6, max_position_embeddings=4096, sliding_window=512)
    found = plan(own, 16384)
    settings = found[name].rope_parameters
    assert settings is not None
    assert settings["sliding_attention"] == own.rope_parameters["sliding_attention"]
    base = {"num_hidden_layers": 6, "sliding_window": 512}
    assert_reads_back(found, name, transformers.Gemma3TextConfig, base, "full_attention")


@pytest.mark.parametrize("name", [name for name in SERVED if name != "dynamic NTK"])
def test_phi3_whose_config_takes_nothing_but_longrope_is_given_longrope(name: str):
    base = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    found = plan({**LLAMA, "model_type": "phi3"}, 16384)
    assert_reads_back(found, name, transformers.Phi3Config, {**base, "pad_token_id": 0, "sliding_window": None})
    assert found["dynamic NTK"].config is None
    assert "longrope alone" in found["dynamic NTK"].note


def test_the_golden_base_of_ntk():
    # base · s^(d/(d − 2)) with d = 128, s = 8.
    found = plan({**LLAMA, "hidden_size": 512}, 8 * 4096)["NTK"]
    assert found.sets["base"] == pytest.approx(10000 * 8 ** (128 / 126))
    assert found.rope_parameters == {"rope_type": "default", "rope_theta": found.sets["base"]}


def test_the_words_of_vllm_stand_beside_those_of_transformers():
    found = plan(LLAMA, 16384)
    by_parts, yarn = found["by parts"], found["YaRN"]
    assert by_parts.rope_parameters is not None
    assert by_parts.vllm is not None
    assert by_parts.rope_parameters["attention_factor"] == 1.0
    # Older releases of vLLM multiply this with YaRN's usual magnitude, which comes to 1.
    assert by_parts.vllm["rope_parameters"]["attn_factor"] * (0.1 * math.log(4) + 1) == pytest.approx(1.0)
    assert by_parts.vllm == by_parts.config
    assert yarn.vllm == yarn.config
    assert found["dynamic NTK"].vllm is None
    assert "vLLM holds one base" in found["dynamic NTK"].note
    assert found["dynamic NTK"].config is not None
    assert found["dynamic NTK"].config["max_position_embeddings"] == 4096


GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 256, "head_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 131072, "sliding_window": 128,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False, "beta_fast": 32.0,
        "beta_slow": 1.0, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip


def test_gpt_oss_in_vllm_is_told_yarns_betas_and_hears_no_magnitude():
    found = plan(GPT_OSS, 262144)["the same, further"]
    assert found.vllm is not None
    assert found.vllm["rope_parameters"] | {"beta_fast": 32.0, "beta_slow": 1.0} == found.vllm["rope_parameters"]
    stretch = mp.ByParts(4, 4096)
    said = expressed(read(GPT_OSS, "plan"), {"": mp.Rope(64, theta=150000.0, stretch=stretch)}, 4096)
    assert said.vllm is None
    assert "passes over attention_factor" in said.note


def test_the_trained_length_is_a_whole_number_of_tokens():
    with pytest.raises(ValueError, match=r"plan\(trained=-3\): trained must be at least 1"):
        plan(LLAMA, 16384, trained=-3)


# What it says


def test_the_turns_of_every_pair_and_the_critical_numbers():
    facts = plan({**LLAMA, "hidden_size": 512}, 16384).facts
    assert facts is not None
    turns = [4096 * 10000 ** (-2 * n / 128) / (2 * math.pi) for n in range(64)]
    assert facts.turns == pytest.approx(turns)
    assert facts.whole == sum(each >= 1 for each in turns) == 46
    assert facts.critical_dimension == 92
    assert facts.critical_base == pytest.approx(71738, rel=1e-4)


def test_a_model_that_has_seen_every_angle_needs_none_of_it():
    found = plan({**LLAMA, "rope_theta": 100.0}, 16384)
    assert found.first == "log-n"
    assert "no new angle" in found.why
    assert plan(LLAMA, 16384).first == "self-extend"


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_config_has_a_plan_or_a_reason(name: str):
    try:
        found = plan(PUBLISHED[name], to=1 << 18)
    except ValueError as error:
        assert any(each in str(error) for each in ("as it is", "pass trained=", "several coordinates")), error
        return
    assert json.loads(json.dumps(found.to_dict()))["target"] == 1 << 18
    assert max(len(line) for line in str(found).splitlines() if not line.startswith("{")) <= 132
    assert not found.first or found[found.first].parts


class Own:
    """A stretch of a user's, which says nothing of lengths."""

    def frequencies(self, f: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        return f / 4

    def magnitude(self, length: torch.Tensor) -> float:
        return 1.0


def test_every_stretch_says_how_far_it_reaches_and_an_unknown_one_is_refused():
    ones, said = (1.0,) * 4, dict[str, float]()
    given = {"ByParts": (4.0, 64), "DynamicLinear": (64,), "DynamicNtk": (64,), "DynamicYarn": (64,),
             "Interpolate": (4.0,), "Llama3": (4.0, 64), "LongRope": (ones, ones, 64), "Ntk": (4.0,),
             "NtkMixed": (4.0,), "Proportional": (0.5,), "Yarn": (4.0, 64)}  # fmt: skip
    kinds = {name: getattr(mp, name) for name in dir(mp) if isinstance(getattr(mp, name), type)}
    reader = read(LLAMA | {"max_position_embeddings": 64}, "plan")
    for name in (each for each, kind in kinds.items() if hasattr(kind, "frequencies") and hasattr(kind, "magnitude")):
        more = {"factor": 4.0} if name in ("LongRope", "Proportional") else {}
        rope = mp.Rope(8, stretch=kinds[name](*given[name], **more))
        said[name] = reach(reader, [mp.Scheme(mp.Partial(rope, of=12), mp.causal)], 64) / 64
    by_length = ("DynamicLinear", "DynamicNtk", "DynamicYarn", "Ntk")
    assert said == {name: 1.0 if name in by_length else 4.0 for name in given}
    with pytest.raises(ValueError, match=r"Own.* does not say how many times the trained length it reaches"):
        reach(reader, [mp.Scheme(mp.Rope(8, stretch=Own()), mp.causal)], 64)


def test_a_stretched_model_goes_further_by_its_own_stretch():
    found = plan(PUBLISHED["Llama-3.1-8B"], 1 << 18)
    assert (found.trained, found.reached) == (8192, 131072)
    assert found["the same, further"].parts == (mp.Llama3(16.0, 8192),)
    olmo = plan(PUBLISHED["Olmo-3-7B"], 1 << 18)["the same, further"]
    # Its config writes the usual magnitude out; it grows with the factor all the same.
    assert olmo.sets["magnitude"] == pytest.approx(0.1 * math.log(32) + 1)
    assert plan(PUBLISHED["Qwen2.5-7B with YaRN"], 1 << 18).reached == 4 * 32768


def test_deepseek_keeps_the_two_weights_its_softmax_reads():
    settings = plan(PUBLISHED["DeepSeek-V3"], 1 << 18)["the same, further"].rope_parameters
    assert settings is not None
    assert (settings["mscale"], settings["mscale_all_dim"], settings["factor"]) == (1.0, 1.0, 64.0)
    assert "attention_factor" not in settings


def test_windows_need_nothing_and_gptj_cannot_be_told():
    assert "use it as it is" in plan(PUBLISHED["Mistral-7B-v0.1"], 1 << 18).why
    found = plan(PUBLISHED["gpt-j-6b"], 8192)
    assert found.served is None
    assert "rotation in code" in " ".join(found.notes)


def test_alibi_has_its_own_plan():
    found = plan(PUBLISHED["mpt-7b"], 8192)
    assert (found.kind, found.first) == ("ALiBi", "NTK")
    slopes = [2 ** (-8 * (h + 1) / 32) for h in range(32)]
    ntk = [slope * 4 ** (-h / 31) for h, slope in enumerate(slopes)]
    assert found["NTK"].slopes == pytest.approx(ntk)
    assert found["interpolation, fixed"].slopes == pytest.approx([slope / 4 for slope in slopes])
    assert plan(PUBLISHED["bloom-560m"], 8192, trained=2048)["dynamic NTK"].parts == (mp.AlibiDynamicNtk(2048),)


def test_falcons_slopes_stay_divided_by_the_root_of_its_width():
    found = plan(PUBLISHED["falcon-rw-1b"], 8192, trained=2048)
    assert max(found["NTK"].slopes) == pytest.approx(2 ** (-8 / 32) / 8)


def test_a_learned_table_is_grown_hierarchically_as_far_as_its_square():
    found = plan(PUBLISHED["bert-base"], 4096)
    assert found.first == "hierarchical"
    assert found["hierarchical"].sets["positions"] == 512**2
    assert plan(PUBLISHED["roberta-base"], 4096).reached == 512
    with pytest.raises(ValueError, match="serves 262,144 positions; ask for no more"):
        plan(PUBLISHED["bert-base"], 512**2 + 1)


def test_buckets_need_nothing():
    assert plan(PUBLISHED["t5-small"], 4096, trained=512).kind == "relative"


# Where it comes from, and what is refused


def test_a_folder_a_file_and_a_config_object_say_the_same(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    made = transformers.LlamaConfig(**{key: value for key, value in LLAMA.items() if key != "model_type"})
    for given in (tmp_path, str(tmp_path), tmp_path / "config.json", made):
        assert plan(given, 16384)["YaRN"].rope_parameters == plan(LLAMA, 16384)["YaRN"].rope_parameters


@pytest.mark.parametrize("to", [4096, 512])
def test_a_target_within_the_trained_length_is_refused(to: int):
    with pytest.raises(ValueError, match=r"reads 4,096 tokens as it is; ask for more than that, or use the model"):
        plan(LLAMA, to)


def test_what_is_no_config_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no model_type, by which the rest is read"):
        plan(17, 8192)
    with pytest.raises(FileNotFoundError, match=r"the folder has no config\.json; it is empty"):
        plan(tmp_path, 8192)
    with pytest.raises(ValueError, match="'llamma' is not known; did you mean"):
        plan({**LLAMA, "model_type": "llamma"}, 8192)
    with pytest.raises(TypeError, match="to must be an integer"):
        plan(LLAMA, 8192.5)  # pyright: ignore
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        plan("./not/here/at/all", 8192)


def test_a_name_that_the_hub_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch):
    def nothing(name: str, **options: object) -> None:
        assert options == {"trust_remote_code": False}
        raise OSError(f"{name} is nowhere\nsecond line")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", nothing)
    with pytest.raises(FileNotFoundError, match=r"the hub did not give a configuration .*\(someone/llama is nowhere\)"):
        plan("someone/llama", 8192)


def test_names_are_what_they_are_called_and_no_modules():
    import milepost.hf
    import milepost.hf.measuring.measure
    import milepost.hf.planning.plan

    assert all(callable(getattr(milepost.hf, name)) for name in milepost.hf.__all__)


# The command


def command(*words: str):
    return CliRunner().invoke(app(), ["plan", *words])


def test_the_command_prints_the_plan(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = command(str(tmp_path), "--to", "16384")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(plan(LLAMA, 16384))
    read = json.loads(command(str(tmp_path), "--to", "16384", "--json").stdout)
    assert read["candidates"][5]["config"]["rope_parameters"]["rope_type"] == "yarn"


def test_the_command_refuses_in_one_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = command(str(tmp_path), "--to", "100")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("milepost: plan(to=100): llama reads 4,096 tokens")


def test_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from milepost import refusal
    from milepost.cli import main

    monkeypatch.setattr(refusal, "_installed", lambda name: name != "transformers")
    monkeypatch.setattr("sys.argv", ["milepost", "plan", "x", "--to", "9"])
    with pytest.raises(SystemExit, match=r"plan needs transformers, .*: pip install 'milepost\[hf\]'"):
        main()


@pytest.mark.parametrize(("columns", "widest"), [(None, 80), (90, 90), (300, 118)])
@pytest.mark.parametrize("config", [LLAMA, PUBLISHED["bloom-560m"], PUBLISHED["Phi-3.5-mini"]])
def test_a_plan_is_as_wide_as_the_terminal_and_cuts_nothing(
    columns: int | None, widest: int, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False) if columns is None else monkeypatch.setenv("COLUMNS", str(columns))
    found = plan(config, 300_000, 2048 if config["model_type"] == "bloom" else None)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= widest
    monkeypatch.setenv("COLUMNS", "118")
    assert " ".join(str(found).split()) == " ".join(" ".join(lines).split())
    if found.served is not None:
        start = next(n for n, line in enumerate(lines) if line.startswith('{"'))
        end = next(n for n, line in enumerate(lines) if n >= start and line.endswith("}") and "note" not in line)
        assert json.loads(" ".join(lines[start : end + 1])) == found[found.served].config


def test_every_call_that_is_printed_can_be_pasted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = plan(LLAMA, 32_768)
    words = " ".join(str(found).partition("rope_type\n")[2].partition("config.json")[0].split())
    given: list[tuple[Any, ...]] = []
    known: dict[str, Any] = {name: getattr(mp, name) for name in dir(mp) if name[0].isupper()}
    known |= {"model": LLAMA, "plan": plan, "extend": lambda model, *parts: given.append(parts)}
    assert "…" not in words
    for call in words.split("extend(")[1:]:
        # A call ends where its brackets do.
        depth = end = 0
        for end, sign in enumerate(call, 1):  # noqa: B007
            depth += {"(": 1, ")": -1}.get(sign, 0)
            if depth < 0:
                break
        eval(f"extend({call[:end]}", known)
    assert given == [each.parts for each in found.candidates]


def test_layers_that_do_not_attend_are_not_counted_as_seeing():
    from transformers import JambaConfig

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    found = plan(JambaConfig(num_hidden_layers=8, attn_layer_period=4, attn_layer_offset=1, **sizes), to=2048)
    assert found.layers == "all 2 layers that attend (of 8) see every key"
