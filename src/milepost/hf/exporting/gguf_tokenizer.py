"""A tokenizer as llama.cpp reads it: byte-level BPE, or SentencePiece's pieces with scores.

llama.cpp splits text before BPE by rules that it has under names; the name of the one that a tokenizer.json describes
is found by what it describes. Of SentencePiece only BPE with bytes to fall back on is written; its scores are the order
of its merges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from milepost.hf.exporting.source import Source

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The types of tokens."""
SPECIAL = ("bos", "eos", "unk", "pad")
SPACE = "▁"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "gpt-2": (GPT2,),
    "smollm": ("digits", GPT2),
    "qwen2": (WORDS + r"|\p{N}" + REST,),
    "llama-bpe": (WORDS + r"|\p{N}{1,3}" + REST,),
}
"""How text is split before BPE, by the name that llama.cpp has for it."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens as a GGUF file lists them."""

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list[float])
    merges: list[str] = field(default_factory=list[str])
    pre: str = "default"
    special: dict[str, int] = field(default_factory=dict[str, int])
    template: str | None = None
    begins: bool = False
    prefix: bool = False

    def add(self, writer: Any) -> None:
        """Write it into the metadata."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        if self.scores:
            writer.add_token_scores(self.scores)
        writer.add_token_types(self.types)
        if self.merges:
            writer.add_token_merges(self.merges)
        for name, token in self.special.items():
            getattr(writer, f"add_{name}_token_id")(token)
        writer.add_add_bos_token(self.begins)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(self.prefix)
        if self.template is not None:
            writer.add_chat_template(self.template)


def vocabulary_of(source: Source) -> Vocabulary | str:
    """Return the tokenizer of a model for llama.cpp, or why there is none."""
    if source.folder is None:
        return "a model in memory has none"
    file = source.folder / "tokenizer.json"
    if not file.is_file():
        return "there is no tokenizer.json beside the model"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if found["model"].get("type") != "BPE":
        return f"its tokenizer is {found['model'].get('type')}, and BPE alone is written"
    settings = _settings(source.folder)
    made = _pieces(found, source) if found["model"].get("byte_fallback") else _bytes(found, source)
    if isinstance(made, str):
        return made
    ids = {token: number for number, token in enumerate(made.tokens)}
    for name in SPECIAL:
        token = settings.get(f"{name}_token")
        token = cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
        if token in ids:
            made.special[name] = ids[token]
    template = settings.get("chat_template")
    beside = source.folder / "chat_template.jinja"
    if not isinstance(template, str):
        template = beside.read_text(encoding="utf-8") if beside.is_file() else None
    begins = settings.get("add_bos_token")
    begins = _begins(found, settings) if begins is None else bool(begins)
    return Vocabulary(made.model, made.tokens, made.types, made.scores, made.merges, made.pre, made.special,
                      template, begins and "bos" in made.special, made.prefix)  # fmt: skip


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _begins(found: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Return whether the tokenizer itself puts a BOS before every text."""
    bos = settings.get("bos_token")
    bos = cast("dict[str, Any]", bos).get("content") if isinstance(bos, dict) else bos
    made = json.dumps(found.get("post_processor") or {}, ensure_ascii=False)
    return bool(bos) and json.dumps(bos, ensure_ascii=False) in made


def _listed(found: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return all tokens, those added behind the vocabulary among them, and their types."""
    tokens, types = [f"[PAD{n}]" for n in range(size)], [UNUSED] * size
    for token, number in cast("dict[str, int]", found["model"]["vocab"]).items():
        if number < size:
            tokens[number], types[number] = token, NORMAL
    for each in cast("list[dict[str, Any]]", found.get("added_tokens") or []):
        if each["id"] < size:
            tokens[each["id"]] = each["content"]
            types[each["id"]] = CONTROL if each.get("special") else USER_DEFINED
    return tokens, types


def _merges(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for each in cast("list[str | list[str]]", found["model"].get("merges") or []):
        left, right = each.split(" ", 1) if isinstance(each, str) else each
        yield left, right


def _bytes(found: dict[str, Any], source: Source) -> Vocabulary | str:
    """Return byte-level BPE."""
    splits = _splits(found.get("pre_tokenizer"))
    pre = next((name for name, known in SPLITS.items() if known == splits), None)
    if pre is None:
        return (
            "the rule by which its tokenizer splits text is none of those that are known here by llama.cpp's names "
            f"({', '.join(SPLITS)}); llama.cpp's convert_hf_to_gguf.py --vocab-only knows more"
        )
    normal = cast("dict[str, Any]", found.get("normalizer") or {}).get("type")
    if normal not in (None, "NFC"):
        return f"its tokenizer rewrites text ({normal}) before it is split, which llama.cpp does not"
    tokens, types = _listed(found, source.config.vocab_size)
    merges = [f"{left} {right}" for left, right in _merges(found)]
    return Vocabulary("gpt2", tokens, types, merges=merges, pre=pre)


def _splits(given: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Return the rules of a pre-tokenizer, one after the other; None where one is not known."""
    steps = given["pretokenizers"] if given and given["type"] == "Sequence" else [given] if given else []
    found: list[str] = []
    for step in steps:
        if step["type"] == "Digits" and step.get("individual_digits"):
            found.append("digits")
        elif step["type"] == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
            found.append(step["pattern"].get("Regex"))
        elif step["type"] == "ByteLevel" and not step.get("add_prefix_space"):
            found += [GPT2] if step.get("use_regex", True) else []
        else:
            return None
    return tuple(found)


def _pieces(found: dict[str, Any], source: Source) -> Vocabulary | str:
    """Return SentencePiece's BPE, whose merges go by the score of what they make."""
    if found.get("pre_tokenizer") and found["pre_tokenizer"].get("type") not in ("Metaspace", "Split"):
        return f"its tokenizer splits text by {found['pre_tokenizer'].get('type')} before SentencePiece's merges"
    tokens, types = _listed(found, source.config.vocab_size)
    order: dict[str, int] = {}
    for left, right in _merges(found):
        order.setdefault(left + right, len(order))
    for number, token in enumerate(tokens):
        if types[number] == NORMAL and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[number] = BYTE
        elif types[number] == USER_DEFINED:
            # llama.cpp looks for these in the text as it stands.
            tokens[number] = token.replace(SPACE, " ")
    unknown = found["model"].get("unk_token")
    if unknown in tokens:
        types[tokens.index(unknown)] = UNKNOWN
    # Single characters are never the result of a merge; what is unused never is either.
    last = -float(len(order) + 1)
    scores = [float(-order[token]) if token in order else last if kind == NORMAL else 0.0
              for token, kind in zip(tokens, types, strict=True)]  # fmt: skip
    return Vocabulary("llama", tokens, types, scores, prefix=_prefixed(found))


def _prefixed(found: dict[str, Any]) -> bool:
    """Return whether a space is put before a text."""
    steps: list[dict[str, Any]] = [found.get("normalizer") or {}, found.get("pre_tokenizer") or {}]
    steps += [each for step in steps for each in step.get("normalizers", [])]
    put = any(step.get("type") == "Prepend" and step.get("prepend") == SPACE for step in steps)
    return put or any(step.get("prepend_scheme") in ("first", "always") for step in steps)
