"""The four terms of a score, against the formulas of the papers, one pair of tokens at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import explore
from milepost.explore.analyses.terms import TERMS

T, WIDTH, D = 7, 6, 4


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, TO_Q, TO_K = drawn(T, WIDTH, seed=0), drawn(WIDTH, D, seed=1), drawn(WIDTH, D, seed=2)
Q, K = X @ TO_Q, X @ TO_K


def filled(part: Any) -> Any:
    with torch.no_grad():
        for n, each in enumerate(part.parameters()):
            each.copy_(drawn(*each.shape, seed=10 + n))
    return part.double().requires_grad_(False)


def clipped(j: int, i: int, reach: int) -> int:
    return max(-reach, min(reach, j - i))


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def absolute(i: int, j: int) -> list[Any]:
    place = [
        doubles([f(n * 10000.0 ** (-2 * m / WIDTH)) for m in range(WIDTH // 2) for f in (math.sin, math.cos)])
        for n in (i, j)
    ]
    query, key = (X[i] @ TO_Q, place[0] @ TO_Q), (X[j] @ TO_K, place[1] @ TO_K)
    return [one @ two / math.sqrt(D) for one in query for two in key]


SHAW = filled(mp.Shaw(D, reach=3, values=False))
XL = filled(mp.TransformerXL(WIDTH, 1, D))
T5 = filled(mp.T5Bias(1, buckets=8, reach=9))
DEBERTA = filled(mp.Deberta(WIDTH, 1, D, reach=3))


def shaw(i: int, j: int) -> list[Any]:
    return [Q[i] @ K[j] / 2, Q[i] @ SHAW.key_table[clipped(j, i, 3) + 3] / 2, 0.0, 0.0]


def xl(i: int, j: int) -> list[Any]:
    angles = [(i - j) * 10000.0 ** (-2 * m / WIDTH) for m in range(WIDTH // 2)]
    waves = doubles([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
    r = XL.project.weight @ waves
    return [each / 2 for each in (Q[i] @ K[j], Q[i] @ r, XL.u[0] @ K[j], XL.v[0] @ r)]


def t5(i: int, j: int) -> list[Any]:
    n = max(i - j, 0)
    bucket = n if n < 4 else min(7, 4 + int(4 * math.log(n / 4) / math.log(9 / 4)))
    return [Q[i] @ K[j] / 2, 0.0, 0.0, T5.table[bucket, 0]]


def deberta(i: int, j: int) -> list[Any]:
    row = max(0, min(5, i - j + 3))
    k_row, q_row = (to.weight @ DEBERTA.table[row] for to in (DEBERTA.to_keys, DEBERTA.to_queries))
    by = math.sqrt(3 * D)
    return [Q[i] @ K[j] / by, Q[i] @ k_row / by, K[j] @ q_row / by, 0.0]


@pytest.mark.parametrize(
    ("part", "by_hand"),
    [(mp.Sinusoidal(WIDTH), absolute), (SHAW, shaw), (XL, xl), (T5, t5), (DEBERTA, deberta)],
    ids=("absolute", "Shaw", "Transformer-XL", "T5", "DeBERTa"),
)
def test_terms_are_those_of_the_paper_and_sum_to_the_whole(part: Any, by_hand: Any):
    found = explore.kept_terms({"a": mp.Scheme(part)}, x=X, to_queries=TO_Q, to_keys=TO_K)
    for n, term in enumerate(TERMS):
        expected = [[float(by_hand(i, j)[n]) for j in range(T)] for i in range(T)]
        np.testing.assert_allclose(found[f"a, {term}"], expected, rtol=0, atol=1e-12)
    whole = [[sum(map(float, by_hand(i, j))) for j in range(T)] for i in range(T)]
    np.testing.assert_allclose(found["a, whole"], whole, rtol=0, atol=1e-10)
    assert np.abs(sum(found[f"a, {term}"] for term in TERMS) - found["a, whole"]).max() < 1e-10


def test_which_terms_the_papers_keep():
    found = explore.kept_terms()
    kept = {
        name: [bool(np.abs(found[f"{name}, {term}"]).max() > 1e-9) for term in TERMS]
        for name in ("absolute", "Shaw", "Transformer-XL", "T5", "DeBERTa")
    }
    assert kept == {
        "absolute": [True, True, True, True],
        "Shaw": [True, True, False, False],
        "Transformer-XL": [True, True, True, True],
        "T5": [True, False, False, True],
        "DeBERTa": [True, True, True, False],
    }
    assert "Shaw drops position–content and position–position" in found.says


def test_the_picture_crosses_out_what_is_dropped(tmp_path: Path):
    found = explore.kept_terms()
    drawing = ElementTree.fromstring(found.svg())
    texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("dropped") == 5
    assert {"Shaw", "position–content", "query", "key"} <= set(" ".join(filter(None, texts)).split())
    pytest.importorskip("matplotlib")
    assert found.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_relative_terms_depend_on_the_distance_and_absolute_ones_do_not():
    found = explore.kept_terms()
    spread = {
        name: max(np.ptp(np.diagonal(found[f"{name}, position–position"], n)) for n in range(-20, 21))
        for name in ("T5", "Transformer-XL", "absolute")
    }
    assert spread["T5"] < 1e-12
    assert spread["Transformer-XL"] < 1e-12
    assert spread["absolute"] > 0.1


def test_rotation_has_the_content_term_alone_and_hidden_pairs_stay_hidden():
    found = explore.kept_terms(mp.Scheme(mp.Rope(16), mp.causal))
    assert np.isneginf(found["scheme, whole"][np.triu_indices(24, 1)]).all()
    for term in TERMS[1:]:
        assert np.abs(found[f"scheme, {term}"][np.tril_indices(24)]).max() == 0


def test_what_is_no_sum_of_terms_is_refused():
    capped = mp.Scheme(mp.SoftCap(2.0), mp.causal)
    with pytest.raises(ValueError, match="is no sum of terms"):
        explore.kept_terms({"capped": capped})
    with pytest.raises(ValueError, match="has 1 heads"):
        explore.kept_terms(head=1)
    with pytest.raises(ValueError, match=r"x must be \[tokens model_dim\]"):
        explore.kept_terms(x=torch.zeros(3))
    with pytest.raises(ValueError, match="to_keys must be"):
        explore.kept_terms(x=X, to_keys=TO_Q[:2])
    with pytest.raises(ValueError, match="at least one by its name"):
        explore.kept_terms({})


def test_signs_are_shown_and_the_smaller_scale_of_deberta_is_said():
    found = explore.kept_terms()
    picture = found.pictures[0]
    assert picture.signed  # type: ignore[attr-defined]
    limits = [picture._limits(row) for row in picture.tiles]  # type: ignore[attr-defined]
    assert all(low == -high for low, high in limits)
    content = {name: found[f"{name}, content–content"] for name in ("Shaw", "DeBERTa")}
    # √(d / 3d): the same contents and weights.
    assert content["DeBERTa"] == pytest.approx(content["Shaw"] / math.sqrt(3), rel=1e-9)
    assert "DeBERTa divides by √(3d), the others by √d" in found.settings
    assert "random weights" not in explore.kept_terms({"T5": mp.Scheme(mp.T5Bias(1))}).settings
