"""Weights and caches that are not all on one device: accelerate's device maps, offloaded caches, bfloat16 on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

import milepost as mp
from milepost.hf import extend, measure, nbce, restore
from tests.hf.test_architectures import near
from tests.hf.test_buckets import tiny as tiny_t5
from tests.hf.test_t5 import given as given_t5
from tests.hf.tiny import continued, padded, tiny, tokens

PIVOT = mp.Pivot(mp.Rerope(6), 12)
gpu = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def spread(model: Any, layers: str, folder: Path, near: Any = "cpu", away: Any = "disk") -> Any:
    """The model with its last layer somewhere else, as accelerate has it."""
    accelerate = pytest.importorskip("accelerate")
    where: dict[str, Any] = {}
    for name, module in model.named_modules():
        inside = name.startswith(f"{layers}.")
        if next(module.children(), None) is None and not inside:
            where[name] = near
        elif inside and name.count(".") == layers.count(".") + 1:
            where[name] = away if name.endswith(".1") else near
    where = {name: device for name, device in where.items() if list(model.get_submodule(name).state_dict()) or
             list(model.get_submodule(name).buffers())}  # fmt: skip
    return accelerate.dispatch_model(model, where, offload_dir=folder, main_device=near)


def offloaded(model: Any) -> bool:
    return any(weight.device.type == "meta" for weight in model.parameters())


WAYS: dict[str, dict[str, Any]] = {"rotary": {"through": "rotary"}, "attend": {"through": "attend"}}


@pytest.mark.parametrize("first", ["extended", "spread"])
@pytest.mark.parametrize("way", WAYS)
def test_a_layer_on_disk_goes_on_as_stock_does(way: str, first: str, tmp_path: Path):
    model, (texts, mask) = tiny("llama", max_position_embeddings=12), padded(t=14)
    said, logits = continued(model, texts, mask)
    if first == "extended":
        extend(model, **WAYS[way])
        spread(model, "model.layers", tmp_path)
    else:
        extend(spread(model, "model.layers", tmp_path), **WAYS[way])
    assert offloaded(model)
    ours = continued(model, texts, mask)
    assert torch.equal(ours[0], said)
    assert near(ours[1], logits)
    stock = continued(restore(model), texts, mask)
    assert offloaded(model)
    assert near(stock[1], logits)


@pytest.mark.parametrize(("model_type", "layers"), [("gpt_oss", "model.layers"), ("bloom", "transformer.h")])
def test_sinks_and_modules_of_ours_are_read_from_disk(model_type: str, layers: str, tmp_path: Path):
    model, texts = tiny(model_type, max_position_embeddings=12), tokens()
    stock = model(texts).logits
    spread(model, layers, tmp_path)
    assert near(extend(model, **WAYS["attend"])(texts).logits, stock)
    assert near(restore(model)(texts).logits, stock)


@pytest.mark.parametrize("kind", ["t5", "umt5"])
def test_the_tables_of_t5_are_read_from_disk(kind: str, tmp_path: Path):
    accelerate = pytest.importorskip("accelerate")
    model, texts = tiny_t5(kind), given_t5()
    stock = model(**texts).logits
    extend(accelerate.disk_offload(model, tmp_path, execution_device=torch.device("cpu")), through="attend")
    assert offloaded(model)
    assert near(model(**texts).logits, stock)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would take what is meant for the disk")
def test_a_model_loaded_by_a_map_is_extended_and_measured(tmp_path: Path):
    pytest.importorskip("accelerate")
    stock = tiny("llama", max_position_embeddings=12)
    stock.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    whole = sum(weight.nbytes for weight in stock.parameters())
    options: dict[str, Any] = {
        "device_map": "auto", "max_memory": {"cpu": whole * 2 // 3}, "offload_folder": tmp_path / "away",
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", **options).eval()
    assert offloaded(model)
    assert near(model(tokens()).logits, stock(tokens()).logits)
    for part in (mp.Yarn(4, trained=12), PIVOT):
        assert near(extend(model, part)(tokens()).logits, extend(stock, part)(tokens()).logits)


def test_a_model_that_is_wholly_on_disk_is_measured_and_asked(tmp_path: Path):
    accelerate = pytest.importorskip("accelerate")
    stock = tiny("llama", max_position_embeddings=12)
    model = accelerate.disk_offload(
        tiny("llama", max_position_embeddings=12), tmp_path, execution_device=torch.device("cpu")
    )
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    quick: dict[str, Any] = {"lengths": [64], "last": 4, "windows": 2, "distances": (), "needle": (), "progress": False}
    text = tokens(1, 200)[0]
    found, plain = (measure(extend(each, PIVOT), text, **quick) for each in (model, stock))
    assert found.nats["stock"][64].mean == pytest.approx(plain.nats["stock"][64].mean, abs=1e-5)
    answers = [nbce(each, [[2, 3, 4], [5, 6]], [7, 8], new_tokens=3).ids for each in (model, stock)]
    assert answers[0] == answers[1]


# Caches


class AwayLayer(DynamicLayer):
    """A layer of a cache that is somewhere else between two steps; here that is a copy."""

    away: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        if self.away is not None:
            self.keys, self.values = self.away
        found = super().update(key_states, value_states, *args, **more)
        self.away = (found[0].clone(), found[1].clone())
        self.keys, self.values = (torch.zeros_like(each) for each in found)
        return found


@pytest.mark.parametrize("through", WAYS)
def test_a_cache_that_is_elsewhere_between_steps_goes_on_as_stock_does(through: str):
    model, text = tiny("llama", max_position_embeddings=12), tokens(2, 14)

    def steps() -> Tensor:
        cache = DynamicCache()
        cache.layers = [AwayLayer() for _ in range(2)]
        blocks = [(0, 9), *((n, n + 1) for n in range(9, 14))]
        return torch.cat([model(text[:, a:b], past_key_values=cache).logits for a, b in blocks], 1)

    stock = steps()
    assert near(stock, model(text).logits)
    extend(model, **WAYS[through])
    assert near(steps(), stock)


class FetchedLayer(DynamicLayer):
    """A layer that is gone after each step, until it is fetched."""

    away: tuple[Tensor, Tensor] | None = None

    def offload(self) -> None:
        self.away, self.keys, self.values = (
            (self.keys, self.values), torch.zeros_like(self.keys), torch.zeros_like(self.values)
        )  # fmt: skip

    def prefetch(self) -> None:
        if self.away is not None:
            (self.keys, self.values), self.away = self.away, None


class OffloadedCache(DynamicCache):
    """An offloaded cache as transformers has it, without the streams of a GPU: each layer fetches the next."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.offloading = [FetchedLayer() for _ in range(2)], True

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **more: Any) -> Any:
        self.layers[(layer_idx + 1) % len(self.layers)].prefetch()
        found = self.layers[layer_idx].update(key_states, value_states, *args, **more)
        self.layers[layer_idx].offload()
        return found


