"""What `extend` changes and what it leaves alone; what it refuses, by name, before anything is changed."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3ForConditionalGeneration, LlamaForCausalLM
from transformers.masking_utils import create_causal_mask

import milepost as mp
from milepost.hf import extend, restore
from milepost.hf.model.extension import as_it_was, extension_of
from tests.hf.tiny import OWN, SMALL, tiny, tokens


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def state(model: Any) -> tuple[Any, ...]:
    """What a caller can see of a model: its modules, its weights' names, its config and how it attends."""
    modules = [(name, type(module)) for name, module in model.named_modules()]
    return modules, list(model.state_dict()), model.config.to_dict(), model.config._attn_implementation


def test_nothing_but_the_model_at_hand_changes():
    config = AutoConfig.for_model("llama", **SMALL)
    one, other = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    assert one.config is other.config, "transformers shares the config, so this test has a point"
    forward, before, beside = LlamaForCausalLM.forward, state(other), other(tokens()).logits
    for given in ((mp.Rerope(8),), (mp.Yarn(4, trained=64),)):
        extend(one, *given)
        assert state(other) == before
        assert torch.equal(other(tokens()).logits, beside)
        assert config._attn_implementation == "sdpa"
    assert LlamaForCausalLM.forward is forward


@pytest.mark.parametrize("given", [(mp.Rerope(8),), (mp.Yarn(4, trained=64),), (mp.DynamicNtk(64), mp.LogN(64))])
def test_restore_undoes_it_all(given: tuple[object, ...]):
    model = tiny("gemma3_text")
    before, stock = state(model), model(tokens()).logits
    assert extend(model, *given) is model
    assert list(model.state_dict()) == before[1], "no weights are added"
    assert restore(model) is model
    assert state(model) == before
    assert torch.equal(model(tokens()).logits, stock)
    assert extension_of(model) is None
    assert restore(model) is model, "a second time nothing happens"


@pytest.mark.parametrize("given", [(mp.Rerope(8),), (mp.Yarn(4, trained=64),)])
@pytest.mark.parametrize("name", ["gemma3_text", "falcon"])
def test_an_extension_is_off_for_a_while_and_then_the_same_again(name: str, given: tuple[object, ...]):
    model = tiny(name)
    before, stock = state(model), model(tokens()).logits
    extend(model, *given)
    model.config.bos_token_id = 7
    ours, after, modules = model(tokens()).logits, state(model), list(model.modules())
    with as_it_was(model):
        assert torch.equal(model(tokens()).logits, stock)
        assert state(model)[0] == before[0]
    assert torch.equal(model(tokens()).logits, ours)
    assert state(model) == after
    assert list(model.modules()) == modules
    cache = model(tokens()).past_key_values
    with as_it_was(model):
        pass
    model(tokens(t=3), past_key_values=cache)
    model.config.is_causal = False
    with as_it_was(model):
        pass
    if name == "gemma3_text" and extension_of(model).through == "attend":
        with pytest.raises(RuntimeError, match="is_causal of its config changed after extend"):
            model(tokens())


def test_an_extended_model_is_extended_from_what_it_was():
    model = tiny("llama")
    extend(model, mp.Yarn(4, trained=64), mp.LogN(64))
    extend(model, mp.Rerope(8))
    assert extension_of(model).schedule[0].parts == (mp.Rope(8), mp.causal, mp.Rerope(8))
    assert model.config.rope_parameters["rope_type"] == "default"
    assert model.config.max_position_embeddings == 64


def test_a_copy_goes_on_by_itself():
    model = extend(tiny("gpt_oss"), mp.Rerope(8))
    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens()).logits, model(tokens()).logits)
    for layer in twin.model.layers:
        layer.self_attn.sinks += 1.0
    assert not torch.equal(twin(tokens()).logits, model(tokens()).logits), "the copy reads its own sinks"
    ours = model(tokens()).logits
    restore(twin)
    assert torch.equal(model(tokens()).logits, ours)


