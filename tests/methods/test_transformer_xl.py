from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import CannotRun, Rerope, Rope, Scheme, TransformerXL, Xpos, attend, causal
from tests.oracles import assert_same, inputs, plain


def wave(n: int, model_dim: int) -> Tensor:
    """R_n = [sin(n·θ) | cos(n·θ)], θ_m = 10000^(−2m/D)."""
    angles = [n * 10000 ** (-2 * m / model_dim) for m in range(model_dim // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def randomised(model_dim: int = 12, heads: int = 4, dim: int = 8, reach: int | None = None) -> TransformerXL:
    torch.manual_seed(1)
    method = TransformerXL(model_dim, heads, dim, reach=reach)
    for weight in method.parameters():
        torch.nn.init.normal_(weight)
    return method.double()


def paper(q: Tensor, k: Tensor, v: Tensor, method: TransformerXL, sees_ahead: bool = True) -> Tensor:
    """A_ij = ((q_i + u)·k_j + (q_i + v)·W_R R_{i−j})/√d; the keys before the first query are memory."""
    group, memory, d = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2], q.shape[3]

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if not sees_ahead and j > i + memory:
            return -math.inf
        distance = i + memory - j
        if method.reach is not None:
            distance = max(-method.reach, min(method.reach, distance))
        projected = method.project.weight[h * d : (h + 1) * d] @ wave(distance, method.model_dim)
        content = (q[b, h, i] + method.u[h]) @ k[b, h // group, j]
        return (content + (q[b, h, i] + method.v[h]) @ projected) / math.sqrt(d)

    return plain(q, k, v, score)


@torch.no_grad()
def test_the_paper_with_a_memory():
    q, k, v = inputs(t=5, s=11, dv=3)
    method = randomised()
    assert_same(attend(q, k, v, Scheme(method, causal)), paper(q, k, v, method, sees_ahead=False))


@torch.no_grad()
def test_the_paper_in_both_directions():
    q, k, v = inputs(t=9)
    method = randomised()
    assert_same(attend(q, k, v, Scheme(method)), paper(q, k, v, method))


@torch.no_grad()
def test_the_paper_in_both_directions_with_a_memory():
    q, k, v = inputs(t=4, s=10)
    method = randomised()
    assert_same(attend(q, k, v, Scheme(method)), paper(q, k, v, method))


@torch.no_grad()
def test_frequencies_may_end_at_one_ten_thousandth():
    # tensor2tensor's get_timing_signal: log(10000) / (num_timescales − 1) between one wavelength and the next.
    q, k, v = inputs(t=7)
    method = TransformerXL(12, 4, 8, spacing="closed").double()
    method.load_state_dict(randomised().state_dict())

    def closed(n: int) -> Tensor:
        step = math.log(10000) / (6 - 1)
        angles = [n * math.exp(-m * step) for m in range(6)]
        return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        projected = method.project.weight[h * 8 : (h + 1) * 8] @ closed(i - j)
        return ((q[b, h, i] + method.u[h]) @ k[b, h // 2, j] + (q[b, h, i] + method.v[h]) @ projected) / math.sqrt(8)

    assert_same(attend(q, k, v, Scheme(method)), plain(q, k, v, score))


def test_what_is_no_spacing_is_refused():
    with pytest.raises(ValueError, match=r"TransformerXL\(spacing='wide'\): spacing must be one of 'open', 'closed'"):
        TransformerXL(12, 4, 8, spacing="wide")  # pyright: ignore
    with pytest.raises(ValueError, match=r'TransformerXL\(model_dim=2, spacing="closed"\): one wavelength'):
        TransformerXL(2, 4, 8, spacing="closed")


def rel_shift(x: Tensor) -> Tensor:
    """The authors' trick: a column of zeros on the left, the rows wrapped around, the first of them dropped."""
    t, s = x.shape[-2:]
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], -1)
    return padded.reshape(*x.shape[:-2], s + 1, t)[..., 1:, :].reshape(x.shape)


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 6])
def test_the_authors_shift_gives_the_same_on_the_causal_triangle(memory: int):
    t, s = 7, 7 + memory
    q, k, v = inputs(t=t, s=s, g=4)
    method = randomised()
    # The table counts down from s − 1 to 0, as in the authors' code.
    table = torch.stack([wave(n, method.model_dim) for n in range(s - 1, -1, -1)])
    projected = (table @ method.project.weight.T).view(s, 4, 8).transpose(0, 1)
    content = (q + method.u[:, None]) @ k.mT
    distance = rel_shift((q + method.v[:, None]) @ projected.mT)
    hidden = torch.ones(t, s, dtype=torch.bool).triu(memory + 1)
    weights = ((content + distance) / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1)
    assert_same(attend(q, k, v, Scheme(method, causal)), weights @ v)


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 6])
def test_xlnet_of_transformers_gives_the_same_in_both_directions(memory: int):
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    from transformers import XLNetConfig

    t, s = 5, 5 + memory
    theirs = xlnet.XLNetRelativeAttention(XLNetConfig(d_model=32, n_head=4, d_head=8)).double().eval()
    counts = torch.arange(s, -t, -1)

    # After the shift the entry (i, j) of the table s … −t + 1 is (s − t + i) − j.
    shifted = theirs.rel_shift_bnij(counts.expand(1, 1, t, -1), klen=s)[0, 0]
    assert torch.equal(shifted, torch.arange(s - t, s)[:, None] - torch.arange(s))

    q, k, v = inputs(t=t, s=s, g=4)
    method = randomised(model_dim=32)
    theirs.r_w_bias.copy_(method.u)
    theirs.r_r_bias.copy_(method.v)
    table = torch.stack([wave(n, 32) for n in counts.tolist()])
    projected = (table @ method.project.weight.T).view(-1, 1, 4, 8).expand(-1, 2, -1, -1)
    found = theirs.rel_attn_core(*(x.permute(2, 0, 1, 3) for x in (q, k, v)), projected)
    assert_same(attend(q, k, v, Scheme(method)), found.permute(1, 2, 0, 3))


