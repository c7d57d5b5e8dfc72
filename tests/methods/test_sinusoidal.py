from __future__ import annotations

import math

import pytest
import torch

from milepost import Scheme, Sinusoidal, attend, causal
from tests.oracles import assert_same, plain


def waves(position: float, dim: int, layout="interleaved", theta=10000.0, over=None, amplitude=1.0) -> torch.Tensor:
    """The vector of one position, channel by channel."""
    over = dim / 2 if over is None else over
    row = [0.0] * dim
    for n in range(dim // 2):
        angle = position / theta ** (n / over)
        at = (2 * n, 2 * n + 1) if layout == "interleaved" else (n, dim // 2 + n)
        row[at[0]], row[at[1]] = amplitude * math.sin(angle), amplitude * math.cos(angle)
    return torch.tensor(row, dtype=torch.float64)


OPTIONS = [
    {},
    {"layout": "concatenated"},
    {"layout": "concatenated", "denominator": 3.0},
    {"denominator": 3.0},
    {"theta": 500000.0},
    {"amplitude": 8**-0.5},
    {"start": 2},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_channel_is_a_wave_of_the_index(options):
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    named = {("over" if name == "denominator" else name): value for name, value in options.items() if name != "start"}
    expected = torch.stack([x[:, t] + waves(t + options.get("start", 0), 8, **named) for t in range(11)], 1)
    assert_same(Sinusoidal(8, **options).embed(x), expected)


def test_the_published_numbers_for_eight_channels():
    table = Sinusoidal(8).table(torch.tensor([0, 1]))
    assert table.dtype == torch.float64
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    golden = [0.841471, 0.540302, 0.0998334, 0.995004, 0.00999983, 0.99995, 0.001, 0.9999995]
    digits = [6, 6, 7, 6, 8, 5, 3, 7]
    # sin and cos of θ = 1, 0.1, 0.01, 0.001, as printed.
    for ours, value, places in zip(table[1].tolist(), golden, digits, strict=True):
        assert round(ours, places) == value


def test_indices_choose_the_waves():
    index = torch.tensor([[0, 1, 2], [7, 7, 900]])
    expected = torch.stack([torch.stack([waves(int(i), 8) for i in row]) for row in index])
    assert_same(Sinusoidal(8).embed(torch.zeros(2, 3, 8, dtype=torch.float64), index), expected)


def test_fractions_and_negative_positions_have_waves_too():
    places = torch.tensor([-3.0, 0.25, 12.5], dtype=torch.float64)
    assert_same(Sinusoidal(8).table(places), torch.stack([waves(float(p), 8) for p in places]))


def test_a_short_text_gets_the_first_rows_only():
    long, short = torch.zeros(1, 32, 8, dtype=torch.float64), torch.zeros(3, 5, 8, dtype=torch.float64)
    assert_same(Sinusoidal(8).embed(short)[2], Sinusoidal(8).embed(long)[0, :5])


def test_the_layouts_hold_the_same_waves_in_another_order():
    position = torch.arange(20)
    interleaved = Sinusoidal(8).table(position)
    assert_same(
        Sinusoidal(8, layout="concatenated").table(position),
        torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], -1),
    )


def test_the_inner_product_of_two_positions_depends_on_their_distance_alone():
    table = Sinusoidal(16).table(torch.arange(40))
    for m, n in ((0, 0), (5, 2), (30, 27), (39, 0)):
        expected = sum(math.cos((m - n) * 10000 ** (-2 * i / 16)) for i in range(8))
        assert abs(float(table[m] @ table[n]) - expected) < 1e-12


def test_going_on_by_a_step_is_one_rotation_wherever_one_starts():
    step, dim = 6, 8
    rotation = torch.zeros(dim, dim, dtype=torch.float64)
    for n in range(dim // 2):
        angle = step * 10000 ** (-2 * n / dim)
        rotation[2 * n, 2 * n], rotation[2 * n, 2 * n + 1] = math.cos(angle), math.sin(angle)
        rotation[2 * n + 1, 2 * n], rotation[2 * n + 1, 2 * n + 1] = -math.sin(angle), math.cos(angle)
    table = Sinusoidal(dim).table(torch.arange(30))
    assert_same(table[step:], table[:-step] @ rotation.T)


def test_a_wave_repeats_after_its_length():
    length = 2 * math.pi * 10000 ** (2 * 2 / 8)
    table = Sinusoidal(8).table(torch.tensor([0.5, 0.5 + length], dtype=torch.float64))
    assert_same(table[1, 4:6], table[0, 4:6])


def test_it_equals_the_table_of_marian():
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    peer = marian.MarianSinusoidalPositionalEmbedding(64, 16).create_weight()
    # Theirs is rounded to float32 once.
    assert_same(Sinusoidal(16, layout="concatenated").table(torch.arange(64)), peer, within=2**-24)


def test_it_equals_the_table_of_tensor2tensor_as_speech2text_has_it():
    speech = pytest.importorskip("transformers.models.speech_to_text.modeling_speech_to_text")
    peer = speech.Speech2TextSinusoidalPositionalEmbedding.get_embedding(64, 16)
    ours = Sinusoidal(16, layout="concatenated", denominator=7).table(torch.arange(64))
    # Theirs forms angles of up to 63 in float32: a frequency off by 2^-22 moves a wave by 1.5e-5.
    assert_same(ours, peer, within=63 * 2**-22)
    assert float((Sinusoidal(16, layout="concatenated").table(torch.arange(64)) - peer).abs().max()) > 0.1


def test_attention_reads_the_waves_through_its_projections():
    b, t, model, heads, dim = 2, 7, 8, 4, 4
    x = torch.randn(b, t, model, dtype=torch.float64)
    wq = torch.randn(model, heads * dim, dtype=torch.float64)
    wk, wv = torch.randn(2, model, 2 * dim, dtype=torch.float64)
    scheme = Scheme(Sinusoidal(model), causal)

    def project(y, w):
        return (y @ w).view(b, t, -1, dim).transpose(1, 2)

    y = scheme.embed(x)
    ours = attend(project(y, wq), project(y, wk), project(y, wv), scheme.attention)

    rows = torch.stack([x[:, i] + waves(i, model) for i in range(t)], 1)
    q, k, v = project(rows, wq), project(rows, wk), project(rows, wv)
    oracle = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / 2 if j <= i else -math.inf)
    assert_same(ours, oracle)


def test_far_positions_are_exact_in_bfloat16():
    index = torch.tensor([257, 4001, 1_000_001])
    ours = Sinusoidal(8).embed(torch.zeros(1, 3, 8, dtype=torch.bfloat16), index)[0]
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, torch.stack([waves(int(i), 8) for i in index]).bfloat16())


