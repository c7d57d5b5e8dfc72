from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost import Alibi, Rope, Scheme, attend, causal, complex_attend, sinks, window
from tests.oracles import assert_same, attention, inputs


def complex_inputs(**shape) -> tuple[Tensor, Tensor, Tensor]:
    """Random complex q, k and v."""
    real, imaginary = inputs(**shape), inputs(**shape, seed=1)
    q, k, v = (torch.complex(*parts) for parts in zip(real, imaginary, strict=True))
    return q, k, v


def assert_both_same(ours: Tensor, oracle: Tensor) -> None:
    assert_same(torch.view_as_real(ours), torch.view_as_real(oracle))


def looped(q, k, v, score, conjugate, logit=lambda b, h, i, j: 0.0) -> Tensor:
    """One pair at a time; logit is what is added to a score, −∞ where the key is hidden."""
    group, d = q.shape[1] // k.shape[1], q.shape[3]

    def product(b, h, i, j):
        met = sum(
            complex(q[b, h, i, n]) * (complex(k[b, h // group, j, n].conj() if conjugate else k[b, h // group, j, n]))
            for n in range(d)
        )
        return (met.real if score == "real" else abs(met)) / math.sqrt(d) + logit(b, h, i, j)

    rows = [
        attention((*q.shape[:3], k.shape[2]), product, lambda b, h, i, j, part=part: part[b, h // group, j])
        for part in (v.real, v.imag)
    ]
    return torch.complex(*rows)


def behind(b, h, i, j):
    return 0.0 if j <= i else -math.inf


FORMS = [(score, conjugate) for score in ("real", "size") for conjugate in (True, False)]


@pytest.mark.parametrize(("score", "conjugate"), FORMS)
def test_scores_are_the_real_part_or_the_size_of_the_complex_product(score, conjugate):
    q, k, v = complex_inputs(t=6, d=3, dv=5)
    ours = complex_attend(q, k, v, Scheme(causal), score=score, conjugate=conjugate)
    assert_both_same(ours, looped(q, k, v, score, conjugate, behind))


def test_the_real_part_with_the_conjugate_is_what_it_takes_unless_told():
    q, k, v = complex_inputs(t=5, d=3)
    assert_both_same(complex_attend(q, k, v, Scheme()), looped(q, k, v, "real", True))


def test_the_size_without_the_conjugate_is_the_formula_of_the_authors():
    """attention_complex.py of iclr-complex-order/complex-order, without its mask and dropout."""
    q, k, v = complex_inputs(h=2, g=2, t=6, d=4)
    (query_real, query_phase), (key_real, key_phase) = (q.real, q.imag), (k.real, k.imag)
    scores_real = query_real @ key_real.mT - query_phase @ key_phase.mT
    scores_phase = query_real @ key_phase.mT + query_phase @ key_real.mT
    scores = torch.sqrt(scores_real * scores_real + scores_phase * scores_phase) / math.sqrt(4)
    weights = torch.softmax(scores, -1)
    ours = complex_attend(q, k, v, Scheme(), score="size", conjugate=False)
    assert_both_same(ours, torch.complex(weights @ v.real, weights @ v.imag))


def test_numbers_without_an_imaginary_part_attend_as_real_ones_do():
    q, k, v = inputs(dv=6)
    scheme = Scheme(Alibi(4), causal)
    ours = complex_attend(q + 0j, k + 0j, v + 0j, scheme)
    assert_same(ours.real, attend(q, k, v, scheme))
    assert not ours.imag.any()


@pytest.mark.parametrize(("score", "conjugate"), FORMS)
def test_a_bend_is_added_after_the_scale(score, conjugate):
    q, k, v = complex_inputs(t=6, d=3)

    def logit(b, h, i, j):
        return -(2.0 ** (-2 * (h + 1))) * (i - j) if j <= i else -math.inf

    ours = complex_attend(q, k, v, Scheme(Alibi(4), causal), score=score, conjugate=conjugate)
    assert_both_same(ours, looped(q, k, v, score, conjugate, logit))


@pytest.mark.parametrize("score", ["real", "size"])
def test_fewer_queries_are_the_last_of_the_keys(score):
    q, k, v = complex_inputs(t=7, d=3)
    scheme = Scheme(Alibi(4), causal)
    whole = complex_attend(q, k, v, scheme, score=score)
    for first in (3, 6):
        assert_both_same(complex_attend(q[:, :, first:], k, v, scheme, score=score), whole[:, :, first:])
    steps = [
        complex_attend(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], scheme, score=score) for i in range(7)
    ]
    assert_both_same(torch.cat(steps, 2), whole)


def test_indices_tell_where_queries_and_keys_stand():
    q, k, v = complex_inputs(t=3, s=5, d=3)
    index, key_index = torch.tensor([[4, 0, 7], [2, 2, 9]]), torch.tensor([1, 8, 0, 3, 4])

    def logit(b, h, i, j):
        distance = int(index[b, i] - key_index[j])
        return -(2.0 ** (-2 * (h + 1))) * distance if distance >= 0 else -math.inf

    ours = complex_attend(q, k, v, Scheme(Alibi(4), causal), index=index, key_index=key_index)
    assert_both_same(ours, looped(q, k, v, "real", True, logit))


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [-1, 5, 5, 5, 5, 2, 2]])


def test_a_token_sees_only_its_own_document_and_padding_sees_nothing():
    q, k, v = complex_inputs(t=7, d=3)

    def logit(b, h, i, j):
        together = DOCUMENTS[b, i] == DOCUMENTS[b, j] and DOCUMENTS[b, i] >= 0
        return behind(b, h, i, j) if together else -math.inf

    ours = complex_attend(q, k, v, Scheme(causal), documents=DOCUMENTS)
    assert_both_same(ours, looped(q, k, v, "real", True, logit))
    assert not ours[1, :, 0].any()


def test_the_index_starts_anew_in_each_document():
    """What is visible counts from the start of a text, so packed texts equal texts alone."""
    q, k, v = complex_inputs(b=1, t=7, d=3)
    scheme = Scheme(causal & (window(2) | sinks(1)))
    ours = complex_attend(q, k, v, scheme, documents=DOCUMENTS[0])
    alone = [
        complex_attend(*(each[:, :, first:last] for each in (q, k, v)), scheme) for first, last in ((0, 3), (3, 7))
    ]
    assert_both_same(ours, torch.cat(alone, 2))


def test_scores_of_zero_have_finite_gradients():
    q, k, v = (each.requires_grad_() for each in complex_inputs(t=4, d=3))
    still = torch.zeros_like(q).requires_grad_()
    out = complex_attend(still, k, v, Scheme(causal), score="size")
    torch.view_as_real(out).sum().backward()
    assert still.grad is not None
    assert not still.grad.any()
    assert all(each.grad is not None and bool(torch.view_as_real(each.grad).isfinite().all()) for each in (k, v))


@pytest.mark.parametrize(("score", "conjugate"), FORMS)
def test_gradients_are_those_of_finite_differences(score, conjugate):
    q, k, v = (each.requires_grad_() for each in complex_inputs(b=1, h=2, g=1, t=3, d=2))
    scheme = Scheme(causal)
    assert torch.autograd.gradcheck(
        lambda *each: complex_attend(*each, scheme, score=score, conjugate=conjugate), (q, k, v)
    )


def test_the_dtype_of_the_values_stays():
    q, k, v = (each.to(torch.complex64) for each in complex_inputs(t=4, d=3))
    assert complex_attend(q, k, v, Scheme(Alibi(4), causal)).dtype == torch.complex64


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_real_tensors_are_sent_to_attend(name):
    given = dict(zip("qkv", complex_inputs(t=4, d=3), strict=True))
    given[name] = given[name].real
    with pytest.raises(TypeError, match=rf"complex_attend: {name} must be complex .*; real tensors go to attend"):
        complex_attend(*given.values(), Scheme(causal))


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 2, 4, 3), (1, 2, 4, 5), (1, 2, 4, 3)),
        ((1, 2, 4, 3), (1, 2, 4, 3), (1, 2, 5, 3)),
        ((2, 2, 4, 3), (1, 2, 4, 3), (1, 2, 4, 3)),
        ((1, 3, 4, 3), (1, 2, 4, 3), (1, 2, 4, 3)),
        ((1, 2, 4, 3), (1, 0, 4, 3), (1, 0, 4, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes):
    q, k, v = (torch.zeros(shape, dtype=torch.complex64) for shape in shapes)
    with pytest.raises(ValueError, match=r"complex_attend: q \[.*\], k \[.*\] and v \[.*\] do not fit together"):
        complex_attend(q, k, v, Scheme())


def test_more_queries_than_keys_are_refused():
    q, k, v = complex_inputs(t=5, s=4, d=3)
    with pytest.raises(ValueError, match="complex_attend: 5 queries but 4 keys"):
        complex_attend(q, k, v, Scheme())


def test_a_scheme_that_does_more_than_bend_and_hide_is_refused():
    q, k, v = complex_inputs(t=4, d=4)
    with pytest.raises(ValueError, match=r"Rope\(4\) does more than add to a score: it answers turn"):
        complex_attend(q, k, v, Scheme(Rope(4), causal))


@pytest.mark.parametrize("heads", [2, 8])
def test_a_scheme_made_for_other_heads_is_refused(heads):
    q, k, v = complex_inputs(h=1, g=1, t=4, d=3)
    with pytest.raises(ValueError, match=rf"complex_attend: Alibi\({heads}\) was given q with 1 heads"):
        complex_attend(q, k, v, Scheme(Alibi(heads), causal))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("index", torch.arange(5)),
        ("index", torch.arange(8).view(4, 2)),
        ("key_index", torch.arange(3)),
        ("documents", torch.zeros(3).long()),
    ],
)
def test_indices_and_documents_of_another_shape_are_refused(name, given):
    q, k, v = complex_inputs(b=1, t=2, s=4, d=3)
    with pytest.raises(ValueError, match=name):
        complex_attend(q, k, v, Scheme(causal), **{name: given})


