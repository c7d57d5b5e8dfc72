"""PaliGemma: a plain text is read causally, a prefix of image and prompt both ways, as in transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PaliGemmaModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from milepost import Rope, Scale, Schedule, Scheme, SoftCap, causal, chunks, sinks, window
from milepost.seams.visible import Visible
from tests.configs import theirs
from tests.configs.ours import scores_agree

VISION = {"model_type": "siglip_vision_model", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"intermediate_size": 16, "image_size": 28, "patch_size": 14}
# The published configs leave the base to transformers, and PaliGemma 2 the width of a head, which is not 2304 / 8.
FIRST: dict[str, Any] = {
    "model_type": "paligemma",
    "vision_config": VISION,
    "text_config": {
        "model_type": "gemma", "hidden_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 18,
        "num_key_value_heads": 1, "num_image_tokens": 256,
    },
}  # fmt: skip
SECOND: dict[str, Any] = {
    "model_type": "paligemma",
    "vision_config": VISION,
    "text_config": {
        "model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
    },
}  # fmt: skip
TINY = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 2, "head_dim": 8}
TINY |= {"intermediate_size": 16, "vocab_size": 40, "query_pre_attn_scalar": 8}


def config_of(plain: dict[str, Any], **text: Any) -> Any:
    plain = copy.deepcopy(plain)
    return AutoConfig.for_model(**plain | {"text_config": plain["text_config"] | text})


def seen(scheme: Scheme, t: int) -> Tensor:
    i, zero = torch.arange(t), torch.zeros(())
    found = scheme.see(zero, zero, i[:, None], i)
    assert found is not None
    return found


def with_prefix(scheme: Scheme, n: int) -> Scheme:
    """As the docstring of Scheme.of says it."""
    *parts, visible = scheme.parts
    assert isinstance(visible, Visible)
    return Scheme(*parts, visible | sinks(n) & chunks(n))


def mask(config: Any, layer: int, t: int, prefix: int = 0) -> Tensor:
    """What transformers lets a query see: a PaliGemmaModel makes its masks so, eager and with token types."""
    text = copy.deepcopy(config.get_text_config())
    text._attn_implementation = "eager"
    local = getattr(text, "layer_types", ["full_attention"] * 2)[layer] == "sliding_attention"
    make = create_sliding_window_causal_mask if local else create_causal_mask
    blocks = torch.where(torch.arange(t) < prefix, 0, -1)[None] if prefix else None
    return make(text, torch.zeros(1, t, 1), None, None, block_sequence_ids=blocks)[0, 0] == 0


@pytest.mark.parametrize("plain", [FIRST, SECOND], ids=["gemma", "gemma2"])
def test_a_plain_text_is_causal(plain: dict[str, Any]):
    config = config_of(plain, **({"sliding_window": 5} if plain is SECOND else {}))
    assert config.text_config.use_bidirectional_attention
    # The config of the text alone is that of a PaliGemma too: it counts the tokens of an image.
    for source in (config, config.to_dict(), config.text_config):
        for layer in (0, 1):
            assert torch.equal(seen(Scheme.of(source, layer=layer), 18), mask(config, layer, 18))


@pytest.mark.parametrize("plain", [FIRST, SECOND], ids=["gemma", "gemma2"])
@pytest.mark.parametrize("prefix", [1, 4, 11, 18])
def test_a_prefix_is_seen_both_ways(plain: dict[str, Any], prefix: int):
    config = config_of(plain, **({"sliding_window": 5} if plain is SECOND else {}))
    for layer in (0, 1):
        scheme = with_prefix(Scheme.of(config, layer=layer), prefix)
        assert torch.equal(seen(scheme, 18), mask(config, layer, 18, prefix))


@pytest.mark.parametrize("plain", [FIRST, SECOND], ids=["gemma", "gemma2"])
def test_published_configs_mean_what_transformers_reads(plain: dict[str, Any]):
    config = config_of(plain)
    ours = Schedule.of(plain)
    assert ours.same_as(Schedule.of(config))
    assert ours.same_as(Schedule.of(config.to_dict()))
    scores_agree(Rope.of(plain), theirs.config_of(plain))
    if plain is FIRST:
        assert ours[0].parts == (Rope(256), causal)
    else:
        assert ours[0].parts == (Rope(256), SoftCap(50.0), causal & window(4096))
        assert ours[1].parts == (Rope(256), SoftCap(50.0), causal)
        assert Scale(224**-0.5) in Scheme.of(config_of(SECOND, query_pre_attn_scalar=224)).parts


@pytest.mark.parametrize("plain", [FIRST, SECOND], ids=["gemma", "gemma2"])
def test_the_whole_model_looks_ahead_within_its_prefix_alone(plain: dict[str, Any]):
    config = config_of(plain, **TINY)
    config.projection_dim, config.image_token_index, config.vision_config.projection_dim = 32, 39, 32
    torch.manual_seed(0)
    model = PaliGemmaModel._from_config(config, attn_implementation="eager").eval()
    ids = torch.arange(3, 11)[None]
    for prefix in (None, 4):
        kinds = None if prefix is None else (torch.arange(8) >= prefix).long()[None]
        visible = seen(
            Scheme.of(config, layer=1) if prefix is None else with_prefix(Scheme.of(config, layer=1), prefix), 8
        )
        with torch.no_grad():
            plainly = model(input_ids=ids, token_type_ids=kinds).last_hidden_state[0]
            for j in range(8):
                other = ids.clone()
                other[0, j] = 30
                changed = model(input_ids=other, token_type_ids=kinds).last_hidden_state[0]
                assert torch.equal((changed - plainly).abs().amax(-1) > 1e-6, visible[:, j])


def test_a_gemma_of_its_own_that_is_said_to_look_both_ways_is_refused_by_name():
    # sdpa asks its attention where there is no mask; its masks, of padding or a cache, are causal.
    settings = {"model_type": "gemma", "head_dim": 16, "rope_theta": 1e4, "num_hidden_layers": 1}
    why = r"Scheme.of\(a gemma config\): use_bidirectional_attention is True, by which .* cache go; remove it"
    with pytest.raises(ValueError, match=why):
        Scheme.of(settings | {"use_bidirectional_attention": True})
    assert Scheme.of(settings | {"is_causal": False}).parts == (Rope(16),)


def test_a_text_that_is_no_gemma_is_refused_by_name():
    with pytest.raises(ValueError, match=r"model_type 'paligemma' with a text_config of model_type 'llama'.*gemma2"):
        Scheme.of(FIRST | {"text_config": {"model_type": "llama"}})
    with pytest.raises(ValueError, match=r"model_type 'paligemma' with no text_config"):
        Scheme.of({"model_type": "paligemma"})
