"""Schemes as they are written, `Rope(64, stretch=Yarn(8, 4096)), SelfExtend(8, 512), causal`, and as Python has it."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import nn

import milepost as mp
from milepost import Scheme
from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import Say
from milepost.lab.schemes.expressions import Sum, classes_in, evaluate
from milepost.lab.schemes.limits import Listed
from milepost.seams.arguments import spell
from milepost.seams.visible import Visible

MOST = 4
"""Schemes side by side."""
LETTERS = 600
HEADS, WIDTH, LEARNED = 64, 512, 1 << 22
"""The most heads, channels of a head, and numbers that a scheme may learn, here."""
SIZES: Mapping[str, int] = MappingProxyType(
    {"dim": 64, "heads": 8, "width": 512, "layers": 1, "group": 8, "trained": 4096, "longest": 32_768}
)
"""The words of an expression, where nothing else says what they stand for."""
DRAWING = threading.Lock()
WRAPPED = re.compile(r"\s*(?:mp\.)?Scheme\((.*)\)\s*", re.DOTALL)


def read_all(given: Any, trained: int, length: int) -> list[Scheme]:
    """Return the schemes of texts; a NotPossibleError names the one that cannot be read."""
    if not isinstance(given, list) or not 1 <= len(cast("list[Any]", given)) <= MOST:
        raise NotPossibleError("schemes", Say(f"give one to {MOST} schemes", f"请给出 1 至 {MOST} 个方案"))
    return [_named(n, each, trained, length) for n, each in enumerate(cast("list[Any]", given))]


def _named(number: int, text: Any, trained: int, length: int) -> Scheme:
    control = f"scheme-{number}"
    if not isinstance(text, str) or not text.strip():
        raise NotPossibleError(
            control, Say("write a scheme, such as Rope(64), causal", "请写一个方案，如 Rope(64), causal")
        )
    if len(text) > LETTERS:
        raise NotPossibleError(control, Say(f"at most {LETTERS} letters", f"最多 {LETTERS} 个字符"))
    try:
        return read(text, trained, length)
    except (ValueError, TypeError, ImportError, NotImplementedError, RuntimeError, ArithmeticError) as error:
        words = " ".join(str(error).split())[:400]
        raise NotPossibleError(control, Say(words, f"无法读取：{words}")) from error


@lru_cache(maxsize=64)
def read(text: str, trained: int = 4096, length: int = 32_768) -> Scheme:
    """Return the scheme of a text: parts with commas or + between them, or `mp.Scheme(…)`. No code is run.

    `trained` and `longest` are the lengths, `dim` and `heads` those of a head of 64 channels and 8 of them. What is
    learned is drawn with one seed, so that a text is one scheme; the views of a page share it.
    """
    found = WRAPPED.fullmatch(text)
    text = re.sub(r"\bmp\.", "", found[1] if found else text)
    sizes = {**SIZES, "trained": trained, "longest": length}
    demand_small(text, sizes)
    # The generator is the process's own: two readers at once would draw from one seed together.
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        scheme = Scheme(*_parts(evaluate(text, sizes)))
    for name, most, value in (("heads", HEADS, scheme.heads), ("channels", WIDTH, width_of(scheme))):
        if value is not None and value > most:
            raise ValueError(f"{value:,} {name} are too many to draw; at most {most}")
    _demand_short_tables(scheme)
    embeds = scheme.answering("embed")
    if embeds:
        raise ValueError(
            f"{spell(embeds[0])} is added to the token embeddings before the first layer, so that it has no score of "
            f"its own; the composer takes what acts inside attention"
        )
    if (scheme.axes or 1) > 1:
        raise ValueError(f"{scheme!r} reads {scheme.axes} coordinates of a token, and a text has one")
    return scheme.requires_grad_(False)


def _demand_short_tables(scheme: Scheme) -> None:
    """Refuse waves that no curve needs so many of, and tables that are written out whole: nothing else bounds them."""
    for part in scheme.parts:
        width = max(getattr(part, name, None) or 0 for name in ("head_dim", "value_dim"))
        if width > WIDTH:
            raise ValueError(f"{spell(part)}: {width:,} channels are too many to draw; at most {WIDTH}")
    for part in scheme.answering("relate"):
        # What is learned has been counted; a Deberta of few buckets still has a row for every distance.
        width: int = 1 if isinstance(part, nn.Module) else getattr(part, "head_dim", 1)
        many: int = (2 * (getattr(part, "reach", None) or 0) + 1) * width
        if many > LEARNED:
            raise ValueError(
                f"{spell(part)} has a table of {many:,} numbers; at most {LEARNED:,} are drawn here, so give a "
                f"shorter reach"
            )


def _parts(made: Any) -> tuple[object, ...]:
    if isinstance(made, Listed):
        raise ValueError("this lists layers; the composer draws one of them")
    if isinstance(made, Sum):
        return made.parts
    if isinstance(made, tuple):
        return tuple(part for each in cast("tuple[Any, ...]", made) for part in _parts(each))
    if isinstance(made, (int, float, str)) or made is None:
        raise ValueError(f"{made!r} is no part of a scheme")
    return (made,)


def demand_small(text: str, sizes: Mapping[str, int] = SIZES) -> None:
    """Refuse what would learn too much, before there is room for it."""
    if "(" not in text or not any(issubclass(each, nn.Module) for each in classes_in(text).values()):
        return
    with DRAWING, torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            parts = _parts(evaluate(text, sizes))
        except (NotImplementedError, RuntimeError):
            return
    learned = sum(weight.numel() for each in parts if isinstance(each, nn.Module) for weight in each.parameters())
    if learned > LEARNED:
        raise ValueError(f"this would learn {learned:,} numbers; at most {LEARNED:,} are drawn here")


def width_of(scheme: Scheme) -> int:
    """Return how many channels a head of the scheme has; 64 where nothing in it says so."""
    for part in scheme.parts:
        of = getattr(part, "of", None)
        if isinstance(of, int):
            return of
    for verb in ("turn", "relate", "bend_rows"):
        for part in scheme.answering(verb):
            found = getattr(part, "head_dim", None)
            if isinstance(found, int):
                return found
    return 64


def hint_of(scheme: Scheme, trained: int) -> Say | None:
    """Return what in a scheme was trained at another length than the one that is set; None where nothing was."""
    found: dict[str, int] = {}

    def look(part: object) -> None:
        own = getattr(part, "trained", None)
        if isinstance(own, int) and own != trained:
            found[spell(part)] = own
        for held in ("method", "stretch"):
            if getattr(part, held, None) is not None:
                look(getattr(part, held))

    for part in scheme.parts:
        look(part)
    if not found:
        return None
    # Most are written with their length already.
    listed = [name if re.search(rf"\b{own}\b", name) else f"{name}: {own:,}" for name, own in found.items()]
    return Say(
        f"Trained at another length than the {trained:,} tokens that are set: {', '.join(listed)}.",
        f"训练长度与所设的 {trained:,} 个 token 不同：{'，'.join(listed)}。",
    )


def text_of(scheme: Scheme) -> str:
    """Return the scheme as the composer takes it."""
    return ", ".join(repr(part) if isinstance(part, Visible) else spell(part, whole=True) for part in scheme.parts)


def python_of(scheme: Scheme) -> str:
    """Return the line of Python that makes the scheme."""
    tree = ast.parse(f"Scheme({text_of(scheme)})", mode="eval")
    return ast.unparse(_Named().visit(tree))


class _Named(ast.NodeTransformer):
    """Puts `mp.` before every name that milepost exports."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("mp"), node.id) if node.id in mp.__all__ else node


__all__ = ["MOST", "demand_small", "hint_of", "python_of", "read", "read_all", "text_of", "width_of"]