def test_what_is_no_scheme_is_refused():
    with pytest.raises(TypeError, match=r"complex_attend: .* is a Scheme, given Alibi"):
        complex_attend(*complex_inputs(t=4, d=3), Alibi(4))


def test_unknown_scores_and_conjugates_are_refused():
    q, k, v = complex_inputs(t=4, d=3)
    with pytest.raises(ValueError, match=r"complex_attend\(score='abs'\): score must be one of 'real', 'size'"):
        complex_attend(q, k, v, Scheme(), score="abs")
    with pytest.raises(TypeError, match=r"complex_attend\(conjugate=1\): conjugate is True or False, not int"):
        complex_attend(q, k, v, Scheme(), conjugate=1)


def test_a_bend_that_reads_the_head_and_the_row_is_told_them():
    class Own:
        relative = additive = True

        def bend(self, score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, p: torch.Tensor, r: torch.Tensor):
            return score - (head + 2.0 * batch) * (p - r).abs().to(score.dtype)

    q, k, v = complex_inputs(b=2, h=4, g=4, t=4, d=3)
    ours = complex_attend(q, k, v, Scheme(Own(), causal))
    away = (torch.arange(4)[:, None] - torch.arange(4)).abs()
    strength = torch.arange(4).view(-1, 1, 1) + 2.0 * torch.arange(2).view(-1, 1, 1, 1)
    scores = (q @ k.mH).real / 3**0.5 - strength * away
    weights = scores.masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf).softmax(-1)
    assert_same(torch.view_as_real(ours), torch.view_as_real(weights.to(v.dtype) @ v))
