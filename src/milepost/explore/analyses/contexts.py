"""Contexts that are read apart and joined by NBCE: how sure each is of every new token, and which one is believed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.explore.analysis import Analysis, array, axis
from milepost.explore.pictures.curves import curves
from milepost.explore.pictures.sentence import sentence
from milepost.hf.contexts.nbce import Pool, join, steps

Numbers = NDArray[np.float64]


def nbce_entropies(
    model: Any,
    *,
    contexts: Sequence[object],
    question: object,
    tokenizer: Any = None,
    names: Sequence[str] | None = None,
    new_tokens: int = 16,
    beta: float = 0.25,
    eta: float = 0.1,
    pool: Pool = "entropy",
    top_p: float = 0.95,
    temperature: float = 0.0,
    stop: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Analysis:
    """Generate an answer by NBCE, and show the entropy of every context at every token and which one is believed.

        explore.nbce_entropies(model, contexts=[one, two, three], question="Who came first?", tokenizer=tokenizer)

    The context with the least entropy is believed; the one believed before counts as `eta` surer than it is, so look
    for tokens at which the believed curve is not the lowest. The other arguments are those of `milepost.hf.nbce`.
    names: what the contexts are called.

    For each token there are its log-probabilities under every context and under none, and the joined score. Under
    pool="average", top_p=1 and beta = n − 1 that is the product rule, Σ_k log p(T|S_k) − (n − 1) · log p(T).
    """
    if names is not None and len(names) != len(contexts):
        raise ValueError(
            f"nbce_entropies: there are {len(names)} names for {len(contexts)} contexts; give one for each"
        )
    joining = partial(join, beta=beta, eta=eta, pool=pool, top_p=top_p)
    made = steps(model, contexts, question, tokenizer, joining, new_tokens, temperature, stop, generator)
    tokens: list[int] = []
    believed: list[float] = []
    joined: list[float] = []
    shares: list[float] = []
    entropies: list[Numbers] = []
    logs: list[Numbers] = []
    for step in made:
        tokens.append(step.token)
        believed.append(float("nan") if step.joined.chosen is None else step.joined.chosen)
        entropies.append(step.joined.entropies.cpu().numpy())
        logs.append(step.logits.double().log_softmax(-1)[:, step.token].cpu().numpy())
        joined.append(float(step.joined.scores[step.token]))
        shares.append(float(step.joined.scores.softmax(-1)[step.token]))
    called = [f"context {n}" for n in range(len(contexts))] if names is None else list(names)
    entropy, log, chosen = np.stack(entropies), np.stack(logs), np.array(believed)
    at = np.arange(len(tokens), dtype=np.float64)
    words = [_word(tokenizer, each) for each in tokens]
    rows = {
        "believed": ["all" if np.isnan(each) else called[int(each)].removeprefix("context ") for each in chosen],
        "entropy": [
            f"{entropy[n].mean() if np.isnan(each) else entropy[n, int(each)]:.2f}" for n, each in enumerate(chosen)
        ],
    }
    return Analysis(
        "nbce_entropies",
        "Contexts joined by naive Bayes",
        _says(called, entropy, chosen),
        (
            axis("token", at),
            axis("context", np.arange(len(called), dtype=np.float64)),
            array("id", tokens, "", "token"),
            array("entropy", entropy, "nats", "token", "context"),
            array("believed", chosen, "context", "token"),
            array("log-probability", log[:, 1:], "nats", "token", "context"),
            array("log-probability without context", log[:, 0], "nats", "token"),
            array("joined score", joined, "nats", "token"),
            array("joined probability", shares, "", "token"),
        ),
        (
            curves(
                "Entropy of the next token under each context",
                at,
                {name: entropy[:, n] for n, name in enumerate(called)} | _believed(entropy, chosen),
                x_name="new token",
                y_name="entropy in nats",
            ),
            sentence(
                "The answer, and the context that each token is taken from", words, np.array(shares), rows, bar_name="p"
            ),
        ),
    )


def _believed(entropy: Numbers, chosen: Numbers) -> dict[str, Numbers]:
    """Return the entropy of the believed context at each token, by its name in the picture."""
    if np.isnan(chosen).all():
        return {}
    return {"the one believed": entropy[np.arange(len(chosen)), chosen.astype(int)]}


def _says(called: Sequence[str], entropy: Numbers, chosen: Numbers) -> str:
    if np.isnan(chosen).all():
        return f"All {len(called)} contexts are averaged at every one of {len(chosen)} tokens."
    often = {name: int((chosen == n).sum()) for n, name in enumerate(called)}
    kept = int((chosen != entropy.argmin(-1)).sum())
    counted = ", ".join(f"{name} at {count}" for name, count in often.items() if count)
    held = f"; {kept} times the one believed before is kept though another has less entropy" if kept else ""
    return f"Of {len(chosen)} tokens the believed context is {counted}{held}."


def _word(tokenizer: Any, token: int) -> str:
    """Return a token as it is read; its number without a tokenizer."""
    return str(tokenizer.decode([token])).strip() or "␣" if hasattr(tokenizer, "decode") else f"{token}"


__all__ = ["nbce_entropies"]
