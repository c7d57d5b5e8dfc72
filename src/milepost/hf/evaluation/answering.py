"""Greedy answers to prompts, as lm-evaluation-harness's `generate_until` gives them, on machines without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from milepost.hf.model.models import device_of


@torch.no_grad()
def answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    new_tokens: int,
    *,
    until: Sequence[str] = (),
    batch: int = 1,
    longest: int | None = None,
    done: Callable[[int], object] = lambda count: None,
) -> list[str]:
    """Return the greedy continuation of every prompt, up to the end of text or the first of `until`.

    Batches are of prompts of like length, the longest first, padded on the left. longest: how many tokens of a prompt
    and its answer are read; what is cut off is its beginning. done: called with how many were answered.
    """
    stops = [*until, tokenizer.decode(tokenizer.eos_token_id, skip_special_tokens=False)]
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    order = sorted(range(len(prompts)), key=lambda n: (-len(tokenizer.encode(prompts[n])), prompts[n]))
    found = [""] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        given = tokenizer([prompts[n] for n in chosen], padding=True, padding_side="left", return_tensors="pt")
        kept = slice(None) if longest is None else slice(-(longest - new_tokens), None)
        ids, mask = (given[name][:, kept].to(device_of(model)) for name in ("input_ids", "attention_mask"))
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_length=ids.shape[1] + new_tokens, do_sample=False, use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        for n, row in zip(chosen, made[:, ids.shape[1] :].tolist(), strict=True):
            text: str = tokenizer.decode(row, skip_special_tokens=True)
            for stop in stops:
                text = text.split(stop)[0] if stop else text
            found[n] = text
        done(start + len(chosen))
    return found
