"""NBCE token by token, against a loop without cache or padding that works out entropies from the definition."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import transformers

from milepost import explore

SEEN = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 0]]
ASKED = [3, 1, 4]
VOCABULARY = 12


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double().eval()


def logs_of(model: Any, written: list[int]) -> list[list[float]]:
    """Log-probabilities of the next token without context, then under each."""
    found: list[list[float]] = []
    for seen in ([], *SEEN):
        with torch.no_grad():
            row = model(input_ids=torch.tensor([[*seen, *ASKED, *written]])).logits[0, -1].tolist()
        total = math.log(sum(math.exp(each) for each in row))
        found.append([each - total for each in row])
    return found


def test_entropies_and_who_is_believed(model: Any):
    found = explore.nbce_entropies(model, contexts=SEEN, question=ASKED, new_tokens=8, top_p=1.0, eta=0.3)
    written: list[int] = []
    before = None
    for n in range(8):
        logs = logs_of(model, written)
        entropies = [-sum(math.exp(each) * each for each in row) for row in logs[1:]]
        felt = [each - 0.3 * (k == before) for k, each in enumerate(entropies)]
        before = felt.index(min(felt))
        scores = [1.25 * own - 0.25 * prior for own, prior in zip(logs[1 + before], logs[0], strict=True)]
        token = scores.index(max(scores))
        assert found["entropy"][n] == pytest.approx(entropies, abs=1e-10)
        assert found["believed"][n] == before
        assert found["id"][n] == token
        assert found["log-probability"][n] == pytest.approx([row[token] for row in logs[1:]], abs=1e-10)
        assert found["log-probability without context"][n] == pytest.approx(logs[0][token], abs=1e-10)
        assert found["joined score"][n] == pytest.approx(scores[token], abs=1e-10)
        written.append(token)
    least = int((found["believed"] == found["entropy"].argmin(-1)).sum())
    kept = 8 - least
    assert (f"{kept} times the one believed before is kept" in found.says) == bool(kept)


def test_beta_n_less_1_averaged_is_the_product_rule(model: Any):
    found = explore.nbce_entropies(
        model, contexts=SEEN, question=ASKED, new_tokens=6, beta=len(SEEN) - 1, pool="average", top_p=1.0
    )
    product = found["log-probability"].sum(-1) - (len(SEEN) - 1) * found["log-probability without context"]
    np.testing.assert_allclose(found["joined score"], product, rtol=0, atol=1e-12)
    assert np.isnan(found["believed"]).all()
    assert found.says == "All 3 contexts are averaged at every one of 6 tokens."


def test_more_eta_changes_the_believed_context_less_often(model: Any):
    changes = [
        np.count_nonzero(
            np.diff(explore.nbce_entropies(model, contexts=SEEN, question=ASKED, new_tokens=12, eta=eta)["believed"])
        )
        for eta in (0.0, 9.0)
    ]
    assert changes[0] > changes[1] == 0


class Letters:
    def __call__(self, text: str) -> list[int]:
        return [ord(c) % VOCABULARY for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + n) for n in ids)


def test_the_picture_names_contexts_and_words(model: Any):
    names = ["north", "south"]
    found = explore.nbce_entropies(
        model, contexts=["once upon", "a time"], question="who?", tokenizer=Letters(), names=names, new_tokens=3
    )
    texts = [each.text for each in ElementTree.fromstring(found.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"north", "south", "believed", *Letters().decode([int(each) for each in found["id"]])} <= set(texts)
    with pytest.raises(ValueError, match="2 names for 3 contexts"):
        explore.nbce_entropies(model, contexts=SEEN, question=ASKED, names=names)