class Wrapped(nn.Module):
    """A model inside another, as PEFT and others have it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config


def test_a_model_that_wraps_another_is_looked_into():
    model = tiny("llama")
    extend(Wrapped(model), mp.Rerope(8))
    assert extension_of(model).through == "attend"
    assert extension_of(restore(model)) is None


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
PLAIN = mp.Scheme(mp.Rope(8), mp.causal)
LOGITS = mp.SinkLogit(4)
torch.nn.init.constant_(LOGITS.logit, 3.0)
SINKS = mp.Schedule([mp.Scheme(mp.Rope(8), LOGITS, mp.causal)] * 2)
REFUSED: list[tuple[str, dict[str, Any], tuple[Any, ...], dict[str, Any], str]] = [
    ("gemma3_text", {}, (PLAIN,), {}, "layers of this gemma3_text model differ, so one scheme"),
    ("llama", {}, (mp.Schedule([PLAIN]),), {}, "the schedule has 1 layers and this llama model"),
    ("llama", {}, (PLAIN, mp.LogN(8)), {}, "a Scheme says everything, and was given beside LogN"),
    ("llama", {}, (mp.Scheme(mp.Rope(16), mp.causal),), {}, "has heads of 8 channels, and Rope(16) turns 16"),
    ("llama", {}, (mp.Scheme(mp.Rope(8)),), {}, "is causal, and the scheme shows it keys ahead"),
    ("mistral", {}, (PLAIN,), {}, "its cache keeps no more"),
    ("gpt_oss", {"layer_types": ["full_attention"] * 2}, (mp.Schedule([PLAIN] * 2),), {},
     "trained with a logit of attending to nothing: add SinkLogit(heads)"),
    ("gpt_oss", {"layer_types": ["full_attention"] * 2}, (SINKS,), {}, "has sinks of its own, and the weights of Sink"),
    ("llama", {}, (SINKS,), {}, "has no weights for SinkLogit(4), which learns"),
    ("llama", {}, (mp.Kerple(4),), {}, "Kerple(4) learns, and nothing in this checkpoint was trained for it"),
    ("llama", {}, (mp.Sinusoidal(32),), {}, "acts on the embeddings"),
    ("llama", {}, (mp.Rerope,), {}, "this is a class; make one"),
    ("llama", {}, (7,), {}, "a part is a method or what is visible"),
    ("llama", {}, (mp.AlibiNtk(4.0),), {}, "no layer of this llama model"),
    ("llama", {}, (mp.Alibi(4),), {}, "no layer of this llama model turns queries and keys or has slopes that Al"),
    ("llama", {"rope_parameters": LLAMA3}, (mp.Yarn(4, 16),), {}, "stretched by Llama3(4, 16) already"),
    ("llama", {"rope_parameters": LLAMA3}, (mp.Llama3(2, 16),), {}, "stretched by Llama3(4, 16) already"),
    ("llama", {}, (mp.Yarn(4, 64), mp.Ntk(2.0)), {}, "stretched by Yarn(4, 64) already"),
    ("llama", {}, (mp.Yarn(4, trained=100),), {}, "has trained=100, and the config of this llama model says"),
    ("llama", {}, (mp.Pivot(mp.Rerope(8), 32),), {}, "has trained=32, and the config of this llama model says"),
    ("llama", {}, (mp.Schedule([mp.Scheme(mp.Rope(8), mp.causal, mp.LogN(8))] * 2),), {}, "LogN(8) has trained=8"),
    ("llama", {}, (), {}, "nothing was given to extend the model by"),
    ("llama", {}, (mp.Yarn(4, 64),), {"to": 512}, "Yarn(4, 64) is given as it is; leave `to` out"),
    ("llama", {}, ("rerop",), {}, "no row of the lab is called 'rerop'; did you mean ReRoPE"),
    ("llama", {}, ("YaRN",), {}, "goes by the length to reach; say it: extend(model, 'YaRN', to=…)"),
    ("llama", {}, (), {"to": 256}, "is found by measuring, so give a text: extend(model, to=256, text=…"),
    ("llama", {}, (), {"tokenizer": len}, "extend(tokenizer=…): this is for measuring, and there is no text"),
    ("llama", {}, (), {"text": "a b"}, "which needs the length to reach, to=…, and no method"),
    ("llama", {}, (), {"text": "a b", "to": 32}, "plan(to=32): llama reads 64 tokens as it is"),
    ("llama", {}, (), {"text": "a b", "to": 256}, "a text needs a tokenizer; pass tokenizer="),
    ("llama", {}, (), {"text": [1, 2, 3], "to": 256}, "tokens"),
    ("llama", {}, ("YaRN",), {"to": 32}, "was trained at 64 tokens, and reads as many already"),
    ("llama", {}, ("YaRN",), {"to": "far"}, "to must be an integer"),
    ("llama", {}, (mp.Rerope(8),), {"through": "rotary"}, "cosines and sines cannot say that"),
    ("llama", {}, (), {"through": "flash"}, "through must be one of 'rotary', 'attend'"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "more", "given", "options", "message"), REFUSED)
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    model_type: str, more: dict[str, Any], given: tuple[Any, ...], options: dict[str, Any], message: str
):
    model = tiny(model_type, **more)
    stock = model(tokens()).logits
    before = state(model)
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        extend(model, *given, **options)
    assert state(model) == before
    extend(model, through="attend")
    extended = state(model)
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        extend(model, *given, **options)
    assert state(model) == extended, "a model that was extended stays extended"
    assert (model(tokens()).logits - stock).abs().max() < 1e-5


def test_a_stretched_checkpoint_goes_further_by_its_own_stretch():
    model = tiny("llama", rope_parameters=LLAMA3)
    ours = extend(model, mp.Llama3(8, 16))(tokens()).logits
    stock = tiny("llama", rope_parameters=LLAMA3 | {"factor": 8.0})(tokens()).logits
    assert (ours - stock).abs().max() < 1e-5
    extend(model, mp.Rope(8, stretch=mp.Yarn(4, 16)))
    assert extension_of(model).schedule[0].parts[0].stretch == mp.Yarn(4, 16), "a whole rotation says everything"


NEW_PROCESS = """
import sys
import torch
before = set(sys.modules)
import milepost.hf, milepost.hf.planning.plan
added = {name.split(".")[0] for name in set(sys.modules) - before} - {*sys.stdlib_module_names, "torch"}
# torch 2.15 imports its own requirements when it is first used.
added -= {"sympy", "mpmath"}
assert added == {"milepost"}, added
sys.modules["transformers"] = None
try:
    milepost.hf.extend(3)
