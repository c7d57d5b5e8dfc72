"""Published schedules: HWFA, HWFA2 and Llama 4's layers; and InvLeaky, which differs between training and test."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4TextRotaryEmbedding

from milepost import (
    LeakyRerope,
    LogN,
    Nope,
    Rerope,
    Rope,
    Schedule,
    Scheme,
    attend,
    causal,
    chunks,
    hwfa,
    hwfa2,
    llama4,
    window,
)
from tests.oracles import assert_same, inputs, plain
from tests.oracles import turned as rotated


def kinds(schedule: Schedule, verb: str) -> list[int]:
    """The layers with a part that answers a verb."""
    return [layer for layer, scheme in enumerate(schedule) if scheme.answering(verb)]


def rope_scores(q: Tensor, k: Tensor, v: Tensor, keys: int, held: int | None = None, trained: int | None = None):
    """Causal RoPE that sees `keys` keys, its distances held at `held`, sharpened by ln n / ln trained."""

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if not 0 <= i - j < keys:
            return -math.inf
        distance = i - j if held is None else min(i - j, held)
        turned = rotated(q[b, h, i], torch.tensor(distance)) * rotated(k[b, h // 2, j], torch.tensor(0)).conj()
        sharper = 1.0 if trained is None else math.log(i + 1) / math.log(trained)
        return turned.real.sum() / math.sqrt(q.shape[3]) * sharper

    return plain(q, k, v, score)


# HWFA


def test_hwfa_of_twenty_four_layers_trained_at_512():
    # Su's own: 16 keys, so that the windows together cover .676 of the trained length.
    schedule = hwfa(24, 8, trained=512, keys=16)
    assert schedule[0].same_as(Scheme(Rope(8), causal & window(16)))
    assert schedule[23].same_as(Scheme(Nope(), LogN(512, clip=False), causal))
    assert schedule.order == (0,) * 23 + (1,)
    assert pytest.approx(0.676, abs=5e-4) == (15 * 23 + 1) / 512


@pytest.mark.parametrize(("layers", "trained"), [(24, 512), (12, 512), (2, 16), (32, 4096), (100, 64), (5, 2)])
def test_hwfa_takes_the_widest_windows_that_cover_three_quarters(layers, trained):
    keys = max(n for n in range(1, trained + 1) if n == 1 or (n - 1) * (layers - 1) + 1 <= 3 / 4 * trained)
    schedule = hwfa(layers, 8, trained)
    assert schedule[0].same_as(Scheme(Rope(8), causal & window(keys)))
    assert hwfa(layers, 8, trained, keys=keys).same_as(schedule)
    with pytest.raises(ValueError, match=rf"hwfa\(keys={keys + 1}\).*more than three quarters.*give at most {keys}"):
        hwfa(layers, 8, trained, keys=keys + 1)


def test_hwfa_refuses_the_window_that_failed():
    text = r"hwfa\(keys=32\): 23 windows of 32 keys cover 714 tokens, more than three quarters of the 512 trained"
    with pytest.raises(ValueError, match=text):
        hwfa(24, 64, trained=512, keys=32)


def test_the_layers_of_hwfa_attend_as_described():
    q, k, v = inputs(t=12, dv=5)
    schedule = hwfa(4, 8, trained=16, keys=3)
    near, far = attend(q, k, v, schedule[0]), attend(q, k, v, schedule[-1])
    assert_same(near, rope_scores(q, k, v, keys=3))

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        sharper = math.log(i + 1) / math.log(16)
        return -math.inf if j > i else q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) * sharper

    assert_same(far, plain(q, k, v, score))


# HWFA2


@pytest.mark.parametrize(
    ("layers", "full", "wide"),
    [
        (24, 1, [12]),
        (24, 2, [8, 16]),
        (12, 1, [6]),
        (12, 2, [4, 8]),
        (7, 1, [3]),
        (7, 2, [2, 4]),
        (8, 2, [2, 5]),
        (2, 1, [1]),
    ],
)
def test_where_the_full_layers_of_hwfa2_stand(layers, full, wide):
    for held in (None, 256):
        schedule = hwfa2(layers, 8, trained=512, keys=32, full=full, rerope_window=held)
        assert len(schedule) == layers
        assert kinds(schedule, "sharpen") == wide
        assert kinds(schedule, "place") == (wide if held else [])
        assert kinds(schedule, "turn") == list(range(layers))


def test_hwfa2_trains_with_rope_and_is_tested_with_rerope():
    training, testing = (hwfa2(8, 8, trained=512, keys=32, rerope_window=held, theta=500.0) for held in (None, 256))
    for schedule in (training, testing):
        assert schedule[0].same_as(Scheme(Rope(8, theta=500.0), causal & window(32)))
    assert training[4].same_as(Scheme(Rope(8, theta=500.0), LogN(512, clip=False), causal))
    assert testing[4].same_as(Scheme(Rope(8, theta=500.0), Rerope(256), LogN(512, clip=False), causal))


def test_the_layers_of_hwfa2_attend_as_described():
    q, k, v = inputs(t=12, dv=5)
    for held in (None, 4):
        schedule = hwfa2(6, 8, trained=16, keys=5, rerope_window=held)
        assert_same(attend(q, k, v, schedule[0]), rope_scores(q, k, v, keys=5))
        assert_same(attend(q, k, v, schedule[3]), rope_scores(q, k, v, keys=12, held=held, trained=16))


# Llama 4


@pytest.mark.parametrize(("layers", "every"), [(8, 4), (48, 4), (10, 4), (6, 3), (3, 4), (3, 1)])
def test_llama_4_has_positions_where_transformers_says(layers, every):
    config = Llama4TextConfig(num_hidden_layers=layers, no_rope_layer_interval=every)
    schedule = llama4(layers, 128, every=every)
    # In their config a 1 among no_rope_layers means that the layer does have RoPE.
    assert [bool(scheme.answering("turn")) for scheme in schedule] == [bool(n) for n in config.no_rope_layers]
    assert [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"] == kinds(
        schedule, "sharpen"
    )


def test_llama_4s_own_numbers_are_those_of_transformers():
    config = Llama4TextConfig()
    schedule = llama4(config.num_hidden_layers, config.head_dim)
    theta, chunk = config.rope_parameters["rope_theta"], config.attention_chunk_size
    assert config.floor_scale == chunk == 8192
    assert schedule[0].same_as(Scheme(Rope(128, theta=theta, pairs="neighbours"), causal & chunks(chunk)))
    assert llama4(4, 128, weight=config.attn_scale, chunk=config.floor_scale)[3].same_as(schedule[3])


def test_llama_4s_temperature():
    scheme = llama4(4, 128)[3]
    golden = {0: 1.0, 8190: 1.0, 8191: 1.069315, 16383: 1.109861, 131071: 1.283321}
    index = torch.tensor([list(golden)])
    sharpness = scheme.sharpen(index, torch.tensor([[131072]]))
    assert sharpness is not None
    expected = [1 + 0.1 * math.log(1 + (i + 1) // 8192) for i in golden]
    assert_same(sharpness, torch.tensor([[expected]], dtype=torch.float64))
    assert sharpness[0, 0].tolist() == pytest.approx(list(golden.values()), abs=5.01e-7)
    assert llama4(4, 128)[0].sharpen(index, index) is None


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_layer_of_llama_4_attends_as_transformers_does(layer):
    config = Llama4TextConfig(
        num_hidden_layers=4, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        attention_chunk_size=4, floor_scale=4, attn_scale=0.7, use_qk_norm=False, attn_implementation="eager",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    theirs = Llama4TextAttention(config, layer).double().requires_grad_(False)
    for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj):
        project.weight.normal_(std=32**-0.5, generator=generator)
    theirs.o_proj.weight.copy_(torch.eye(32))
    x, at = torch.randn(2, 11, 32, dtype=torch.float64, generator=generator), torch.arange(11)[None]
    shown = create_chunked_causal_mask if config.no_rope_layers[layer] else create_causal_mask
    mask = shown(config=config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=at)
    out, _ = theirs(x, Llama4TextRotaryEmbedding(config)(x, at), mask)

    made = (project(x).view(2, 11, -1, 8).transpose(1, 2) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    q, k, v = made
    ours = attend(q, k, v, llama4(4, 8, chunk=4, weight=0.7)[layer]).transpose(1, 2).flatten(2)
    # They turn in float32, by angles of up to 10 from rounded frequencies: each score errs by `apart` at most, and a
    # weight of the softmax by the factor e^(2 · apart).
    unit = 2.0**-24 * (10 * (math.log(500000.0) + 4) + 8)
    sharpest = 1 + 0.7 * math.log(3)
    apart = 2 * unit * sharpest * float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) / math.sqrt(8)
    assert_same(ours, out, within=2 * math.expm1(2 * apart) * float(v.abs().max()))


# InvLeaky


def placed(method: LeakyRerope, i: int, j: int) -> float:
    """The distance at which a method places a pair of tokens."""
    p, r = torch.tensor(i), torch.tensor(j)
    (regime,) = (each for each in method.place() if bool(each.holds(p, r)))
    return float(regime.query(p) - regime.key(r))


def test_inv_leaky_trains_with_the_distances_of_the_test():
    # Trained at 512 for eight times as much: the window is a quarter, and k = 1/(2 · 8).
    trained, expansion = 512, 8
    method = LeakyRerope(window=trained // 4, factor=1 / (2 * expansion))
    for i in (0, 1, 127, 128, 129, 300, 511):
        for j in range(i + 1):
            behind = i - j
            expected = behind if behind < 128 else 128 + (behind - 128) * 16
            assert placed(method, i, j) == pytest.approx(expected, abs=1e-9)
    # The far ones step by twice the expansion, and reach past the length of the test.
    assert placed(method, 511, 0) - placed(method, 511, 1) == 2 * expansion
    assert placed(method, 511, 0) == 6256 > expansion * trained


def test_inv_leaky_places_queries_and_keys_as_the_post_does():
    near, far, _ = LeakyRerope(window=128, factor=1 / 16).place()
    i = torch.arange(512)
    assert torch.equal(near.query(i), i)
    assert_same(far.query(i), 128 + (i.double() - 128) * 16)
    assert_same(far.key(i), i.double() * 16)


def test_leaky_rerope_keeps_to_half_the_trained_length():
    # The rule of thumb for testing at L: window + (L − 1 − window)/k ≤ trained/2.
    assert placed(LeakyRerope(window=128, factor=32), 4095, 0) == 128 + (4095 - 128) / 32 <= 512 / 2


# What cannot be


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda: hwfa(1, 64, 512), ValueError, r"hwfa\(layers=1\): layers must be at least 2"),
        (lambda: hwfa(24.0, 64, 512), TypeError, "layers must be an integer, not float"),
        (lambda: hwfa(24, 64, 1), ValueError, r"hwfa\(trained=1\): trained must be at least 2"),
        (lambda: hwfa(24, 64, 512, keys=0), ValueError, r"hwfa\(keys=0\): keys must be at least 1"),
        (lambda: hwfa(24, 63, 512), ValueError, r"Rope\(head_dim=63\): head_dim must be even"),
        (lambda: hwfa2(1, 64, 512, keys=32), ValueError, r"hwfa2\(layers=1\): layers must be at least 2"),
        (lambda: hwfa2(24, 64, 512, keys=0), ValueError, r"hwfa2\(keys=0\): keys must be at least 1"),
        (lambda: hwfa2(24, 64, 512, keys=32, full=3), ValueError, r"hwfa2\(full=3\): full must be one of 1, 2"),
        (lambda: hwfa2(24, 64, 512, keys=32, rerope_window=0), ValueError, "window must be at least 1"),
        (lambda: hwfa2(24, 64, 1, keys=32), ValueError, "trained must be at least 2"),
        (lambda: llama4(0, 128), ValueError, r"llama4\(layers=0\): layers must be at least 1"),
        (lambda: llama4(4, 128, every=0), ValueError, r"llama4\(every=0\): every must be at least 1"),
        (lambda: llama4(4, 128, chunk=0), ValueError, "must be at least 1"),
        (lambda: llama4(4, 128, weight=-1.0), ValueError, r"weight=-1.0\): weight must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(ask, error, text):
    with pytest.raises(error, match=text):
        ask()
