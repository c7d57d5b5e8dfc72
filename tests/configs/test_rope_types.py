"""All of transformers' rope types, over a grid of configs read by Rope.of."""

from __future__ import annotations

import copy
import importlib
import itertools
import random
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from milepost import DynamicNtk, Interpolate, Llama3, LongRope, Proportional, Rope, Yarn
from milepost.configs.rope_types import TYPES
from tests.configs.ours import read
from tests.configs.theirs import rounding
from tests.oracles import assert_same
from tests.stretches import assert_ratio

SHAPES = list(itertools.product((16, 64, 96, 128), (10000.0, 500000.0, 5000000.0)))


def plain(dim: int, theta: float, longest: int, settings: dict[str, Any], old: bool) -> dict[str, Any]:
    """A config.json of a Llama, in the old way or the new."""
    usual = {"model_type": "llama", "hidden_size": 4 * dim, "num_attention_heads": 4, "num_hidden_layers": 2}
    usual |= {"max_position_embeddings": longest}
    if old:
        settings = {
            "type": settings["rope_type"],
            **{key: value for key, value in settings.items() if key != "rope_type"},
        }
        return usual | {"rope_theta": theta, "rope_scaling": settings}
    return usual | {"rope_parameters": {"rope_theta": theta, **settings}}


def agree(dim: int, theta: float, longest: int, settings: dict[str, Any], within: float, length: int = 1) -> Rope:
    """Demand transformers' frequencies and magnitude, whichever way the config is written; answer the rope."""
    config = LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=longest,
        rope_parameters={"rope_theta": theta, **settings},
    )
    f, size = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"), seq_len=length)
    ours = Rope.of(plain(dim, theta, longest, settings, old=False))
    for again in (plain(dim, theta, longest, settings, old=True), config, config.to_dict()):
        assert Rope.of(again) == ours
    found, magnitude = read(ours, length)
    kept = f > 0
    assert_ratio(found[kept], f[kept].double(), within)
    assert not found[~kept].any()
    assert magnitude == pytest.approx(size, rel=1e-14)
    return ours


def test_every_type_is_known():
    assert set(TYPES) == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_linear(dim, theta):
    for factor in (1.0, 2.5, 8.0):
        ours = agree(dim, theta, 4096, {"rope_type": "linear", "factor": factor}, rounding(theta))
        assert ours == Rope(dim, theta=theta, stretch=Interpolate(factor))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_dynamic(dim, theta):
    for factor, length in itertools.product((1.0, 2.0), (1, 4096, 4097, 65536)):
        raised = theta * max(1, factor * length / 4096) ** (dim / (dim - 2))
        ours = agree(dim, theta, 4096, {"rope_type": "dynamic", "factor": factor}, rounding(raised), length)
        assert ours == Rope(dim, theta=theta, stretch=DynamicNtk(4096, factor=factor))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"truncate": False},
        {"beta_fast": 8.0, "beta_slow": 2.0},
        {"beta_fast": 1.0, "beta_slow": 1.0},
        {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
        {"attention_factor": 1.5},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale_all_dim": 1.0},
    ],
    ids=lambda more: "-".join(more) or "plain",
)
def test_yarn(dim, theta, more):
    for factor, trained in itertools.product((1.0, 4.0, 40.0), (256, 4096)):
        settings = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained, **more}
        agree(dim, theta, int(trained * factor), settings, rounding(theta, factor, dim))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_longrope(dim, theta):
    short, long = [1 + n / 50 for n in range(dim // 2)], [1 + n * n / 9 for n in range(dim // 2)]
    settings = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    settings["original_max_position_embeddings"] = 4096
    for more, length in itertools.product(({}, {"factor": 8.0}, {"attention_factor": 1.25}), (1, 4096, 4097)):
        ours = agree(dim, theta, 131072, settings | more, rounding(theta), length)
        factor, scaled = more.get("factor", 32.0), more.get("attention_factor")
        assert ours == Rope(dim, theta=theta, stretch=LongRope(short, long, 4096, factor=factor, scaled=scaled))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_llama3(dim, theta):
    for factor, (low, high) in itertools.product((1.0, 8.0, 32.0), ((1.0, 4.0), (2.0, 3.0))):
        settings = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        settings["original_max_position_embeddings"] = 8192
        ours = agree(dim, theta, 131072, settings, rounding(theta, factor * high / (high - low)))
        assert ours == Rope(dim, theta=theta, stretch=Llama3(factor, 8192, low=low, high=high))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_llama3_as_a_step(dim, theta):
    # Llama 4 Scout: both ends at one turn, so that no pair is blended.
    settings = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    agree(dim, theta, 131072, settings | {"original_max_position_embeddings": 8192}, rounding(theta))


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_proportional(dim, theta):
    for share, more in itertools.product((0.1, 0.25, 0.7, 1.0), ({}, {"factor": 4.0})):
        settings = {"rope_type": "proportional", "partial_rotary_factor": share, **more}
        ours = agree(dim, theta, 4096, settings, rounding(theta))
        assert ours == Rope(dim, theta=theta, stretch=Proportional(share, factor=more.get("factor", 1.0)))


@pytest.mark.parametrize("settings", [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 8.0}])
def test_a_stretch_of_some_channels(settings):
    settings = settings | {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 512}
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": 1e4, **settings},
    )
    f, size = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"))
    turn = Rope.of(config)
    assert (turn.method.head_dim, turn.of) == (64, 128)
    found, magnitude = read(turn)
    assert_ratio(found, f.double(), rounding(1e4, 8.0, 64))
    assert magnitude == pytest.approx(size, rel=1e-14)
    # The channels that do not turn keep their size.
    x = torch.ones(1, 1, 1, 128, dtype=torch.float64)
    assert_same(turn.turn(x, torch.ones(1))[..., 64:], x[..., 64:])


