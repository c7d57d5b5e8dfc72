"""A model type that nobody listed is served if a small twin of it proves equal to stock, and refused if it does not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.falcon_h1 import FalconH1Config, FalconH1ForCausalLM
from transformers.models.flex_olmo import FlexOlmoConfig, FlexOlmoModel
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.lfm2 import Lfm2Config, Lfm2ForCausalLM, Lfm2Model
from transformers.models.llama import modeling_llama
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
from transformers.models.llama4.modeling_llama4 import Llama4ForCausalLM
from transformers.models.minimax import MiniMaxConfig, MiniMaxForCausalLM
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM

import milepost as mp
from milepost.hf import extend, load, measure, restore
from milepost.hf.model import proof
from milepost.hf.model.extension import by_itself, demand_way, extension_of
from milepost.hf.model.models import KNOWN, layers_of
from milepost.hf.model.twin import SMALL, Empty, idle_once, layers_kept, shrunk, twin_of

UNLISTED = (
    "afmoe", "aria_text", "axk1", "cohere2_moe", "cwm", "diffllama", "ernie4_5_moe", "exaone_moe", "falcon_h1",
    "flex_olmo", "flint", "gemma4_text", "gemma4_unified_text", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "hunyuan_v1_dense", "hy_v3", "jais2", "jetmoe", "kolibri1", "laguna", "lfm2", "llama4_text",
    "longcat_flash", "mellum", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2", "ministral3", "mistral4",
    "modernbert-decoder", "nanochat", "olmo_hybrid", "phimoe", "qwen3_next", "recurrent_gemma", "solar_open",
    "vaultgemma", "youtu", "zaya",
)  # fmt: skip
"""Types that are served by proof alone; `make sweep-types` tries every type of transformers."""
NORMS_BEHIND = ("llama4_text", "nanochat")
"""Types that normalize queries and keys behind the rotation, and whose schemes do not (that of HunYuan does)."""


@pytest.fixture(autouse=True)
def _nothing_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PROVEN", {})


NULL = {
    "hunyuan_v1_dense": {"head_dim": 128}, "ministral": {"head_dim": 128}, "nemotron": {"num_key_value_heads": 8},
}  # fmt: skip
"""Settings whose default is null, from which their own classes cannot be built."""


def unloaded(model_type: str) -> Any:
    """A model of a type as its config is by default, without weights."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {model_type}")
    with torch.device("meta"):
        return AutoModel.from_config(CONFIG_MAPPING[model_type](**NULL.get(model_type, {})))


@pytest.mark.sample(4)
@pytest.mark.parametrize("model_type", UNLISTED)
def test_an_unlisted_type_proves_itself_along_both_ways(model_type: str):
    layers = layers_of(unloaded(model_type))
    assert layers.model_type not in KNOWN
    for path in ("rotary", "attend"):
        proof.demand_proof(layers, path, by_itself)
    assert list(proof.PROVEN.values()) == [None, None]
    why = proof.unproven(layers, "attend", by_itself, tempered=True)
    assert (why is None) == (model_type not in NORMS_BEHIND)


@pytest.mark.sample(2)
@pytest.mark.parametrize("model_type", sorted(KNOWN))
def test_the_same_proof_holds_for_listed_types(model_type: str):
    layers = layers_of(unloaded(model_type))
    assert proof.unproven(layers, "rotary", by_itself) is None
    assert proof.unproven(layers, "attend", by_itself, tempered=True) is None


# Twins that are broken on purpose


