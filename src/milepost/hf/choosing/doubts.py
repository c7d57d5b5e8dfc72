"""Doubts about a text: said aloud before anything is measured on it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor

from milepost.hf.measuring.judged import AsItWas, Row, judge

READ = 512
"""Tokens that the model reads for a doubt, twice, and at most two thirds of its trained length."""
LITTLE = 0.9
"""The share of the entropy of single tokens above which a loss says that the model understands next to nothing."""
BETTER = 0.05
"""Nats a token by which a text must read better behind a BOS to say so."""
AGAIN, LONG = 0.3, 32
"""The share of stretches of 32 tokens that come again from which on a text is said to repeat itself."""
REPLACED = "\N{REPLACEMENT CHARACTER}"


def doubts(model: Any, ids: Tensor, tokenizer: object, text: object = None) -> tuple[list[str], int | None]:
    """Return what speaks against measuring this model on this text, and the token that texts should begin with, if any.

    text: the string that the ids were made of, where there is one.
    """
    found = [*_undecodable(text), *_repeats(ids)]
    own = begins_with(tokenizer)
    windows = _windows(ids, model)
    if windows is None:
        return found, own
    loss = _loss(model, windows, own)
    bos = getattr(getattr(model, "config", None), "bos_token_id", None)
    if own is None and isinstance(bos, int):
        better = loss - _loss(model, windows, bos)
        if better > BETTER:
            found.append(
                f"the tokenizer adds no BOS, and the model reads this text better behind one (token {bos}): "
                f"{loss - better:.2f} nats a token with it, {loss:.2f} without. Every text here begins with it; let "
                f"yours begin with it too"
            )
            own, loss = bos, loss - better
    single = entropy_of(ids)
    if loss > LITTLE * single:
        found.append(
            f"the model reads this text hardly better than by counting tokens ({loss:.2f} nats a token, {single:.2f} "
            f"by their counts): noise, another encoding, a language it does not know, or another model's tokenizer. "
            f"Nothing measured on it says how the model reads"
        )
    return found, own


def begins_with(tokenizer: object) -> int | None:
    """Return the token that a tokenizer of transformers puts before every text, or None."""
    made: Any = tokenizer
    if not hasattr(made, "convert_ids_to_tokens"):
        return None
    whole, bare = (list(made.encode("a", add_special_tokens=each)) for each in (True, False))
    begun = len(whole) > len(bare) and whole[0] != bare[0] and whole[0] == getattr(made, "bos_token_id", None)
    return int(whole[0]) if begun else None


def entropy_of(ids: Tensor) -> float:
    """Return nats a token of a text's single tokens, by their counts in it."""
    counts = torch.bincount(ids).double()
    shares = counts[counts > 0] / len(ids)
    return float(-(shares * shares.log()).sum())


def _undecodable(text: object) -> list[str]:
    if not isinstance(text, str) or REPLACED not in text:
        return []
    count = text.count(REPLACED)
    return [
        f"{count:,} of {len(text):,} characters could not be decoded as UTF-8 ({count / len(text):.2%}): the text is "
        f"in another encoding, or is no text. Convert it first: iconv -f latin1 -t utf8"
    ]


def _repeats(ids: Tensor) -> list[str]:
    lines = cast("list[list[int]]", ids[: len(ids) // LONG * LONG].view(-1, LONG).tolist())
    stretches = Counter(tuple(each) for each in lines)
    total = sum(stretches.values())
    again = total - len(stretches)
    if total < 2 or again < AGAIN * total:
        return []
    return [
        f"the text repeats itself: {again / total:.0%} of its stretches of {LONG} tokens stood there before. What is "
        f"repeated anyway shows no recall"
    ]


def _windows(ids: Tensor, model: Any) -> Tensor | None:
    """Return a few short texts [n, t] from all over the text; None where it is too short."""
    config = getattr(model, "config", None)
    most = getattr(config, "max_position_embeddings", None) or READ
    size = min(READ, 2 * most // 3, len(ids) // 2)
    if size < 4:
        return None
    return torch.stack([ids[round(n * (len(ids) - size - 1) / 3) :][: size + 1] for n in range(4)])


def _loss(model: Any, windows: Tensor, first: int | None) -> float:
    last = windows.shape[1] // 2
    if first is not None:
        windows = torch.cat((torch.full_like(windows[:, :1], first), windows), 1)
    # The first half is only context: without any, every model guesses.
    nats = judge(Row("doubts", AsItWas(model)), windows, last).nats
    return float(nats.double().mean()) if torch.isfinite(nats).all() else math.inf
