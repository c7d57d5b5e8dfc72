"""`scheme.bias` and `scheme.flex`: the pieces for people who keep their own attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from milepost import (
    Alibi,
    Cope,
    Fire,
    Kerple,
    LearnedAlibi,
    LogN,
    Nope,
    Rerope,
    Rope,
    Scale,
    Scheme,
    Shaw,
    SinkLogit,
    Sinusoidal,
    SoftCap,
    SplitAlibi,
    T5Bias,
    attend,
    causal,
    sinks,
    window,
)
from milepost.backends.block_masks import block_mask
from milepost.backends.views import View
from milepost.call.options import Options
from milepost.call.resolve import resolve
from tests.oracles import assert_same, inputs

plainly_run = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def dense(scheme: Scheme, q, k, v, index, key_index, documents=None):
    """Attention of torch, with our bias as its mask."""
    mask = scheme.bias(index, key_index, documents=documents).double()
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.expand(q.shape[0], q.shape[1], -1, -1), enable_gqa=True
    )


def own_flex(scheme: Scheme, q, k, v, index, key_index, documents=None, scale=None):
    """Attention of FlexAttention, with our score_mod and block_mask."""
    score_mod, block_mask = scheme.flex(index, key_index, documents=documents)
    with torch.no_grad():
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale, enable_gqa=True)


# bias


def test_a_bias_holds_the_penalty_and_the_mask():
    ours = Scheme(Alibi(4), causal).bias(torch.arange(6), torch.arange(6))
    assert ours.shape == (1, 4, 6, 6)
    for h in range(4):
        for i in range(6):
            for j in range(6):
                assert ours[0, h, i, j].item() == (-(4.0 ** -(h + 1)) * (i - j) if j <= i else -math.inf)


def test_queries_are_told_by_their_index_not_by_their_row():
    ours = Scheme(Alibi(4), causal).bias(torch.tensor([7, 4]), torch.tensor([0, 5, 9]))
    nothing = -math.inf
    assert ours[0, 0].tolist() == [[-7 / 4, -2 / 4, nothing], [-1.0, nothing, nothing]]


def test_each_row_of_a_batch_has_its_own_indices():
    index = torch.tensor([[0, 1, 2], [4, 9, 12]])
    ours = Scheme(Alibi(2), window(5)).bias(index, index)
    assert ours.shape == (2, 2, 3, 3)
    for b in range(2):
        assert_same(ours[b : b + 1].nan_to_num(), Scheme(Alibi(2), window(5)).bias(index[b], index[b]).nan_to_num())
    assert ours[1, 0].tolist() == [[0, -math.inf, -math.inf], [-math.inf, 0, -math.inf], [-math.inf, -3 / 16, 0]]


def test_a_mask_alone_is_one_for_all_heads():
    ours = Scheme(causal & (window(2) | sinks(1))).bias(torch.arange(5), torch.arange(5))
    assert ours.shape == (1, 1, 5, 5)
    seen = [[j <= i and (j > i - 2 or j < 1) for j in range(5)] for i in range(5)]
    assert torch.equal(ours[0, 0] == 0, torch.tensor(seen))
    assert torch.equal(ours[0, 0] == -math.inf, ~torch.tensor(seen))


def test_a_scheme_of_nothing_adds_nothing():
    ours = Scheme(Nope()).bias(torch.arange(3), torch.arange(4))
    assert ours.shape == (1, 1, 3, 4)
    assert not ours.any()


def test_heads_that_see_differently_have_their_own_masks():
    ours = Scheme(SplitAlibi(2)).bias(torch.arange(3), torch.arange(3))
    nothing, m = -math.inf, 2**-8
    assert ours[0, 0].tolist() == [[0, nothing, nothing], [-m, 0, nothing], [-2 * m, -m, 0]]
    assert ours[0, 1].tolist() == [[0, -m, -2 * m], [nothing, 0, -m], [nothing, nothing, 0]]


def test_several_penalties_add_up():
    both = Scheme(Alibi(4), T5Bias(4), causal)
    alone = [Scheme(part, causal).bias(torch.arange(5), torch.arange(5)) for part in both.parts[:2]]
    ours = both.bias(torch.arange(5), torch.arange(5))
    seen = ours > -math.inf
    assert_same(ours[seen], (alone[0] + alone[1])[seen], within=2**-22)


def test_a_token_is_hidden_from_other_documents_and_padding_from_all():
    documents = torch.tensor([-1, 0, 0, 1, 1])
    ours = Scheme(causal).bias(torch.arange(5), torch.arange(5), documents=documents)[0, 0]
    seen = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 3), (4, 4)]
    assert [tuple(pair) for pair in (ours == 0).nonzero().tolist()] == seen
    assert int((ours == -math.inf).sum()) == 25 - len(seen)


def test_documents_of_a_batch_give_a_bias_for_each_row():
    documents = torch.tensor([[0, 0, 1], [0, 1, 1]])
    ours = Scheme(Alibi(2)).bias(torch.arange(3), torch.arange(3), documents=documents)
    assert ours.shape == (2, 2, 3, 3)
    for b in range(2):
        together = documents[b][:, None] == documents[b]
        assert torch.equal(ours[b, 0] > -math.inf, together)


def test_documents_of_all_keys_tell_those_of_the_last_queries():
    documents = torch.tensor([0, 0, 0, 1, 1, 1])
    whole = Scheme(causal).bias(torch.arange(6), torch.arange(6), documents=documents)
    for t in (1, 2):
        last = Scheme(causal).bias(torch.arange(6 - t, 6), torch.arange(6), documents=documents)
        assert last.shape == (1, 1, t, 6)
        assert torch.equal(last, whole[:, :, -t:])


@pytest.mark.parametrize("part", [Alibi(4), SplitAlibi(4), T5Bias(4), Kerple(4), Fire(4), LearnedAlibi(4)])
def test_torch_with_our_bias_gives_our_attention(part):
    q, k, v = inputs(t=5, s=9)
    scheme = Scheme(part, causal)
    ours = dense(scheme, q, k, v, torch.arange(4, 9), torch.arange(9))
    # A bias is float32; the largest penalty here is below 16.
    assert_same(ours, attend(q, k, v, scheme), within=16 * 2**-22)


def test_a_bias_takes_gradients_to_its_weights():
    scheme = Scheme(T5Bias(4), causal)
    bias = scheme.bias(torch.arange(5), torch.arange(5))
    torch.softmax(bias, -1)[..., 0].sum().backward()
    (table,) = scheme.parameters()
    assert table.grad is not None
    assert table.grad.isfinite().all()
    assert table.grad[:5].any()


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Rope(8), r"Rope\(8\) does more than add to a score: it answers turn"),
        (Rerope(4), r"Rerope\(4\) does more than add to a score: it answers place"),
        (Shaw(8), r"Shaw\(8\) does more than add to a score: it answers relate"),
        (LogN(4), r"LogN\(4\) does more than add to a score: it answers sharpen"),
        (Cope(8, 4), r"Cope\(8, 4\) does more than add to a score: it answers bend_rows"),
        (SinkLogit(4), r"SinkLogit\(4\) does more than add to a score: it answers rest"),
        (Scale(1.0), r"Scale\(1\) does more than add to a score: it answers scale"),
        (SoftCap(30.0), r"SoftCap\(30\) bends a score by more than a sum"),
    ],
)
def test_a_scheme_that_does_more_has_no_bias(part, why):
    with pytest.raises(ValueError, match="scheme.bias: " + why):
        Scheme(part, causal).bias(torch.arange(4), torch.arange(4))


# flex


FLEXIBLE = {
    "causal": (causal,),
    "window": (causal & (window(4) | sinks(2)),),
    "everything": (Nope(),),
    "alibi": (Alibi(4), causal),
    "split": (SplitAlibi(4),),
    "t5": (T5Bias(4).double(), causal),
    "fire": (Fire(4, trained=6, width=4).double(), causal),
    "kerple": (Kerple(4, form="power").double(), causal),
    "capped": (Alibi(4), SoftCap(2.0), causal),
    "sharpened": (LogN(4, clip=False), Alibi(4), causal),
    "encoder": (LogN(4, count="length"),),
}


@pytest.mark.sample(5)
@pytest.mark.slow
@plainly_run
@pytest.mark.parametrize("name", FLEXIBLE)
def test_flex_attention_with_our_functions_gives_our_attention(name):
    q, k, v = inputs()
    scheme = Scheme(*FLEXIBLE[name])
    ours = own_flex(scheme, q, k, v, torch.arange(11), torch.arange(11))
    assert_same(ours, attend(q, k, v, scheme, backend="reference"))


@pytest.mark.sample(5)
@pytest.mark.slow
@plainly_run
@pytest.mark.parametrize("name", FLEXIBLE)
def test_flex_knows_that_queries_may_be_the_last_of_the_keys(name):
    q, k, v = inputs(t=4, s=11)
    scheme = Scheme(*FLEXIBLE[name])
    ours = own_flex(scheme, q, k, v, torch.arange(7, 11), torch.arange(11))
    assert_same(ours, attend(q, k, v, scheme, backend="reference"))


@plainly_run
def test_flex_reads_the_indices_of_each_row():
    q, k, v = inputs()
    index = torch.stack([torch.arange(11), torch.arange(11) * 3])
    scheme = Scheme(Alibi(4), window(7))
    ours = own_flex(scheme, q, k, v, index, index)
    assert_same(ours, attend(q, k, v, scheme, index=index, key_index=index, backend="reference"))


@plainly_run
@pytest.mark.parametrize("t", [11, 4])
def test_flex_keeps_documents_apart(t):
    q, k, v = inputs(t=t, s=11)
    documents = torch.tensor([[0] * 5 + [1] * 6, [-1] * 2 + [3] * 9])
    scheme = Scheme(Alibi(4), causal)
    ours = own_flex(scheme, q, k, v, torch.arange(11 - t, 11), torch.arange(11), documents)
    index = {"index": torch.arange(11 - t, 11), "key_index": torch.arange(11)}
    oracle = attend(q, k, v, scheme, **index, key_documents=documents, backend="reference")
    assert_same(ours, oracle)


@plainly_run
def test_flex_counts_the_length_of_each_document():
    q, k, v = inputs()
    documents = torch.tensor([0] * 4 + [1] * 7)
    index = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6])
    scheme = Scheme(LogN(3, clip=False, count="length"))
    ours = own_flex(scheme, q, k, v, index, index, documents)
    oracle = attend(q, k, v, scheme, index=index, key_index=index, documents=documents, backend="reference")
    assert_same(ours, oracle)


@plainly_run
def test_flex_leaves_turning_and_the_scale_to_the_caller():
    q, k, v = inputs()
    scheme, index = Scheme(Rope(8), Scale(0.7), causal), torch.arange(11)
    turned = scheme.turn(q, index), scheme.turn(k, index, "key")
    ours = own_flex(scheme, *turned, v, index, index, scale=scheme.scale(8))
    assert_same(ours, attend(q, k, v, scheme, backend="reference"))


def test_flex_masks_by_head_only_where_heads_see_differently():
    index = torch.arange(11)
    assert Scheme(Alibi(4), causal).flex(index, index)[1].shape == (1, 1, 11, 11)
    assert Scheme(SplitAlibi(4)).flex(index, index)[1].shape == (1, 4, 11, 11)
    assert Scheme(causal).flex(index.expand(3, 11), index)[1].shape == (3, 1, 11, 11)


def test_flex_puts_the_mask_where_it_is_told():
    _, block_mask = Scheme(causal).flex(torch.arange(4), torch.arange(4), device="cpu")
    assert block_mask.kv_indices.device.type == "cpu"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Rerope(4), r"Rerope\(4\) answers place, which no score_mod can do; use attend"),
        (Shaw(8), r"Shaw\(8\) answers relate, which no score_mod can do; use attend"),
        (Cope(8, 4), r"Cope\(8, 4\) answers bend_rows, which no score_mod can do; use attend"),
        (SinkLogit(4), r"SinkLogit\(4\) answers rest, which no score_mod can do; use attend"),
    ],
)
def test_what_no_score_mod_can_do_is_refused(part, why):
    with pytest.raises(ValueError, match="scheme.flex: " + why):
        Scheme(part, causal).flex(torch.arange(4), torch.arange(4))


def test_documents_of_more_queries_than_keys_are_refused():
    for piece in ("bias", "flex"):
        with pytest.raises(
            ValueError, match=rf"scheme\.{piece}: with documents .* 4 are more than 3 keys; give as many"
        ):
            getattr(Scheme(causal), piece)(torch.arange(4), torch.arange(3), documents=torch.tensor([0, 0, 1]))


def test_documents_that_do_not_fit_the_keys_are_refused():
    with pytest.raises(ValueError, match=r"scheme\.flex: documents has 3 entries, but there are 5 keys"):
        Scheme(causal).flex(torch.arange(3), torch.arange(5), documents=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"scheme\.bias: documents has 3 entries, but there are 5 keys"):
        Scheme(causal).bias(torch.arange(3), torch.arange(5), documents=torch.zeros(3, dtype=torch.int64))


# Classes of a user's own, which may read the batch and the head


class Penalty:
    """A penalty that grows by the head, by the row of the batch, or by neither."""

    relative = additive = True

    def __init__(self, by: str = "") -> None:
        self.by = by

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        more = {"head": head, "batch": batch}[self.by] if self.by else 0
        return score - (more + 1.0) * (p - r).abs().to(score.dtype)


class Nearer(Penalty):
    """Causal, three keys, and more of them by the head or by the row."""

    bend = None

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        more = {"head": head, "batch": batch}[self.by] if self.by else 0
        return (j <= i) & (i - j < 3 + 300 * more)


@pytest.mark.parametrize("kind", [Penalty, Nearer])
@pytest.mark.parametrize(("by", "name"), [("head", "heads"), ("batch", "rows")])
def test_a_class_that_reads_a_number_is_told_how_many_there_are(kind: type[Penalty], by: str, name: str):
    scheme, index = Scheme(kind(by), causal), torch.arange(11)
    verb = "bend" if kind is Penalty else "see"
    why = rf"scheme.bias: {kind.__name__}\(.*\) reads `{by}` in {verb}, and nothing tells how many {name} there are; "
    with pytest.raises(ValueError, match=why + f"give {name}="):
        scheme.bias(index, index)
    q, k, v = inputs()
    ours = F.scaled_dot_product_attention(
        q, k, v, attn_mask=scheme.bias(index, index, rows=2, heads=4).double(), enable_gqa=True
    )
    assert_same(ours, attend(q, k, v, scheme, backend="reference"), within=16 * 2**-22)
    # Indices of each row tell how many there are.
    if name == "rows":
        assert torch.equal(scheme.bias(index.expand(2, -1), index), scheme.bias(index, index, rows=2))
    assert Scheme(kind(), causal).bias(index, index).shape == (1, 1, 11, 11)


@pytest.mark.parametrize(("by", "name"), [("head", "heads"), ("batch", "rows")])
def test_a_block_mask_has_the_blocks_of_every_head_and_row(by: str, name: str):
    t = 400
    scheme, index = Scheme(Nearer(by)), torch.arange(t)
    with pytest.raises(ValueError, match=rf"scheme.flex: Nearer\(.*\) reads `{by}` in see, .* give {name}="):
        scheme.flex(index, index)
    _, mask = scheme.flex(index, index, rows=2, heads=4)
    assert mask.shape == ((2, 1, t, t) if by == "batch" else (1, 4, t, t))
    dense = mask.to_dense()
    assert not torch.equal(dense[0, 0], dense[-1, -1])
    # The same for attention by that backend.
    call = resolve(*inputs(t=t), scheme, Options())
    found = block_mask(call, View(call, scheme.place()[0], call.q, call.k), 0)
    assert found is not None
    assert torch.equal(found.to_dense(), dense)
    # A score is told where it stands: nothing has to be known of a bend.
    assert Scheme(Penalty(by), causal).flex(index, index)[1].shape == (1, 1, t, t)
    assert Scheme(Nearer()).flex(index, index)[1].shape == (1, 1, t, t)


def test_a_class_within_an_expression_is_asked_as_well():
    class ByHead(type(causal)):
        def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (j <= i) & (j >= head)

    index = torch.arange(5)
    scheme = Scheme(causal & (ByHead() | sinks(1)))
    with pytest.raises(ValueError, match=r"scheme.bias: .* reads `head` in see, .* give heads="):
        scheme.bias(index, index)
    assert scheme.bias(index, index, heads=3).shape == (1, 3, 5, 5)


def test_counts_that_contradict_what_is_given_are_refused():
    index = torch.arange(4)
    for piece in ("bias", "flex"):
        for name, given in (("heads", index), ("rows", index.expand(4, -1))):
            why = rf"scheme.{piece}\({name}=3\): what is given has 4 {name}; give {name}=4, or leave it out"
            with pytest.raises(ValueError, match=why):
                getattr(Scheme(Alibi(4), causal), piece)(given, index, **{name: 3})
            with pytest.raises(ValueError, match=f"{name} must be at least 1"):
                getattr(Scheme(causal), piece)(index, index, **{name: 0})


# embed and turn, as whole by themselves


def test_a_method_stands_alone():
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(Sinusoidal(8).embed(x), Scheme(Sinusoidal(8)).embed(x))
    q, _, _ = inputs()
    assert torch.equal(Rope(8).turn(q, torch.arange(11)), Scheme(Rope(8)).turn(q, torch.arange(11)))