def rotated_backwards(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Keys are turned the other way: scores see sums of positions."""
    turn = modeling_llama.apply_rotary_pos_emb
    patch.setattr(
        modeling_llama, "apply_rotary_pos_emb", lambda q, k, c, s, *a: (turn(q, q, c, s)[0], turn(k, k, c, -s)[0])
    )


def scaled_after(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Channels are scaled unevenly behind the rotation, as a norm with weights does."""
    turn = modeling_llama.apply_rotary_pos_emb

    def uneven(q: torch.Tensor, k: torch.Tensor, *others: Any) -> Any:
        q, k = turn(q, k, *others)
        return q * torch.linspace(0.5, 1.5, q.shape[-1]), k

    patch.setattr(modeling_llama, "apply_rotary_pos_emb", uneven)


def hidden_keys(old: Any, patch: pytest.MonkeyPatch) -> None:
    """A window that no config says."""
    make = modeling_llama.create_causal_mask

    def narrow(*args: Any, **given: Any) -> Any:
        mask = make(*args, **given)
        if not isinstance(mask, torch.Tensor) or not mask.is_floating_point():
            return mask
        t, s = mask.shape[-2:]
        far = torch.arange(s)[None] < torch.arange(s - t, s)[:, None] - 8
        return mask.masked_fill(far, torch.finfo(mask.dtype).min)

    patch.setattr(modeling_llama, "create_causal_mask", narrow)


def without_positions(old: Any, patch: pytest.MonkeyPatch) -> None:
    """position_ids are passed over: tokens are counted."""
    forward = modeling_llama.LlamaRotaryEmbedding.forward

    def counted(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(self, x, torch.arange(position_ids.shape[1])[None].expand_as(position_ids))

    patch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", counted)


def by_itself_attending(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Attention that asks no registry."""

    class Own:
        def get_interface(self, *given: Any) -> Callable[..., Any]:
            return modeling_llama.eager_attention_forward

    patch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Own())


def two_thresholds(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Past so many keys as a field says that nobody knows, the score is another."""
    attend = modeling_llama.eager_attention_forward

    def indexed(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        top = module.config.keys_that_count
        v = v * (1 + (torch.arange(v.shape[2]) >= top)[None, None, :, None])
        return attend(module, q, k, v, mask, **given)

    patch.setattr(modeling_llama, "eager_attention_forward", indexed)


def wrong_pairs(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Neighbouring channels are turned, and the config means halves."""
    patch.setattr(modeling_llama, "rotate_half", lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2))


def mask_passed_over(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Every key is seen."""
    attend = modeling_llama.eager_attention_forward
    patch.setattr(
        modeling_llama, "eager_attention_forward", lambda m, q, k, v, mask, **g: attend(m, q, k, v, None, **g)
    )


def turned_otherwise(by: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """Positions are changed before they become angles, other than by counting from elsewhere."""

    def broken(old: Any, patch: pytest.MonkeyPatch) -> None:
        kind = modeling_llama.LlamaRotaryEmbedding
        forward = kind.forward
        patch.setattr(kind, "forward", lambda self, x, position_ids: forward(self, x, by(position_ids)))

    return broken


packed_still = turned_otherwise(lambda at: at * ((at.diff(dim=-1, prepend=at[:, :1]) < 0).cumsum(-1) == 0))
packed_still.__name__ = "packed_still"
cached_one_off = turned_otherwise(lambda at: at + ((at[:, :1] > 0) & (at[:, :1] < 100)))
cached_one_off.__name__ = "cached_one_off"


def wrong_base_in_some_layers(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Layers with a window turn by another base than the config says."""
    kind = modeling_gemma3.Gemma3RotaryEmbedding
    forward = kind.forward
    patch.setattr(kind, "forward", lambda self, x, at, layer_type: forward(self, x, at, "full_attention"))


def window_one_off(old: Any, patch: pytest.MonkeyPatch) -> None:
    """A window has one key less than the config says."""
    make = modeling_mistral.create_sliding_window_causal_mask

    def narrower(config: Any, **given: Any) -> Any:
        config = copy.deepcopy(config)
        config.sliding_window -= config._attn_implementation != "milepost"
        return make(config=config, **given)

    patch.setattr(modeling_mistral, "create_sliding_window_causal_mask", narrower)


def temperature_dropped(old: Any, patch: pytest.MonkeyPatch) -> None:
    """YaRN's factor on cosines and sines is left out."""
    forward = modeling_llama.LlamaRotaryEmbedding.forward

    def plain(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return tuple(each / self.attention_scaling for each in forward(self, x, position_ids))

    patch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", plain)


def cap_dropped(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Scores are not capped."""
    attend = modeling_gemma2.eager_attention_forward
    patch.setattr(modeling_gemma2, "eager_attention_forward", lambda *a, softcap=None, **given: attend(*a, **given))


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}


def turned_if(turns: Callable[[Any, torch.Tensor], bool], patch: pytest.MonkeyPatch) -> None:
    """Attention modules turn queries and keys under a condition."""
    forward = modeling_llama.LlamaAttention.forward

    def sometimes(self: Any, hidden_states: torch.Tensor, position_embeddings: Any, *args: Any, **given: Any) -> Any:
        cos, sin = position_embeddings
        if not turns(self, hidden_states):
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        return forward(self, hidden_states, (cos, sin), *args, **given)

    patch.setattr(modeling_llama.LlamaAttention, "forward", sometimes)


def seventh_layer(old: Any, patch: pytest.MonkeyPatch) -> None:
    """One layer far behind the first ones does not turn, and no list says so."""
    turned_if(lambda module, x: module.layer_idx != 7, patch)


def past_a_length(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Long texts are not turned, and no field says from where on."""
    turned_if(lambda module, x: x.shape[1] < 512, patch)


def only_in_training(old: Any, patch: pytest.MonkeyPatch) -> None:
    """Training goes without positions."""
    turned_if(lambda module, x: not module.training, patch)


def one_text_alone(old: Any, patch: pytest.MonkeyPatch) -> None:
    """A batch of one goes without positions."""
    turned_if(lambda module, x: x.shape[0] > 1, patch)


def kept_beside_weights(old: Any, patch: pytest.MonkeyPatch) -> None:
    """A buffer that checkpoints fill is added to angles, and begins with zeros."""
    begin, turn = modeling_llama.LlamaModel.__init__, modeling_llama.LlamaRotaryEmbedding.forward

    def begun(self: Any, config: Any) -> None:
        begin(self, config)
        self.rotary_emb.register_buffer("further", torch.zeros(1))

    def further(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        cos, sin = turn(self, x, position_ids)
        return cos * (1 + self.further), sin

    patch.setattr(modeling_llama.LlamaModel, "__init__", begun)
    patch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", further)


BROKEN = (
    (rotated_backwards, "attend", "off on a text at once|turns"), (scaled_after, "attend", "off on a text at once"),
    (hidden_keys, "attend", "off on a text at once"), (without_positions, "rotary", "with other positions|off"),
    (by_itself_attending, "attend", "off on|fails on|mask"), (two_thresholds, "attend", "off on a text at once"),
    (wrong_pairs, "attend", "off on a text at once"), (mask_passed_over, "attend", "without a mask|off on"),
    (packed_still, "rotary", "off on two texts packed in a row"),
    (cached_one_off, "rotary", "off on a text read by a cache"),
    (seventh_layer, "attend", "its layer 7 attends otherwise"), (past_a_length, "attend", "off on a long text"),
    (only_in_training, "attend", "off on a text in training"), (one_text_alone, "attend", "off on a long text"),
    (kept_beside_weights, "rotary", "off on a text at once|turns"),
)  # fmt: skip


@pytest.mark.parametrize(("broken", "path", "says"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
def test_a_twin_that_does_more_than_its_config_says_is_refused(
    broken: Callable[..., None], path: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    config = CONFIG_MAPPING["llama"](keys_that_count=4096)
    with torch.device("meta"):
        layers = layers_of(AutoModel.from_config(config))
    assert proof.unproven(layers, path, by_itself) is None
    broken(None, monkeypatch)
    with pytest.raises(ValueError, match=says):
        proof.demand_proof(layers, path, by_itself)


OTHERS = (
    (wrong_base_in_some_layers, "gemma3_text", {}, "rotary", "turns otherwise than its config says"),
    (window_one_off, "mistral", {"sliding_window": 9}, "attend", "off on a text at once"),
    (temperature_dropped, "llama", {"rope_parameters": YARN}, "rotary", "turns otherwise than its config says"),
    (cap_dropped, "gemma2", {"attn_logit_softcapping": 2.0}, "attend", "off on a text at once"),
)


@pytest.mark.parametrize(("broken", "model_type", "given", "path", "says"), OTHERS, ids=[x[0].__name__ for x in OTHERS])
def test_a_twin_that_does_less_than_its_config_says_is_refused(
    broken: Callable[..., None], model_type: str, given: Any, path: str, says: str, monkeypatch: pytest.MonkeyPatch
):
    with torch.device("meta"):
        layers = layers_of(AutoModel.from_config(CONFIG_MAPPING[model_type](**given)))
    assert proof.unproven(layers, path, by_itself) is None
    broken(None, monkeypatch)
    with pytest.raises(ValueError, match=says):
        proof.demand_proof(layers, path, by_itself)


# A norm behind the rotation


def small_llama4(**more: Any) -> Any:
    torch.manual_seed(0)
    return Llama4ForCausalLM(Llama4TextConfig(
        hidden_size=32, intermediate_size=32, intermediate_size_mlp=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=64, num_local_experts=2, pad_token_id=0, initializer_range=0.2,
        max_position_embeddings=64, attention_chunk_size=64, **more,
    )).eval()  # fmt: skip


@pytest.mark.parametrize("normed", [True, False])
def test_a_temperature_goes_through_attend_only_where_no_norm_takes_it_off(normed: bool):
    model, ids = small_llama4(use_qk_norm=normed), torch.arange(1, 64)[None]
    with torch.no_grad():
        stretched = extend(model, mp.Yarn(4, trained=64))(ids).logits
        if normed:
            with pytest.raises(ValueError, match=r"behind the rotation, .* leave it out: Yarn\(…, scaled=1\.0\)"):
                extend(model, mp.Yarn(4, trained=64), through="attend")
            with pytest.raises(ValueError, match="behind the rotation"):
                extend(model, mp.Rerope(16), mp.Yarn(4, trained=64))
        given = mp.Yarn(4, trained=64, scaled=1.0) if normed else mp.Yarn(4, trained=64)
        attended = extend(model, given, through="attend")(ids).logits
        assert (attended - stretched).abs().max() < 1e-5 * stretched.abs().max()
        extend(model, mp.Rerope(16))


# What extend does with it


def small_flex() -> Any:
    torch.manual_seed(0)
    return FlexOlmoModel(FlexOlmoConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=64, num_experts=4, num_experts_per_tok=2, pad_token_id=0, max_position_embeddings=64,
    )).eval()  # fmt: skip


def test_a_proof_is_asked_once_and_for_every_other_config_again(monkeypatch: pytest.MonkeyPatch):
    model, asked = small_flex(), list[str]()
    inner = proof.unproven
    monkeypatch.setattr(proof, "unproven", lambda *given: asked.append(given[1]) or inner(*given))
    for _ in range(3):
        extend(model, mp.Yarn(4, trained=64))
        restore(model)
    wider = small_flex()
    wider.config.intermediate_size = 99
    extend(small_flex(), mp.Yarn(4, trained=64))
    assert asked == ["rotary"]
    extend(model, mp.Rerope(16))
    restore(model)
    assert asked == ["rotary", "attend"]
    other = small_flex()
    other.config.attention_dropout = 0.1
    extend(other, mp.Yarn(4, trained=64))
    assert asked == ["rotary", "attend", "rotary"]


@pytest.mark.parametrize("other", [{"num_key_value_heads": 1}, {"num_key_value_heads": 4}, {"num_hidden_layers": 3}])
def test_a_size_that_may_be_a_switch_asks_for_another_proof(other: dict[str, int]):
    for each in ({"num_key_value_heads": 2, "num_hidden_layers": 2}, other):
        config = FlexOlmoConfig(hidden_size=32, num_attention_heads=4, vocab_size=64, pad_token_id=0, **each)
        with torch.device("meta"):
            layers = layers_of(FlexOlmoModel(config))
        proof.demand_proof(layers, "rotary", by_itself)
    assert len(proof.PROVEN) == 2


def test_an_extension_that_replaces_another_asks_for_the_proof_of_the_model_as_it_was():
    model, ids = small_flex(), torch.arange(1, 60)[None]
    with torch.no_grad():
        first = extend(model, mp.Rerope(16))(ids)[0]
        extend(model, mp.Yarn(4, trained=64))
        second = extend(model, mp.Rerope(16))(ids)[0]
    assert (second - first).abs().max() < 1e-6
    assert len(proof.PROVEN) == 2


def test_a_refusal_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch):
    model = small_flex()
    before, config = (
        {name: each.clone() for name, each in model.state_dict().items()},
        copy.deepcopy(model.config.to_dict()),
    )
    ids, state = torch.arange(1, 12)[None], torch.get_rng_state()
    out = model(ids)[0]
    monkeypatch.setattr(proof, "unproven", lambda *given: "it differs in a test")
    with pytest.raises(ValueError, match="a flex_olmo model cannot be extended through 'attend': it differs in a test"):
        extend(model, mp.Rerope(16))
    assert torch.equal(model(ids)[0], out)
    assert model.config.to_dict() == config
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_class_outside_transformers_is_refused_and_never_run(convolutions: Any):
    class Mine(Lfm2Model):
        def forward(self, *args: Any, **given: Any) -> Any:
            raise AssertionError("it was run")

    model = Mine(convolutions.config)
    with pytest.raises(ValueError, match=r"Mine is a class of tests\.hf\.test_proof, and not of transformers"):
        extend(model, mp.Yarn(4, trained=64))


def test_a_twin_keeps_a_layer_of_every_kind():
    assert layers_kept(["a", "a", "b", "a", "b"]) == [0, 1, 2]
    assert layers_kept(["a", "b", "a", "b", "a", "a"], shared=2) == [0, 1, 4]
    assert layers_kept(["a", "b", "a", "b", "a", "b"], shared=2) == [0, 1, 4, 5]
    idle, far = (None, "linear_attention"), ("Rope(8)", "full_attention")
    assert idle_once([0, 1, 2, 3, 4], [idle, far, idle, far, (None, "conv")]) == [0, 1, 3, 4]


def small_gemma4(layers: int = 2) -> Any:
    """Gemma 4, whose layers without a window have wider heads: its config says so by their numbers."""
    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("this transformers has no gemma4_text")
    torch.manual_seed(0)
    config = CONFIG_MAPPING["gemma4_text"](
        hidden_size=32, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, global_head_dim=16, vocab_size=64, vocab_size_per_layer_input=64, hidden_size_per_layer_input=8,
        max_position_embeddings=64, sliding_window=8,
        layer_types=["sliding_attention"] * (layers // 2) + ["full_attention"] * (layers // 2),
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def test_a_twin_has_what_its_config_says_of_single_layers():
    config = small_gemma4(6).config
    assert config.is_heterogeneous if hasattr(config, "is_heterogeneous") else config.global_head_dim == 16
    twin = shrunk(config, [("near",)] * 3 + [("far",)] * 3)
    own = twin.to_dict().get("per_layer_config")
    assert own in (None, {"3": {"head_dim": 16}})
    assert type(twin).from_dict(twin.to_dict()).num_hidden_layers == 4


def test_single_layers_with_wider_heads_take_a_method(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proof, "unproven", lambda *given: None)
    model, ids = small_gemma4(), torch.arange(1, 41)[None]
    with torch.no_grad():
        stock = model(ids).logits
        fresh = extend(model, mp.Rerope(6))(ids).logits
        assert (fresh - stock).abs().max() > 1e-4
        first = model(ids[:, :30], use_cache=True)
        rest = model(ids[:, 30:], past_key_values=first.past_key_values).logits
        assert (rest - fresh[:, 30:]).abs().max() < 1e-5
        assert torch.equal(restore(model)(ids).logits, stock)


def test_a_config_that_transformers_refuses_leaves_the_method_to_milepost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proof, "unproven", lambda *given: None)
    config = CONFIG_MAPPING["phimoe"](
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    model, ids = AutoModelForCausalLM.from_config(config).eval(), torch.arange(1, 41)[None]
    with torch.no_grad():
        stock = model(ids).logits
        extend(model, mp.Yarn(4, trained=64, scaled=1.0))
        assert (model(ids).logits - stock).abs().max() > 1e-5
    assert extension_of(model).settings is None


def test_a_stretch_of_a_model_whose_config_says_no_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proof, "unproven", lambda *given: None)
    config = CONFIG_MAPPING["recurrent_gemma"](
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, lru_width=32, attention_window_size=16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    extend(model, mp.Yarn(4, trained=64, scaled=1.0))
    assert extension_of(model).settings is None


def test_a_twin_draws_no_matrix_twice_and_stops_where_it_is_too_large(monkeypatch: pytest.MonkeyPatch):
    config = Lfm2Config(hidden_size=SMALL, intermediate_size=SMALL, num_hidden_layers=1, vocab_size=64)
    twin = twin_of(Lfm2Model, config)
    assert not any(each.any() for each in twin.parameters() if each.dim() > 1)
    assert all(each.any() for each in twin.parameters() if each.dim() == 1)
    with Empty():
        assert torch.nn.Linear(3, 5).weight.requires_grad
    monkeypatch.setattr("milepost.hf.model.twin.MOST", 3 * 10**3)
    with pytest.raises(ValueError, match=r"a small model of its class has more than .* sizes in its config have names"):
        twin_of(Lfm2Model, config)


# Layers that do not attend


@pytest.fixture
def hybrid() -> Generator[Any]:
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        hidden_size=32, intermediate_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4,
        num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    with torch.no_grad():
        yield Qwen3NextForCausalLM(config).eval()


def test_a_schedule_of_a_hybrid_has_the_layers_that_attend(hybrid: Any):
    schedule = mp.Schedule.of(hybrid)
    assert list(schedule.layers) == [3]
    assert len(schedule) == 1
    assert schedule[3].same_as(mp.Scheme.of(hybrid, layer=3))
    with pytest.raises(IndexError, match="layer 0, which does not attend; layers that do: 3"):
        schedule[0]
    assert mp.Schedule.from_dict(schedule.to_dict()).same_as(schedule)
    assert not mp.Schedule([schedule[3]]).same_as(schedule)
    first = mp.Schedule([schedule[3]] * 2, layers=[0, 1])
    assert first.same_as(mp.Schedule.from_dict(first.to_dict()))
    with pytest.raises(IndexError, match="layer -1, which does not attend"):
        first[-1]


def test_a_hybrid_is_extended_saved_and_read(hybrid: Any, tmp_path: Any):
    ids = torch.randint(1, 64, (2, 90), generator=torch.Generator().manual_seed(3))
    stock = hybrid(ids).logits
    extend(hybrid, through="attend")
    assert (hybrid(ids).logits - stock).abs().max() < 1e-5
    extend(hybrid, mp.Rerope(16))
    extended = hybrid(ids).logits
    assert (extended - stock).abs().max() > 1e-4
    hybrid.save_pretrained(tmp_path)
    assert (load(tmp_path).eval()(ids).logits - extended).abs().max() < 1e-5
    assert list(mp.Schedule.of(hybrid).layers) == [3]
    given = mp.Schedule([mp.Scheme(*mp.Schedule.of(restore(hybrid))[3].parts)])
    with pytest.raises(ValueError, match="the schedule has the layers 0, and this qwen3_next model attends in 3"):
        extend(hybrid, given)


@pytest.fixture
def convolutions() -> Generator[Any]:
    """A model whose first layers do not attend."""
    kinds = ["conv", "conv", "full_attention", "conv", "full_attention", "full_attention"]
    config = Lfm2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, layer_types=kinds,
    )  # fmt: skip
    with torch.no_grad():
        yield Lfm2ForCausalLM(config).eval()


def test_each_layer_of_an_extended_hybrid_answers_by_its_own_number(convolutions: Any, tmp_path: Any):
    rope = mp.Rope.of(convolutions)
    windows = {2: 3, 4: 5, 5: 7}
    schemes = [mp.Scheme(rope, mp.Rerope(window), mp.causal) for window in windows.values()]
    extend(convolutions, mp.Schedule(schemes, layers=list(windows)))
    convolutions.save_pretrained(tmp_path)
    for each in (convolutions, convolutions.config, tmp_path):
        assert mp.Rope.of(each) == mp.Rope.of(each, layer=4) == rope
        for layer, scheme in mp.Schedule.of(each).items():
            assert mp.Scheme.of(each, layer=layer).same_as(scheme)
            assert mp.Rerope(windows[layer]) in scheme.parts


def test_a_hybrid_is_extended_by_a_row_and_measured(convolutions: Any):
    quick = {"lengths": [64, 128], "window": 0, "distances": (), "needle": (), "windows": 2, "last": 16}
    assert measure(convolutions, torch.randint(1, 64, (400,)), **quick).trained == 64
    extend(convolutions, "ReRoPE", to=256)
    assert all(mp.Rerope(32) in scheme.parts for scheme in mp.Schedule.of(convolutions))


WITHOUT_ROTATION = ("jamba", "nemotron_h")
WITH_INDEXER = ("deepseek_v32", "hy_v4")


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", WITHOUT_ROTATION)
def test_layers_without_positions_are_served_through_attention_alone(model_type: str):
    layers = layers_of(unloaded(model_type))
    assert proof.unproven(layers, "attend", by_itself) is None
    with pytest.raises(ValueError, match="attend without positions, so there are no cosines to change"):
        demand_way(layers, "rotary")
    demand_way(layers, "attend")


@pytest.mark.sample(1)
@pytest.mark.parametrize("model_type", WITH_INDEXER)
def test_layers_that_pick_their_keys_are_served_through_cosines_alone(model_type: str):
    layers = layers_of(unloaded(model_type))
    assert proof.unproven(layers, "rotary", by_itself) is None
    with pytest.raises(ValueError, match=r"attend to the keys that an indexer picks.*such as Yarn"):
        demand_way(layers, "attend")
    demand_way(layers, "rotary")


@pytest.fixture
def mixers() -> Generator[Any]:
    """A model with attention beside a state-space mixer in every layer."""
    torch.manual_seed(0)
    config = FalconH1Config(
        hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=64, mamba_d_ssm=32, mamba_n_heads=2, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1,
        mamba_chunk_size=8, max_position_embeddings=64, eos_token_id=None,
    )  # fmt: skip
    with torch.no_grad():
        yield FalconH1ForCausalLM(config).eval()


def test_a_fixed_cache_of_a_layer_with_a_mixer_has_room_for_the_positions_of_new_tokens(mixers: Any):
    ids = torch.randint(1, 64, (2, 20), generator=torch.Generator().manual_seed(3))
    fixed = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    stock = mixers.generate(ids, **fixed)
    assert torch.equal(extend(mixers, through="attend").generate(ids, **fixed), stock)


def test_a_cache_that_would_leave_positions_behind_refuses_to_choose_rows():
    kinds = ["full_attention", "linear_attention"]
    config = MiniMaxConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=64, num_local_experts=2, num_experts_per_tok=1, block_size=8, layer_types=kinds,
    )  # fmt: skip
    model = extend(MiniMaxForCausalLM(config).eval(), through="attend")
    with torch.no_grad():
        cache = model(torch.arange(1, 9)[None].expand(2, -1), use_cache=True).past_key_values
    for rows in (cache, copy.deepcopy(cache)):
        with pytest.raises(ValueError, match=r"batch_select_indices of a MiniMaxCache .* may leave the positions"):
            rows.batch_select_indices(torch.tensor([1, 0]))
        with pytest.raises(ValueError, match="batch_repeat_interleave of a MiniMaxCache"):
            rows.batch_repeat_interleave(2)


def test_an_unknown_type_of_layer_is_refused(hybrid: Any):
    config = hybrid.config.to_dict()
    config["layer_types"] = ["compressed_attention", *config["layer_types"][1:]]
    with pytest.raises(ValueError, match="layer 0 is 'compressed_attention', and it is not known whether"):
        mp.Schedule.of(config)


@pytest.mark.gpu
@pytest.mark.parametrize("through", ["rotary", "attend"])
def test_what_was_proven_on_a_cpu_holds_on_a_gpu(through: Any, hybrid: Any):
    for model in (small_flex(), hybrid):
        model.to("cuda")
        ids = torch.randint(1, 64, (2, 90), generator=torch.Generator().manual_seed(3)).cuda()
        with torch.no_grad():
            stock = model(ids)[0]
            extend(model, through=through)
            assert (model(ids)[0] - stock).abs().max() < 1e-4 * stock.abs().max()