@pytest.mark.parametrize("through", WAYS)
def test_the_last_layer_of_an_offloaded_cache_fetches_the_first(through: str):
    model, text = tiny("llama", max_position_embeddings=12), tokens(2, 14)
    extend(model, **WAYS[through])
    cache = OffloadedCache()
    found = [model(text[:, part], past_key_values=cache).logits for part in (slice(12), slice(12, 13), slice(13, 14))]
    assert near(torch.cat(found, 1), model(text).logits)


def moved(model_type: str = "llama") -> tuple[Any, Tensor, Tensor]:
    texts, mask = padded(t=14)
    return tiny(model_type, max_position_embeddings=12).cuda(), texts.cuda(), mask.cuda()


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
    @pytest.mark.parametrize("through", WAYS)
    def test_offloaded_caches_go_on_as_stock_does(self, through: str, kind: str):
        model, texts, mask = moved()
        said, logits = continued(model, texts, mask, cache_implementation=kind)
        ours = continued(extend(model, **WAYS[through]), texts, mask, cache_implementation=kind)
        assert torch.equal(ours[0], said)
        # Sums in another order; the products themselves are float32 (no TF32 by default).
        assert (ours[1] - logits).abs().max() < 1e-4

    def test_an_offloaded_cache_under_a_method_is_a_fresh_pass(self):
        model, texts, mask = moved()
        extend(model, PIVOT, mp.LogN(12))
        plain = continued(model, texts, mask)
        assert torch.equal(continued(model, texts, mask, cache_implementation="offloaded")[0], plain[0])

    @pytest.mark.parametrize("first", ["extended", "spread"])
    @pytest.mark.parametrize("through", WAYS)
    def test_layers_on_the_cpu_and_on_the_gpu_go_on_as_stock_does(self, through: str, first: str, tmp_path: Path):
        model, (texts, mask) = tiny("llama", max_position_embeddings=12), (each.cuda() for each in padded(t=14))
        said, logits = continued(tiny("llama", max_position_embeddings=12).cuda(), texts, mask)
        if first == "extended":
            extend(model, **WAYS[through])
            spread(model, "model.layers", tmp_path, near=0, away="cpu")
        else:
            extend(spread(model, "model.layers", tmp_path, near=0, away="cpu"), **WAYS[through])
        ours = continued(model, texts, mask)
        assert torch.equal(ours[0], said)
        assert (ours[1] - logits).abs().max() < 1e-4

    @pytest.mark.parametrize("through", WAYS)
    def test_bfloat16_is_as_near_to_float32_as_stock_is(self, through: str):
        model, texts, mask = moved()
        exact = model(texts, attention_mask=mask).logits[mask.bool()]
        model.bfloat16()
        stock = model(texts, attention_mask=mask).logits[mask.bool()].float()
        ours = extend(model, **WAYS[through])(texts, attention_mask=mask).logits[mask.bool()].float()
        off = (stock - exact).abs().max()
        assert (ours - exact).abs().max() < 2 * off + 1e-3
        # Both are that far from float32 at most, so they are within the sum of one another.
        assert (ours - stock).abs().max() < 3 * off + 1e-3

    def test_generation_in_bfloat16_decodes_what_a_fresh_pass_computes(self):
        model, texts, mask = moved()
        extend(model.bfloat16(), PIVOT)
        said, logits = continued(model, texts, mask)
        whole = torch.cat((texts, said), 1)
        long = torch.cat((mask, torch.ones_like(said)), 1)
        fresh = model(whole, attention_mask=long, use_cache=False).logits[:, -said.shape[1] - 1 : -1]
        model.float()
        exact = model(whole, attention_mask=long, use_cache=False).logits[:, -said.shape[1] - 1 : -1]
        off = (fresh.float() - exact).abs().max()
        assert (logits.transpose(0, 1).float() - exact).abs().max() < 2 * off + 1e-3

    # What Inductor says of TF32 or of graphs that it leaves to another day is nothing to do with us.
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.slow
    @pytest.mark.parametrize("given", [(), (PIVOT,)], ids=["own scheme", "pivot"])
    def test_generate_compiles_by_itself(self, given: tuple[object, ...]):
        model, texts, mask = moved()
        extend(model, *given, through="attend")
        options: dict[str, Any] = {"cache_implementation": "static", "n": 8}
        eager = continued(model, texts, mask, **options)
        compiled = continued(model, texts, mask, disable_compile=False, **options)
        assert torch.equal(compiled[0], eager[0])
        assert (compiled[1] - eager[1]).abs().max() < 1e-3
