from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from milepost import Fire, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain


def network(heads: int, trained: int = 512, width: int = 32, c: float = 0.1, m: float = 1.0) -> Fire:
    method = Fire(heads, trained=trained, width=width).double()
    for weight in method.parameters():
        nn.init.normal_(weight)
    method.c.data.fill_(c)
    method.m.data.fill_(m)
    return method


def psi(u: float, c: float) -> float:
    return math.log(abs(c * u) + 1)


def share(i: float, j: float, c: float, threshold: float, epsilon: float = 1e-6) -> float:
    """How far back the key lies, against the query's own position."""
    return psi(i - j, c) / (psi(max(i, threshold), c) + epsilon)


def added(method: Fire, x: float) -> torch.Tensor:
    """The network at x, one number a head, unit by unit."""
    weights = {name: weight.tolist() for name, weight in method.state_dict().items()}
    inner, outer = weights["inner.weight"], weights["outer.weight"]
    hidden = [max(0.0, x * inner[n][0] + weights["inner.bias"][n]) for n in range(len(inner))]
    return torch.tensor(
        [
            sum(w * y for w, y in zip(row, hidden, strict=True)) + weights["outer.bias"][h]
            for h, row in enumerate(outer)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize(("c", "m"), [(0.1, 0.01), (-0.7, -0.012), (2.0, 1.0)])
def test_each_score_gains_the_network_of_the_share(c, m):
    q, k, v = inputs(dv=5)
    # 512·|m| lies between the first and the last query, or past them all.
    method = network(4, c=c, m=m)
    table = {(i, j): added(method, share(i, j, c, abs(m * 512))) for i in range(11) for j in range(i + 1)}

    def score(b, h, i, j):
        return q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) + table[i, j][h] if j <= i else -math.inf

    assert_same(attend(q, k, v, Scheme(method, causal)), plain(q, k, v, score))


def test_the_query_is_measured_by_its_position_not_by_its_row():
    q, k, v = inputs(t=1, s=9)
    method = network(4, trained=4)
    table = [added(method, share(8, j, 0.1, 4)) for j in range(9)]
    oracle = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) + table[j][h])
    assert_same(attend(q, k, v, Scheme(method, causal)), oracle)


def passing_through(trained: int = 512) -> Fire:
    """A network that answers the share itself."""
    method = Fire(1, trained=trained, width=1).double()
    for weight, value in zip(method.parameters(), (0.1, 1.0, 1.0, 0.0, 1.0, 0.0), strict=True):
        weight.data.fill_(value)
    return method


def test_the_published_shares():
    golden = {
        (1, 0): 0.024098,
        (100, 0): 0.606282,
        (511, 0): 0.999515,
        (512, 0): 1.0,
        (2000, 1999): 0.017972,
        (2000, 1000): 0.870235,
    }
    zero, method = torch.zeros(1, dtype=torch.int64), passing_through()
    for (i, j), value in golden.items():
        assert round(share(i, j, 0.1, 512, epsilon=0), 6) == value
        ours = method.bend(torch.zeros(1, dtype=torch.float64), zero, zero, zero + i, zero + j).item()
        assert abs(ours - share(i, j, 0.1, 512)) < 1e-12
        # What ε = 10⁻⁶ takes away, and the rounding of the published number.
        assert abs(ours - value) < 1e-6 / psi(512, 0.1) + 5e-7


def test_the_share_is_one_only_for_the_first_key_past_the_threshold():
    zero, method = torch.zeros(1, dtype=torch.int64), passing_through(trained=8)
    i, j = torch.arange(20)[:, None], torch.arange(20)
    shares = method.bend(torch.zeros(20, 20, dtype=torch.float64), zero, zero, i, j).detach()
    behind = j <= i
    assert (shares[behind] >= 0).all()
    assert (shares[behind] < 1).all()
    whole = behind & (shares > 1 - 1e-4)
    assert whole.nonzero().tolist() == [[query, 0] for query in range(8, 20)]


def test_the_same_distance_means_less_to_a_later_query():
    zero, method = torch.zeros(1, dtype=torch.int64), passing_through(trained=8)
    late = [method.bend(torch.zeros(1), zero, zero, zero + i, zero + i - 4).item() for i in (10, 100, 1000)]
    assert late[0] > late[1] > late[2]
    assert not Scheme(method, causal).relative


def test_before_the_threshold_only_distance_counts():
    zero, method = torch.zeros(1, dtype=torch.int64), passing_through(trained=64)
    early = [method.bend(torch.zeros(1), zero, zero, zero + i, zero + i - 4).item() for i in (4, 20, 64)]
    assert early[0] == early[1] == early[2]


def test_it_equals_the_published_listing():
    """The listing that public copies share, over whole matrices."""
    method = network(4, trained=6, c=0.3, m=1.5)
    mlp = nn.Sequential(method.inner, nn.ReLU(), method.outer)
    place = torch.arange(12, dtype=torch.float64)
    distance = place[:, None] - place[None, :]
    threshold = torch.abs(method.m * 6)
    normaliser = torch.max(place, threshold)[:, None]
    shares = torch.log(torch.abs(method.c * distance) + 1) / (torch.log(torch.abs(method.c * normaliser) + 1) + 1e-6)
    peer = mlp(shares[..., None]).permute(2, 0, 1)[None]

    batch, head = torch.zeros(1, 1, 1, 1, dtype=torch.int64), torch.arange(4).view(-1, 1, 1)
    i, j = place[None, None, :, None], place[None, None, None, :]
    ours = method.bend(torch.zeros(1, 1, 12, 12, dtype=torch.float64), batch, head, i, j)
    assert_same(ours, peer)


@pytest.mark.parametrize("heads", [1, 8, 12])
def test_it_has_two_scalars_and_one_network_for_all_heads(heads):
    assert sum(weight.numel() for weight in Fire(heads).parameters()) == 2 + 64 + 33 * heads


def test_it_starts_where_the_paper_does():
    method = Fire(4)
    assert method.c.item() == pytest.approx(0.1, abs=1e-8)
    assert method.m.item() == 1.0
    assert method.trained == 512
    assert method.inner.bias is not None
    assert method.outer.bias is not None


def test_every_weight_learns():
    q, k, v = inputs()
    scheme = Scheme(network(4, m=0.01), causal)
    attend(q, k, v, scheme).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in scheme.parameters())


def test_keys_ahead_of_the_query_must_be_hidden():
    with pytest.raises(ValueError, match=r"Fire\(4\) is defined for keys behind the query only"):
        Scheme(Fire(4))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"heads": 0}, ValueError, r"Fire\(heads=0\): heads must be at least 1"),
        ({"heads": 4.0}, TypeError, r"Fire\(heads=4.0\): heads must be an integer, not float"),
        ({"heads": 4, "trained": 0}, ValueError, r"Fire\(trained=0\): trained must be at least 1"),
        ({"heads": 4, "trained": 512.0}, TypeError, r"Fire\(trained=512.0\): trained must be an integer, not float"),
        ({"heads": 4, "width": -1}, ValueError, r"Fire\(width=-1\): width must be at least 1"),
        ({"heads": 4, "width": "32"}, TypeError, r"Fire\(width='32'\): width must be an integer, not str"),
    ],
)
def test_a_network_that_cannot_be_made_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Fire(**options)
