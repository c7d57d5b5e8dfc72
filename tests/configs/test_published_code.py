"""Types that transformers has no class of: the schemes that their published code comes to; and what no scheme says."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import Alibi, Nope, Partial, Rope, Schedule, Scheme, SinkLogit, causal, window
from milepost.configs.model_types import NOT_READ

SMALL: dict[str, Any] = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        ({"model_type": "minicpm"}, Scheme(Rope(128, theta=1e4), causal)),
        ({"model_type": "baichuan"}, Scheme(Rope(128, theta=1e4), causal)),
        ({"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40}, Scheme(Alibi(40), causal)),
        ({"model_type": "step3_text", "head_dim": 256, "rope_theta": 5e5}, Scheme(Rope(256, theta=5e5), causal)),
        (
            {"model_type": "bailing_moe_v2", "head_dim": 128, "rope_theta": 6e5, "partial_rotary_factor": 0.5},
            Scheme(Partial(Rope(64, theta=6e5), of=128), causal),
        ),
    ],
)
def test_a_scheme_is_that_of_the_published_code(config: Any, scheme: Scheme):
    assert Scheme.of(SMALL | config).same_as(scheme)


def test_a_layer_pattern_and_a_window_of_mimo_are_those_of_its_own_config():
    # Its config.json lists 1 for a window, and counts the keys behind the query's own.
    plain = SMALL | {
        "model_type": "mimo_v2_flash", "head_dim": 192, "hybrid_layer_pattern": [0, 1, 1, 0],
        "sliding_window_size": 128,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }  # fmt: skip
    schedule = Schedule.of(plain)
    assert (causal & window(129)) in schedule[1].parts
    assert causal in schedule[3].parts
    assert [any(isinstance(part, SinkLogit) for part in each.parts) for each in schedule] == [False, True, True, False]
    assert schedule[1].parts[0] == Partial(Rope(64, theta=1e4), of=192)


def test_layers_without_rotation_are_those_that_the_config_says():
    plain = SMALL | {"sliding_window": 8, "rope_theta": 1e4, "head_dim": 128, "num_hidden_layers": 8}
    # Of layers 0 … 7, those without positions.
    still = {
        "flint": [0, 1, 5, 7],
        "kolibri1": [4],
        "cohere2_moe": [3, 7],
        "muse_spark_text": [3, 7],
    }
    for name, layers in still.items():
        schedule = Schedule.of(plain | {"model_type": name})
        assert [n for n, each in schedule.items() if isinstance(each.parts[0], Nope)] == layers, name
    dense = plain | {"model_type": "cohere2_moe", "first_k_dense_replace": 2}
    schedule = Schedule.of(dense)
    assert [n for n, each in schedule.items() if isinstance(each.parts[0], Nope)] == [5]
    assert schedule[0].parts[1:] == schedule[1].parts[1:] == (causal,)


def test_longcat_has_two_layers_for_each_that_it_counts():
    latent = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "num_attention_heads": 64, "hidden_size": 6144}
    plain = {"model_type": "longcat_flash", "num_layers": 28, "rope_theta": 1e7} | latent
    assert len(Schedule.of(plain)) == 56
    assert Scheme.of(plain, layer=55).same_as(Scheme.of(plain))


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_type": "phimoe", "rope_scaling": {"type": "longrope"}}, "short factors at every length"),
    ({"model_type": "minicpm", "sparse_config": {"topk": 64}}, "blocks of keys that they pick"),
    (
        {"model_type": "minimax_m3_vl_text", "head_dim": 128, "rotary_dim": 64},
        "partial_rotary_factor is 1.0, by which transformers rotates 128 of 128 channels; let them agree",
    ),
)


@pytest.mark.parametrize(("config", "says"), REFUSED, ids=[each["model_type"] for each, _ in REFUSED])
def test_what_transformers_does_otherwise_is_refused(config: Any, says: str):
    with pytest.raises(ValueError, match=says):
        Scheme.of(SMALL | {"rope_theta": 1e4} | config)


@pytest.mark.parametrize("name", ["beam", "deepseek_v4", "doge", "hrm_text", "mistral_large4_text", "nezha", "zamba2"])
def test_a_type_that_no_scheme_describes_says_why(name: str):
    with pytest.raises(ValueError, match=f"model_type '{name}' cannot be read: ") as caught:
        Scheme.of(SMALL | {"model_type": name})
    assert NOT_READ[name] in str(caught.value)
