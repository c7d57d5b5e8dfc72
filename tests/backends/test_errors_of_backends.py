"""Backends, explain and the pieces say what they cannot do, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import milepost as mp
from milepost import Scheme, causal
from tests.refusals import NAN, ROPE, T, refused, small

# attend: dropout and backends


@pytest.mark.parametrize("dropout", [1.0, -0.1, 30, NAN])
def test_dropout_is_a_share(dropout: float):
    text = f"attend(dropout={dropout}): dropout is a share of the weights, at least 0 and below 1"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, dropout=dropout))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("flax", "flex"), ("Flex", "flex"), ("referense", "reference"), ("SDPA", "sdpa"), ("chunks", "chunked")],
)
def test_a_backend_of_no_name_gets_the_nearest(name: str, meant: str):
    text = f"attend(backend={name!r}): no backend is called that; did you mean {meant}?…there are …reference"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, backend=name))


def test_a_backend_of_no_near_name_gets_the_list():
    with pytest.raises(ValueError, match=r"attend\(backend='eager'\): no backend is called that; there are ") as error:
        mp.attend(*small(), ROPE, backend="eager")
    assert all(name in str(error.value) for name in ("sdpa", "flex", "chunked", "reference"))


def test_a_backend_is_named_by_a_string():
    with pytest.raises((TypeError, ValueError), match=r"attend\(backend=3\)"):
        mp.attend(*small(), ROPE, backend=3)


@pytest.mark.parametrize(
    ("part", "does"),
    [
        (lambda: mp.Alibi(4), "Alibi(4) modifies the scores, for which it needs an n × n mask"),
        (lambda: mp.Rerope(4), "Rerope(4) turns near and far keys differently"),
        (lambda: mp.Shaw(8, reach=3), "Shaw(8, reach=3) adds tables looked up by distance"),
        (lambda: mp.Cope(8, 4), "Cope(8, 4) modifies whole rows of scores"),
        (lambda: mp.SinkLogit(4), "SinkLogit(4) adds a logit of rest"),
    ],
)
def test_a_backend_that_cannot_run_a_part_names_it_and_those_that_can(part: Callable[[], Any], does: str):
    text = f'backend "sdpa" cannot run this scheme: {does}…Use …"reference", or leave backend unset'
    refused(mp.CannotRun, text, lambda: mp.attend(*small(), Scheme(mp.Rope(8), part(), causal), backend="sdpa"))


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize(
    "part", [lambda: mp.Alibi(4), lambda: mp.Shaw(8), lambda: mp.Cope(8, 4)], ids=["bends", "values", "rows"]
)
def test_the_backends_that_a_refusal_recommends_do_run_it(backend: str, part: Callable[[], Any]):
    scheme = Scheme(part(), causal)
    try:
        mp.attend(*small(), scheme, backend=backend)
    except mp.CannotRun as refusal:
        recommended = re.findall(r'"(\w+)"', str(refusal).split("Use ")[1])
        assert recommended
        for name in recommended:
            assert mp.attend(*small(), scheme, backend=name).shape == (2, 4, 6, 8)


def test_flex_names_the_part_before_the_circumstances():
    # That there is no gradient on the CPU can be mended; that rows are bent cannot, so it comes first.
    scheme = Scheme(mp.Cope(8, 4), causal)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            text = 'backend "flex" cannot run this scheme: Cope(8, 4) modifies whole rows of scores'
            refused(mp.CannotRun, text, lambda: mp.attend(*small(), scheme, backend="flex"))


def test_flex_refuses_gradients_on_the_cpu_and_values_added():
    q, k, v = small()
    text = 'backend "flex" cannot run this scheme: FlexAttention has no gradient on the CPU…"diagonals" or "chunked" …'
    refused(mp.CannotRun, text, lambda: mp.attend(q.requires_grad_(), k, v, ROPE, backend="flex"))
    with torch.no_grad():
        text = 'backend "flex" cannot run this scheme: Shaw(8) adds to the values'
        refused(mp.CannotRun, text, lambda: mp.attend(q, k, v, Scheme(mp.Shaw(8), causal), backend="flex"))


def test_log_sum_exp_is_not_to_be_had_from_sdpa():
    text = (
        'backend "sdpa" cannot run this scheme: return_lse was asked for, which torch\'s function does not give. Use '
    )
    refused(mp.CannotRun, text, lambda: mp.attend(*small(), ROPE, backend="sdpa", return_lse=True))


# explain


def test_explain_names_the_option_that_was_meant():
    q, k, _ = small()
    text = "explain: no option is called 'positions'; did you mean position or key_position?"
    refused(TypeError, text, lambda: mp.explain(q, k, k, ROPE, positions=T))
    refused(TypeError, "explain: no option is called 'zzz'", lambda: mp.explain(q, k, k, ROPE, zzz=1))


def test_a_scheme_given_first_is_shown_the_new_call():
    q, k, v = small()
    text = "explain(Scheme, Tensor, Tensor): the scheme is the fourth argument since 0.2…: explain(q, k, v, scheme)"
    calls_of_0_1 = (lambda: mp.explain(ROPE, q, k), lambda: mp.explain(ROPE, q, k, v), lambda: mp.explain(q, k, ROPE))
    for call, given in zip(
        calls_of_0_1,
        ("Scheme, Tensor, Tensor", "Scheme, Tensor, Tensor, Tensor", "Tensor, Tensor, Scheme"),
        strict=True,
    ):
        refused(TypeError, text.replace("Scheme, Tensor, Tensor", given), call)


def test_explain_refuses_what_attend_refuses():
    q, k, v = small()
    with pytest.raises(ValueError, match=r"3 query heads cannot share 2 key heads evenly"):
        mp.explain(q[:, :3], k, v, ROPE)
    with pytest.raises(TypeError, match=r"index must be integers, given torch.float32"):
        mp.explain(q, k, v, ROPE, index=T.float())


def test_explain_says_who_runs_it_and_why_the_others_do_not():
    q, k, v = small()
    with torch.no_grad():
        explained = mp.explain(q, k, v, Scheme(mp.Alibi(4), causal))
    assert explained.reasons["sdpa"] == "Alibi(4) modifies the scores, for which it needs an n × n mask"
    assert set(explained.reasons) <= {"sdpa", "triton"}
    assert set(explained.able) - {"triton"} == {"flex", "diagonals", "chunked", "reference"}
    assert explained.costs[explained.backend] == min(explained.costs.values())
    lines = str(explained).splitlines()
    assert lines[0] == f"{explained.backend}: runs it"
    assert "sdpa: cannot, Alibi(4) modifies the scores, for which it needs an n × n mask" in lines
    assert "reference: could run it, but is slow: the others are tested against it" in lines
    assert any(re.fullmatch(r"flex: could run it, at about [\d.]+ times the cost", line) for line in lines)
    assert mp.explain(q, k, k, ROPE).backend == "sdpa"


# The pieces


def test_a_learned_table_ends_and_says_what_to_do():
    text = (
        "Learned(length=4): index 5 is past the table, which ends at 3; make a longer table, or use a method that is "
        "defined everywhere, such as Sinusoidal"
    )
    refused(ValueError, text, lambda: Scheme(mp.Learned(4, 8)).embed(torch.zeros(1, 6, 8)))
    refused(
        ValueError,
        text.replace("index 5", "index 9"),
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 2, 8), torch.tensor([0, 9])),
    )


def test_a_learned_table_is_not_read_from_its_end():
    refused(
        ValueError,
        "Learned(length=4): index -1 …",
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 2, 8), torch.tensor([-1, 0])),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=["float", "bool"])
def test_a_learned_table_is_read_by_integers(dtype: torch.dtype):
    refused(
        TypeError,
        "Learned…index must be integers",
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 4, 8), torch.zeros(4).to(dtype)),
    )


@pytest.mark.parametrize("method", [mp.Learned(4, 8), mp.Sinusoidal(8)], ids=["learned", "sinusoidal"])
def test_embeddings_of_another_width(method: Any):
    with pytest.raises(ValueError, match=r"\(model_dim=8\): given a tensor of 6 channels"):
        method.embed(torch.zeros(1, 2, 6))


def test_a_bias_stands_only_for_what_adds_to_scores():
    def bias(*parts: object) -> Callable[[], Any]:
        return lambda: Scheme(*parts).bias(T, T)

    refused(ValueError, "scheme.bias: Rope(8) does more than add to a score: it answers turn", bias(mp.Rope(8), causal))
    refused(ValueError, "scheme.bias: SoftCap(3) bends a score by more than a sum", bias(mp.SoftCap(3.0), causal))
    refused(
        ValueError, "scheme.bias: SinkLogit(4) does more than add to a score: it answers rest", bias(mp.SinkLogit(4))
    )


def test_a_score_mod_cannot_do_everything():
    for part, verb in (
        (mp.Rerope(4), "place"),
        (mp.Shaw(8), "relate"),
        (mp.Cope(8, 4), "bend_rows"),
        (mp.SinkLogit(4), "rest"),
    ):
        text = f"scheme.flex: {type(part).__name__}(…) answers {verb}, which no score_mod can do; use attend"
        refused(ValueError, text, lambda part=part: Scheme(part, causal).flex(T, T))
    text = "scheme.flex: documents has 3 entries, but there are 6 keys"
    refused(ValueError, text, lambda: Scheme(mp.Alibi(4), causal).flex(T, T, documents=T[:3]))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_query_that_is_no_number_is_answered_by_none(backend: str):
    q, k, v = (torch.randn(1, 1, 5, 8, dtype=torch.float64) for _ in range(3))
    q[:, :, 2] = torch.nan
    out, lse = mp.attend(q, k, v, Scheme(causal), backend=backend, return_lse=True)
    wanted = torch.tensor([False, False, True, False, False])
    assert torch.equal(out.isnan().all(-1)[0, 0], wanted)
    assert torch.equal(out.isnan().any(-1)[0, 0], wanted)
    assert torch.equal(lse.isnan()[0, 0], wanted)