# Distances clamped


@torch.no_grad()
@pytest.mark.parametrize("reach", [1, 4, 9, 50])
def test_distances_past_the_reach_are_those_of_its_end(reach: int):
    q, k, v = inputs(t=6, s=11, dv=3)
    method = randomised(reach=reach)
    assert_same(attend(q, k, v, Scheme(method, causal)), paper(q, k, v, method, sees_ahead=False))
    assert_same(attend(q, k, v, Scheme(method)), paper(q, k, v, method))


@torch.no_grad()
def test_a_reach_that_nothing_exceeds_changes_nothing():
    q, k, v = inputs()
    assert_same(attend(q, k, v, Scheme(randomised(reach=10))), attend(q, k, v, Scheme(randomised())))


@torch.no_grad()
@pytest.mark.parametrize(("memory", "reach"), [(0, 3), (6, 4)])
def test_clamped_tables_of_transformers_give_the_same(memory: int, reach: int):
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    from transformers import XLNetConfig

    t, s = 5, 5 + memory
    config = XLNetConfig(d_model=32, n_head=4, d_head=8, n_layer=1, clamp_len=reach, vocab_size=2)
    theirs, q_k_v, method = xlnet.XLNetModel(config).eval(), inputs(t=t, s=s, g=4), randomised(32, reach=reach)
    layer = theirs.layer[0].rel_attn.double()
    layer.r_w_bias.copy_(method.u)
    layer.r_r_bias.copy_(method.v)
    waves = torch.stack([wave(max(-reach, min(reach, n)), 32) for n in range(s, -t, -1)])
    # Theirs are float32: angles of up to 4 from frequencies with a few half-units of rounding in the last place.
    assert_same(theirs.relative_positional_encoding(t, s)[:, 0], waves, within=4 * 4 * 2**-24 + 2**-24)
    projected = (waves @ method.project.weight.T).view(-1, 1, 4, 8).expand(-1, 2, -1, -1)
    found = layer.rel_attn_core(*(x.permute(2, 0, 1, 3) for x in q_k_v), projected)
    assert_same(attend(*q_k_v, Scheme(method)), found.permute(1, 2, 0, 3))


@torch.no_grad()
def test_far_positions_need_no_table_as_long_as_the_distance():
    q, k, v = inputs(t=3, s=4)
    method = randomised(reach=5)
    keys = torch.tensor([0, 10**6, 10**6 + 1, 10**6 + 2])
    far = attend(q, k, v, Scheme(method, causal), index=keys[1:], key_index=keys)
    near = torch.tensor([0, 9, 10, 11])
    assert_same(far, attend(q, k, v, Scheme(method, causal), index=near[1:], key_index=near))
    assert method.relate(10**6).keys.rows.shape == (4, 11, 8)


@pytest.mark.slow
@torch.no_grad()
def test_with_a_reach_it_compiles_whatever_the_indices():
    q, k, v = inputs(t=3, s=6)
    keys = torch.tensor([0, 1, 5, 6, 9, 30])
    told = {"index": keys[3:], "key_index": keys}
    for reach in (None, 4):
        scheme = Scheme(randomised(reach=reach), causal)
        torch._dynamo.reset()
        traced = torch.compile(
            lambda q, k, v, scheme=scheme: attend(q, k, v, scheme, **told), fullgraph=True, backend="eager"
        )
        if reach is None:
            with pytest.raises((CannotRun, torch._dynamo.exc.Unsupported), match="how far apart tokens can"):
                traced(q, k, v)
        else:
            assert_same(traced(q, k, v), attend(q, k, v, scheme, **told))