except ImportError as error:
    assert "extend needs transformers, which is not installed: pip install 'milepost[hf]'" in str(error)
else:
    raise AssertionError
del sys.modules["transformers"]
milepost.hf.StreamingCache
assert "transformers" in sys.modules
try:
    milepost.hf.Streamingcache
except AttributeError as error:
    assert "has no attribute 'Streamingcache'" in str(error)
else:
    raise AssertionError
model = torch.load(sys.argv[1] + "/model.pt", weights_only=False)
given, logits = torch.load(sys.argv[1] + "/expected.pt")
assert (model(given).logits - logits).abs().max() < 1e-5
"""


def test_a_new_process_loads_transformers_when_it_is_needed_and_runs_a_model_that_was_pickled(tmp_path: Path):
    # Of Persimmon, attention modules have hooks as well.
    model = extend(tiny("persimmon"), mp.Rerope(8))
    torch.save(model, tmp_path / "model.pt")
    torch.save((tokens(), model(tokens()).logits), tmp_path / "expected.pt")
    done = subprocess.run([sys.executable, "-c", NEW_PROCESS, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_models_that_cannot_be_served_are_named():
    with pytest.raises(TypeError, match=r"extend\(str\): the first argument is a model of transformers"):
        extend("gpt2")
    with pytest.raises(TypeError, match=r"extend\(Linear\): the first argument is a model of transformers"):
        extend(nn.Linear(2, 2))
    small = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 48}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("codegen", rotary_dim=4, **small))
    with pytest.raises(
        ValueError, match=r"CodeGenForCausalLM \(codegen\) cannot be extended: it keeps a table of its own"
    ):
        extend(model, mp.LogN(8))


def test_a_config_that_disagrees_with_the_model_is_refused():
    model = tiny("llama")
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 2.0}
    with pytest.raises(ValueError, match="turns otherwise than its config says"):
        extend(model, mp.Rerope(8))
    model = tiny("llama")
    model.config.num_hidden_layers = 3
    with pytest.raises(
        ValueError, match="the llama config has 3 layers, and the model has attention in the layers 0, 1"
    ):
        extend(model, mp.Rerope(8))


SLOWER: dict[str, Any] = {
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 1024},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0, "original_max_position_embeddings": 2048},
    "another base": {"rope_type": "default", "rope_theta": 10100.0},
}  # fmt: skip


@pytest.mark.parametrize("name", SLOWER)
def test_a_config_that_disagrees_in_slow_pairs_alone_is_refused(name: str):
    model = tiny("llama", max_position_embeddings=8192, head_dim=16)
    before = model(tokens()).logits
    model.config.rope_parameters = {"rope_theta": 10000.0} | SLOWER[name]
    with pytest.raises(ValueError, match="turns otherwise than its config says"):
        extend(model, through="attend")
    assert torch.equal(model(tokens()).logits, before)


def test_a_second_type_of_layers_that_disagrees_with_the_config_is_refused():
    model = tiny("gemma3_text")
    for name, f in model.model.rotary_emb.named_buffers():
        if name == "sliding_attention_inv_freq":
            f[f < 0.2] /= 2
    with pytest.raises(ValueError, match="turns otherwise than its config says"):
        extend(model, mp.LogN(64))


def test_frequencies_slowed_by_hand_are_refused():
    model = tiny("llama", max_position_embeddings=8192, head_dim=16)
    f = model.model.rotary_emb.inv_freq
    f[f < 0.02] /= 4
    with pytest.raises(ValueError, match="or its frequencies, were changed"):
        extend(model, mp.LogN(8192))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["default", *list(SLOWER)[:2], "dynamic", "longrope"])
def test_frequencies_that_a_cast_has_rounded_are_those_of_the_config(name: str, dtype: torch.dtype):
    more: dict[str, Any] = {
        "dynamic": {"rope_type": "dynamic", "factor": 4.0},
        "longrope": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
                     "original_max_position_embeddings": 64},
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 500000.0} | (SLOWER | more).get(name, {})
    model = tiny("llama", max_position_embeddings=256, head_dim=16, rope_parameters=rope)
    with torch.no_grad():
        model(tokens(1, 300))
    was = model.model.rotary_emb.inv_freq.clone()
    extend(model, through="attend")
    assert torch.equal(restore(model).model.rotary_emb.inv_freq, was)
    extend(model.to(dtype), through="attend")
    restore(model).float()
    extend(model, through="attend")


def test_what_raw_keys_cannot_do_is_refused_in_the_forward_pass():
    model = extend(tiny("llama"), mp.Rerope(8))
    with pytest.raises(ValueError, match="output_attentions=True asks for attention weights"):
        model(tokens(), output_attentions=True)
    four = torch.ones(2, 1, 24, 24, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"the attention mask is torch.bool \[2, 1, 24, 24\] for 24 queries"):
        model(tokens(), attention_mask=four)
    with pytest.raises(
        ValueError, match=r"position_ids are \[3, 24\] for 2 rows of 24 tokens; give \[2, 24\] or \[1, 24\]"
    ):
        model(tokens(), position_ids=torch.arange(24).expand(3, -1))
    cache = model(tokens()).past_key_values
    with pytest.raises(ValueError, match="the attention mask has 1 columns, and with those in the cache there are 25"):
        model(tokens()[:, :1], attention_mask=torch.ones(2, 1), past_key_values=cache)


def test_an_attention_that_is_set_afterwards_is_refused():
    model = tiny("llama")
    stock = model(tokens()).logits
    extend(model, mp.Rerope(8)).set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="its attention was set to 'eager' afterwards, which knows nothing of pos"):
        model(tokens())
    assert torch.equal(restore(model)(tokens()).logits, stock)
    extend(model, mp.Yarn(4, trained=64)).set_attn_implementation("eager")
    assert torch.isfinite(model(tokens()).logits).all(), "there transformers' own attention goes on"


def test_tokens_that_see_both_ways_are_refused():
    model, text = extend(tiny("llama"), mp.Rerope(8)), tokens(1, 8)
    blocks = torch.tensor([[-1, -1, 0, 0, 0, -1, -1, -1]])
    given = {"config": model.config, "inputs_embeds": torch.zeros(1, 8, 32), "past_key_values": None}
    assert create_causal_mask(attention_mask=None, **given).shape == (1, 1, 1, 16)
    with pytest.raises(ValueError, match="this call shows some tokens what comes after them"):
        create_causal_mask(attention_mask=None, block_sequence_ids=blocks, **given)
    with pytest.raises(ValueError, match="brings a mask of its own"):
        create_causal_mask(attention_mask=None, or_mask_function=lambda b, h, i, j: j < 2, **given)
    assert torch.isfinite(model(text).logits).all()


def test_the_language_model_inside_another_is_extended(tmp_path: Path):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = AutoConfig.for_model(
        "gemma3", text_config=SMALL | OWN["gemma3_text"], vision_config=vision, mm_tokens_per_image=4
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    stock = model(tokens()).logits
    extend(model, through="attend")
    assert (model(tokens()).logits - stock).abs().max() < 1e-5
    extend(model, mp.Yarn(4, trained=64))
    ours = model(tokens()).logits
    model.save_pretrained(tmp_path)
    again = Gemma3ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert (again(tokens()).logits - ours).abs().max() < 1e-5


def test_a_module_that_was_never_extended_says_so():
    extend(tiny("llama"), mp.Rerope(8))
    other = tiny("llama")
    other.set_attn_implementation("milepost")
    with pytest.raises(RuntimeError, match=r"but its model was not extended; use milepost\.hf\.extend"):
        other(tokens())


REMINDER = "friendly reminder - the current text generation call has exceeded the model's predefined maximum length"


def test_the_reminder_of_transformers_is_as_the_page_says(monkeypatch: pytest.MonkeyPatch):
    from transformers.generation import stopping_criteria

    page = " ".join((Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8").split())
    assert f'"{REMINDER}"' in page
    said: list[str] = []
    monkeypatch.setattr(stopping_criteria.logger, "warning_once", said.append)
    trained = SMALL["max_position_embeddings"]
    for part, reminded in ((mp.Yarn(4, trained=trained), False), (mp.Rerope(8), True)):
        model, text = extend(tiny("llama"), part), tokens(1, trained + 4)
        written = model.generate(text, max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None)
        assert any(REMINDER in each for each in said) == reminded
        assert torch.equal(written[:, -3:], model(written[:, :-1]).logits[:, -3:].argmax(-1))
