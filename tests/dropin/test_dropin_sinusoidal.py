"""Sinusoidal drop-ins against the code they replace (S2), where it runs, and past it (E28, E36)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from milepost.dropin import PositionalEncoding, sinusoidal_embedding
from tests.dropin.test_dropin import run_block
from tests.oracles import assert_same

S2 = """
def sinusoidal_embedding(n_channels, dim):
    pe = torch.FloatTensor([[p / (10000 ** (2 * (i // 2) / dim)) for i in range(dim)]
                            for p in range(n_channels)])
    pe[:, 0::2] = torch.sin(pe[:, 0::2])
    pe[:, 1::2] = torch.cos(pe[:, 1::2])
    return rearrange(pe, '... -> 1 ...')

class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout_prob: float, max_len: int = 5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        encodings = self.get_positional_encoding(d_model, max_len)
        self.register_buffer('positional_encodings', encodings, False)

    @staticmethod
    def get_positional_encoding(d_model: int, max_len: int):
        pe = torch.FloatTensor([[p / (10000 ** (2 * (i // 2) / d_model)) for i in range(d_model)]
                            for p in range(max_len)])
        pe[:, 0::2] = torch.sin(pe[:, 0::2])
        pe[:, 1::2] = torch.cos(pe[:, 1::2])
        return rearrange(pe, '... -> 1 ...')

    def forward(self, x: torch.Tensor):
        pe = self.positional_encodings[:x.shape[1]].detach().requires_grad_(False)
        return self.dropout(x + pe)
"""
# The one pattern that is asked of einops is a new first axis.
seed = run_block(S2, "import torch\nfrom torch import nn", rearrange=lambda x, pattern: x[None])


def waves(positions: Tensor, dim: int) -> Tensor:
    """The paper's formula in float64, [1 t dim]."""
    angle = positions.double()[:, None] / 10000.0 ** (torch.arange(dim) // 2 * 2 / torch.tensor(dim).double())
    return torch.where(torch.arange(dim) % 2 == 0, angle.sin(), angle.cos())[None]


def embeddings(b: int = 2, t: int = 6, d: int = 8) -> Tensor:
    return torch.randn(b, t, d, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("length", [1, 2, 16])
def test_the_table_is_the_one_it_replaces(length: int, dim: int):
    ours = sinusoidal_embedding(length, dim)
    assert ours.dtype == torch.float32
    assert_same(ours, seed.sinusoidal_embedding(length, dim), within=1e-6)
    assert torch.equal(PositionalEncoding.get_positional_encoding(dim, length), ours)
    assert torch.equal(PositionalEncoding(dim, 0.0, length).positional_encodings, ours)


def test_far_rows_are_exact_where_float32_angles_drift():
    exact = waves(torch.arange(4096), 64)
    assert_same(sinusoidal_embedding(4096, 64), exact, within=2.0**-24)
    assert (seed.sinusoidal_embedding(4096, 64) - exact).abs().max() > 1e-5


@pytest.mark.parametrize("dim", [7, 8])
def test_the_module_is_the_one_it_replaces_at_its_full_length(dim: int):
    x = embeddings(d=dim)
    assert_same(PositionalEncoding(dim, 0.0, 6)(x), seed.PositionalEncoding(dim, 0.0, 6)(x), within=1e-6)


def test_dropout_falls_on_the_same_entries():
    x = embeddings()
    torch.manual_seed(3)
    ours = PositionalEncoding(8, 0.5, 6)(x)
    torch.manual_seed(3)
    assert_same(ours, seed.PositionalEncoding(8, 0.5, 6)(x), within=1e-6)
    assert torch.equal(PositionalEncoding(8, 0.5).eval()(x), PositionalEncoding(8, 0.0)(x))


def test_e28_texts_shorter_than_the_table_take_their_own_rows():
    x = embeddings(t=6)
    with pytest.raises(RuntimeError, match="must match"):
        seed.PositionalEncoding(8, 0.0, 16)(x)
    assert_same(PositionalEncoding(8, 0.0, 16)(x), x + waves(torch.arange(6), 8), within=1e-6)


def test_e28_one_token_stays_one_token():
    x = embeddings(t=1)
    assert seed.PositionalEncoding(8, 0.0, 16)(x).shape == (2, 16, 8)
    assert_same(PositionalEncoding(8, 0.0, 16)(x), x + waves(torch.arange(1), 8), within=1e-6)


def test_texts_longer_than_the_table_make_it_grow():
    module = PositionalEncoding(8, 0.0, 4)
    x = embeddings(t=21)
    assert_same(module(x), x + waves(torch.arange(21), 8), within=1e-6)
    assert module.positional_encodings.shape[1] >= 21
    assert module.state_dict() == {}


def test_decoding_one_token_at_a_time_equals_one_pass():
    module, x = PositionalEncoding(8, 0.0, 4), embeddings(t=11)
    steps = [module(x[:, n : n + 1], start=n) for n in range(11)]
    assert torch.equal(torch.cat(steps, 1), PositionalEncoding(8, 0.0)(x))


def test_positions_survive_bfloat16():
    rough = PositionalEncoding(64, 0.0, 600).bfloat16()
    added = rough(torch.zeros(1, 600, 64, dtype=torch.bfloat16))
    assert added.dtype == torch.bfloat16
    assert torch.equal(added, waves(torch.arange(600), 64).float().bfloat16())
    assert not torch.equal(added[:, 512], added[:, 513])


def test_a_table_that_has_been_bfloat16_is_as_good_as_new():
    module = PositionalEncoding(64, 0.0, 600)
    before = module.positional_encodings.clone()
    assert torch.equal(module.bfloat16().float().positional_encodings, before)
    assert torch.equal(copy.deepcopy(module).positional_encodings, before)


def test_a_module_made_on_the_meta_device_has_real_waves():
    with torch.device("meta"):
        module = PositionalEncoding(8, 0.0, 16)
    x = embeddings()
    assert_same(module(x), x + waves(torch.arange(6), 8), within=1e-6)
    with torch.device("meta"):
        module = PositionalEncoding(8, 0.0, 16)
    assert torch.equal(module.to_empty(device="cpu").positional_encodings, sinusoidal_embedding(16, 8))


def test_a_table_that_grew_in_inference_mode_can_be_trained_with():
    module = PositionalEncoding(8, 0.0, 4)
    with torch.inference_mode():
        module(embeddings(t=9))
    x = embeddings(t=9).requires_grad_()
    (module(x) * module.positional_encodings[:, :9]).sum().backward()
    assert x.grad is not None


def test_e36_the_block_alone_lacks_its_imports():
    with pytest.raises(NameError, match="'nn'"):
        run_block(S2)
    with pytest.raises(NameError, match="'rearrange'"):
        run_block(S2, "import torch\nfrom torch import nn").sinusoidal_embedding(4, 8)