@torch.no_grad()
def test_without_weights_it_is_plain_attention():
    q, k, v = inputs()
    method = TransformerXL(12, 4, 8).double()
    for weight in method.parameters():
        weight.zero_()
    expected = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8))
    assert_same(attend(q, k, v, Scheme(method)), expected)


@torch.no_grad()
def test_it_can_tell_left_from_right():
    q, k, v = inputs(t=3)
    method = randomised()
    forward = attend(q, k, v, Scheme(method))
    backward = attend(*(x.flip(2) for x in (q, k, v)), Scheme(method)).flip(2)
    assert float((forward - backward).abs().max()) > 1e-2


def test_it_learns_two_biases_a_head_and_one_projection_without_a_bias():
    shapes = {name: tuple(weight.shape) for name, weight in TransformerXL(12, 4, 8).named_parameters()}
    assert shapes == {"u": (4, 8), "v": (4, 8), "project.weight": (32, 12)}


@torch.no_grad()
def test_the_biases_start_small():
    torch.manual_seed(0)
    method = TransformerXL(2, 64, 64)
    for bias in (method.u, method.v):
        assert float(bias.std()) == pytest.approx(0.02, rel=0.05)


def test_sizes_are_checked():
    with pytest.raises(
        ValueError, match=r"TransformerXL\(model_dim=11\): model_dim must be even, because each wavelength"
    ):
        TransformerXL(11, 4, 8)
    for name in ("model_dim", "heads", "head_dim"):
        sizes = {"model_dim": 12, "heads": 4, "head_dim": 8}
        for wrong in (0, -2):
            with pytest.raises(ValueError, match=rf"TransformerXL\({name}={wrong}\): {name} must be at least 1"):
                TransformerXL(**(sizes | {name: wrong}))
        with pytest.raises(TypeError, match=rf"TransformerXL\({name}=4.0\): {name} must be an integer, not float"):
            TransformerXL(**(sizes | {name: 4.0}))


def test_the_reach_is_checked():
    for wrong in (0, -4):
        with pytest.raises(ValueError, match=rf"TransformerXL\(reach={wrong}\): reach must be at least 1"):
            TransformerXL(12, 4, 8, reach=wrong)
    with pytest.raises(TypeError, match=r"TransformerXL\(reach=4.0\): reach must be an integer, not float"):
        TransformerXL(12, 4, 8, reach=4.0)


def test_queries_of_another_width_or_number_of_heads_are_refused_by_name():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"TransformerXL\(head_dim=16\): given a tensor of 8 channels"):
        attend(q, k, v, Scheme(TransformerXL(12, 4, 16).double()))
    with pytest.raises(ValueError, match=r"TransformerXL\(12, 6, 8\) was given q with 4 heads"):
        attend(q, k, v, Scheme(TransformerXL(12, 6, 8).double()))


@pytest.mark.parametrize("rotation", [Rope(8), Xpos(8)])
def test_a_rotation_listed_before_it_turns_its_bias_with_the_query(rotation: object):
    q, k, v = inputs()
    method, at = randomised(), torch.arange(11)
    expected = attend(q, k, v, Scheme(method, rotation, causal))
    assert_same(attend(q, k, v, Scheme(rotation, method, causal)), expected)
    for parts in ((rotation, method), (rotation, method, Rerope(2))):
        scheme = Scheme(*parts, causal)
        assert scheme.relative
        shifted = attend(q, k, v, scheme, position=at + 100, key_position=at + 100)
        assert_same(shifted, attend(q, k, v, scheme), within=1e-10)


def test_a_gap_that_needs_a_row_for_each_distance_within_is_refused():
    q, k, v = inputs(t=4)
    scheme, far = mp.Scheme(mp.TransformerXL(8, 4, 8)).double(), torch.tensor([0, 1, 2, 10**9])
    text = r"TransformerXL\(8, 4, 8\): tokens stand up to 1,000,000,000 apart.*give reach=…"
    for backend in (None, "reference", "chunked"):
        with pytest.raises(ValueError, match=text):
            mp.attend(q, k, v, scheme, index=far, key_index=far, backend=backend)
    with pytest.raises(ValueError, match=text):
        mp.scores(q, k, scheme, index=far, key_index=far)
    near = mp.Scheme(mp.TransformerXL(8, 4, 8, reach=5)).double()
    assert mp.attend(q, k, v, near, index=far, key_index=far).isfinite().all()


def test_far_tokens_of_a_scheme_are_asked_for_by_their_distance():
    scheme = mp.Scheme(mp.TransformerXL(8, 4, 8)).double()
    q, k, _ = inputs(t=1)
    with pytest.raises(ValueError, match=r"tokens stand up to 3,000,000,000 apart"):
        scheme.curve(q[0, :, 0], k[0, :, 0], torch.tensor([0, 3 * 10**9]), 4 * 10**9)
