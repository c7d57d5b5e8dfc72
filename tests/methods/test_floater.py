from __future__ import annotations

import cmath
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from milepost import Floater, FloaterLayer, Scheme, attend, causal
from tests.layers import WIDTH, T, layer, project, tokens
from tests.oracles import assert_same, attention, dots, inputs, plain


def stirred(method):
    """The same method in float64, with weights large enough to carry a state along."""
    generator = torch.Generator().manual_seed(1)
    method = method.double()
    for weight in method.parameters():
        nn.init.normal_(weight, std=1.5, generator=generator)
    return method


def direction(flow: nn.Module, time: float, state: Tensor) -> Tensor:
    """h(τ, p) = W₂[relu(W₁[p, τ] + b₁), τ] + b₂."""
    at = torch.tensor([time], dtype=torch.float64)
    hidden = (flow.inner.weight @ torch.cat([state, at]) + flow.inner.bias).clamp(min=0)
    return flow.outer.weight @ torch.cat([hidden, at]) + flow.outer.bias


def flowed(flow: nn.Module, start: Tensor, count: int, step: float) -> Tensor:
    """The states after 0, 1, … count − 1 steps of Runge and Kutta by Kutta's 3/8 rule, [count dim].

    Of the two classical rules of order four this is the one that torchdiffeq calls rk4.
    """
    states = [start]
    for number in range(count - 1):
        t, p = number * step, states[-1]
        k1 = direction(flow, t, p)
        k2 = direction(flow, t + step / 3, p + step * k1 / 3)
        k3 = direction(flow, t + 2 * step / 3, p + step * (k2 - k1 / 3))
        k4 = direction(flow, t + step, p + step * (k1 - k2 + k3))
        states.append(p + step * (k1 + 3 * k2 + 3 * k3 + k4) / 8)
    return torch.stack(states)


def by_token(flow: nn.Module, start: Tensor, length: int, step: float = 0.01) -> Tensor:
    """The states at the tokens, five steps apart."""
    return flowed(flow, start, 5 * length - 4, step / 5)[::5]


def test_the_states_are_those_of_runge_and_kutta_in_five_steps_a_token():
    method = stirred(Floater(6))
    expected = by_token(method.flow, method.start, 12).detach()
    assert float((expected[-1] - expected[0]).abs().max()) > 0.1
    assert_same(method.table(12), expected)


def test_the_step_is_the_time_between_two_tokens():
    method = stirred(Floater(6, step=0.05))
    assert_same(method.table(8), by_token(method.flow, method.start, 8, 0.05))


def test_embeddings_gain_the_states_of_their_indices():
    method = stirred(Floater(6))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    rows = by_token(method.flow, method.start, 12)
    assert_same(method.embed(x), x + rows[:3])
    index = torch.tensor([[11, 3, 3], [9, 8, 1]])
    assert_same(method.embed(x, index), x + rows[index])


def test_attention_reads_the_states_through_its_projections():
    method = stirred(Floater(WIDTH, step=0.001))
    x = tokens()
    q, k, v = project(x + by_token(method.flow, method.start, T, 0.001))
    score = dots(q, k)
    oracle = plain(q, k, v, lambda b, h, i, j: score(b, h, i, j) if j <= i else -math.inf)
    assert_same(layer(Scheme(method, causal), x), oracle)


def test_gradients_are_those_of_the_steps():
    method, peer = stirred(Floater(3)), stirred(Floater(3))
    weight = torch.randn(6, 3, dtype=torch.float64)
    (method.table(6) * weight).sum().backward()
    (by_token(peer.flow, peer.start, 6) * weight).sum().backward()
    for (name, ours), theirs in zip(method.named_parameters(), peer.parameters(), strict=True):
        assert ours.grad is not None, name
        assert theirs.grad is not None
        assert float(theirs.grad.abs().max()) > 0, name
        assert_same(ours.grad, theirs.grad)


def test_without_a_flow_every_token_stands_where_it_starts():
    method = stirred(Floater(6))
    for weight in method.flow.parameters():
        nn.init.zeros_(weight)
    assert torch.equal(method.table(9), method.start.expand(9, 6))


