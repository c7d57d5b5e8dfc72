"""is_causal: false in a config lets every token see every other, as transformers' own models then do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.masking_utils import create_causal_mask

from milepost import Rope, Schedule, Scheme, attend, causal, chunks, window
from milepost.configs.layer_types import BY_FUNCTION
from milepost.configs.model_types import ROTARY
from milepost.seams.visible import Visible
from tests.configs import theirs
from tests.configs.test_families import REMOTE
from tests.configs.tiny_models import MODELS as WHOLE
from tests.oracles import assert_same
from tests.parity.peers import merge, random, split, tokens

TINY: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 8,
    "intermediate_size": 16, "vocab_size": 40, "pad_token_id": 0,
}  # fmt: skip
TINY_GPT: dict[str, Any] = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 40}
TINY_NEO = {"hidden_size": 32, "num_heads": 4, "num_layers": 2, "vocab_size": 40}
TINY_NEO |= {"attention_types": [[["global", "local"], 1]]}
MODELS: dict[str, dict[str, Any]] = {
    "llama": TINY,
    "qwen3": TINY,
    "gemma": TINY,
    "mistral": TINY | {"sliding_window": None},
    "gpt2": TINY_GPT,
    "gpt_neo": TINY_NEO,
    "opt": TINY | {"ffn_dim": 16, "word_embed_proj_dim": 32},
    "bert": TINY | {"is_decoder": True},
    "roformer": TINY | {"is_decoder": True, "embedding_size": 32},
}

# Those of tiny_models.py that transformers' masks are not made for at their default settings.
LATER = set(WHOLE) - {"hunyuan_v1_dense", "qwen3_vl_text"}


def visible(scheme: Scheme) -> list[object]:
    return [part for part in scheme.parts if isinstance(part, Visible)]


def looks_ahead(model: Any) -> bool:
    """Whether another last token changes what the first one becomes."""
    ids = torch.arange(3, 11)[None]
    other = torch.cat((ids[:, :-1], ids[:, -1:] + 20), -1)
    with torch.no_grad():
        return bool((model(input_ids=ids)[0] - model(input_ids=other)[0]).abs()[0, 0].max() > 1e-6)


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_sees_is_what_its_scheme_sees(name: str, is_causal: bool | None):
    said = {} if is_causal is None else {"is_causal": is_causal}
    config = AutoConfig.for_model(name, **MODELS[name], **said)
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    ahead = looks_ahead(model)
    # GPT-Neo's masks stand in its layers, whatever the config says.
    assert ahead == (is_causal is False and name != "gpt_neo")
    for plain in (config, config.to_dict(), {"model_type": name, **config.to_dict()}):
        assert (visible(Scheme.of(plain)) == []) == ahead


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_layer_of_an_embedding_model_gives_the_same(name: str):
    config = AutoConfig.for_model(name, **MODELS[name], is_causal=False)
    model: Any = random(AutoModel.from_config(config, attn_implementation="eager"))
    layer, x = model.layers[0].self_attn, tokens(2, 9, 32)
    mask = create_causal_mask(config, x, None, None)
    oracle, _ = layer(x, model.rotary_emb(x, torch.arange(9)[None]), mask)
    q, k, v = (split(project(x), 8) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    if hasattr(layer, "q_norm"):
        q, k = layer.q_norm(q), layer.k_norm(k)
    ours = layer.o_proj(merge(attend(q, k, v, Scheme.of(config))))
    # Their cosines and softmax are float32.
    assert_same(ours, oracle, within=1e-5)
    other = layer.o_proj(merge(attend(q, k, v, Scheme(*Scheme.of(config).parts, causal))))
    assert (other - oracle).abs().max() > 0.1


@pytest.mark.parametrize(
    "name", sorted(set(ROTARY) - REMOTE - {"modernbert", "roformer", "t5_gemma_module", *BY_FUNCTION, *LATER})
)
def test_masks_of_every_family(name: str):
    config = theirs.config_of({"model_type": name, "is_causal": False})
    for key, n in (("sliding_window", 5), ("attention_chunk_size", 4)):
        if getattr(config, key, None) is not None:
            setattr(config, key, n)
    schedule = Schedule.of(config)
    for layer in map(schedule.order.index, set(schedule.order)):
        i, zero = torch.arange(18), torch.zeros(())
        found = schedule[layer].see(zero, zero, i[:, None], i)
        found = torch.ones(18, 18, dtype=torch.bool) if found is None else found
        assert torch.equal(found, theirs.mask(config, layer, 18))


def test_a_window_both_ways_counts_its_keys_on_each_side():
    settings = TINY | {"rope_theta": 1e4, "sliding_window": 5, "is_causal": False}
    assert visible(Scheme.of({"model_type": "mistral", **settings})) == [window(6, ahead=5)]


def test_chunks_stay_causal():
    settings = TINY | {"rope_theta": 5e5, "attention_chunk_size": 4, "is_causal": False, "num_hidden_layers": 4}
    schedule = Schedule.of({"model_type": "llama4_text", **settings})
    assert [visible(scheme) for scheme in schedule] == [[causal & chunks(4)]] * 3 + [[]]


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_alibi_that_grows_with_the_key_is_not_symmetric(name: str):
    settings = {"n_heads": 4, "num_attention_heads": 4, "hidden_size": 32, "alibi": True, "is_causal": False}
    with pytest.raises(ValueError, match=r"is_causal is False, and this model's slopes then favour keys ahead"):
        Scheme.of({"model_type": name, **settings})


READ_BY_OTHERS = {
    "use_bidirectional_attention": (True, "which transformers' qwen2 does not read; remove it"),
    "mrope_section": ([2, 1, 1], "which transformers' qwen2 does not read; remove it"),
    "local_attention": (8, "which transformers' qwen2 does not read; remove it"),
    "sliding_window_size": (8, "which transformers' qwen2 does not read; remove it"),
    "kv_channels": (4, "which transformers' qwen2 does not read; remove it"),
    "rotary_dim": (4, "and transformers' qwen2 rotates 8 channels of a head"),
    "layer_types": (["linear_attention", "sliding_attention"], "and every layer of transformers' qwen2 attends"),
}


@pytest.mark.parametrize("key", READ_BY_OTHERS)
def test_a_key_that_only_other_types_read_is_refused_by_name(key: str):
    value, why = READ_BY_OTHERS[key]
    plain = TINY | {"model_type": "qwen2", "rope_theta": 1e4, "layer_types": ["full_attention", "sliding_attention"]}
    plain |= {"sliding_window": 3, "use_sliding_window": True}
    plain.pop("head_dim")
    assert Schedule.of(plain)[1].parts[-1] == causal & window(3)
    with pytest.raises(ValueError, match=rf"a qwen2 config\): {key} is .*{why}"):
        Schedule.of(plain | {key: value})


def test_a_rotary_dim_that_agrees_is_read():
    assert Scheme.of(TINY | {"model_type": "llama", "rope_theta": 1e4, "rotary_dim": 8}).parts[0] == Rope(8)


IGNORED: dict[str, tuple[dict[str, Any], str]] = {
    "a base": ({"rope_theta": 5e4}, "rope_theta is 50000.0"),
    "a stretch": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type is 'linear'"),
    "both": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}, "rope_theta is 50000.0"),
}


@pytest.mark.parametrize("name", IGNORED)
@pytest.mark.parametrize("kind", ["codegen", "gptj"])
def test_settings_of_a_rotation_that_is_in_code_are_refused(name: str, kind: str):
    given, why = IGNORED[name]
    plain = TINY_GPT | {"model_type": kind, "rotary_dim": 4}
    with torch.no_grad():
        one, other = (AutoModel.from_config(AutoConfig.for_model(**plain | each)).eval() for each in ({}, given))
        other.load_state_dict(one.state_dict())
        ids = torch.arange(12)[None]
        assert torch.equal(one(ids).last_hidden_state, other(ids).last_hidden_state)
    with pytest.raises(ValueError, match=rf"a {kind} config\): {why}, which transformers' {kind} does not read"):
        Scheme.of(plain | given)
    assert Scheme.of(plain | {"rope_theta": 1e4}).same_as(Scheme.of(plain))


@pytest.mark.parametrize("kind", ["nemotron", "stablelm"])
def test_where_padding_decides_what_is_seen_the_config_is_refused(kind: str):
    plain = TINY | {"model_type": kind, "rope_theta": 1e4, "is_causal": False}
    config = AutoConfig.for_model(**plain)
    model, ids = AutoModel.from_config(config, attn_implementation="sdpa").eval(), torch.arange(1, 13)[None]
    mask = torch.ones(2, 13, dtype=torch.long).index_fill_(1, torch.tensor([0]), 0)
    with torch.no_grad():
        alone = model(ids).last_hidden_state[0]
        padded = model(nn.functional.pad(ids, (1, 0)).expand(2, -1), attention_mask=mask).last_hidden_state[0, 1:]
    assert float((alone - padded).abs().max()) > 1e-2
    why = rf"a {kind} config\): is_causal is False, by which .* its attention function and padding go; remove it"
    for source in (config, plain):
        with pytest.raises(ValueError, match=why):
            Scheme.of(source)
