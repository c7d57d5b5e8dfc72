"""Texts to judge a model on, made of the user's own: endings, copies of a passage, and needles in a haystack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

Encode = Callable[[str], Sequence[int]]

HIDDEN = " The pass key is {key}. Remember it. {key} is the pass key."
ASKED = " What is the pass key? The pass key is"


def tokens_of(text: object, tokenizer: object) -> Tensor:
    """The ids of a text, [n] int64: ids as they are, or a string and what makes ids of it."""
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError("measure: a text needs a tokenizer; pass tokenizer=, or give token ids")
        return torch.tensor(list(encoder(tokenizer)(text)), dtype=torch.long)
    if isinstance(text, os.PathLike):
        raise TypeError("measure: this is the path of a text; read it first: path.read_text()")
    try:
        ids = torch.as_tensor(cast("Any", text))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"measure: a text is a string, with a tokenizer, or token ids, integers [n]; given a {type(text).__name__}"
        ) from None
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"measure: token ids are integers [n]; given {ids.dtype} {list(ids.shape)}")
    return ids.long().cpu()


def encoder(tokenizer: object, asked: str = "measure") -> Encode:
    """Return a function from a string to ids without special tokens, made of a tokenizer or given as one."""
    own: Any = tokenizer
    if hasattr(own, "encode") and hasattr(own, "convert_ids_to_tokens"):
        return lambda words: own.encode(words, add_special_tokens=False)
    if callable(own):
        return cast("Encode", own)
    raise TypeError(
        f"{asked}: a tokenizer is one of transformers, or a function from a string to ids; given a {type(own).__name__}"
    )


def need_tokens(ids: Tensor, wanted: int, why: str) -> None:
    """Refuse a text that is too short, and say how many tokens it takes."""
    if len(ids) < wanted:
        raise ValueError(
            f"measure: the text has {len(ids):,} tokens, and {why} needs {wanted:,}; give a longer text, or ask for "
            f"shorter lengths or fewer windows"
        )


def endings(ids: Tensor, length: int, longest: int, windows: int, last: int, first: int | None) -> Tensor:
    """Windows [n, length + 1] that end at fixed places, the same at every length, so that the same tokens are judged.

    The judged ends do not overlap. first, if given, stands in place of the first token of every window (a model's bos).
    """
    room = len(ids) - longest - 1
    ends = [longest + n * room // max(1, windows - 1) for n in range(windows)]
    found = torch.stack([ids[end - length : end + 1] for end in ends])
    return _begun(found, first)


def ending_tokens(longest: int, windows: int, last: int) -> int:
    """How many tokens a text must have for so many windows whose ends do not overlap."""
    return longest + 1 + (windows - 1) * last


def copies(
    ids: Tensor, distance: int, furthest: int, size: int, trials: int, seed: int, shuffled: bool, first: int | None
) -> Tensor:
    """A passage, other text, and the passage again `distance` tokens after it began: [n, size + distance + size].

    The first `size` tokens lead in, so that the first copy has something to go by. The passages are the same at every
    distance up to the furthest. shuffled draws them token by token, so that nothing but looking back helps.
    """
    if distance < size:
        raise ValueError(f"measure: copies of {size} tokens cannot stand {distance} apart; raise the distance")
    generator = torch.Generator().manual_seed(seed)
    between = distance - size
    found: list[Tensor] = []
    for _ in range(trials):
        start = int(torch.randint(0, len(ids) - furthest - size + 1, (), generator=generator))
        lead, passage = ids[start : start + size], ids[start + size : start + 2 * size]
        rest = ids[start + 2 * size : start + 2 * size + between]
        if shuffled:
            passage = ids[torch.randint(0, len(ids), (size,), generator=generator)]
        found.append(torch.cat((lead, passage, rest, passage)))
    return _begun(torch.stack(found), first)


@dataclass(frozen=True)
class Needle:
    """What is hidden, what is asked, and the answer, as token ids."""

    hidden: Tensor
    asked: Tensor
    answer: Tensor

    @property
    def room(self) -> int:
        """How many tokens they take of a text; the last of the answer is never given."""
        return len(self.hidden) + len(self.asked) + len(self.answer) - 1


def needles(ids: Tensor, tokenizer: object, trials: int, seed: int) -> list[Needle]:
    """A pass key in words where there is a tokenizer; else four tokens and the four that follow them."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Needle] = []
    for _ in range(trials):
        if tokenizer is None:
            drawn = ids[torch.randint(0, len(ids), (8,), generator=generator)]
            found.append(Needle(drawn, drawn[:4], drawn[4:]))
            continue
        encode = encoder(tokenizer)
        key = str(int(torch.randint(10000, 100000, (), generator=generator)))
        parts = [list(encode(words)) for words in (HIDDEN.format(key=key), ASKED, f"{ASKED} {key}")]
        # Tokens may join over the border, so the answer is what the whole has past what the question alone has.
        shared = next((n for n, (a, b) in enumerate(zip(parts[1], parts[2], strict=False)) if a != b), len(parts[1]))
        hidden, asked, answer = (torch.tensor(each) for each in (parts[0], parts[2][:shared], parts[2][shared:]))
        found.append(Needle(hidden, asked, answer))
    return found


def haystack(ids: Tensor, needle: Needle, length: int, depth: float, seed: int, first: int | None) -> Tensor:
    """A text of length + 1 tokens: hay with the needle at a depth (0 the beginning, 1 the end), question and answer."""
    around = length - needle.room
    if around < 2:
        raise ValueError(
            f"measure: a needle takes {needle.room} tokens, and the text is to have {length}; ask for more"
        )
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(0, len(ids) - around + 1, (), generator=generator))
    hay, at = ids[start : start + around], 1 + round(depth * (around - 1))
    text = torch.cat((hay[:at], needle.hidden, hay[at:], needle.asked, needle.answer))
    return _begun(text[None], first)


def _begun(windows: Tensor, first: int | None) -> Tensor:
    if first is None:
        return windows
    windows = windows.clone()
    windows[:, 0] = first
    return windows


def doubling(shortest: int, most: int) -> Iterator[int]:
    """A length and its doubles, up to the most."""
    while shortest <= most:
        yield shortest
        shortest *= 2