def turning(dim: int, step: float) -> Floater:
    """A flow that turns each pair (sin, cos) with the frequency that sinusoidal positions have.

    relu(p + 2) is p + 2 where no channel leaves [−1, 1], so the second layer can take the 2 off again.
    """
    method = Floater(dim, step=step).double()
    generator = torch.zeros(dim, dim, dtype=torch.float64)
    for n in range(0, dim, 2):
        frequency = 10000 ** (-n / dim) / step
        generator[n, n + 1], generator[n + 1, n] = frequency, -frequency
    with torch.no_grad():
        for weight in method.flow.parameters():
            weight.zero_()
        method.flow.inner.weight[:, :dim] = torch.eye(dim)
        method.flow.inner.bias.fill_(2)
        method.flow.outer.weight[:, :dim] = generator
        method.flow.outer.bias.copy_(-2 * generator.sum(-1))
        method.start.copy_(torch.tensor([0.0, 1.0] * (dim // 2)))
    return method


def test_a_flow_that_turns_is_sinusoidal_up_to_the_error_of_its_steps():
    dim, length = 8, 24
    rows = turning(dim, 0.01).table(length).detach()
    for n in range(0, dim, 2):
        frequency = 10000 ** (-n / dim)
        # A step turns by y; Runge-Kutta multiplies by the first five terms of e^(iy), which is no longer than 1 and
        # errs by at most y⁵/120, so n steps err by at most n times that.
        y = frequency / 5
        grown = 1 + 1j * y - y**2 / 2 - 1j * y**3 / 6 + y**4 / 24
        for i in range(length):
            ours = complex(float(rows[i, n + 1]), float(rows[i, n]))
            assert abs(ours - grown ** (5 * i)) <= 1e-12
            assert abs(ours - cmath.exp(1j * frequency * i)) <= 5 * i * y**5 / 120 + 1e-12


def test_a_text_longer_than_the_cache_of_the_authors_is_defined():
    # Theirs ends at 255; two hundred and fifty-six tokens are 1280 steps of a fifth of a radian.
    with torch.no_grad():
        sine, cosine = turning(2, 0.01).embed(torch.zeros(1, 1, 2, dtype=torch.float64), torch.tensor([256]))[0, 0]
    assert abs(complex(cosine, sine) - cmath.exp(256j)) <= 1280 * 0.2**5 / 120


def test_the_input_form_learns_a_flow_and_a_start():
    d = 24
    assert sum(weight.numel() for weight in Floater(d).parameters()) == 2 * ((d + 1) * d + d) + d


def test_weights_start_as_the_authors_have_them():
    torch.manual_seed(0)
    method = Floater(64)
    for linear in (method.flow.inner, method.flow.outer):
        assert linear.weight.shape == (64, 65)
        assert not linear.bias.any()
        # Xavier's deviation is √(2/(65 + 64)); that of 4160 draws is known to 1.1 %, and five of these are allowed.
        assert abs(float(linear.weight.detach().std()) / math.sqrt(2 / 129) - 1) < 0.055
    bound = math.sqrt(6 / 65)
    assert 0.8 * bound < float(method.start.detach().abs().max()) <= bound


@pytest.mark.parametrize(
    "call",
    [
        lambda: Floater(4).embed(torch.zeros(1, 3, 4)),
        lambda: FloaterLayer(1, 4).turn(torch.zeros(1, 1, 3, 4), torch.arange(3)),
    ],
)
def test_without_torchdiffeq_the_message_tells_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    told = r"Floater needs torchdiffeq, which is not installed: pip install 'milepost\[floater\]'"
    with pytest.raises(ImportError, match=told):
        call()


def test_what_the_message_tells_to_install_exists():
    told = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"^floater = \[.*torchdiffeq", told, re.MULTILINE)


def test_an_index_past_the_longest_is_refused_by_name():
    method = Floater(6, longest=4)
    assert method.embed(torch.zeros(1, 4, 6)).shape == (1, 4, 6)
    with pytest.raises(ValueError, match=r"Floater\(longest=4\): index 4 is past"):
        method.embed(torch.zeros(1, 5, 6))


# In every layer


def per_head(method: FloaterLayer, side: int, length: int) -> Tensor:
    """The states of queries (0), keys (1) or values (2), [heads length dim]."""
    return by_token(method.flow, method.start[side], length).view(length, method.heads, method.head_dim).transpose(0, 1)


@pytest.mark.parametrize("values", [True, False])
def test_queries_keys_and_values_gain_states_of_their_own(values):
    q, k, v = inputs(t=7, d=4)
    method = stirred(FloaterLayer(4, 4, values=values))
    group = 2

    def carried(x: Tensor, side: int) -> Tensor:
        # A key head takes the state of the first query head that reads it.
        return x + per_head(method, side, 7)[:: 4 // x.shape[1]]

    turned, keys, told = carried(q, 0), carried(k, 1), carried(v, 2) if values else v

    def score(b, h, i, j):
        return turned[b, h, i] @ keys[b, h // group, j] / 2 if j <= i else -math.inf

    oracle = attention((2, 4, 7, 7), score, lambda b, h, i, j: told[b, h // group, j])
    assert_same(attend(q, k, v, Scheme(method, causal)), oracle)


def test_values_of_another_width_go_with_values_left_alone():
    q, k, v = inputs(t=5, d=4, dv=6)
    assert attend(q, k, v, Scheme(stirred(FloaterLayer(4, 4, values=False)), causal)).shape == (2, 4, 5, 6)
    with pytest.raises(
        ValueError, match=r"FloaterLayer\(head_dim=4\): values have 6 channels.*values=False leaves them"
    ):
        attend(q, k, v, Scheme(FloaterLayer(4, 4).double(), causal))


def test_layers_that_share_a_flow_learn_only_their_starts_apart():
    heads, dim, d = 8, 16, 128
    layers = [FloaterLayer(heads, dim) for _ in range(6)]
    for each in layers[1:]:
        each.flow = layers[0].flow
    together = nn.ModuleList(layers)
    assert sum(weight.numel() for weight in together.parameters()) == 2 * ((d + 1) * d + d) + 3 * 6 * d


def test_positions_may_be_fractions():
    method = stirred(FloaterLayer(2, 3))
    # A fifth of a token is one step.
    position = torch.tensor([[0.2, 1.0, 3.6], [2.4, 2.4, 0.0]], dtype=torch.float64)
    states = flowed(method.flow, method.start[1], 20, 0.002).view(20, 2, 3)
    expected = states[(position * 5).round().long()].transpose(1, 2)
    x = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    assert_same(method.turn(x, position, "key"), expected)


def test_between_two_steps_the_state_is_interpolated():
    y = 0.1
    wave = turning(2, 0.01)
    method = FloaterLayer(1, 2).double()
    method.flow = wave.flow
    with torch.no_grad():
        # Half a radian a token, so that a step is a tenth.
        wave.flow.outer.weight.mul_(5 * y)
        wave.flow.outer.bias.mul_(5 * y)
        method.start.copy_(wave.start.expand(3, 2))
    position = torch.tensor([0.13, 1.5, 2.71, 3.0, 3.999], dtype=torch.float64)
    out = method.turn(torch.zeros(1, 1, 5, 2, dtype=torch.float64), position)[0, 0].detach()
    ours = torch.complex(out[:, 1], out[:, 0])
    # Hermite's cubic errs by y⁴/384 a channel, and passes on what the twenty steps err, and a little of their slopes.
    allowed = math.sqrt(2) * y**4 / 384 + (1 + y) * 20 * y**5 / 120
    assert float((ours - torch.exp(1j * 5 * y * position)).abs().max()) <= allowed


def test_a_token_stands_where_it_stands_whoever_comes_after_it():
    method = stirred(FloaterLayer(2, 8))
    position = torch.tensor([0.37, 1.0, 2.53, 4.0], dtype=torch.float64)
    x = torch.randn(1, 2, 4, 8, dtype=torch.float64)
    together = method.turn(x, position)
    for last in range(1, 5):
        assert_same(method.turn(x[:, :, :last], position[:last]), together[:, :, :last])


def test_positions_that_require_a_gradient_are_refused_by_name():
    (q, k, v), position = inputs(t=3, d=3), torch.tensor([0.0, 1.5, 2.0], requires_grad=True)
    scheme = Scheme(stirred(FloaterLayer(4, 3)), causal)
    told = r"FloaterLayer\(heads=4, head_dim=3\): positions require a gradient, .* give position.detach\(\)"
    with pytest.raises(ValueError, match=told):
        attend(q, k, v, scheme, position=position, key_position=position)
    with torch.no_grad():
        assert_same(
            attend(q, k, v, scheme, position=position, key_position=position),
            attend(q, k, v, scheme, position=position.detach(), key_position=position.detach()),
        )


@pytest.mark.parametrize("position", [[0.0, 4.0], [-0.5, 1.0]])
def test_positions_outside_are_refused_by_name(position):
    with pytest.raises(ValueError, match=r"FloaterLayer\(longest=4\): positions run from .* must lie in 0 … 3"):
        FloaterLayer(2, 3, longest=4).turn(torch.zeros(1, 2, 2, 3), torch.tensor(position))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Floater(0), ValueError, r"Floater\(model_dim=0\): model_dim must be at least 1"),
        (lambda: Floater(6.0), TypeError, r"Floater\(model_dim=6.0\): model_dim must be an integer, not float"),
        (lambda: Floater(6, step=0), ValueError, r"Floater\(step=0\): step must be greater than 0"),
        (lambda: Floater(6, step=math.nan), ValueError, r"Floater\(step=nan\): step must be finite"),
        (lambda: Floater(6, longest=-1), ValueError, r"Floater\(longest=-1\): longest must be at least 1"),
        (lambda: FloaterLayer(0, 4), ValueError, r"FloaterLayer\(heads=0\): heads must be at least 1"),
        (
            lambda: FloaterLayer(2, "4"),
            TypeError,
            r"FloaterLayer\(head_dim='4'\): head_dim must be an integer, not str",
        ),
        (
            lambda: FloaterLayer(2, 4, values=1),
            TypeError,
            r"FloaterLayer\(values=1\): values is True or False, not int",
        ),
        (lambda: FloaterLayer(2, 4, step=-0.1), ValueError, r"FloaterLayer\(step=-0.1\): step must be greater than 0"),
        (lambda: FloaterLayer(2, 4, longest=0), ValueError, r"FloaterLayer\(longest=0\): longest must be at least 1"),
    ],
)
def test_what_cannot_flow_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
