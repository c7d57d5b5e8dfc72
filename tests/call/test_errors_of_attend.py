"""Bad inputs of attend get an error that says what was asked, what is wrong and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor

import milepost as mp
from milepost import Scheme, causal
from tests.oracles import assert_same, inputs
from tests.refusals import INF, NAN, ROPE, T, refused, small

# attend: the tensors


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        (mp.Rope(8), "attend: the fourth argument is a Scheme, given Rope; wrap it: Scheme("),
        ([mp.Rope(8)], "attend: the fourth argument is a Scheme, given list; wrap it: Scheme("),
        (None, "attend: the fourth argument is a Scheme, given NoneType"),
        (mp.Schedule([ROPE]), "attend: the fourth argument is a Scheme, given Schedule; …schedule[layer]"),
    ],
)
def test_attend_wants_a_scheme(scheme: Any, text: str):
    refused(TypeError, text, lambda: mp.attend(*small(), scheme))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda q, k, v: (q[0], k[0], v[0]),
            "attend: q is [b h t d], k [b g s d] and v [b g s dv]; given q [4, 6, 8], k [2, 6, 8]",
        ),
        (lambda q, k, v: (q, k, v[0]), "attend: q is [b h t d]…v [2, 6, 8]"),
        (
            lambda q, k, v: (q[:1], k, v),
            "attend: …do not fit together; given q [1, 4, 6, 8], k [2, 2, 6, 8], v [2, 2, 6, 8]",
        ),
        (lambda q, k, v: (q[..., :4], k, v), "attend: …do not fit together; given q [2, 4, 6, 4], k [2, 2, 6, 8]"),
        (lambda q, k, v: (q, k[:, :, :3], v), "attend: …do not fit together; …k [2, 2, 3, 8], v [2, 2, 6, 8]"),
        (lambda q, k, v: (q, k[:, :1], v), "attend: …do not fit together; …k [2, 1, 6, 8], v [2, 2, 6, 8]"),
        (
            lambda q, k, v: (q[:, :3], k, v),
            "attend: 3 query heads cannot share 2 key heads evenly; given q [2, 3, 6, 8]",
        ),
        (lambda q, k, v: (q[:, :1], k, v), "attend: 1 query heads cannot share 2 key heads evenly"),
        (lambda q, k, v: (q, k[:, :0], v[:, :0]), "attend: 4 query heads cannot share 0 key heads"),
        (lambda q, k, v: (q, k.to("meta"), v), "attend: q, k and v are on different devices: cpu, meta, cpu"),
    ],
)
def test_tensors_that_do_not_fit(change: Callable[..., Any], text: str):
    refused(ValueError, text, lambda: mp.attend(*change(*small()), ROPE))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda q, k, v: (q.double(), k, v),
            "attend: q, k and v need one floating dtype; given torch.float64, torch.float32, torch.float32",
        ),
        (
            lambda q, k, v: (q.to(torch.float8_e4m3fn), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)),
            "attend: q, k and v are torch.float8_e4m3fn, and fp8 is not supported yet; give bfloat16",
        ),
        (lambda q, k, v: (q, k, v.bfloat16()), "attend: q, k and v need one floating dtype; given …torch.bfloat16"),
        (
            lambda q, k, v: (q.long(), k.long(), v.long()),
            "attend: q, k and v need one floating dtype; given torch.int64",
        ),
        (
            lambda q, k, v: (q.cfloat(), k.cfloat(), v.cfloat()),
            "attend: q, k and v need one floating dtype; given torch.complex64",
        ),
        (lambda q, k, v: (q.tolist(), k, v), "attend: q, k and v are tensors; given list"),
    ],
)
def test_tensors_of_the_wrong_kind(change: Callable[..., Any], text: str):
    refused(TypeError, text, lambda: mp.attend(*change(*small()), ROPE))


def test_weights_on_another_device_are_named():
    text = "attend: q is on cpu but the scheme's weight 1.table is on meta; move it: scheme.to(q.device)"
    scheme = Scheme(mp.Rope(8), mp.T5Bias(4), causal).to("meta")
    refused(ValueError, text, lambda: mp.attend(*small(), scheme))


def test_meta_tensors_give_a_meta_result():
    q, k, v = (each.to("meta") for each in small())
    assert mp.attend(q, k, v, ROPE).shape == (2, 4, 6, 8)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            lambda: mp.Rope(4),
            "Rope(head_dim=4): given a tensor of 8 channels; to turn only some of them use Partial(Rope(4), of=8)",
        ),
        (
            lambda: mp.Xpos(4),
            "Xpos(head_dim=4): given a tensor of 8 channels; to turn only some of them use Partial(Xpos(4), of=8)",
        ),
        (lambda: mp.Partial(mp.Rope(4), of=6), "Partial(Rope(4), of=6): given a tensor of 8 channels"),
        (lambda: mp.TransformerXL(8, 4, 4), "TransformerXL(head_dim=4): given a tensor of 8 channels"),
        (lambda: mp.Cope(4, 4), "Cope(head_dim=4): given a tensor of 8 channels"),
        (lambda: mp.Shaw(4), "Shaw(…4…8 channels"),
        (lambda: mp.Shaw(8, value_dim=4), "Shaw(…value_dim=4…8 channels"),
        (lambda: mp.Deberta(8, 4, 4), "Deberta(…4…8 channels"),
    ],
)
def test_a_part_made_for_other_channels_says_so(part: Callable[[], Any], text: str):
    refused(ValueError, text, lambda: mp.attend(*small(), Scheme(part(), causal)))


@pytest.mark.parametrize("method", [mp.Rope, mp.Xpos])
def test_a_rotation_wider_than_the_queries_is_not_told_what_cannot_be(method: Callable[[int], Any]):
    with pytest.raises(ValueError, match=r"\(head_dim=16\): given a tensor of 8 channels") as error:
        mp.attend(*small(), Scheme(method(16), causal))
    assert "Partial" not in str(error.value), "sixteen channels of eight cannot be turned"


@pytest.mark.parametrize(
    "part",
    [mp.Alibi(8), mp.Kerple(8), mp.T5Bias(8), mp.SinkLogit(8), mp.SplitAlibi(8)],
    ids=lambda part: type(part).__name__,
)
def test_a_part_made_for_other_heads_says_so(part: Any):
    text = f"attend: {type(part).__name__}(8) …4 heads; given q [2, 4, 6, 8]"
    refused(ValueError, text, lambda: mp.attend(*small(), Scheme(mp.Rope(8), part, causal)))


def test_no_keys_at_all_give_zeros():
    # A row that sees nothing gives zeros, also where there is nothing to see.
    q, k, v = small()
    told = {"index": T, "key_index": T[:0]}
    assert torch.equal(mp.attend(q, k[:, :, :0], v[:, :, :0], ROPE, **told), torch.zeros(2, 4, 6, 8))
    assert mp.attend(q[:, :, :0], k[:, :, :0], v[:, :, :0], ROPE).shape == (2, 4, 0, 8)


# attend: indices, positions, documents


@pytest.mark.parametrize("name", ["index", "key_index", "documents", "key_documents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=["float", "bool", "complex"])
def test_counting_takes_integers(name: str, dtype: torch.dtype):
    text = f"attend: {name} must be integers, given {dtype}"
    refused(TypeError, text, lambda: mp.attend(*small(), ROPE, **{name: T.to(dtype)}))


def test_a_float_index_is_pointed_to_position_and_a_mask_to_documents():
    with pytest.raises(TypeError, match=r"give it as position"):
        mp.attend(*small(), ROPE, index=T.float())
    # Who gives booleans has a padding mask in hand.
    with pytest.raises(TypeError, match=r"documents") as error:
        mp.attend(*small(), ROPE, key_index=T > 1)
    assert "fraction" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=["bool", "complex"])
def test_positions_are_numbers(dtype: torch.dtype):
    with pytest.raises(TypeError, match=rf"attend: position must be .*given {dtype}") as error:
        mp.attend(*small(), ROPE, position=T.to(dtype))
    assert "integers" not in str(error.value).replace("integers or", ""), "fractions are welcome as positions"


@pytest.mark.parametrize("name", ["index", "key_index", "position", "key_position", "documents", "key_documents"])
def test_a_list_is_not_a_tensor(name: str):
    text = f"attend: {name} …tensor…, given list"
    refused(TypeError, text, lambda: mp.attend(*small(), ROPE, **{name: [0, 1, 2, 3, 4, 5]}))


@pytest.mark.parametrize("name", ["index", "key_index", "position", "key_position", "documents", "key_documents"])
def test_what_tells_tokens_has_their_shape_and_is_on_their_device(name: str):
    def attend(values: Any) -> Callable[[], Any]:
        return lambda: mp.attend(*small(), ROPE, **{name: values})

    refused(ValueError, f"attend: {name} is on meta but q is on cpu", attend(T.to("meta")))
    refused(ValueError, f"attend: {name} must be [6] or [2, 6]…, given [5]", attend(T[:5]))
    refused(ValueError, f"attend: {name} must be [6] or [2, 6]…, given [3, 6]", attend(T.expand(3, 6)))
    refused(
        ValueError,
        f"attend: {name} must be [6] or [2, 6]…, given [1, 2, 6, 2]",
        attend(T.view(1, 1, 6, 1).expand(1, 2, 6, 2)),
    )


@pytest.mark.parametrize("name", ["index", "key_index"])
def test_negative_indices_are_shown_and_padding_explained(name: str):
    text = f"attend: {name} holds -2; indices count from 0; mark padding with documents=-1"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, **{name: T - 2}))
    # Of a token that is padding nobody asks the index.
    documents = torch.where(T >= 2, 0, -1)
    mp.attend(*small(), ROPE, index=T - 2, key_index=T - 2, documents=documents)


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["position", "key_position"])
def test_positions_must_be_finite(name: str, wrong: float):
    position = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, wrong])
    refused(ValueError, f"attend: {name} holds {wrong}", lambda: mp.attend(*small(), ROPE, **{name: position}))


@pytest.mark.parametrize("told", [{}, {"index": T}, {"key_index": T[:3]}], ids=["none", "index", "key_index"])
def test_more_queries_than_keys_need_both_indices(told: dict[str, Tensor]):
    text = "attend: 6 queries but 3 keys, so the queries cannot be the last of the keys; give index and key_index"
    refused(ValueError, text, lambda: mp.attend(*small(s=3), ROPE, **told))
    assert mp.attend(*small(s=3), ROPE, index=T, key_index=T[:3]).shape == (2, 4, 6, 8)


def test_documents_of_the_queries_do_not_tell_those_of_other_keys():
    text = "attend: documents has 3 entries, but there are 6 keys; give key_documents too"
    refused(ValueError, text, lambda: mp.attend(*small(t=3, s=6), ROPE, documents=T[:3]))
    text = "attend: key_documents has 3 entries, but there are 6 queries; give documents too"
    told = {"index": T, "key_index": T[:3], "key_documents": T[:3]}
    refused(ValueError, text, lambda: mp.attend(*small(s=3), ROPE, **told))


def test_both_answers_of_documents_of_given_as_one():
    both = mp.documents_of(torch.tensor([0, 2, 6]))
    refused(TypeError, "attend: documents …tensor…, given tuple", lambda: mp.attend(*small(), ROPE, documents=both))


@pytest.mark.parametrize("name", ["position", "key_position"])
def test_axes_that_nobody_reads(name: str):
    text = f"attend: {name} is [2, 6, 2], but no part of the scheme reads several axes; give [t] or [b t]"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, **{name: torch.zeros(2, 6, 2)}))


def test_axes_that_are_not_the_ones_read():
    axial = mp.AxialRope(8, (2, 2))
    three = {"position": torch.zeros(2, 6, 3), "key_position": torch.zeros(2, 6, 3)}
    refused(
        ValueError,
        "attend: position has 3 axes, but the scheme reads 2",
        lambda: mp.attend(*small(), Scheme(axial), **three),
    )
    two = {name: values[..., :2] for name, values in three.items()}
    for part in (mp.Alibi(4), mp.Shaw(8), mp.Rerope(3)):
        refused(
            ValueError,
            f"attend: position has 2 axes, but {type(part).__name__}(…) reads one; give [t] or [b t]",
            lambda part=part: mp.attend(*small(), Scheme(axial, part), **two),
        )


@pytest.mark.parametrize("shape", [(6,), (2, 5, 3), (3, 6, 3), (2, 4, 6, 3)], ids=str)
def test_layer_inputs_have_the_shape_of_the_keys(shape: tuple[int, ...]):
    refused(
        ValueError, f"attend: x …[2, 6, …given {list(shape)}", lambda: mp.attend(*small(), ROPE, x=torch.zeros(shape))
    )


def test_a_length_that_the_keys_reach_is_refused():
    dynamic = Scheme(mp.Rope(8, stretch=mp.DynamicNtk(4)), causal)
    q, k, v = inputs(t=6)
    each = torch.tensor([[9] * 6, [6, 6, 6, 6, 6, 5]])
    for wrong, keys in (
        (5, None),
        (torch.tensor([6, 5]), None),
        (torch.tensor([0, 9]), range(6)),
        (torch.tensor(-3), T),
        (7, range(2, 8)),
        (each, None),
    ):
        text = "attend: length holds " + str(int(torch.as_tensor(wrong).min())) + ", for keys up to the index "
        said: dict[str, Any] = {"length": wrong, "key_index": keys, "index": keys}
        refused(ValueError, text, partial(mp.attend, q, k, v, dynamic, **said))
    # Of padding nothing is asked, and a length may follow positions that were given.
    padded, short = torch.tensor([0, 0, 0, 0, -1, -1]), torch.tensor([4, 4])
    assert_same(
        mp.attend(q, k, v, dynamic, length=short, documents=padded), mp.attend(q, k, v, dynamic, documents=padded)
    )
    mp.attend(q, k, v, dynamic, length=4, position=torch.tensor([0, 1, 1, 1, 2, 3]))
    refused(
        ValueError,
        "attend: length holds 0, for keys",
        lambda: mp.attend(q, k, v, dynamic, length=torch.tensor([0, 9]), position=T),
    )


def test_tensors_that_are_no_dense_arrays_are_refused():
    q, k, v = inputs(t=6)
    nested = torch.nested.nested_tensor([*q], layout=torch.jagged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masked = masked_tensor(q, q > 0)
    for given, text in (
        ((q.to_sparse(), k, v), "attend: q is laid out as torch.sparse_coo"),
        ((q, k, v.to_sparse()), "attend: v is laid out as torch.sparse_coo"),
        ((nested, nested, nested), "attend: q is a nested tensor"),
        ((masked, k, v), "attend: q is a masked tensor"),
        ((q[..., :0], k[..., :0], v), "attend: q and k have no channels"),
    ):
        kind = ValueError if "channels" in text else TypeError
        refused(kind, text, partial(mp.attend, *given, Scheme(causal)))


@pytest.mark.parametrize("wrong", ["no", 1, None])
def test_return_lse_is_true_or_false(wrong: Any):
    q, k, v = inputs(t=6)
    text = f"attend(return_lse={wrong!r}): return_lse is True or False"
    refused(TypeError, text, lambda: mp.attend(q, k, v, ROPE, return_lse=wrong))


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("keys", [0, 6])
def test_no_queries_and_no_keys_have_gradients_of_zero(keys: int, backend: str | None):
    q, k, v = (each.requires_grad_() for each in inputs(t=6))
    rows, rest = (0, 6)[keys == 0], mp.SinkLogit(4)
    said: dict[str, Any] = {"index": range(rows), "key_index": range(keys), "backend": backend, "return_lse": True}
    given = q[:, :, :rows], k[:, :, :keys], v[:, :, :keys]
    out, lse = mp.attend(*given, Scheme(mp.Rope(8), rest, causal), **said)
    assert lse.shape == (2, 4, rows)
    (out.sum() + lse.sum()).backward()
    for each in (q, k, v):
        assert each.grad is not None
        assert not each.grad.any()
    assert rest.logit.grad is not None
    assert rest.logit.grad.tolist() == [2.0 * rows] * 4
    plain, lse = mp.attend(*given, Scheme(causal), **said)
    assert plain.requires_grad
    assert lse.requires_grad
