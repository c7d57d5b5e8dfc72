"""Modules that were changed by hand: what an extended model would pass over is refused by name, before and after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

import milepost as mp
from milepost.hf import extend, load, restore, save
from milepost.hf.model.models import KNOWN, NOT_COMPARED, REPLACED, as_built, attentions_in, settings_of, turners_in
from tests.hf.test_architectures import near
from tests.hf.test_buckets import tiny as bucketed
from tests.hf.tiny import continued, tiny, tokens


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


EDITS: dict[str, tuple[str, str, object]] = {
    "causality": ("llama", "is_causal", False),
    "a cap": ("gemma2", "attn_logit_softcapping", 0.2),
    "a window, and with it the rotation": ("cohere2", "sliding_window", None),
    "a layer that turns": ("smollm3", "use_rope", 1),
    "a window of a layer": ("exaone4", "is_sliding", True),
    "how many channels turn": ("gpt_neox", "rotary_ndims", 2),
    "slopes": ("falcon", "use_alibi", True),
}


def edit(model: nn.Module, name: str, value: object) -> None:
    """Set an attribute of every module that has it."""
    for each in model.modules():
        if name in vars(each):
            setattr(each, name, value)


@pytest.mark.parametrize("what", EDITS)
def test_a_setting_of_a_module_that_its_config_does_not_say_is_refused(what: str):
    kind, name, value = EDITS[what]
    model, plain = tiny(kind), tiny(kind)
    before = copy.deepcopy(model)
    edit(model, name, value)
    with pytest.raises(ValueError, match=rf"extend: {name} of \w+.* is .*, and its config says .*changed by hand"):
        extend(model, through="attend")
    assert torch.equal(
        extend(before, through="attend")(tokens()).logits, extend(plain, through="attend")(tokens()).logits
    )
    edit(plain, name, value)
    with pytest.raises(RuntimeError, match=rf"{name} of \w+ changed after extend"):
        plain(tokens())
    restore(plain)
    assert torch.equal(plain(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("kind", ["llama", "mpt", "gpt_oss"])
def test_a_model_as_built_is_the_model_and_draws_no_random_numbers(kind: str):
    model, state = tiny(kind), torch.get_rng_state()
    built = as_built(model, copy.deepcopy(model.config))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(each.device.type == "meta" for each in built.parameters())
    pairs = list(zip(attentions_in(model), attentions_in(built), strict=True))
    assert len(pairs) == 2
    assert all(settings_of(one) == settings_of(other) for one, other in pairs)


@pytest.mark.parametrize("kind", sorted(KNOWN | REPLACED))
def test_every_setting_that_a_module_is_built_with_is_compared(kind: str):
    model = tiny(kind)
    for module in (*attentions_in(model), *(each.module for each in turners_in(model))):
        plain = {name for name, each in vars(module).items() if isinstance(each, (bool, int, float, str, tuple))}
        assert {n for n in plain - NOT_COMPARED if n[0] != "_" and "dropout" not in n} <= set(settings_of(module))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "name", "through"),
    [
        ("bloom", "self_attention", "attend"), ("falcon", "self_attention", "attend"),
        ("gemma3_text", "rotary_emb", "rotary"), ("gpt_neox", "attention", "attend"), ("llama", "rotary_emb", "attend"),
        ("llama", "self_attn", "attend"), ("t5", "SelfAttention", "attend"),
    ],
)  # fmt: skip
def test_what_a_user_keeps_on_a_module_is_no_setting_of_it(kind: str, name: str, through: Any, when: str):
    model = bucketed(kind) if kind == "t5" else tiny(kind)
    texts = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if kind == "t5" else {})
    if when == "after":
        extend(model, through=through)

    def count(module: Any, *others: Any) -> None:
        module.calls += 1
        module.told = (module.calls,)

    modules = [each for where, each in model.named_modules() if where.endswith(f".{name}")]
    for module in modules:
        module.calls, module.told = 0, None
        module.register_forward_hook(count)
    if when == "before":
        extend(model, through=through)
    model(**texts)
    before = [module.calls for module in modules]
    model(**texts)
    assert before
    assert all(before)
    assert [module.told for module in modules] == [(2 * calls,) for calls in before]
    restore(model)(**texts)
    now = [each for where, each in model.named_modules() if where.endswith(f".{name}")]
    assert [module.calls for module in now] == [3 * calls for calls in before]


@pytest.mark.parametrize("where", ["transformers_modules.far", __name__])
def test_where_a_class_has_no_source_of_transformers_every_name_may_be_a_setting(where: str):
    module = type("Made", (nn.Module,), {"__module__": where})()
    module.cap, module.training = 5.0, False
    assert settings_of(module) == {"cap": 5.0}


class CountingAttention(LlamaAttention):
    """Counts its calls, in code that is no part of transformers."""

    calls: int

    def forward(self, *args: Any, **others: Any) -> Any:
        self.calls += 1
        return super().forward(*args, **others)


def test_a_subclass_that_counts_its_calls_is_served():
    model, other = with_class(CountingAttention), tiny("llama")
    module = model.model.layers[1].self_attn
    module.calls = 0
    extend(model, mp.Rerope(8))
    for _ in range(2):
        assert torch.equal(model(tokens()).logits, extend(other, mp.Rerope(8))(tokens()).logits)
    assert module.calls == 2
    module.is_causal = False
    with pytest.raises(RuntimeError, match="is_causal of CountingAttention changed after extend"):
        model(tokens())


@pytest.mark.parametrize("pad", [None, -100, -1, 48, 32000])
@pytest.mark.parametrize("kind", ["bloom", "deepseek_v3", "falcon", "gemma2", "gpt_oss", "llama", "phi3", "t5"])
def test_a_padding_token_outside_the_vocabulary_is_no_matter(kind: str, pad: int | None):
    model = bucketed(kind) if kind == "t5" else tiny(kind)
    texts = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if kind == "t5" else {})
    stock = model(**texts).logits
    model.config.pad_token_id = pad
    extend(model, through="attend")
    assert near(model(**texts).logits, stock)
    assert model.config.pad_token_id == pad


@pytest.mark.parametrize("kind", ["apertus", "llama", "mpt", "t5"])
def test_a_model_that_was_just_saved_is_extended(kind: str, tmp_path: Path):
    model = bucketed(kind) if kind == "t5" else tiny(kind)
    texts = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if kind == "t5" else {})
    stock = model(**texts).logits
    model.save_pretrained(tmp_path)
    assert model.config.dtype == "float32", "a word, where there was a dtype of torch"
    extend(model, through="attend")
    assert near(model(**texts).logits, stock)
    save(model, tmp_path)
    assert near(load(tmp_path)(**texts).logits, stock)
    assert near(extend(restore(model), through="attend")(**texts).logits, stock)


@pytest.mark.parametrize("through", ["rotary", "attend"])
def test_an_edit_of_the_rotary_module_that_was_here_is_refused(through: Any):
    model = tiny("llama")
    extend(model, through=through)
    stock, module = model(tokens()).logits, model.model.rotary_emb
    module.attention_scaling = 2.0
    assert module.original.attention_scaling == 2.0, "handed on"
    with pytest.raises(RuntimeError, match="attention_scaling of LlamaRotaryEmbedding changed after extend"):
        model(tokens())
    module.attention_scaling = 1.0
    module.inv_freq.mul_(0.5)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inv_freq of LlamaRotaryEmbedding changed after extend"):
            model(tokens())
    module.inv_freq.mul_(2)
    assert torch.equal(model(tokens()).logits, stock)


def test_a_cast_and_a_copy_of_the_rotary_module_are_no_edits():
    model = extend(tiny("llama"), through="attend")
    copy.deepcopy(model)(tokens())
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)(tokens())


class OwnAttention(LlamaAttention):
    """Attends by itself."""

    def forward(self, hidden_states: Any, position_embeddings: Any = None, **others: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (each(hidden_states).view(shape).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


class AskingAttention(LlamaAttention):
    """Leaves it to transformers."""

    def forward(self, *args: Any, **others: Any) -> Any:
        return super().forward(*args, **others)


def with_class(kind: type[nn.Module]) -> Any:
    model = tiny("llama")
    model.model.layers[1].self_attn.__class__ = kind
    return model


def patched(model: Any) -> Any:
    module = model.model.layers[1].self_attn
    module.forward = OwnAttention.forward.__get__(module)
    return model


@pytest.mark.parametrize(
    "made", [lambda: with_class(OwnAttention), lambda: patched(tiny("llama"))], ids=["subclass", "patched"]
)
def test_attention_that_does_not_ask_for_ours_is_refused(made: Callable[[], Any]):
    model, stock = made(), tiny("llama")(tokens()).logits
    assert near(model(tokens()).logits, stock)
    extend(model, mp.Rerope(8))
    with pytest.raises(RuntimeError, match=r"the forward of this \w+ is not that of transformers"):
        model(tokens())
    assert near(restore(model)(tokens()).logits, stock)


def test_attention_that_is_patched_afterwards_is_refused():
    model = extend(tiny("llama"), mp.Rerope(8))
    patched(model)
    with pytest.raises(RuntimeError, match="the forward of LlamaAttention changed after extend"):
        model(tokens())


def test_a_forward_that_asks_for_ours_is_served_and_compiles():
    model, other = with_class(AskingAttention), tiny("llama")
    extend(model, mp.Rerope(8))
    extend(other, mp.Rerope(8))
    wanted = other(tokens()).logits
    assert torch.equal(model(tokens()).logits, wanted)
    torch.compiler.reset()
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    assert near(compiled(tokens(), use_cache=False).logits, wanted)
    torch.compiler.reset()
    silent: Any = torch.compile(extend(with_class(OwnAttention), mp.Rerope(8)), backend="eager")
    with pytest.raises(Exception, match="is not that of transformers"):
        silent(tokens(), use_cache=False)
    torch.compiler.reset()


def deepened() -> Any:
    """A model whose upper half is a copy of the lower one, configs included."""
    model = tiny("llama")
    model.model.layers.extend(copy.deepcopy(layer) for layer in list(model.model.layers))
    for n, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = n
    model.config.num_hidden_layers = 4
    return model


def test_layers_with_a_config_of_their_own_are_extended_too():
    stock, model = deepened(), deepened()
    model.model.layers[3].self_attn.config._attn_implementation = "eager"
    mixed = model(tokens()).logits
    extend(model, through="attend")
    assert near(model(tokens()).logits, stock(tokens()).logits)
    said, logits = continued(stock, tokens(1, 1))
    ours = continued(model, tokens(1, 1))
    assert torch.equal(ours[0], said)
    assert near(ours[1], logits)
    model.model.layers[2].self_attn.config._attn_implementation = "sdpa"
    with pytest.raises(RuntimeError, match="its attention was set to 'sdpa' afterwards"):
        model(tokens())
    named = [each.self_attn.config._attn_implementation for each in restore(model).model.layers]
    assert named == ["sdpa", "sdpa", "sdpa", "eager"]
    assert torch.equal(model(tokens()).logits, mixed)


@pytest.mark.parametrize(("kind", "through"), [("llama", "rotary"), ("llama", "attend"), ("bloom", "attend")])
def test_another_module_in_the_place_of_ours_is_refused_and_what_wraps_ours_is_not(kind: str, through: Any):
    model = tiny(kind)
    stock = copy.deepcopy(model)
    extend(model, mp.Yarn(4.0, trained=64) if kind == "llama" else mp.AlibiNtk(4.0), through=through)
    before = model(tokens()).logits
    parent, name = (model.model, "rotary_emb") if kind == "llama" else (model.transformer.h[1], "self_attention")
    its = stock.model.rotary_emb if kind == "llama" else stock.transformer.h[1].self_attention
    ours = getattr(parent, name)
    setattr(parent, name, its)
    with pytest.raises(RuntimeError, match=f"{name} of .* was replaced after extend"):
        model(tokens())
    setattr(parent, name, ours)
    assert torch.equal(model(tokens()).logits, before)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(tokens()).logits, before)
    setattr(copied.get_submodule(next(n for n, each in model.named_modules() if each is parent)), name, its)
    with pytest.raises(RuntimeError, match="was replaced after extend"):
        copied(tokens())
    assert torch.equal(restore(model)(tokens()).logits, stock(tokens()).logits)


def layers_in(model: Any) -> tuple[Any, str]:
    """The layers of a model, and what attention is called in them."""
    return {
        "llama": lambda: (model.model.layers, "self_attn"),
        "gemma3_text": lambda: (model.model.layers, "self_attn"),
        "bloom": lambda: (model.transformer.h, "self_attention"),
        "mpt": lambda: (model.transformer.blocks, "attn"),
    }[model.config.model_type]()


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "bloom", "mpt"])
@pytest.mark.parametrize("what", ["attention", "layer", "one more"])
def test_stock_attention_among_ours_is_refused(kind: str, what: str, n: int):
    model = tiny(kind)
    stock, text = copy.deepcopy(model), tokens(1, n)
    extend(model, through="attend")
    (ours, name), (theirs, _) = layers_in(model), layers_in(stock)
    before = model(text).logits
    if what == "attention":
        kept = getattr(ours[1], name)
        setattr(ours[1], name, getattr(theirs[1], name))
    elif what == "layer":
        kept, ours[1] = ours[1], theirs[1]
    else:
        kept = None
        ours.append(theirs[1])
    for each in (model, copy.deepcopy(model)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"after extend, .*which knows nothing of the extension"):
                each(text)
    if what == "attention":
        setattr(ours[1], name, kept)
    elif what == "layer":
        ours[1] = kept
    else:
        del ours[2]
    assert torch.equal(model(text).logits, before)


def test_layers_of_ours_may_be_moved_copied_left_out_and_wrapped():
    class Around(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.layer(*args, **kwargs)

    stock = tiny("llama")
    model, text = extend(copy.deepcopy(stock), through="attend"), tokens(1, 9)
    for make in (
        lambda layers: [*layers][::-1],
        lambda layers: [*layers, copy.deepcopy(layers[0])],
        lambda layers: [layers[1]],
        lambda layers: [Around(layers[0]), layers[1]],
    ):
        changed = copy.deepcopy(model), copy.deepcopy(stock)
        for each in changed:
            each.model.layers = nn.ModuleList(make(each.model.layers))
            each.config.num_hidden_layers = len(each.model.layers)
        ours, theirs = (each(text, use_cache=False).logits for each in changed)
        assert near(ours, theirs)
        # Where layers stand now is watched as before.
        changed[0].model.layers.append(copy.deepcopy(stock.model.layers[0]))
        with pytest.raises(RuntimeError, match="which knows nothing of the extension"):
            changed[0](text, use_cache=False)


def test_stock_attention_in_a_stretched_t5_is_refused():
    model = bucketed("t5")
    its = copy.deepcopy(model.encoder.block[1].layer[0].SelfAttention)
    text = tokens(1, 9)
    extend(model, through="attend")
    model(input_ids=text, decoder_input_ids=text)
    model.encoder.block[1].layer[0].SelfAttention = its
    with pytest.raises(RuntimeError, match=r"SelfAttention of .* was replaced after extend"):
        model(input_ids=text, decoder_input_ids=text)
