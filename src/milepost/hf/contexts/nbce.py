"""NBCE: many contexts read apart and joined at every token by naive Bayes (Su, 2023, kexue.fm/archives/9617).

The length of a model is then a limit of each context, not of all of them together. No weight and no position changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from milepost.hf.measuring.trials import encoder
from milepost.hf.model.models import demand_causal, demand_model, device_of
from milepost.seams import demand

Pool = Literal["entropy", "average"]
LEAST = -100.0
"""Log-probabilities count as no less than this: −∞ · 0 would be nan, and one context alone could rule out a token."""


WITHOUT_POSITIONS = ("bloom", "mpt")
"""Model types that take no position_ids, and count tokens themselves."""


@dataclass(frozen=True)
class Joined:
    """What contexts come to: scores of the next token [vocabulary], the context that was believed, all entropies."""

    scores: Tensor
    chosen: int | None
    entropies: Tensor


def join(
    logits: Tensor,
    beta: float = 0.25,
    eta: float = 0.1,
    pool: Pool = "entropy",
    top_p: float = 0.95,
    before: int | None = None,
) -> Joined:
    """Join the next-token logits of many contexts, [1 + n, vocabulary]; row 0 is that of no context at all.

        score  =  (β + 1) · P[log p(T|S_k)] − β · log p(T)
        pool="entropy":  P is the context k with the least entropy H_k, less eta for the one believed before
        pool="average":  P is the mean over contexts

    Averaged with β = n − 1 it is naive Bayes, the product rule: Σ_k log p(T|S_k) − (n − 1) · log p(T).

    Tokens outside the top_p of each row are ruled out, and what is left is not brought back to 1, as the author's code
    has it; 1 keeps all. Where the prior rules a token out, it is not subtracted.
    """
    demand.finite(join, "beta", beta, least=0)
    demand.finite(join, "eta", eta, least=0)
    demand.one_of(join, "pool", pool, ("entropy", "average"))
    demand.finite(join, "top_p", top_p, above=0)
    if top_p > 1:
        raise ValueError(f"join(top_p={top_p}): a share of the probability, at most 1")
    if logits.dim() != 2 or len(logits) < 2:
        raise ValueError(
            f"join: logits must be [1 + contexts, vocabulary], the first row that of no context; given "
            f"{list(logits.shape)}"
        )
    logs = _top(logits.double().log_softmax(-1), top_p)
    prior, own = logs[0], logs[1:]
    entropies = -(own.exp() * own.clamp(min=LEAST)).sum(-1)
    chosen: int | None = None
    if pool == "average":
        pooled = own.clamp(min=LEAST).mean(0)
    else:
        felt = entropies.clone()
        if before is not None:
            felt[before] -= eta
        chosen = int(felt.argmin())
        pooled = own[chosen]
    scores = torch.where(prior > LEAST, (beta + 1) * pooled - beta * prior, pooled)
    return Joined(scores, chosen, entropies)


def _top(logs: Tensor, top_p: float) -> Tensor:
    """−∞ for tokens past the likeliest that make up top_p; the one that crosses it stays."""
    if top_p >= 1:
        return logs
    ordered, order = logs.sort(-1, descending=True)
    late = (ordered.exp().cumsum(-1) - ordered.exp()) > top_p
    return logs.masked_fill(torch.zeros_like(late).scatter(-1, order, late), -math.inf)


@dataclass(frozen=True)
class Answer:
    """What was generated: token ids, their text where there is a tokenizer, and which context each was taken from."""

    ids: tuple[int, ...]
    text: str | None
    contexts: tuple[int | None, ...]


@dataclass(frozen=True)
class Step:
    """One new token: the logits of all rows [1 + n, vocabulary], what they are joined to, and what was taken."""

    logits: Tensor
    joined: Joined
    token: int


def nbce(
    model: Any,
    contexts: Sequence[object],
    question: object,
    tokenizer: Any = None,
    *,
    new_tokens: int = 64,
    beta: float = 0.25,
    eta: float = 0.1,
    pool: Pool = "entropy",
    top_p: float = 0.95,
    temperature: float = 0.0,
    stop: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Answer:
    """Answer a question from many contexts, each read by itself, with any causal model of transformers.

    contexts and question: token ids, or strings with a tokenizer. The question is put after every context and, for the
    prior, after none; the same new token is given to all of them. temperature=0 takes the likeliest token; otherwise
    one is drawn, and generator makes that repeatable. stop: the token, or tokens, that end the answer; by default those
    of the model. `join` says what beta, eta, pool and top_p do.
    """
    joining = partial(join, beta=beta, eta=eta, pool=pool, top_p=top_p)
    made = steps(model, contexts, question, tokenizer, joining, new_tokens, temperature, stop, generator)
    taken = [(step.token, step.joined.chosen) for step in made]
    found = [token for token, _ in taken]
    text = None if tokenizer is None or not hasattr(tokenizer, "decode") else str(tokenizer.decode(found))
    return Answer(tuple(found), text, tuple(chosen for _, chosen in taken))


@torch.no_grad()
def steps(
    model: Any,
    contexts: Sequence[object],
    question: object,
    tokenizer: Any,
    joining: Callable[..., Joined],
    new_tokens: int,
    temperature: float = 0.0,
    stop: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Step]:
    """Yield the tokens that `nbce` generates, one after the other, each with what it was taken from.

    joining: `join` with all that it is given besides the logits and the context believed before.
    """
    demand.whole(nbce, "new_tokens", new_tokens)
    demand.finite(nbce, "temperature", temperature, least=0)
    demand_causal("nbce: this is", demand_model("nbce", model))
    if isinstance(contexts, str):
        raise TypeError("nbce(contexts=…): this is one text; give a list of texts, each to be read by itself")
    if not contexts:
        raise ValueError("nbce(contexts=[]): at least one context is needed; without any, use generate()")
    asked = _ids(question, tokenizer)
    if not asked:
        raise ValueError("nbce: the question is empty, so the row without a context would be; ask something")
    rows = [asked, *([*_ids(context, tokenizer), *asked] for context in contexts)]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = padded([torch.tensor(row) for row in rows]).to(device_of(model))
    mask = padded([torch.ones(len(row), dtype=torch.long) for row in rows]).to(ids.device)
    ends = _ends(model, stop)
    counted = getattr(getattr(model, "config", None), "model_type", None) not in WITHOUT_POSITIONS
    past: Any = None
    before: int | None = None
    for _ in range(new_tokens):
        position = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        where = {"position_ids": position} if counted else {}
        out = model(input_ids=ids, attention_mask=mask, past_key_values=past, use_cache=True, **where)
        past = out.past_key_values
        joined = joining(out.logits[:, -1], before=before)
        before = joined.chosen
        token = _drawn(joined.scores, temperature, generator)
        yield Step(out.logits[:, -1], joined, token)
        if token in ends:
            break
        ids = torch.full((len(rows), 1), token, device=ids.device)
        mask = torch.cat((mask, torch.ones_like(ids)), -1)


def _ids(given: object, tokenizer: object) -> list[int]:
    if isinstance(given, str):
        if tokenizer is None:
            raise ValueError("nbce: strings need a tokenizer; pass tokenizer=, or give token ids")
        return list(encoder(tokenizer, "nbce")(given))
    return [int(each) for each in cast("Sequence[int]", given)]


def _ends(model: Any, stop: int | Sequence[int] | None) -> tuple[int, ...]:
    if stop is None:
        stop = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, int) else tuple(stop)


def _drawn(scores: Tensor, temperature: float, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(scores.argmax())
    chances = (scores / temperature).softmax(-1).cpu()
    return int(torch.multinomial(chances, 1, generator=generator))
