"""Models of images and text: positions on three axes, and text models with plain ones, extended, against stock."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
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
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_routed_experts": 2,
           "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "decoder_sparse_step": 1}  # fmt: skip


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


def answers(model: Any, kind: str) -> dict[str, Tensor]:
    """Logits of a model in every way in which texts and images are read."""
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for images in (True, False):
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


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], most: float = 2e-5) -> None:
    for name, each in theirs.items():
        off = float((ours[name] - each).abs().max() / each.abs().max())
        assert off < most, f"{name}: {off:.2g}"


@pytest.mark.parametrize("through", ["rotary", "attend"])
@pytest.mark.parametrize("kind", AXIAL)
def test_a_model_of_three_axes_under_its_own_scheme_is_stock(kind: str, through: Any):
    model = tiny(kind)
    stock = answers(model, kind)
    extend(model, through=through)
    assert_close(answers(model, kind), stock)
    assert_close(answers(restore(model), kind), stock, 1e-9)
