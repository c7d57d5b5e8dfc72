"""Models of images and text: positions on three axes, and text models with plain ones, extended, against stock."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

import milepost as mp
from milepost.hf import extend, load, restore
from tests.hf.tiny import OWN, SMALL

IMAGE, ROWS, COLUMNS = 40, 2, 3
"""The token of an image, and the grid of its tokens in the text."""
TEXT = SMALL | {"vocab_size": 48, "bos_token_id": 1, "eos_token_id": 2}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
TOWER = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "num_channels": 3, "initializer_range": 0.2,
}  # fmt: skip
QWEN_TOWER = {
    "depth": 1, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "initializer_range": 0.2,
}  # fmt: skip
TOKENS = {
    "image_token_id": IMAGE, "video_token_id": 41, "vision_start_token_id": 42, "vision_end_token_id": 43,
    "image_start_token_id": 42, "image_end_token_id": 43, "video_start_token_id": 44, "video_end_token_id": 45,
}  # fmt: skip
EXPERTS = {
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_routed_experts": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
}  # fmt: skip


def wide(out: int = 32) -> dict[str, Any]:
    """A tower of Qwen's kind whose tokens are as wide as the text's."""
    return QWEN_TOWER | {"out_hidden_size": out, "deepstack_visual_indexes": [0], "num_position_embeddings": 64}


AXIAL: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"text": {"rope_parameters": SECTIONS}, "vision": QWEN_TOWER},
    "qwen2_5_vl": {"text": {"rope_parameters": SECTIONS}, "vision": wide() | {"fullatt_block_indexes": [0]}},
    "qwen3_vl": {"text": {"rope_parameters": SECTIONS, "head_dim": 8}, "vision": wide()},
    "qwen3_vl_moe": {"text": {"rope_parameters": SECTIONS, "head_dim": 8} | EXPERTS, "vision": wide()},
    "qwen3_5": {
        "text": {
            "rope_parameters": SECTIONS | {"partial_rotary_factor": 0.5}, "head_dim": 16, "num_hidden_layers": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        },
        "vision": wide(),
    },
    "glm4v": {
        "text": {"rope_parameters": SECTIONS | {"partial_rotary_factor": 0.5}, "hidden_size": 64},
        "vision": QWEN_TOWER | {"out_hidden_size": 64, "image_size": 32},
    },
    "glm4v_moe": {
        "text": {"rope_parameters": SECTIONS | {"partial_rotary_factor": 0.5}, "head_dim": 16} | EXPERTS,
        "vision": QWEN_TOWER | {"out_hidden_size": 32, "image_size": 32},
    },
}  # fmt: skip
"""Types whose tokens have a position on each of three axes."""
PLAIN: dict[str, dict[str, Any]] = {
    "llava": {
        "text": {"model_type": "llama"}, "vision": TOWER | {"model_type": "clip_vision_model"},
        "more": {"vision_feature_layer": -1},
    },
    "mistral3": {
        "text": {"model_type": "mistral", "head_dim": 8},
        "vision": TOWER | {"model_type": "pixtral", "head_dim": 16, "image_size": 32},
        "more": {"spatial_merge_size": 2},
    },
    "internvl": {
        "text": {"model_type": "qwen2"},
        "vision": TOWER | {"image_size": [8, 8], "patch_size": [4, 4], "use_absolute_position_embeddings": True},
        "more": {"downsample_ratio": 0.5},
    },
    "idefics3": {"text": {"model_type": "llama"}, "vision": TOWER, "more": {"scale_factor": 2}},
    "smolvlm": {"text": {"model_type": "llama"}, "vision": TOWER, "more": {"scale_factor": 2}},
    "gemma3": {"text": OWN["gemma3_text"], "vision": TOWER, "more": {"mm_tokens_per_image": 4}},
    "paligemma": {
        "text": {"model_type": "gemma", "head_dim": 8}, "vision": TOWER | {"projection_dim": 32},
        "more": {"projection_dim": 32},
    },
}  # fmt: skip
"""Types whose tokens have one position, those of images as well."""
COUNT = {"llava": 4, "mistral3": 4, "internvl": 1, "idefics3": 1, "smolvlm": 1, "gemma3": 4, "paligemma": 4}
"""How many tokens an image is there."""


def tiny(kind: str, **settings: Any) -> Any:
    """A small model of a type with random weights. settings: of its text, in the place of its own."""
    its = AXIAL.get(kind) or PLAIN[kind]
    more = its.get("more", {}) | {"image_token_index": IMAGE}
    config = AutoConfig.for_model(
        kind, text_config=TEXT | its["text"] | settings, vision_config=its["vision"], tie_word_embeddings=False,
        **TOKENS | more,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.7 / math.sqrt(weight[0].numel()) if "embed" not in name else 1.0)
    return model


def given(kind: str, images: bool = True, left: int = 0) -> dict[str, Any]:
    """A batch of two texts with an image each. left: how many tokens of the first are padding."""
    n = ROWS * COLUMNS if kind in AXIAL else COUNT[kind]
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 39, (2, 24), generator=random)
    mask = torch.ones_like(ids)
    ids[0, :left], mask[0, :left] = 0, 0
    if not images:
        return {"input_ids": ids, "attention_mask": mask}
    at = 8
    ids[:, at : at + n] = IMAGE
    found: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if kind in AXIAL:
        grid = torch.tensor([[1, 2 * ROWS, 2 * COLUMNS]] * 2)
        kinds = torch.where(ids == IMAGE, 1, 0)
        pixels = torch.randn(2 * 4 * n, 3 * 2 * 16, generator=random)
        return found | {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}
    shape = (2, 1, 3, 8, 8) if kind in ("idefics3", "smolvlm") else (2, 3, 8, 8)
    if kind == "mistral3":
        shape = (2, 3, 16, 16)
        found["image_sizes"] = torch.tensor([[16, 16]] * 2)
    found["pixel_values"] = torch.randn(shape, generator=random)
    if kind in ("gemma3", "paligemma"):
        found["token_type_ids"] = torch.where(ids == IMAGE, 1, 0) if kind == "gemma3" else torch.zeros_like(ids)
    return found


def written(model: Any, given: dict[str, Any], n: int = 5) -> Tensor:
    """The logits of every step of greedy generation, [n b vocabulary]."""
    made = model.generate(
        **given, max_new_tokens=n, min_new_tokens=n, do_sample=False, output_logits=True, return_dict_in_generate=True,
        disable_compile=True,
    )  # fmt: skip
    return torch.stack(made.logits)


def answers(model: Any, kind: str, with_images: tuple[bool, ...] = (True, False)) -> dict[str, Tensor]:
    """Logits of a model in every way in which texts and images are read."""
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for images in with_images:
            for left in (0, 5):
                asked = given(kind, images, left)
                real = asked["attention_mask"].bool()
                name = f"{'images' if images else 'text'}{', padded' if left else ''}"
                # What a model computed of another text's images is not kept.
                for each in model.modules():
                    if hasattr(each, "rope_deltas"):
                        each.rope_deltas = None
                found[name] = model(**asked).logits[real]
                found[f"{name}, written"] = written(model, asked)
    return found


def extended(kind: str, through: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return a tiny model under its own scheme, and what it answered before."""
    model = tiny(kind)
    stock = answers(model, kind)
    return extend(model, through=through), stock


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], most: float = 2e-5) -> None:
    for name, each in theirs.items():
        off = float((ours[name] - each).abs().max() / each.abs().max())
        assert off < most, f"{name}: {off:.2g}"


