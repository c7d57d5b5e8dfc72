"""NBCE: its formula against a loop in float64, naive Bayes as a special case, and generation over many contexts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import extend, nbce
from milepost.hf.contexts.nbce import join

transformers = pytest.importorskip("transformers")
tiny = pytest.importorskip("tests.hf.tiny").tiny

VOCABULARY, CONTEXTS = 12, 4


def logits(seed: int = 0) -> Tensor:
    return 2 * torch.randn(CONTEXTS + 1, VOCABULARY, generator=torch.Generator().manual_seed(seed)).double()


def by_hand(rows: list[list[float]], beta: float, eta: float, top_p: float, before: int | None):
    """The author's steps, one number after the other."""
    logs: list[list[float]] = []
    for row in rows:
        total = math.log(sum(math.exp(x) for x in row))
        log = [x - total for x in row]
        mass, kept = 0.0, [-math.inf] * len(row)
        for token in sorted(range(len(row)), key=lambda n: -log[n]):
            if mass <= top_p:
                kept[token] = log[token]
            mass += math.exp(log[token])
        logs.append(kept)
    entropies: list[float] = []
    for row in logs[1:]:
        entropies.append(-sum(math.exp(x) * max(x, -100.0) for x in row))
    felt = [h - eta if n == before else h for n, h in enumerate(entropies)]
    k = felt.index(min(felt))
    scores: list[float] = []
    for token in range(len(rows[0])):
        own, prior = logs[1 + k][token], logs[0][token]
        scores.append((beta + 1) * own - beta * prior if prior > -100 else own)
    return scores, k


@pytest.mark.parametrize("top_p", [0.6, 0.95, 1.0])
@pytest.mark.parametrize("before", [None, 0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_join_equals_its_formula(top_p: float, before: int | None, seed: int):
    given = logits(seed)
    scores, k = by_hand(given.tolist(), 0.25, 0.1, top_p, before)
    found = join(given, 0.25, 0.1, top_p=top_p, before=before)
    assert found.chosen == k
    assert found.scores.tolist() == pytest.approx(scores, abs=1e-12)


def test_the_context_believed_before_is_kept_a_little_longer():
    flat, sharp = [0.0, 0.0, 0.0], [0.02, 0.0, 0.0]
    given = torch.tensor([flat, sharp, flat], dtype=torch.float64)
    assert join(given, eta=0.1).chosen == 0
    assert join(given, eta=0.1, before=1).chosen == 1
    assert join(given, eta=0.0, before=1).chosen == 0


def test_average_pooling_with_beta_n_less_1_is_the_product_rule():
    given = logits()
    logs = given.log_softmax(-1)
    found = join(given, beta=CONTEXTS - 1, pool="average", top_p=1.0)
    assert found.chosen is None
    torch.testing.assert_close(found.scores, logs[1:].sum(0) - (CONTEXTS - 1) * logs[0], rtol=0, atol=1e-12)


def test_contexts_that_agree_on_nothing_are_averaged_all_the_same():
    one, two = torch.zeros(4), torch.zeros(4)
    one[0], two[1] = 50.0, 50.0
    found = join(torch.stack((torch.zeros(4), one, two)), pool="average", top_p=0.5)
    assert found.scores.isfinite().all()
    assert int(found.scores.argmax()) in (0, 1)


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


SEEN = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 0]]
ASKED = [3, 1, 4]


@pytest.mark.parametrize("pool", ["entropy", "average"])
def test_generation_equals_a_loop_without_cache_or_padding(pool: Any):
    made = model()
    found = nbce(made, SEEN, ASKED, new_tokens=6, pool=pool)
    written: list[int] = []
    before: int | None = None
    for _ in range(6):
        with torch.no_grad():
            rows = [made(input_ids=torch.tensor([[*seen, *ASKED, *written]])).logits[0, -1] for seen in ([], *SEEN)]
        joined = join(torch.stack(rows), pool=pool, before=before)
        before = joined.chosen
        written.append(int(joined.scores.argmax()))
    assert list(found.ids) == written
    assert len(found.contexts) == 6
    assert found.text is None


@pytest.mark.parametrize("kind", ["bloom", "mpt"])
def test_extended_models_that_take_no_positions_read_contexts(kind: str):
    made = extend(tiny(kind), mp.AlibiNtk(4.0))
    found = nbce(made, SEEN, ASKED, new_tokens=1)
    with torch.no_grad():
        rows = [made(input_ids=torch.tensor([[*seen, *ASKED]])).logits[0, -1] for seen in ([], *SEEN)]
    assert list(found.ids) == [int(join(torch.stack(rows)).scores.argmax())]


def test_one_context_without_prior_is_plain_generation():
    made = model()
    found = nbce(made, [SEEN[0]], ASKED, new_tokens=5, beta=0.0, top_p=1.0)
    given = torch.tensor([[*SEEN[0], *ASKED]])
    plain = made.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=5, do_sample=False)
    assert list(found.ids) == plain[0, given.shape[1] :].tolist()
    assert found.contexts == (0,) * 5


def test_drawing_is_repeatable_and_a_stop_ends_it():
    made = model()
    draws = [
        nbce(made, SEEN, ASKED, new_tokens=8, temperature=1.0, generator=torch.Generator().manual_seed(n)).ids
        for n in (0, 0, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1
    first = nbce(made, SEEN, ASKED, new_tokens=8).ids[0]
    assert nbce(made, SEEN, ASKED, new_tokens=8, stop=first).ids == (first,)


class Words:
    """A tokenizer of letters."""

    def __call__(self, text: str) -> list[int]:
        return [ord(c) % VOCABULARY for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + n) for n in ids)


def test_strings_and_a_tokenizer():
    found = nbce(model(), ["once upon", "a time"], "who?", Words(), new_tokens=3)
    assert found.text == Words().decode(list(found.ids))


def test_what_is_refused():
    made = model()
    with pytest.raises(ValueError, match="at least one context is needed"):
        nbce(made, [], ASKED)
    with pytest.raises(ValueError, match="strings need a tokenizer"):
        nbce(made, ["words"], ASKED)
    with pytest.raises(ValueError, match="the question is empty"):
        nbce(made, SEEN, [])
    with pytest.raises(ValueError, match="pool must be one of 'entropy', 'average'"):
        nbce(made, SEEN, ASKED, pool="max")  # pyright: ignore
    with pytest.raises(ValueError, match="at most 1"):
        nbce(made, SEEN, ASKED, top_p=1.5)
    with pytest.raises(ValueError, match=r"given \[1, 12\]"):
        join(torch.zeros(1, 12))
