"""CoPE on a text, against the paper's formula, one pair of words at a time."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore

WORDS = ["a", "b", ".", "c", "d", "d", ".", "e", "?"]
T, D, POSITIONS = len(WORDS), 6, 4


def part(**more: Any) -> mp.Cope:
    made = mp.Cope(D, POSITIONS, **more).double()
    torch.nn.init.normal_(made.table, generator=torch.Generator().manual_seed(5))
    return made


@pytest.mark.parametrize("after_scale", [False, True])
def test_gates_counts_and_what_is_added_are_the_formula(after_scale: bool):
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(T, D, generator=generator, dtype=torch.float64) for _ in range(2))
    cope = part(after_scale=after_scale)
    found = explore.cope_counts(cope, text=WORDS, q=q, k=k)
    table = cope.table.detach()
    for i in range(T):
        count = 0.0
        for j in range(i, -1, -1):
            gate = 1 / (1 + math.exp(-float(q[i] @ k[j]) / math.sqrt(D)))
            count += gate
            held = min(count, POSITIONS - 1)
            low, high = math.floor(held), math.ceil(held)
            row = (1 - (held - low)) * table[low] + (held - low) * table[high]
            looked_up = float(q[i] @ row) / (1 if after_scale else math.sqrt(D))
            assert found["gate"][i, j] == pytest.approx(gate, abs=1e-12)
            assert found["counted"][i, j] == pytest.approx(held, abs=1e-12)
            assert found["added"][i, j] == pytest.approx(looked_up, abs=1e-12)
        assert np.isnan(found["gate"][i, i + 1 :]).all()


def test_open_gates_are_relative_positions():
    cope = part()
    found = explore.cope_counts(cope, text=WORDS, opens=None, logit=40.0)
    assert np.nanmin(found["gate"]) == 1
    for i in range(T):
        for j in range(i + 1):
            assert found["counted"][i, j] == min(i - j + 1, POSITIONS - 1)
            assert found["added"][i, j] == pytest.approx(
                found["looked up"][i, min(i - j + 1, POSITIONS - 1)], abs=1e-12
            )


def test_words_of_one_sentence_share_a_count_where_full_stops_open_the_gates():
    found = explore.cope_counts()
    counts = found["counted"][-1]
    assert np.allclose(counts, [3] * 6 + [2] * 3 + [1] * 5 + [0] * 3, atol=0.01)
    assert "'?' is 16 words and marks after the first word; the gates between count 3.00." in found.says
    texts = [each.text for each in ElementTree.fromstring(found.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Alice", "sleeps", "count", "distance", "+0.36"} <= set(texts)


def test_the_row_of_another_word_is_drawn_up_to_itself():
    text = str(explore.cope_counts(query=3).pictures[0].body())
    assert "Alice" in text
    assert "Bob" not in text


def test_a_gate_half_open_is_counted_as_half():
    found = explore.cope_counts(opens={".": 1.0, "reads": 0.5})
    assert found["gate"][-1, 10] == pytest.approx(0.5, abs=1e-12)
    assert np.allclose(found["counted"][-1], [3.5] * 6 + [2.5] * 3 + [1.5] * 2 + [1] * 3 + [0] * 3, atol=0.01)
    assert np.array_equal(explore.cope_counts(opens={".": 1.0})["gate"], explore.cope_counts()["gate"], equal_nan=True)
    with pytest.raises(ValueError, match="a gate is open by 0"):
        explore.cope_counts(opens={"Bob": 1.5})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": ""}, "there is no word in it"),
        ({"query": 17}, "the text has 17 words"),
        ({"q": torch.zeros(17, 32)}, "q and k come together"),
        ({"q": torch.zeros(2, 3), "k": torch.zeros(2, 3)}, r"q must be \[17 32\]"),
        ({"logit": math.inf}, "logit must be finite"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        explore.cope_counts(**given)
    with pytest.raises(ValueError, match="reads what is not here"):
        explore.cope_counts(mp.Cope(8, 4, gates="values"))
