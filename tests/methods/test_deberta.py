from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Deberta, Scheme, attend, causal
from tests.oracles import assert_same, inputs, plain


def randomised(method: Deberta) -> Deberta:
    torch.manual_seed(1)
    for weight in method.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return method.double()


def clipped(distance: int, reach: int) -> int:
    """δ: 0 up to −reach, 2·reach − 1 from reach on, distance + reach between."""
    if distance <= -reach:
        return 0
    if distance >= reach:
        return 2 * reach - 1
    return distance + reach


def log_bucket(distance: int, buckets: int, reach: int) -> int:
    """sign · (⌈log(n/mid) / log((reach − 1)/mid) · (mid − 1)⌉ + mid) past mid, in whole numbers, without a rounding.

    The ceiling is the least m with (n/mid)^(mid − 1) ≤ ((reach − 1)/mid)^m. Distances end at ±(reach − 1), as in the
    authors' code.
    """
    mid, sign, n = buckets // 2, -1 if distance < 0 else 1, min(abs(distance), reach - 1)
    if n <= mid:
        return sign * n
    m = 0
    while n ** (mid - 1) * mid**m > (reach - 1) ** m * mid ** (mid - 1):
        m += 1
    return sign * (m + mid)


def paper(q: Tensor, k: Tensor, v: Tensor, method: Deberta, sees_ahead: bool = True) -> Tensor:
    """(Q_i·K_j + Q_i·K^r[δ(i, j)] + K_j·Q^r[…])/√(3d), the last at δ(i, j) in the code and at δ(j, i) in the paper."""
    group, d = q.shape[1] // k.shape[1], q.shape[3]
    keys, queries = (
        method.table @ each.weight.T + (0 if each.bias is None else each.bias)
        for each in (method.to_keys, method.to_queries)
    )

    def row(distance: int) -> int:
        if method.buckets is None:
            return clipped(distance, method.reach)
        return max(0, min(2 * method.buckets - 1, log_bucket(distance, method.buckets, method.reach) + method.buckets))

    def score(b: int, h: int, i: int, j: int) -> Tensor | float:
        if not sees_ahead and j > i:
            return -math.inf
        content, channels = k[b, h // group, j], slice(h * d, (h + 1) * d)
        to_position = q[b, h, i] @ keys[row(i - j), channels]
        to_content = content @ queries[row(i - j if method.index == "code" else j - i), channels]
        return (q[b, h, i] @ content + to_position + to_content) / math.sqrt(3 * d)

    return plain(q, k, v, score)


@torch.no_grad()
@pytest.mark.parametrize("index", ["code", "paper"])
@pytest.mark.parametrize("buckets", [None, 4])
def test_three_terms_share_one_softmax(index: str, buckets: int | None):
    q, k, v = inputs(dv=5)
    method = randomised(Deberta(12, 4, 8, reach=4 if buckets is None else 12, buckets=buckets, index=index))
    assert_same(attend(q, k, v, Scheme(method)), paper(q, k, v, method))


@torch.no_grad()
@pytest.mark.parametrize("index", ["code", "paper"])
@pytest.mark.parametrize("bias", ["none", "queries", "both"])
def test_projections_may_have_a_bias(bias: str, index: str):
    q, k, v = inputs(dv=5)
    method = randomised(Deberta(12, 4, 8, reach=4, index=index, bias=bias))
    assert (method.to_keys.bias is not None, method.to_queries.bias is not None) == {
        "none": (False, False), "queries": (False, True), "both": (True, True),
    }[bias]  # fmt: skip
    assert_same(attend(q, k, v, Scheme(method)), paper(q, k, v, method))


@torch.no_grad()
def test_a_causal_model_may_use_it():
    q, k, v = inputs()
    method = randomised(Deberta(12, 4, 8, reach=4))
    assert_same(attend(q, k, v, Scheme(method, causal)), paper(q, k, v, method, sees_ahead=False))


@torch.no_grad()
def test_paper_and_code_differ():
    q, k, v = inputs()
    code, paper = (Deberta(12, 4, 8, reach=4, index=index).double() for index in ("code", "paper"))
    randomised(code)
    paper.load_state_dict(code.state_dict())
    assert float((attend(q, k, v, Scheme(code)) - attend(q, k, v, Scheme(paper))).abs().max()) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("buckets", [None, 4])
def test_transformers_gives_the_same(buckets: int | None):
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    from transformers import DebertaV2Config

    # Their scale is a float32 square root; with 3d = 36 it is exact.
    heads, d, t = 4, 12, 11
    config = DebertaV2Config(
        hidden_size=heads * d, num_attention_heads=heads, relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=-1 if buckets is None else buckets, max_relative_positions=4 if buckets is None else 12,
    )  # fmt: skip
    torch.manual_seed(0)
    layer = theirs.DisentangledSelfAttention(config).double().eval()
    ours = randomised(Deberta(heads * d, heads, d, reach=4 if buckets is None else 12, buckets=buckets, bias="both"))
    layer.pos_key_proj.load_state_dict(ours.to_keys.state_dict())
    layer.pos_query_proj.load_state_dict(ours.to_queries.state_dict())

    x = torch.randn(2, t, heads * d, dtype=torch.float64)
    found, _ = layer(x, torch.ones(2, 1, t, t), rel_embeddings=ours.table)
    q, k, v = (
        project(x).view(2, t, heads, d).transpose(1, 2)
        for project in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    assert_same(attend(q, k, v, Scheme(ours)).transpose(1, 2).flatten(2), found)


@torch.no_grad()
def test_the_first_version_in_transformers_has_a_bias_on_the_queries():
    theirs = pytest.importorskip("transformers.models.deberta.modeling_deberta")
    from transformers import DebertaConfig

    # Their scale is a float32 square root; with 3d = 36 it is exact.
    heads, d, t = 4, 12, 11
    config = DebertaConfig(
        hidden_size=heads * d, num_attention_heads=heads, relative_attention=True, pos_att_type=["c2p", "p2c"],
        max_relative_positions=t,
    )  # fmt: skip
    torch.manual_seed(0)
    layer = theirs.DisentangledSelfAttention(config).double().eval()
    ours = randomised(Deberta(heads * d, heads, d, reach=t, bias="queries"))
    layer.pos_proj.load_state_dict(ours.to_keys.state_dict())
    layer.pos_q_proj.load_state_dict(ours.to_queries.state_dict())
    torch.nn.init.normal_(layer.q_bias)

    x = torch.randn(2, t, heads * d, dtype=torch.float64)
    distance = torch.arange(t)[:, None] - torch.arange(t)
    found, _ = layer(x, torch.ones(2, 1, t, t), relative_pos=distance[None], rel_embeddings=ours.table)
    q, k, v = layer.in_proj(x).view(2, t, heads, 3 * d).transpose(1, 2).chunk(3, -1)
    q = q + layer.q_bias.view(heads, 1, d)
    assert_same(attend(q, k, v, Scheme(ours)).transpose(1, 2).flatten(2), found)


@torch.no_grad()
def test_later_versions_use_the_projections_of_the_layer_itself():
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    from transformers import DebertaV2Config

    heads, d, t = 4, 12, 11
    config = DebertaV2Config(
        hidden_size=heads * d, num_attention_heads=heads, relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=4, max_relative_positions=12, share_att_key=True,
    )  # fmt: skip
    torch.manual_seed(0)
    layer = theirs.DisentangledSelfAttention(config).double().eval()
    ours = randomised(Deberta(heads * d, heads, d, reach=12, buckets=4, bias="both"))
    for project in (layer.query_proj, layer.key_proj):
        torch.nn.init.normal_(project.bias)
    ours.to_keys, ours.to_queries = layer.key_proj, layer.query_proj

    x = torch.randn(2, t, heads * d, dtype=torch.float64)
    found, _ = layer(x, torch.ones(2, 1, t, t), rel_embeddings=ours.table)
    q, k, v = (
        project(x).view(2, t, heads, d).transpose(1, 2)
        for project in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    assert_same(attend(q, k, v, Scheme(ours)).transpose(1, 2).flatten(2), found)


def test_the_rows_end_where_the_reach_ends():
    method = Deberta(4, 1, 4, reach=3)
    assert method.row(torch.arange(-6, 7)).tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5]


def test_golden_log_buckets():
    golden = {127: 127, 128: 128, 131: 131, 132: 131, 140: 137, 180: 160, 256: 192, 400: 233, 510: 255, 511: 255}
    row = Deberta(2, 1, 2, reach=512, buckets=256).row
    distances = torch.tensor(list(golden))
    assert (row(distances) - 256).tolist() == list(golden.values())
    assert (row(-distances) - 256).tolist() == [-bucket for bucket in golden.values()]


def test_log_buckets_are_exact_at_every_distance():
    settings = (2, 3), (2, 20), (4, 4), (4, 9), (8, 17), (10, 40), (32, 65), (32, 128), (64, 512), (256, 512)
    for buckets, reach in settings:
        distances = range(1 - reach, reach)
        expected = [
            max(0, min(2 * buckets - 1, log_bucket(distance, buckets, reach) + buckets)) for distance in distances
        ]
        found = Deberta(2, 1, 2, reach=reach, buckets=buckets).row(torch.tensor(distances)).tolist()
        assert found == expected, (buckets, reach)


def test_log_buckets_agree_with_transformers_down_to_the_end_of_the_reach():
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distances = torch.arange(-511, 1001)
    bucket = theirs.make_log_bucket_position(distances, 256, 512).long()
    assert torch.equal(Deberta(2, 1, 2, reach=512, buckets=256).row(distances), (bucket + 256).clamp(0, 511))


def test_keys_far_ahead_share_the_last_row_that_was_trained():
    # The authors clamp distances to ±511 first, so that row 0 is never read; transformers does not, and reads it.
    row = Deberta(2, 1, 2, reach=512, buckets=256).row
    assert set(row(torch.arange(-1000, -511)).tolist()) == {1}
    assert set(row(torch.arange(512, 1001)).tolist()) == {511}


def test_a_distance_between_two_rows_takes_the_nearer():
    for method in (Deberta(2, 1, 2, reach=8), Deberta(2, 1, 2, reach=16, buckets=8)):
        assert (method.row(torch.tensor([-2.7, -0.6, 0.4, 1.8])) - 8).tolist() == [-3, -1, 0, 2]


def test_the_table_has_two_rows_a_distance_or_a_bucket():
    assert Deberta(6, 1, 4).table.shape == (1024, 6)
    assert Deberta(6, 1, 4, reach=512, buckets=256).table.shape == (512, 6)


def test_the_scale_counts_three_terms():
    assert Scheme(Deberta(6, 1, 4)).scale(64) == pytest.approx(1 / math.sqrt(3 * 64), abs=1e-16)


@torch.no_grad()
def test_layers_may_share_one_table():
    q, k, v = inputs()
    first, second = Deberta(12, 4, 8, reach=4).double(), Deberta(12, 4, 8, reach=4).double()
    second.table = first.table
    torch.nn.init.normal_(first.table)
    assert_same(attend(q, k, v, Scheme(second)), paper(q, k, v, second))


def test_sizes_are_checked():
    sizes = {"model_dim": 12, "heads": 4, "head_dim": 8, "reach": 16}
    for name in sizes:
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=rf"Deberta\({name}={wrong}\): {name} must be at least 1"):
                Deberta(**(sizes | {name: wrong}))
        with pytest.raises(TypeError, match=rf"Deberta\({name}=4.0\): {name} must be an integer, not float"):
            Deberta(**(sizes | {name: 4.0}))


def test_buckets_are_checked():
    with pytest.raises(ValueError, match=r"Deberta\(buckets=7\): buckets must be even, because half of them hold one"):
        Deberta(12, 4, 8, buckets=7)
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=rf"Deberta\(buckets={wrong}\): buckets must be at least 1"):
            Deberta(12, 4, 8, buckets=wrong)
    with pytest.raises(TypeError, match=r"Deberta\(buckets=8.0\): buckets must be an integer"):
        Deberta(12, 4, 8, buckets=8.0)
    for reach in (1, 4, 5):
        with pytest.raises(ValueError, match=rf"Deberta\(reach={reach}, buckets=8\): .* reach must be larger"):
            Deberta(12, 4, 8, reach=reach, buckets=8)
    assert Deberta(12, 4, 8, reach=6, buckets=8).table.shape[0] == 16


def test_the_index_is_one_of_two():
    with pytest.raises(ValueError, match=r"Deberta\(index='hf'\): index must be one of 'code', 'paper'"):
        Deberta(12, 4, 8, index="hf")


def test_the_bias_is_one_of_three():
    for wrong in ("keys", True, None):
        with pytest.raises(
            ValueError, match=rf"Deberta\(bias={wrong!r}\): bias must be one of 'none', 'queries', 'both'"
        ):
            Deberta(12, 4, 8, bias=wrong)


def test_queries_of_another_width_are_refused_by_name():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"Deberta\(head_dim=16\): given a tensor of 8 channels"):
        attend(q, k, v, Scheme(Deberta(12, 4, 16).double()))
