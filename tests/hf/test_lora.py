"""Low-rank weights by peft: trained on an extended model, switched off, saved, loaded and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import extend, load, restore, save
from milepost.hf.model.extension import extension_of
from tests.hf.test_architectures import near
from tests.hf.test_buckets import FURTHER
from tests.hf.test_buckets import tiny as tiny_t5
from tests.hf.test_t5 import given as given_t5
from tests.hf.tiny import continued, padded, tiny, tokens

peft = pytest.importorskip("peft")

METHODS: dict[str, tuple[object, ...]] = {"YaRN": (mp.Yarn(4, trained=12),), "pivot": (mp.Pivot(mp.Rerope(6), 12),)}


def wrapped(model: Any) -> Any:
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj", "v_proj"]))


def made(order: str, given: tuple[object, ...]) -> Any:
    """Low-rank weights on an extended model, put on it before or after it was extended."""
    return (
        wrapped(extend(tiny("llama", max_position_embeddings=12), *given))
        if order == "extended first"
        else extend(wrapped(tiny("llama", max_position_embeddings=12)), *given)
    )


def trained(model: Any, steps: int = 2) -> list[float]:
    """The losses of a few steps."""
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    losses: list[float] = []
    for _ in range(steps):
        loss = model(tokens(), labels=tokens(), use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model.eval()(tokens(), use_cache=False).logits


@pytest.mark.parametrize("order", ["extended first", "wrapped first"])
@pytest.mark.parametrize("name", METHODS)
def test_two_steps_train_the_low_rank_weights_and_nothing_else(name: str, order: str):
    base = logits(extend(tiny("llama", max_position_embeddings=12), *METHODS[name]))
    model = made(order, METHODS[name])
    assert near(logits(model), base), "untrained low-rank weights add nothing"
    frozen = {key: each.clone() for key, each in model.named_parameters() if not each.requires_grad}
    first, second = trained(model.train())
    assert second < first
    assert all(torch.equal(each, frozen[key]) for key, each in model.named_parameters() if key in frozen)
    assert (logits(model) - base).abs().max() > 1e-4
    with model.disable_adapter():
        assert near(logits(model), base)


@pytest.mark.parametrize("name", METHODS)
def test_both_orders_train_alike_and_stock_has_the_same_gradients(name: str):
    one, two = (made(order, METHODS[name]) for order in ("extended first", "wrapped first"))
    assert trained(one.train()) == pytest.approx(trained(two.train()), abs=1e-5)
    assert near(logits(one), logits(two))
    plain, ours = (
        wrapped(tiny("llama", max_position_embeddings=12)),
        extend(wrapped(tiny("llama", max_position_embeddings=12)), through="attend"),
    )
    assert trained(ours.train(), 3) == pytest.approx(trained(plain.train(), 3), abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_low_rank_weights_are_saved_and_loaded_beside_the_base(name: str, tmp_path: Path):
    model = made("extended first", METHODS[name])
    trained(model.train())
    model.save_pretrained(tmp_path / "lora")
    again = peft.PeftModel.from_pretrained(
        extend(tiny("llama", max_position_embeddings=12), *METHODS[name]), tmp_path / "lora"
    )
    assert near(logits(again), logits(model))


@pytest.mark.parametrize("order", ["extended first", "wrapped first"])
def test_what_was_merged_is_saved_and_loaded_whole(order: str, tmp_path: Path):
    model = made(order, METHODS["pivot"])
    trained(model.train())
    tuned = logits(model)
    with pytest.raises(ValueError, match=r"save: this is a PeftModel around a model.*merge_and_unload\(\)"):
        save(model, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    whole = model.merge_and_unload()
    assert near(logits(whole), tuned)
    save(whole, tmp_path / "whole")
    assert near(logits(load(tmp_path / "whole")), tuned)


def test_restoring_leaves_the_low_rank_weights():
    model, plain = made("wrapped first", METHODS["pivot"]), wrapped(tiny("llama", max_position_embeddings=12))
    trained(model.train())
    plain.load_state_dict(model.state_dict())
    assert extension_of(restore(model)) is None
    assert near(logits(model), logits(plain))


@torch.no_grad()
def test_it_generates_with_padding_and_a_cache():
    model = made("wrapped first", METHODS["pivot"])
    texts, mask = padded(t=14)
    base = extend(tiny("llama", max_position_embeddings=12), *METHODS["pivot"])
    assert torch.equal(continued(model.eval(), texts, mask)[0], continued(base, texts, mask)[0])


def low_rank(model: Any, *targets: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=list(targets), **options))


@torch.no_grad()
def test_t5_is_extended_again_and_restored_inside_its_wrapper():
    base, texts = extend(tiny_t5(), mp.LogN(4)), given_t5()
    ours = base(**texts).logits
    model = low_rank(extend(tiny_t5(), mp.LogN(4)), "q", "v")
    assert near(model(**texts).logits, ours)
    assert near(extend(extend(model, FURTHER), mp.LogN(4))(**texts).logits, ours)
    whole = extend(low_rank(tiny_t5(), "q", "v"), mp.LogN(4)).merge_and_unload()
    assert near(whole(**texts).logits, ours)
    assert near(restore(whole)(**texts).logits, tiny_t5()(**texts).logits)


@torch.no_grad()
def test_a_table_is_grown_from_what_it_was_inside_a_wrapper():
    options: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 4, "max_position_embeddings": 16}
    model = low_rank(extend(tiny("gpt2", **options), to=24), "c_attn", fan_in_fan_out=True)
    texts = tokens(2, 40)
    stock = extend(tiny("gpt2", **options), to=40)(texts).logits
    assert near(extend(model, to=40)(texts).logits, stock)
    whole = model.merge_and_unload()
    assert near(whole(texts).logits, stock)
    assert restore(whole).config.max_position_embeddings == 16


@pytest.mark.parametrize("order", ["extended first", "wrapped first"])
def test_modules_of_ours_train_them_too(order: str):
    joined = "query_key_value"
    if order == "extended first":
        ours = low_rank(extend(tiny("bloom"), through="attend"), joined)
    else:
        ours = extend(low_rank(tiny("bloom"), joined), through="attend")
    plain = low_rank(tiny("bloom"), joined)
    assert trained(ours.train(), 3) == pytest.approx(trained(plain.train(), 3), abs=1e-5)


@pytest.mark.parametrize("first", ["extended", "adapted"])
def test_prompts_that_rotate_queries_by_themselves_are_refused(first: str):
    def adapted(model: Any) -> Any:
        return peft.get_peft_model(
            model, peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=1, task_type="CAUSAL_LM")
        )

    model = tiny("llama")
    model = adapted(extend(model, mp.Rerope(6))) if first == "extended" else extend(adapted(model), mp.Rerope(6))
    with pytest.raises(ValueError, match="AdaptionPromptConfig computes the queries of a layer by itself"):
        model(input_ids=tokens(2, 12))
    restore(model)
    assert model(input_ids=tokens(2, 12)).logits.isfinite().all()


@pytest.mark.parametrize("part", [mp.Rerope(6), mp.Yarn(4, trained=64)], ids=["attend", "rotary"])
def test_prefix_tuning_is_refused_by_its_name(part: Any):
    model = peft.get_peft_model(tiny("llama"), peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    extend(model, part)
    with pytest.raises(ValueError, match=r"peft's prefix tuning does so at every call; use LoRA"):
        model(input_ids=tokens(2, 12), attention_mask=torch.ones(2, 12, dtype=torch.long))
    assert restore(model)(input_ids=tokens(2, 12)).logits.isfinite().all()
