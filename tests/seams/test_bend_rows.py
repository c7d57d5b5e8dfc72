"""`bend_rows` is given the indices and positions of its rows and keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, attend, causal
from milepost.backends import BACKENDS
from tests.agreement import small_blocks
from tests.oracles import assert_same, inputs, plain

T = 9
CALLS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "positions": {"position": torch.arange(T) * 3, "key_position": torch.arange(T) * 3},
    "indices in another order": {"index": torch.arange(T).flip(0), "key_index": torch.arange(T).flip(0)},
    "a later stretch": {"key_index": range(20, 20 + T)},
    "texts packed": {"documents": torch.tensor([0] * 4 + [1] * 5)},
}


class Faded:
    """Lower a score by how many tokens lie between, by how far they stand apart, and by the mean of its row."""

    def bend_rows(
        self, scores: Tensor, q: Tensor, x: Tensor | None, index: Tensor, key_index: Tensor, position: Tensor,
        key_position: Tensor,
    ) -> Tensor:  # fmt: skip
        order = (index[:, None, :, None] - key_index[:, None, None]).to(scores.dtype)
        apart = (position[:, None, :, None] - key_position[:, None, None]).to(scores.dtype)
        scores = scores - 0.3 * order - 0.1 * apart
        seen = scores > -torch.inf
        return scores - 2 * scores.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)


@pytest.mark.parametrize("backend", [None, "reference", "chunked"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("rows", [T, 3])
def test_rows_know_which_tokens_they_are(name: str, backend: str | None, rows: int):
    options = dict(CALLS[name])
    if rows < T and name == "texts packed":
        options = {"key_documents": options["documents"]}
    elif rows < T:
        options |= {each: options[each][-rows:] for each in ("index", "position") if each in options}
    q, k, v = inputs(t=T, dv=5)
    q = q[:, :, -rows:]
    j = torch.tensor(list(options.get("key_index", range(T))))
    if name == "texts packed":
        j = torch.tensor([*range(4), *range(5)])
    r, text = options.get("key_position", j), torch.tensor([0] * 4 + [1] * 5) if "packed" in name else torch.zeros(T)
    i, p, own = (each[-rows:] for each in (j, r, text))

    def score(b: int, h: int, row: int, key: int) -> Any:
        if j[key] > i[row] or own[row] != text[key]:
            return -math.inf
        dot = q[b, h, row] @ k[b, h // 2, key] / math.sqrt(8)
        return dot - 0.3 * float(i[row] - j[key]) - 0.1 * float(p[row] - r[key])

    # A number that all scores of a row lose changes no softmax.
    with small_blocks():
        assert_same(attend(q, k, v, Scheme(Faded(), causal), backend=backend, **options), plain(q, k, v, score))


def test_a_part_that_does_not_take_them_is_refused_by_name():
    class Old:
        def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None) -> Tensor:
            return scores

    says = r"Scheme\(Old\(…\)\): bend_rows is given index, key_index, position, key_position by name.*\*\*tokens"
    with pytest.raises(TypeError, match=says):
        Scheme(Old(), causal)

    class New(Old):
        def bend_rows(self, scores: Tensor, q: Tensor, x: Tensor | None, **tokens: Tensor) -> Tensor:
            assert set(tokens) == {"index", "key_index", "position", "key_position"}
            return scores

    q, k, v = inputs(t=4)
    assert_same(attend(q, k, v, Scheme(New(), causal)), attend(q, k, v, Scheme(mp.Nope(), causal)))


def test_backends_that_see_no_whole_row_refuse_by_name():
    q, k, v = inputs(t=4)
    scheme, able = Scheme(Faded(), causal), {"reference", "chunked"}
    explained = mp.explain(q, k, v, scheme)
    reasons = explained.reasons
    assert set(explained.able) == able
    assert set(reasons) == set(BACKENDS) - able
    for name in reasons:
        with pytest.raises(mp.CannotRun, match=rf'backend "{name}" cannot run this scheme: .*'):
            attend(q, k, v, scheme, backend=name)
    assert all("Faded" in str(reasons[name]) for name in ("sdpa", "flex", "diagonals"))