def test_there_is_nothing_to_learn():
    assert list(Scheme(Sinusoidal(8)).parameters()) == []


def test_embeddings_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"Sinusoidal\(model_dim=8\): given a tensor of 6 channels"):
        Sinusoidal(8).embed(torch.zeros(1, 2, 6))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"model_dim": 7},
            ValueError,
            r"Sinusoidal\(model_dim=7\): model_dim must be even, because each wavelength gives a sine and a cos",
        ),
        ({"model_dim": 0}, ValueError, r"Sinusoidal\(model_dim=0\): model_dim must be at least 1"),
        ({"model_dim": -2}, ValueError, r"Sinusoidal\(model_dim=-2\): model_dim must be at least 1"),
        ({"model_dim": 8.0}, TypeError, r"Sinusoidal\(model_dim=8.0\): model_dim must be an integer, not float"),
        (
            {"model_dim": 8, "layout": "halves"},
            ValueError,
            r"layout='halves'\): .*one of 'interleaved', 'concatenated'",
        ),
        ({"model_dim": 8, "theta": 0}, ValueError, r"Sinusoidal\(theta=0\): theta must be greater than 1"),
        ({"model_dim": 8, "theta": math.inf}, ValueError, r"Sinusoidal\(theta=inf\): theta must be finite"),
        ({"model_dim": 8, "theta": "big"}, TypeError, r"theta must be a number, not str"),
        (
            {"model_dim": 2, "denominator": 0},
            ValueError,
            r"Sinusoidal\(denominator=0\): denominator must be greater than 0",
        ),
        ({"model_dim": 8, "amplitude": 0}, ValueError, r"Sinusoidal\(amplitude=0\): amplitude must be greater than 0"),
        ({"model_dim": 8, "denominator": math.nan}, ValueError, r"denominator must be finite"),
    ],
)
def test_what_makes_no_waves_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Sinusoidal(**options)