def test_yarn_without_a_factor_takes_the_ratio_of_lengths():
    settings = plain(64, 1e4, 163840, {"rope_type": "yarn", "original_max_position_embeddings": 4096}, old=True)
    assert Rope.of(settings) == Rope(64, stretch=Yarn(40.0, 4096))


FAMILIES = {
    "llama": None, "mistral": None, "qwen2": None, "qwen3": None, "olmo2": None,
    "phi": 0.5, "gpt_neox": 0.25, "glm": 0.5, "stablelm": 0.25,
}  # fmt: skip
"""Families, and the share of the channels that transformers rotates where the config does not give it."""


def drawn(draw: random.Random) -> tuple[dict[str, Any], str]:
    """A config.json of a random family and rope type, in the old form or the new."""
    name = draw.choice(list(FAMILIES))
    # transformers wants as many factors as pairs of a whole head, whatever rotates.
    kind = draw.choice(sorted(set(TYPES) - {"proportional"} - ({"longrope"} if FAMILIES[name] else set())))
    head_dim, base = draw.choice((16, 32, 64)), draw.choice((1e4, 5e5))
    share = FAMILIES[name] and draw.choice((None, 0.25, 0.5))
    # GPT-NeoX has names of its own, and reads no other.
    key, theta = ("rotary_pct", "rotary_emb_base") if name == "gpt_neox" else ("partial_rotary_factor", "rope_theta")
    settings: dict[str, Any] = {"rope_type": kind}
    if kind not in ("default", "longrope"):
        settings["factor"] = draw.choice((1.0, 2.0, 4))
    if kind in ("yarn", "llama3", "longrope"):
        settings["original_max_position_embeddings"] = draw.choice((256, 1024))
    if kind == "yarn":
        more = {"beta_fast": 8, "beta_slow": 2.0, "attention_factor": 1.1, "mscale": 0.7, "mscale_all_dim": 1.0}
        settings |= {each: value for each, value in more.items() if draw.random() < 0.4}
    if kind == "llama3":
        settings |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice((4.0, 2.0))}
    if kind == "longrope":
        pairs = head_dim // 2
        settings |= {f"{each}_factor": [1 + draw.random() for _ in range(pairs)] for each in ("short", "long")}
    shape = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50}
    shape |= {"head_dim": head_dim} if name in ("qwen3", "glm") else {}
    shape |= {"max_position_embeddings": draw.choice((512, 4096)), "num_key_value_heads": 4, "intermediate_size": 32}
    shape |= {} if share is None else {key: share}
    if draw.random() < 0.5:
        return {"model_type": name, **shape, theta: base, "rope_scaling": settings}, kind
    return {"model_type": name, **shape, "rope_parameters": {"rope_theta": base, **settings}}, kind


@pytest.mark.parametrize("seed", range(4))
def test_random_settings_of_many_families(seed: int):
    draw = random.Random(seed)
    for _ in range(30):
        plain, kind = drawn(draw)
        given = {key: each for key, each in copy.deepcopy(plain).items() if key != "model_type"}
        config = CONFIG_MAPPING[plain["model_type"]](**given)
        if kind == "default":
            name = plain["model_type"]
            module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
            made = next(each for key, each in vars(module).items() if key.endswith("RotaryEmbedding"))(config=config)
            f, size, length = made.inv_freq, made.attention_scaling, 1
        else:
            length = draw.choice((1, 2 * plain["max_position_embeddings"]))
            f, size = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
        turn = Rope.of(plain)
        found, magnitude = read(turn, length)
        assert found.shape == f.shape, plain
        torch.testing.assert_close(found, f.double(), rtol=2e-4, atol=0, msg=str(plain))
        assert magnitude == pytest.approx(size, rel=1e-14)
