"""`milepost.dropin` as a whole: the usual names and arguments, at the cost of torch alone. Each topic has its file.

The notes that this code is copied from are quoted in those files, comments and docstrings left out, as oracles. They
are called S0, S2, S3 and S4, and their errors E28 to E37, as in our list of them.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from milepost import dropin
from tests.house.test_import import foreign, loaded_by

ARGUMENTS = {
    "LlamaRotaryEmbedding": ["head_dim", "max_position_embeddings", "base", "device"],
    "PositionalEncoding": ["d_model", "dropout_prob", "max_len"],
    "RotaryAttention": ["d_model", "n_heads", "max_seq_len"],
    "apply_rotary_emb": ["xq", "xk", "freqs_cis"],
    "apply_rotary_pos_emb": ["q", "k", "cos", "sin", "position_ids", "unsqueeze_dim"],
    "build_alibi_tensor": ["attention_mask", "num_heads", "dtype"],
    "gen_alibi_mask": ["n_head", "max_pos"],
    "get_slopes": ["n"],
    "precompute_freqs_cis": ["dim", "end", "theta"],
    "rotary_position_embedding": ["q", "k"],
    "rotate_half": ["x"],
    "sinusoidal_embedding": ["n_channels", "dim"],
}
"""What the quoted code takes by position, in order."""


def run_block(block: str, imports: str = "", **names: Any) -> SimpleNamespace:
    """What a quoted block defines, once the imports and names that it lacks are there."""
    found = dict(names)
    # The block is read as its authors wrote it: annotations are evaluated.
    exec(compile(f"{imports}\n{block}", "<block>", "exec", dont_inherit=True), found)
    return SimpleNamespace(**found)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_their_usual_names_and_order(name: str):
    parameters = inspect.signature(getattr(dropin, name)).parameters.values()
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_position == ARGUMENTS[name]


def test_nothing_is_exported_that_is_not_listed():
    exported = [name for name, each in vars(dropin).items() if inspect.isclass(each) or inspect.isfunction(each)]
    assert sorted(exported) == sorted(ARGUMENTS)


@pytest.mark.slow
def test_e36_one_import_is_enough():
    modules = loaded_by("milepost.dropin")
    assert "milepost.dropin" in modules, "the probe did not see the package itself"
    assert foreign(modules, own="milepost") == []


def test_modules_save_nothing_that_follows_from_their_arguments():
    assert dropin.LlamaRotaryEmbedding(8).state_dict() == {}
    assert dropin.PositionalEncoding(8, 0.1).state_dict() == {}
    attention = dropin.RotaryAttention(8, 2)
    assert list(attention.state_dict()) == ["q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"]
    assert [name for name, _ in dropin.LlamaRotaryEmbedding(8).named_buffers()] == ["cos_cached", "sin_cached"]


@pytest.mark.slow
def test_everything_traces_whole():
    llama, waves, layer = (
        dropin.LlamaRotaryEmbedding(8),
        dropin.PositionalEncoding(8, 0.0),
        dropin.RotaryAttention(8, 1),
    )

    def all_of_it(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = layer(waves(x))[:, None]
        ids = torch.arange(q.shape[2])[None]
        q, k = dropin.apply_rotary_pos_emb(q, q, *llama(q), ids)
        q, k = dropin.apply_rotary_emb(q, k, dropin.precompute_freqs_cis(8, 16), axis=2)
        q, k = dropin.rotary_position_embedding(q, k)
        mask = dropin.build_alibi_tensor(torch.ones(2, 5), 3, torch.float32)
        return q, dropin.rotate_half(k), mask, dropin.gen_alibi_mask(3, 5), dropin.sinusoidal_embedding(5, 8)

    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    traced = torch.compile(all_of_it, fullgraph=True, backend="eager")(x)
    for ours, plain in zip(traced, all_of_it(x), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)