@pytest.mark.sample(3)
@pytest.mark.parametrize("through", ["rotary", "attend"])
@pytest.mark.parametrize("kind", AXIAL)
def test_a_model_of_three_axes_under_its_own_scheme_is_stock(kind: str, through: Any):
    model, stock = extended(kind, through)
    assert_close(answers(model, kind), stock)
    assert_close(answers(restore(model), kind), stock, 1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize("through", ["rotary", "attend"])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_model_of_images_with_plain_positions_under_its_own_scheme_is_stock(kind: str, through: Any):
    if through == "attend" and kind == "paligemma":
        # Of a prompt it sees all, whether there is an image or not.
        with pytest.raises(ValueError, match=r"cannot be extended through 'attend': .* shows some tokens what comes"):
            extend(tiny(kind), through=through)
        return
    model, stock = extended(kind, through)
    if through == "attend" and kind == "gemma3":
        # Its images are seen both ways, which no causal scheme says.
        with pytest.raises(ValueError, match=r"shows some tokens what comes after them \(an image"):
            model(**given(kind))
        texts = {name: each for name, each in stock.items() if name.startswith("text")}
        assert_close(answers(model, kind, (False,)), texts)
    else:
        assert_close(answers(model, kind), stock)


STRETCHES: dict[str, tuple[dict[str, Any], Any]] = {
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 64}, mp.Yarn(4, trained=64)),
    "linear": ({"factor": 4.0}, mp.Interpolate(4)),
    "default": ({"rope_theta": 1e4 * 4.0 ** (8 / 6)}, mp.Ntk(4.0)),
}
"""Rope settings of transformers, and the part that is the same; by NTK the base grows, and 8 channels turn."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", STRETCHES)
@pytest.mark.parametrize("kind", AXIAL)
def test_a_stretch_of_three_axes_is_that_of_stock(kind: str, name: str):
    more, part = STRETCHES[name]
    settings = AXIAL[kind]["text"]["rope_parameters"] | {"rope_type": name} | more
    theirs, model = tiny(kind, rope_parameters=settings), tiny(kind)
    stock, unstretched = answers(theirs, kind), answers(model, kind)
    assert (stock["images"] - unstretched["images"]).abs().max() > 1e-3
    for through in ("rotary", "attend"):
        extend(model, part, through=through)
        assert_close(answers(model, kind), stock)


def test_a_dynamic_stretch_counts_up_to_the_largest_coordinate_as_stock_does():
    # Qwen2-VL of older releases of transformers passes over a dynamic stretch.
    settings = SECTIONS | {"rope_type": "dynamic", "factor": 2.0}
    theirs = tiny("qwen3_vl", rope_parameters=settings, max_position_embeddings=16)
    model = tiny("qwen3_vl", max_position_embeddings=16)
    extend(model, mp.DynamicNtk(16, factor=2.0))
    with torch.no_grad():
        stock, ours = (each(**given("qwen3_vl")).logits for each in (theirs, model))
    assert (ours - stock).abs().max() < 2e-5 * stock.abs().max()


# Methods that stock transformers has not, against a loop


def by_hand(scores: Callable[[Tensor, Tensor, int, int, float], Tensor | float]) -> Callable[..., Any]:
    """Attention in float64, a query and a key at a time. scores: of query i and key j, [b h], −∞ where hidden."""

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **others: Any) -> Any:
        groups = q.shape[1] // k.shape[1]
        q, k, v = q.double(), *(each.double().repeat_interleave(groups, 1) for each in (k, v))
        table = torch.full((*q.shape[:2], q.shape[2], k.shape[2]), -math.inf, dtype=torch.float64)
        for i in range(q.shape[2]):
            for j in range(i + 1):
                table[:, :, i, j] = scores(q[:, :, i], k[:, :, j], i, j, scaling)
        return (table.softmax(-1) @ v).transpose(1, 2).float(), None

    return attend


def stock_by(attend: Callable[..., Any], model: Any, asked: dict[str, Any]) -> Tensor:
    """The logits of a stock model whose text attends by a function."""
    from transformers import AttentionInterface

    AttentionInterface.register("by_hand", attend)
    text = model.config.text_config
    before = text._attn_implementation
    text._attn_implementation = "by_hand"
    try:
        with torch.no_grad():
            return model(**asked | {"attention_mask": None}).logits
    finally:
        text._attn_implementation = before


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl", "glm4v"])
def test_log_n_and_windows_go_by_the_order_of_tokens_where_images_stand_on_three_axes(kind: str):
    model, asked = tiny(kind, max_position_embeddings=8), given(kind)

    def score(q: Tensor, k: Tensor, i: int, j: int, scale: float) -> Tensor | float:
        # Transformers has rotated both by three positions.
        if not (i - j < 9 or j < 2):
            return -math.inf
        return (q * k).sum(-1) * scale * max(1.0, math.log(i + 1) / math.log(8))

    theirs = stock_by(by_hand(score), model, asked)
    extend(model, mp.LogN(8), mp.causal & (mp.window(9) | mp.sinks(2)))
    with torch.no_grad():
        ours = model(**asked).logits
        assert (ours - theirs).abs().max() < 2e-5 * theirs.abs().max()
        assert (model(**given(kind, left=5)).logits[1] - theirs[1]).abs().max() < 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_what_places_tokens_reads_text_alone_and_refuses_images(kind: str, monkeypatch: pytest.MonkeyPatch):
    model, asked = tiny(kind), given(kind, images=False)
    window, f = 7, 1e4 ** -(torch.arange(4, dtype=torch.float64) / 4)

    def score(q: Tensor, k: Tensor, i: int, j: int, scale: float) -> Tensor:
        angle = min(i - j, window) * f
        (a, b), (c, d) = q.chunk(2, -1), k.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return ((a * cos - b * sin) * c + (a * sin + b * cos) * d).sum(-1) * scale

    with monkeypatch.context() as patch:
        import importlib

        code = importlib.import_module(type(model).__module__)
        # Qwen2-VL of older releases of transformers has the second.
        names = ("apply_rotary_pos_emb", "apply_multimodal_rotary_pos_emb")
        name = next(each for each in names if hasattr(code, each))
        patch.setattr(code, name, lambda q, k, *others, **more: (q, k))
        theirs = stock_by(by_hand(score), model, asked)
    extend(model, mp.Rerope(window))
    with torch.no_grad():
        ours = model(**asked).logits
        assert (ours - theirs).abs().max() < 2e-5 * theirs.abs().max()
        assert written(model, asked).shape[0] == 5
        with pytest.raises(ValueError, match=r"Rerope\(7\) reads one position of a token, .* have 3 that differ"):
            model(**given(kind))
        # A refused call leaves nothing behind.
        assert torch.equal(model(**asked).logits, ours)


# Packed texts, positions that are given, what is saved


def test_packed_texts_with_images_are_told_apart_where_stock_does():
    model = tiny("qwen3_vl").model.language_model
    axis = torch.tensor([[0, 1, 2, 3, 3, 3, 3, 5, 6], [0, 1, 2, 3, 3, 4, 4, 5, 6], [0, 1, 2, 3, 4, 3, 4, 5, 6]])
    both = torch.cat((axis, axis[:, :7]), 1)[:, None].expand(-1, 2, -1)
    counted = torch.cat((torch.arange(9), torch.arange(7)))[None, None].expand(1, 2, -1)
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for ids in (both, torch.cat((counted, both)), counted[0]):
            restore(model)
            stock = model(inputs_embeds=x, position_ids=ids, use_cache=False).last_hidden_state
            for through in ("rotary", "attend"):
                extend(model, through=through)
                ours = model(inputs_embeds=x, position_ids=ids, use_cache=False).last_hidden_state
                assert (ours - stock).abs().max() < 2e-5 * stock.abs().max()
        with pytest.raises(ValueError, match=r"position_ids are \[2, 2, 16\] .* with 3 axes \[3, 2, 16\]"):
            model(inputs_embeds=x, position_ids=both[:2])


def test_a_saved_model_of_three_axes_is_read_by_stock_or_by_load_alone(tmp_path: Any):
    model, asked = tiny("qwen3_vl"), given("qwen3_vl")
    with torch.no_grad():
        stretched = extend(model, mp.Yarn(4, trained=64))(**asked).logits
        model.save_pretrained(tmp_path / "yarn")
        again = AutoModelForImageTextToText.from_pretrained(tmp_path / "yarn")
        assert again.config.text_config.rope_parameters["mrope_section"] == [2, 1, 1]
        assert (again(**asked).logits - stretched).abs().max() < 1e-5
        extend(model, mp.LogN(64)).save_pretrained(tmp_path / "log-n")
        with pytest.raises(Exception, match="milepost"):
            AutoModelForImageTextToText.from_pretrained(tmp_path / "log-n")
        found = load(tmp_path / "log-n")
        assert torch.equal(found(**asked).logits, model(**asked).logits)


def test_a_copied_cache_with_images_goes_on():
    model, asked = tiny("qwen2_5_vl", max_position_embeddings=8), given("qwen2_5_vl")
    extend(model, mp.LogN(8))
    with torch.no_grad():
        first = model(**asked)
        copied = copy.deepcopy(first.past_key_values)
        more = torch.tensor([[5, 6], [7, 8]])
        whole = asked | {
            "input_ids": torch.cat((asked["input_ids"], more), 1),
            "attention_mask": torch.ones(2, 26, dtype=torch.long),
            "mm_token_type_ids": torch.cat((asked["mm_token_type_ids"], torch.zeros_like(more)), 1),
        }
        rest = model(input_ids=more, past_key_values=copied).logits
        assert (rest - model(**whole).logits[:, -2:]).abs().max() < 1e-5
