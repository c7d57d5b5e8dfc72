from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Cope, Scheme, Shaw, attend, causal, sinks, window
from tests.oracles import assert_same, inputs, plain


def randomised(positions: int, after_scale: bool = False, dim: int = 8) -> Cope:
    torch.manual_seed(1)
    method = Cope(dim, positions, after_scale=after_scale)
    torch.nn.init.normal_(method.table, std=2.0)
    return method.double()


def paper(q: Tensor, k: Tensor, v: Tensor, method: Cope, behind: int | None = None) -> Tensor:
    """g_ij = σ(q_i·k_j/√d), p_ij = Σ_{j ≤ n ≤ i} g_in; a fractional p is read between its neighbours.

    behind: how many keys a query sees, its own included; all of them if None.
    """
    group, d = q.shape[1] // k.shape[1], q.shape[3]

    def hidden(i: int, j: int) -> bool:
        return j > i or (behind is not None and j <= i - behind)

    def dot(b: int, h: int, i: int, j: int) -> float:
        return float(q[b, h, i] @ k[b, h // group, j])

    def score(b: int, h: int, i: int, j: int) -> float:
        if hidden(i, j):
            return -math.inf
        gates = [1 / (1 + math.exp(-dot(b, h, i, n) / math.sqrt(d))) for n in range(j, i + 1) if not hidden(i, n)]
        p = min(sum(gates), method.positions - 1)
        low, high = math.floor(p), math.ceil(p)
        at_low, at_high = (float(q[b, h, i] @ method.table[row]) for row in (low, high))
        position = (1 - (p - low)) * at_low + (p - low) * at_high
        scale = 1 / math.sqrt(d)
        return dot(b, h, i, j) * scale + position * (1.0 if method.after_scale else scale)

    return plain(q, k, v, score)


@torch.no_grad()
@pytest.mark.parametrize("after_scale", [False, True])
@pytest.mark.parametrize("positions", [3, 12])
def test_positions_are_counted_by_gates(positions: int, after_scale: bool):
    q, k, v = inputs(dv=5)
    method = randomised(positions, after_scale)
    assert_same(attend(q, k, v, Scheme(method, causal)), paper(q, k, v, method))


@torch.no_grad()
def test_hidden_keys_open_no_gate():
    q, k, v = inputs()
    method = randomised(4)
    assert_same(attend(q, k, v, Scheme(method, causal & window(4))), paper(q, k, v, method, behind=4))


def listing(q: Tensor, k: Tensor, v: Tensor, table: Tensor, nodiv: bool) -> Tensor:
    """The authors' module: flip, running sum, flip; then two lookups and a weighted sum."""
    d, positions = q.shape[3], table.shape[0]
    seen = torch.ones(q.shape[2], k.shape[2]).tril().to(q)
    logits = q @ k.mT
    gates = torch.sigmoid(logits / math.sqrt(d)) * seen
    counted = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=positions - 1)
    fixed = q @ table.T
    up, down = counted.ceil().long(), counted.floor().long()
    share = counted - down
    position = fixed.gather(-1, up) * share + fixed.gather(-1, down) * (1 - share)
    scores = logits / math.sqrt(d) + position if nodiv else (logits + position) / math.sqrt(d)
    return (scores + seen.log()).softmax(-1) @ v


@pytest.mark.parametrize("after_scale", [False, True])
def test_the_authors_listing_gives_the_same_and_the_same_gradients(after_scale: bool):
    q, k, v = (x.requires_grad_() for x in inputs(g=4))
    method = randomised(5, after_scale)
    ours, theirs = attend(q, k, v, Scheme(method, causal)), listing(q, k, v, method.table, after_scale)
    assert_same(ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    wanted = (q, k, v, method.table)
    for mine, other in zip(
        torch.autograd.grad((ours * weights).sum(), wanted),
        torch.autograd.grad((theirs * weights).sum(), wanted),
        strict=True,
    ):
        assert_same(mine, other, within=1e-11)


@torch.no_grad()
def test_open_gates_count_every_token_as_a_relative_encoding_does():
    """All gates at 1 give p_ij = i − j + 1."""
    q, k, v = inputs(dv=5)
    q[..., 0], k[..., 0] = 40.0, 40.0  # every score is above 400, where σ is 1 in float64
    method = randomised(positions=7)
    relative = Shaw(8, reach=11, values=False).double()
    for behind in range(12):
        relative.key_table[11 - behind] = method.table[min(behind + 1, 6)]
    assert_same(attend(q, k, v, Scheme(method, causal)), attend(q, k, v, Scheme(relative, causal)))


@torch.no_grad()
def test_shut_gates_leave_every_token_at_position_zero():
    q, k, v = inputs()
    q[..., 0], k[..., 0] = 60.0, -60.0  # σ is 0 to 1e-300
    method = randomised(positions=7)
    shared = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(method, causal)), shared)


