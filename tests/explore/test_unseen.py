"""Pairs that meet unseen angles changed alone in a model: each change is what it says, and the loss is the model's."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import milepost as mp

pytest.importorskip("transformers")

import itertools

from transformers import LlamaConfig, LlamaForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

from milepost import explore
from milepost.explore.unseen import Slower, Without
from milepost.hf import extend, restore

TRAINED, LENGTH, PAIRS = 16, 48, 4


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=50, max_position_embeddings=TRAINED,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4 if weight.dim() > 1 else 0.0)
        weight.data += 0.0 if weight.dim() > 1 else 1.0
    return model


def ids(windows: int = 3) -> Tensor:
    return torch.randint(0, 50, (windows * LENGTH,), generator=torch.Generator().manual_seed(1))


def edges_of(bins: int) -> list[int]:
    """Where bins begin and end: as many of them before the trained length as its share of the text."""
    before = max(1, round(bins * TRAINED / (LENGTH - 1)))
    past = max(1, bins - before)
    return sorted({
        *(TRAINED * n // before for n in range(before + 1)),
        *(TRAINED + (LENGTH - 1 - TRAINED) * n // past for n in range(past + 1)),
    })  # fmt: skip


def by_bins(model: Any, bins: int) -> Tensor:
    """The mean loss in each bin of positions of every window of text."""
    rows: list[list[float]] = []
    edges = edges_of(bins)
    for text in ids().view(-1, LENGTH):
        with torch.no_grad():
            logits = model(input_ids=text[None]).logits[0]
        nats = [float(functional.cross_entropy(logits[i], text[i + 1])) for i in range(LENGTH - 1)]
        rows.append([sum(nats[a:b]) / (b - a) for a, b in itertools.pairwise(edges)])
    return torch.tensor(rows, dtype=torch.float64)


def test_each_row_is_the_model_under_that_change():
    model = llama()
    found = explore.unseen_angles(model, ids(), length=LENGTH, windows=3, bins=6)
    unseen = [10000.0 ** (-n / PAIRS) * TRAINED / math.tau < 1 for n in range(PAIRS)]
    assert unseen == [False, True, True, True]
    first, others = [0, PAIRS], [n for n in range(2 * PAIRS) if n % PAIRS]
    own = mp.Schedule.of(model)[0].parts[0]
    assert isinstance(own, mp.Rope)
    changes: dict[str, Any] = {
        "unchanged": None,
        "window": [mp.window(TRAINED)],
        # What is written with other parts of the library, or undone with weights of queries.
        "unseen pairs slowed": [mp.LongRope((1.0, 3.0, 3.0, 3.0), (1.0, 3.0, 3.0, 3.0), TRAINED, factor=1.0)],
        "other pairs dropped": first,
        "unseen pairs dropped": others,
    }
    for name, change in changes.items():
        changed = llama()
        if change and isinstance(change[0], int):
            with torch.no_grad():
                for layer in changed.model.layers:
                    layer.self_attn.q_proj.weight.view(4, 8, 32)[:, change] = 0
        elif change:
            extend(changed, *change)
        assert torch.allclose(torch.tensor(found[f"loss, {name}"]), by_bins(changed, 6), atol=2e-5), name
    frozen = torch.tensor(found["loss, unseen pairs frozen"])
    assert not torch.allclose(frozen, torch.tensor(found["loss, unseen pairs dropped"]), atol=1e-3)


def test_what_stands_still_has_one_angle_and_what_is_left_out_adds_nothing():
    rope = mp.Rope(8, stretch=Slower((1.0, 2.0, math.inf, 4.0)))  # pyright: ignore[reportArgumentType]
    at = torch.arange(5.0)
    plain = mp.Rope(8).angles(at)
    assert torch.equal(rope.angles(at), plain / torch.tensor([1.0, 2.0, math.inf, 4.0], dtype=torch.float64))
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kept = q.clone()
    kept[..., [1, 5]] = 0
    scheme = mp.Scheme(mp.Rope(8), Without((1, 5)), mp.causal)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = mp.scores(kept, k, mp.Scheme(mp.Rope(8), mp.causal))
    assert torch.allclose(mp.scores(q, k, scheme)[..., seen], expected[..., seen], atol=1e-12)


def test_the_model_is_left_as_it_was_and_what_cannot_be_asked_is_refused():
    model = llama()
    extend(model, mp.Yarn(4, trained=TRAINED))
    before = model(input_ids=ids()[None, :LENGTH]).logits
    explore.unseen_angles(model, ids(), length=LENGTH, windows=1, bins=4)
    assert torch.equal(model(input_ids=ids()[None, :LENGTH]).logits, before)
    restore(model)
    for wrong, said in (
        ({"length": TRAINED}, "give at least 18"),
        ({"length": LENGTH, "windows": 4}, "4 windows of 48"),
    ):
        with pytest.raises(ValueError, match=said):
            explore.unseen_angles(model, ids(), **{"windows": 1, **wrong})
    model.config.rope_parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    stretched = LlamaForCausalLM(model.config).eval()
    with pytest.raises(ValueError, match="one plain RoPE"):
        explore.unseen_angles(stretched, ids(), length=LENGTH, windows=1)


def test_no_bin_has_positions_on_both_sides_of_the_trained_length():
    model = llama()
    fine = explore.unseen_angles(model, ids(), length=LENGTH, windows=2, bins=LENGTH - 1)
    # A loss at index i is that of the token after i + 1 tokens.
    assert fine["position"].astype(int).tolist() == list(range(LENGTH - 1))
    exact = fine["loss, unchanged"]
    for bins in (1, 5, 48):
        found = explore.unseen_angles(model, ids(), length=LENGTH, windows=2, bins=bins)
        past, loss = found["position"] >= TRAINED, found["loss, unchanged"]
        assert 0 < past.sum() < len(past)
        widths = np.diff(edges_of(bins))
        # None is much narrower than the others: a mean over few tokens would look like a jump.
        assert bins == 1 or widths.min() >= widths.max() / 2
        for side, size, whole in (
            (~past, TRAINED, exact[:, :TRAINED]),
            (past, LENGTH - 1 - TRAINED, exact[:, TRAINED:]),
        ):
            joined = (loss[:, side] * widths[side]).sum(1) / size
            assert np.allclose(joined, whole.mean(1), rtol=0, atol=1e-9), bins


def test_layers_without_rope_are_said_and_a_loss_that_is_no_number_is_refused():
    torch.manual_seed(0)
    config = SmolLM3Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=50, max_position_embeddings=TRAINED, no_rope_layer_interval=4, use_sliding_window=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model: Any = SmolLM3ForCausalLM(config).eval()
    found = explore.unseen_angles(model, ids(), length=LENGTH, windows=2, bins=4)
    assert "Layer 3 has no RoPE and is left as it is, but for the window." in found.says
    plain = explore.unseen_angles(llama(), ids(), length=LENGTH, windows=2, bins=4)
    assert "no RoPE" not in plain.says
    none = copy.deepcopy(config)
    none.no_rope_layers = [0] * 4
    with pytest.raises(ValueError, match=r"unseen_angles: no layer of this model has RoPE, so there are no angles"):
        explore.unseen_angles(SmolLM3ForCausalLM(none).eval(), ids(), length=LENGTH, windows=2)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[:] = math.nan
    with pytest.raises(ValueError, match=r"unseen_angles: the loss of this model as it is is not a number"):
        explore.unseen_angles(model, ids(), length=LENGTH, windows=2)


def test_one_token_past_the_trained_length_is_too_few():
    with pytest.raises(ValueError, match="trained at 16; give at least 18"):
        explore.unseen_angles(llama(), ids(), length=TRAINED + 1, windows=2)


def test_the_picture_begins_at_0_and_has_its_words_and_intervals():
    from milepost.lab.statistics.intervals import over_seeds

    found = explore.unseen_angles(llama(), ids(), length=LENGTH, windows=3, bins=6)
    for said in ("LlamaForCausalLM, trained at 16 tokens, read at 48", "frozen: not turned", "dropped: left out",
                 "slowed: turned", "mean of 3 texts, pale: 95 % interval"):  # fmt: skip
        assert said in found.settings
    assert found.title.startswith("3 of 4 pairs meet unseen angles past 16 tokens: ")
    picture: Any = found.pictures[0]
    assert picture.panel.x.ticks[0][0] == 0
    shown = dict(zip((curve.name for curve in picture.panel.curves), picture.ranges, strict=True))
    loss = found["loss, unseen pairs frozen"]
    # Along the top and back along the bottom.
    top, bottom = shown["frozen"][: loss.shape[1]], shown["frozen"][loss.shape[1] :][::-1]
    half = [float(over_seeds(each)) for each in loss.T]
    assert [point.y for point in top] == pytest.approx(loss.mean(0) + half)
    assert [point.y for point in bottom] == pytest.approx(loss.mean(0) - half)


def test_what_slowing_mends_is_a_share_of_the_damage():
    from milepost.explore.unseen import _mended  # pyright: ignore[reportPrivateUsage]

    past = np.array([False, True, True])
    rows = {"window": 1.0, "unchanged": 5.0, "unseen pairs slowed": 2.0, "other pairs slowed": 6.0}
    found = {name: np.array([[9.0, level - 0.5, level + 0.5]]) for name, level in rows.items()}
    mended = "slowing these closes 75 % of the gap to a window; slowing the other 20 gains nothing on average past 16"
    # 4 nats worse and as bad as before within the trained length, where all had 9.
    assert _mended(found, past, 20, 16) == mended
    found["other pairs slowed"][:, 0] += 2.4
    assert _mended(found, past, 20, 16) == f"{mended} and costs 2.4 nats before it"
    found["unchanged"] = found["window"]
    assert _mended(found, past, 20, 16) == "the loss does not break there"
