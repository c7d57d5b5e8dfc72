"""What opens CoPE's gates: the scores, the keys, the values, or keys of their own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Cache, Cope, Rope, Scheme, Shaw, attend, causal, documents_of, window
from tests.oracles import Score, assert_same, inputs, plain, turned

MODEL = 6


def made(gates: str = "keys", positions: int = 5, after_scale: bool = False, key_heads: int = 2) -> Cope:
    """A Cope with a table that does something."""
    torch.manual_seed(1)
    own = {"model_dim": MODEL, "key_heads": key_heads} if gates == "own" else {}
    method = Cope(8, positions, after_scale=after_scale, gates=gates, **own)
    torch.nn.init.normal_(method.table, std=2.0)
    return method.double()


def layer_inputs(s: int = 11) -> Tensor:
    return torch.randn(2, s, MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def by_hand(q, k, v, method: Cope, opening: Tensor, beside: Score | None = None, behind: int | None = None) -> Tensor:
    """g_ij = σ(q_i · opening_j/√d), c_ij = Σ_{j ≤ n ≤ i} g_in, logits (q·k + beside + q·e[c])/√d.

    after_scale leaves q·e[c] undivided. opening: [b g s d]; behind: how many keys a query sees, itself included.
    """
    width, group, shared = math.sqrt(q.shape[3]), q.shape[1] // k.shape[1], q.shape[1] // opening.shape[1]

    def score(b: int, h: int, i: int, j: int) -> float:
        if j > i or (behind is not None and j <= i - behind):
            return -math.inf
        gates = [torch.sigmoid(q[b, h, i] @ opening[b, h // shared, n] / width) for n in range(j, i + 1)]
        count = min(float(sum(gates)), method.positions - 1)
        low, high = math.floor(count), math.ceil(count)
        at_low, at_high = (float(q[b, h, i] @ method.table[row]) for row in (low, high))
        position = at_low * (1 - count + low) + at_high * (count - low)
        content = float(q[b, h, i] @ k[b, h // group, j]) + (0.0 if beside is None else float(beside(b, h, i, j)))
        return content / width + (position if method.after_scale else position / width)

    return plain(q, k, v, score)


def projected(method: Cope, x: Tensor) -> Tensor:
    """Keys for the gates, [b g s d]."""
    if method.to_gates is None:
        return x
    return (x @ method.to_gates.weight.T).view(*x.shape[:2], -1, 8).transpose(1, 2)


# Each kind of gate against its formula


@torch.no_grad()
@pytest.mark.parametrize("after_scale", [False, True])
def test_gates_on_keys_do_not_see_the_relative_positions_beside_them(after_scale):
    # The authors' cope+rel: the gates are taken before the relative term joins.
    q, k, v = inputs(dv=5)
    method = made("keys", after_scale=after_scale)
    relative = Shaw(8, reach=10, values=False).double()
    torch.nn.init.normal_(relative.key_table)
    oracle = by_hand(q, k, v, method, k, lambda b, h, i, j: q[b, h, i] @ relative.key_table[10 + j - i])
    assert_same(attend(q, k, v, Scheme(method, relative, causal)), oracle)
    assert_same(attend(q, k, v, Scheme(relative, method, causal)), oracle)


@torch.no_grad()
def test_gates_on_scores_do_see_them():
    q, k, v = inputs()
    relative = Shaw(8, reach=10, values=False).double()
    torch.nn.init.normal_(relative.key_table)
    on_scores, on_keys = (attend(q, k, v, Scheme(made(gates), relative, causal)) for gates in ("scores", "keys"))
    assert float((on_scores - on_keys).abs().max()) > 1e-2


@torch.no_grad()
def test_gates_on_keys_are_not_turned():
    q, k, v = inputs()
    method, at = made("keys"), torch.arange(11)
    turned_q, turned_k = turned(q, at), turned(k, at)

    def beside(b: int, h: int, i: int, j: int) -> Tensor:
        rotated = (turned_q[b, h, i] * turned_k[b, h // 2, j].conj()).real.sum()
        return rotated - q[b, h, i] @ k[b, h // 2, j]

    assert_same(attend(q, k, v, Scheme(method, Rope(8), causal)), by_hand(q, k, v, method, k, beside))


@torch.no_grad()
def test_where_no_other_part_acts_scores_and_keys_are_one():
    q, k, v = inputs(dv=5)
    for after_scale in (False, True):
        on_scores, on_keys = (
            attend(q, k, v, Scheme(made(gates, after_scale=after_scale), causal)) for gates in ("scores", "keys")
        )
        assert_same(on_scores, on_keys)


@torch.no_grad()
@pytest.mark.parametrize("after_scale", [False, True])
@pytest.mark.parametrize("positions", [3, 12])
def test_gates_on_values(positions, after_scale):
    q, k, v = inputs()
    method = made("values", positions, after_scale)
    assert_same(attend(q, k, v, Scheme(method, causal)), by_hand(q, k, v, method, v))


@torch.no_grad()
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("after_scale", [False, True])
def test_gates_of_their_own_are_made_from_the_layer_inputs(key_heads, after_scale):
    q, k, v = inputs(dv=5)
    x, method = layer_inputs(), made("own", after_scale=after_scale, key_heads=key_heads)
    ours = attend(q, k, v, Scheme(method, causal), x=x)
    assert_same(ours, by_hand(q, k, v, method, projected(method, x)))


@torch.no_grad()
def test_gates_of_their_own_may_be_projected_with_a_bias():
    # The authors' projection has one.
    q, k, v = inputs()
    x, method = layer_inputs(), made("own")
    method.to_gates = torch.nn.Linear(MODEL, 16).double()
    opening = method.to_gates(x).view(2, 11, 2, 8).transpose(1, 2)
    assert_same(attend(q, k, v, Scheme(method, causal), x=x), by_hand(q, k, v, method, opening))


@torch.no_grad()
def test_with_the_projection_of_the_keys_their_own_gates_are_those_of_the_keys():
    q, _, v = inputs()
    x, own, on_keys = layer_inputs(), made("own"), made("keys")
    on_keys.table.copy_(own.table)
    k = projected(own, x)
    assert_same(attend(q, k, v, Scheme(own, causal), x=x), attend(q, k, v, Scheme(on_keys, causal)))


@torch.no_grad()
@pytest.mark.parametrize("gates", ["keys", "values", "own"])
def test_hidden_keys_open_no_gate(gates):
    q, k, v = inputs()
    x, method = layer_inputs(), made(gates, positions=12)
    opening = {"keys": k, "values": v, "own": projected(method, x)}[gates]
    seen = Scheme(method, causal & window(4))
    given = {"x": x} if gates == "own" else {}
    assert_same(attend(q, k, v, seen, **given), by_hand(q, k, v, method, opening, behind=4))


# What the gates do to the count


@torch.no_grad()
@pytest.mark.parametrize("open_", [True, False])
@pytest.mark.parametrize("gates", ["values", "own"])
def test_open_gates_are_learned_relative_positions_and_shut_ones_none(gates, open_):
    q, k, v = inputs()
    x, method = torch.ones(2, 11, MODEL, dtype=torch.float64), made(gates, positions=7)
    q[..., 0] = 40.0
    size = 40.0 if open_ else -60.0  # σ is then 1 in float64, or below 1e-300
    if gates == "own":
        method.to_gates.weight.zero_()
        method.to_gates.weight.view(2, 8, MODEL)[:, 0] = size / MODEL
    else:
        v[..., 0] = size
    relative = Shaw(8, reach=10, values=False).double()
    for behind in range(11):
        # With open gates a key itself counts too, so that the nearest distance is 1.
        relative.key_table[10 - behind] = method.table[min(behind + 1, 6) if open_ else 0]
    ours = attend(q, k, v, Scheme(method, causal), x=x if gates == "own" else None)
    assert_same(ours, attend(q, k, v, Scheme(relative, causal)))


def test_gates_of_their_own_learn():
    q, k, v = inputs()
    method = made("own")
    attend(q, k, v, Scheme(method, causal), x=layer_inputs()).square().sum().backward()
    assert {name for name, _ in method.named_parameters()} == {"table", "to_gates.weight"}
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in method.parameters())


# Whose gates: caches, orders and documents


@torch.no_grad()
@pytest.mark.parametrize("gates", ["scores", "keys", "values", "own"])
@pytest.mark.parametrize("seen", [causal, causal & window(4)])
def test_decoding_with_a_cache_gives_the_rows_of_one_pass(gates, seen):
    q, k, v = inputs()
    x, scheme, cache = layer_inputs(), Scheme(made(gates, positions=4), seen), Cache()
    whole = attend(q, k, v, scheme, x=x if gates == "own" else None)
    for i in range(11):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        held = x[:, cache.index[0]] if gates == "own" else None
        now = q[:, :, i : i + 1]
        row = attend(now, cache.keys, cache.values, scheme, index=torch.tensor([i]), key_index=cache.index, x=held)
        assert_same(row[:, :, 0], whole[:, :, i])
        cache.trim(scheme)
    assert len(cache) == (11 if seen is causal else 3)


@torch.no_grad()
@pytest.mark.parametrize("gates", ["keys", "values", "own"])
def test_gates_follow_their_keys_into_any_order(gates):
    q, k, v = inputs()
    x, scheme = layer_inputs(), Scheme(made(gates), causal)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    given, shuffled = ({"x": x}, {"x": x[:, order]}) if gates == "own" else ({}, {})
    mixed = attend(q, k[:, :, order], v[:, :, order], scheme, index=torch.arange(11), key_index=order, **shuffled)
    assert_same(mixed, attend(q, k, v, scheme, **given))


@torch.no_grad()
@pytest.mark.parametrize("gates", ["keys", "values", "own"])
def test_each_document_counts_its_own_gates(gates):
    q, k, v = inputs()
    x, method = layer_inputs(), made(gates, positions=12)
    documents, _ = documents_of(torch.tensor([0, 7, 11]))
    together = attend(q, k, v, Scheme(method, causal), documents=documents, x=x if gates == "own" else None)
    opening = {"keys": k, "values": v, "own": projected(method, x)}[gates]
    for part in (slice(0, 7), slice(7, 11)):
        alone = by_hand(*(each[:, :, part] for each in (q, k, v)), method, opening[:, :, part])
        assert_same(together[:, :, part], alone)


@torch.no_grad()
@pytest.mark.parametrize("gates", ["keys", "values"])
def test_layer_inputs_that_nobody_asked_for_change_nothing(gates):
    q, k, v = inputs()
    scheme = Scheme(made(gates), causal)
    given = torch.randn(2, 11, 16, dtype=torch.float64)
    assert_same(attend(q, k, v, scheme, x=given), attend(q, k, v, scheme))


@torch.no_grad()
def test_two_sets_of_gates_do_not_disturb_each_other():
    q, k, v = inputs()
    on_keys, on_values = made("keys"), made("values")
    assert_same(
        attend(q, k, v, Scheme(on_keys, on_values, causal)), attend(q, k, v, Scheme(on_values, on_keys, causal))
    )


# What cannot be made, or met


def test_gates_of_their_own_ask_for_the_layer_inputs():
    q, k, v = inputs()
    scheme = Scheme(made("own"), causal)
    with pytest.raises(ValueError, match=r"Cope\(8, 5, gates='own', .*give attend x=…, \[b s D\]"):
        attend(q, k, v, scheme)
    with pytest.raises(ValueError, match=r"Cope\(model_dim=6\): given a tensor of 16 channels"):
        attend(q, k, v, scheme, x=torch.zeros(2, 11, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"attend: x holds the layer inputs of all keys, \[2, 11, width\], given"):
        attend(q, k, v, scheme, x=torch.zeros(2, 5, 6, dtype=torch.float64))


@pytest.mark.parametrize("width", [4, 5, 12, 16])
def test_values_of_another_width_cannot_open_gates(width):
    q, k, v = inputs(dv=width)
    with pytest.raises(ValueError, match=r"cannot meet 4 query heads of 8"):
        attend(q, k, v, Scheme(made("values"), causal))


@pytest.mark.parametrize("key_heads", [3, 8])
def test_gates_that_the_query_heads_cannot_share_are_refused_by_name(key_heads):
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Cope\("):
        attend(q, k, v, Scheme(made("own", key_heads=key_heads), causal), x=layer_inputs())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"gates": "query"},
            ValueError,
            r"Cope\(gates='query'\): gates must be one of 'scores', 'keys', 'values'",
        ),
        ({"gates": "own"}, TypeError, r"Cope\(model_dim=None\): model_dim must be an integer, not NoneType"),
        ({"gates": "own", "model_dim": 6}, TypeError, r"Cope\(key_heads=None\): key_heads must be an integer, not"),
        ({"gates": "own", "model_dim": 0, "key_heads": 2}, ValueError, r"Cope\(model_dim=0\): model_dim must be at le"),
        ({"gates": "own", "model_dim": 6, "key_heads": -1}, ValueError, r"Cope\(key_heads=-1\): key_heads must be at"),
        ({"after_scale": 1}, TypeError, r"Cope\(after_scale=1\): after_scale is True or False, not int"),
    ],
)
def test_wrong_arguments_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        Cope(8, 5, **options)
