"""`milepost compare --set steps=3000,width=256`: what may be set of a size, how it is written, and what sizes have."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from milepost.lab.schemes.naming import TRAINED
from milepost.lab.training.recipe import SIZES, Size
from milepost.refusal import did_you_mean


def _whole(text: str, least: int = 1) -> int:
    with suppress(ValueError):
        if (found := int(text)) >= least:
            return found
    raise ValueError(f"give a whole number of at least {least}")


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0 < (found := float(text)) < math.inf:
            return found
    raise ValueError("give a number above 0, such as 0.001 or 1e-3")


def _switch(text: str) -> bool:
    known = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
    if text.lower() not in known:
        raise ValueError("give on or off")
    return known[text.lower()]


@dataclass(frozen=True)
class _Setting:
    """What a setting is, what a size has where it is not set, and how its value is read."""

    meaning: str
    default: Callable[[Size], float] | str
    read: Callable[[str], float] = _whole


SETTINGS: dict[str, _Setting] = {
    "length": _Setting("the length trained at, in bytes", lambda size: size.recipe.length, partial(_whole, least=2)),
    "longest": _Setting(
        "the longest length judged at; it grows with length", lambda size: size.longest, partial(_whole, least=2)
    ),
    "steps": _Setting("steps that each model trains for", lambda size: size.recipe.steps),
    "batch": _Setting("how many texts a step reads", lambda size: size.recipe.batch),
    "rate": _Setting(
        "the highest learning rate; a learned bias of scores, such as T5's, has ten times that",
        lambda size: size.recipe.rate,
        _rate,
    ),
    "width": _Setting("channels of the model", lambda size: size.shape.width),
    "layers": _Setting("layers of the model", lambda size: size.shape.layers),
    "heads": _Setting("heads, which share the width", lambda size: size.shape.heads),
    "key-heads": _Setting("heads of keys and values; fewer are grouped queries", "as many as heads"),
    "accumulate": _Setting(
        "in how many parts a batch is worked through; more need less memory, and give the same model",
        lambda size: size.recipe.accumulate,
    ),
    "compile": _Setting("whether torch.compile is used", "on with a GPU, else off", _switch),
    "judge": _Setting("about how many bytes are judged at each length", lambda size: size.judged),
}
"""Everything that --set takes, by the name a user writes."""


def settings_of(texts: Iterable[str]) -> dict[str, Any]:
    """Return what the texts of every --set say together; what is not in it stays as the size has it."""
    found: dict[str, Any] = {}
    for text in texts:
        for part in map(str.strip, text.split(",")):
            if not part:
                such = "give some with commas between them, such as steps=3000,width=256"
                raise ValueError(f"--set {text!r}: an empty setting; {such}")
            written, equals, value = (each.strip() for each in part.partition("="))
            name = written.replace("_", "-")
            field = name.replace("-", "_")
            if name not in SETTINGS:
                raise ValueError(
                    f"--set {part}: no setting is called {written!r}; there are {', '.join(SETTINGS)}"
                    f"{did_you_mean(name, SETTINGS)}"
                )
            if not (equals and value):
                raise ValueError(f"--set {part}: it has no value; write {name}=…")
            if field in found:
                raise ValueError(f"--set {part}: {name} is set twice; leave one out")
            try:
                found[field] = SETTINGS[name].read(value)
            except ValueError as error:
                raise ValueError(f"--set {part}: {error}") from None
    return found


def check_words(words: Sequence[str]) -> None:
    """Refuse a setting that is written as an option of its own, --steps 3000, and say how it is written."""
    wrong: list[str] = []
    right: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        name = option.removeprefix("--")
        if word in ("--compile", "--no-compile"):
            wrong.append(word)
            right.append(f"compile={'on' if word == '--compile' else 'off'}")
        elif option.startswith("--") and name in SETTINGS:
            apart = "" if equals or after.startswith("--") else after
            wrong.append(f"{word} {apart}".strip())
            right.append(f"{name}={value or apart or '…'}")
    if wrong:
        raise ValueError(f"{' '.join(wrong)}: write --set {','.join(right)}")


def table() -> str:
    """Return every setting with what it is and what each size has, for the end of a help that is 80 columns wide."""
    defaults = {name: _defaults(each) for name, each in SETTINGS.items()}
    full = [each for each in defaults.values() if len(each) == len(SIZES)]
    wide = [max(map(len, column)) for column in zip(SIZES, *full, strict=True)]
    first, middle = max(map(len, SETTINGS)), sum(wide) + 2 * (len(wide) - 1)

    def begun(name: str, cells: Sequence[str]) -> str:
        row = "  ".join(each.rjust(width) for each, width in zip(cells, wide, strict=False))
        return f"{name:{first}}  {row:>{middle}}  "

    lines = [begun("", list(SIZES)).rstrip()]
    for name, each in SETTINGS.items():
        head = begun(name, defaults[name])
        # The help indents it by two.
        lines.append(textwrap.fill(each.meaning, 78, initial_indent=head, subsequent_indent=" " * len(head)))
    # Of a paragraph that begins with \b, the help keeps the lines.
    settings = "Settings for --set, and what each size has:\n\n\b\n" + "\n".join(lines)
    return f"{settings}\n\nSchemes by name, and what each stands for:\n\n\b\n{_names()}"


def _names() -> str:
    """Return every name that a scheme of the lab has, with its expression."""
    first = max(map(len, TRAINED)) + 2
    return "\n".join(
        textwrap.fill(text, 78, initial_indent=f"{name:{first}}", subsequent_indent=" " * first, break_on_hyphens=False)
        for name, text in TRAINED.items()
    )


def _defaults(setting: _Setting) -> list[str]:
    """Return what each size has; one text where it is not for a size to say."""
    if isinstance(setting.default, str):
        return [setting.default]
    return [str(setting.default(size)) for size in SIZES.values()]
