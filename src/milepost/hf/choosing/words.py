"""What a candidate does, in up to three sentences, with its own numbers; and where it can be served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import milepost as mp
from milepost.hf.planning.candidates import Candidate

VISIBLE = "Every token stays visible."


def does(candidate: Candidate) -> list[str]:
    """Return what a candidate does to a model, a sentence each."""
    parts = [each for part in candidate.parts for each in _within(part)]
    found = [sentence for part in parts for sentence in _sentences(part)]
    sharper = any(isinstance(each, (mp.Pivot, mp.Dilute, mp.LogN)) for each in parts)
    if any(isinstance(each, (mp.Rerope, mp.LeakyRerope, mp.SelfExtend)) for each in parts) and sharper:
        kept = " and the first tokens" if any(isinstance(each, mp.KeepSinks) for each in parts) else ""
        found.append(
            f"Far keys must outweigh near ones{kept}, or scores are sharpened, so that thousands of them do not blur "
            f"attention."
        )
    return found[:3] if found else [f"{candidate.name}: {candidate.note}.", VISIBLE]


def _within(part: Any) -> Iterator[Any]:
    yield part
    inner = getattr(part, "method", None)
    if inner is not None:
        yield from _within(inner)


def _sentences(part: Any) -> list[str]:
    if isinstance(part, mp.SelfExtend):
        return [
            f"The last {part.neighbours:,} keys keep their exact distances.",
            f"Keys further back share positions in groups of {part.group}, so that no distance is larger than those "
            f"met in training; {VISIBLE.lower()}",
        ]
    if isinstance(part, mp.DualChunk):
        return [
            f"Positions start over in chunks of {part.chunk - part.local:,} tokens, and the {part.local:,} nearest "
            f"keys keep their exact distances.",
            f"Earlier chunks are seen at distances that were met in training. {VISIBLE}",
        ]
    if isinstance(part, mp.Rerope):
        at = part.window if part.at is None else part.at
        return [
            f"Distances below {part.window:,} tokens stay exact.",
            f"All keys further back are placed {at:,} tokens away, so that no distance is larger than those met in "
            f"training. {VISIBLE}",
        ]
    if isinstance(part, mp.LeakyRerope):
        return [f"Distances below {part.window:,} tokens stay exact; further back they grow more slowly. {VISIBLE}"]
    if isinstance(part, (mp.Pivot, mp.Dilute, mp.KeepSinks, mp.LogN)):
        return []
    lines = (type(part).__doc__ or "").strip().splitlines()
    if hasattr(part, "frequencies"):
        return [
            f"The rotation of queries and keys is slowed: {lines[0][:1].lower()}{lines[0][1:]}",
            f"Cosines and sines alone change, so attention runs at its old speed. {VISIBLE}",
        ]
    return [*lines[:1], VISIBLE]


def serves(candidate: Candidate, folder: str) -> list[tuple[str, str]]:
    """Return engines and how each serves a saved candidate, or that it cannot."""
    if candidate.config is None:
        why = "stock {} has no word for this method"
        return [
            ("Python", "milepost.hf.load (above), then generate as usual: caches, batches and padding work"),
            ("transformers", f"{why.format('transformers')}: AutoModel refuses the folder and names milepost"),
            ("vLLM, SGLang, llama.cpp", "none of them has a word for this method: not served from this folder"),
        ]
    found = [("transformers", f'AutoModelForCausalLM.from_pretrained("{folder}"); config.json says all of it')]
    if candidate.vllm is None:
        return [*found, ("vLLM", f"not served: {candidate.note}")]
    more = "" if candidate.vllm == candidate.config else f" --hf-overrides '{json.dumps(candidate.vllm)}'"
    return [*found, ("vLLM", f"vllm serve {folder}{more}"), ("SGLang", "reads the same rope_parameters; not tested")]


def loading(candidate: Candidate, folder: str) -> str:
    """Return the code that reads a saved candidate."""
    if candidate.config is None:
        first = f'from milepost.hf import load\n\nmodel = load("{folder}")'
    else:
        first = (
            f'from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained("{folder}")'
        )
    return f'from transformers import AutoTokenizer\n{first}\ntokenizer = AutoTokenizer.from_pretrained("{folder}")'