def test_the_table_starts_at_zero_and_so_as_plain_attention():
    q, k, v = inputs()
    method = Cope(8, 64).double()
    assert method.table.shape == (64, 8)
    assert not method.table.any()
    expected = plain(q, k, v, lambda b, h, i, j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(8) if j <= i else -math.inf)
    assert_same(attend(q, k, v, Scheme(method, causal)).detach(), expected)


@torch.no_grad()
def test_counts_follow_the_index_whatever_the_order_of_the_keys():
    q, k, v = inputs()
    scheme = Scheme(randomised(6), causal)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    shuffled = attend(q, k[:, :, order], v[:, :, order], scheme, index=torch.arange(11), key_index=order)
    assert_same(shuffled, attend(q, k, v, scheme))


@torch.no_grad()
def test_a_scheme_that_only_looks_back_is_needed():
    for visible in ((), (~causal,), (sinks(2),), (window(3, ahead=1),), (causal | sinks(2),)):
        with pytest.raises(ValueError, match=r"Cope\(8, 4\) is defined for keys behind the query only; add .*causal"):
            Scheme(Cope(8, 4), *visible)
    Scheme(Cope(8, 4), causal & sinks(2))
    Scheme(Cope(8, 4), window(3))


def test_sizes_are_checked():
    for wrong in (0, -8):
        with pytest.raises(ValueError, match=rf"Cope\(head_dim={wrong}\): head_dim must be at least 1"):
            Cope(wrong, 4)
    for wrong in (1, 0, -4):
        with pytest.raises(ValueError, match=rf"Cope\(positions={wrong}\): positions must be at least 2"):
            Cope(8, wrong)
    with pytest.raises(TypeError, match=r"Cope\(head_dim=8.0\): head_dim must be an integer, not float"):
        Cope(8.0, 4)
    with pytest.raises(TypeError, match=r"Cope\(positions='4'\): positions must be an integer, not str"):
        Cope(8, "4")


def test_queries_of_another_width_are_refused_by_name():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Cope\(head_dim=16\): given a tensor of 8 channels"):
        attend(q, k, v, Scheme(Cope(16, 4).double(), causal))


def test_a_query_that_is_no_number_spoils_no_other():
    method = randomised(4)
    q, k, v = (torch.randn(1, 2, 9, 8, dtype=torch.float64) for _ in range(3))
    whole = attend(q, k, v, Scheme(method, causal))
    q[:, :, 3] = torch.nan
    found = attend(q, k, v, Scheme(method, causal))
    assert found[:, :, 3].isnan().all()
    kept = [0, 1, 2, 4, 5, 6, 7, 8]
    assert torch.equal(found[:, :, kept], whole[:, :, kept])


def test_a_table_in_half_precision_is_scaled_before_it_is_rounded_again():
    part = Cope(12, 5)
    torch.nn.init.normal_(part.table)
    part, (q, _, _) = part.bfloat16(), inputs(t=4, d=12)
    assert_same(part.by_count(q), q @ part.table.double().mT / math.sqrt(12))
