"""Schemes as they are written: a name in any spelling, or an expression such as `Rope(dim, theta=1e5) + LogN(trained)`.

Where layers differ, it is a list of one for each: `[Rope(dim) + window(64)] * (layers - 1) + [Nope()]`.

An expression is read as a tree, and can call milepost's methods, those of the user's own, and nothing else.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from milepost.catalogue.names.spelling import method_called, plain
from milepost.lab.schemes import limits, own
from milepost.lab.schemes.naming import TRAINED
from milepost.refusal import did_you_mean
from milepost.seams.visible import causal, chunks, everything, sinks, window

LONGEST = 2000
"""Letters of an expression; none that people write has a tenth of it."""
LONGEST_TITLE = 60
"""Letters of a row's name, which is the first column of every table."""
SEEN: dict[str, Any] = {"causal": causal, "everything": everything}
CALLS: dict[str, Callable[..., Any]] = {"window": window, "sinks": sinks, "chunks": chunks, "max": max, "min": min}
BINARY: dict[type, limits.Operation] = {
    ast.Sub: limits.minus, ast.Mult: limits.times, ast.FloorDiv: limits.floored, ast.Div: limits.divided,
    ast.BitAnd: limits.both, ast.BitOr: limits.either,
    ast.Pow: limits.power, ast.Mod: limits.rest,
}  # fmt: skip
# A name alone has dashes and blanks, but no other sign.
NAME = re.compile(r"[\w\s-]+")


@dataclass(frozen=True)
class Sum:
    """Parts joined by +."""

    parts: tuple[object, ...]


# How it is spelled


def named(text: str) -> str:
    """Return the name of a scheme, whichever way it is written: `rope` for RoPE, Rope and Rope(dim); or the text."""
    return _name_of(text) or _by_expression().get(_written(text), text)


def spelled(text: str) -> str:
    """Return the one spelling of a scheme: its name, if it has one, or its expression in the names of the classes."""
    name = named(text)
    return name if name in TRAINED else _written(name)


def titled(text: str) -> tuple[str, str]:
    """Return what a row is called, or else what it is, and its expression: `sharper = Rope(dim) + LogN(trained)`."""
    depth, ends = 0, list[int]()
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        # Within brackets it gives an argument.
        if letter == "=" and depth == 0:
            ends.append(place)
    if not ends:
        return text, text
    name, written = " ".join(text[: ends[0]].split()), text[ends[0] + 1 :].strip()
    odd = name.endswith(":") or any(letter in "{}" or unicodedata.category(letter)[0] == "C" for letter in name)
    if not (name and written) or odd or len(ends) > 1 or len(name) > LONGEST_TITLE:
        raise ValueError(
            f"the row {limits.cut(text)!r}: a name stands before one =, and has up to {LONGEST_TITLE} letters that can "
            f"be seen, no braces, and no colon at its end: 'sharper = Rope(dim) + LogN(trained)'"
        )
    return name, written


def _written(text: str) -> str:
    try:
        return ast.unparse(tree_of(text))
    except RecursionError:
        raise _too_deep(text) from None


def joined(text: str, more: str) -> str:
    """Return an expression with one more part, in every layer."""
    part = _parsed(more)

    def grown(node: ast.expr) -> ast.expr:
        match node:
            case ast.List(elts=items):
                return ast.List([ast.BinOp(item, ast.Add(), part) for item in items], ast.Load())
            case ast.BinOp(left=left, op=sign, right=right) if _is_list(node):
                sides = (grown(each) if _is_list(each) else each for each in (left, right))
                return ast.BinOp(next(sides), sign, next(sides))
            case _:
                return ast.BinOp(node, ast.Add(), part)

    return ast.unparse(grown(_parsed(text)))


def _is_list(node: ast.expr) -> bool:
    """True if an expression lists layers."""
    match node:
        case ast.List():
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
            return _is_list(left) or _is_list(right)
        case _:
            return False


def words_in(text: str) -> set[str]:
    """Return the words that an expression reads, such as `dim` or `longest`."""
    return {node.id for node in ast.walk(tree_of(text)) if isinstance(node, ast.Name)}


def classes_in(text: str) -> dict[str, type]:
    """Return the classes of the methods that an expression calls, by name."""
    calls = [node.func for node in ast.walk(tree_of(text)) if isinstance(node, ast.Call)]
    called = sorted({node.id for node in calls if isinstance(node, ast.Name) and node.id[:1].isupper()})
    return {name: each for name in called if (each := own.named(name)) is not None}


@lru_cache(maxsize=256)
def tree_of(text: str) -> ast.expr:
    """The tree of an expression, with methods by the names of their classes, and names by what they stand for."""
    try:
        return _Spelling().visit(_parsed(text))
    except RecursionError:
        raise _too_deep(text) from None


def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ValueError(f"the scheme {limits.cut(text)!r} has {len(text):,} characters; at most {LONGEST:,} are read")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (RecursionError, MemoryError):
        raise _too_deep(text) from None
    except (SyntaxError, ValueError) as error:
        why = limits.cut(str(error.msg if isinstance(error, SyntaxError) else error), 200)
        # What the shell took apart comes in pieces.
        torn = "never closed" in why or "unmatched" in why
        hint = "; put all of it in single quotes, so that the shell leaves it whole" if torn else _hint(text)
        # Python says already what may have been meant.
        if why.endswith("?") and "(" in text:
            hint = ""
        raise ValueError(f"the scheme {limits.cut(text)!r} is no expression: {why}{hint}") from None


def _too_deep(text: str) -> ValueError:
    return ValueError(f"the scheme {limits.cut(text)!r} is nested too deeply; write it in fewer brackets and signs")


class _Spelling(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        called = node.func
        if isinstance(called, ast.Name) and called.id not in CALLS:
            lower = called.id.lower()
            called = ast.Name(lower if lower in CALLS else method_called(called.id) or called.id)
        arguments = [self.visit(each) for each in node.args]
        return ast.Call(called, arguments, [ast.keyword(each.arg, self.visit(each.value)) for each in node.keywords])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = _name_of(node.id)
        if node.id.lower() in SEEN:
            return ast.Name(node.id.lower())
        return _parsed(TRAINED[name]) if name in TRAINED else node


def _name_of(text: str) -> str | None:
    if len(text) > LONGEST or not NAME.fullmatch(text):
        return None
    names = _names()
    return names.get(plain(text)) or names.get(plain(method_called(text) or ""))


@cache
def _names() -> dict[str, str]:
    """Names by their plain spelling, and by the method that one of them is."""
    found = {plain(name): name for name in TRAINED}
    for name, text in TRAINED.items():
        match _parsed(text):
            case ast.Call(func=ast.Name(id=method)):
                found.setdefault(plain(method), name)
            case _:
                pass
    return found


@cache
def _by_expression() -> dict[str, str]:
    return {ast.unparse(_parsed(text)): name for name, text in TRAINED.items()}


# What it is


def evaluate(text: str, sizes: Mapping[str, int]) -> Any:
    """The value of an expression of milepost's methods, numbers and the model's own sizes; it can call nothing else."""
    words = {**SEEN, **sizes}
    calls: dict[str, Callable[..., Any]] = {**CALLS, **classes_in(text)}

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=constant):
                return limits.within(constant)
            case ast.Name(id=name) if name in words:
                return words[name]
            case ast.Tuple(elts=items):
                return tuple(value(item) for item in items)
            case ast.List(elts=items):
                return limits.Listed(value(item) for item in items)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return limits.minus(0, value(inner))
            case ast.UnaryOp(op=ast.Invert(), operand=inner):
                return ~value(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _added(value(left), value(right))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in BINARY:
                return BINARY[type(sign)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=given, keywords=keywords) if name in calls:
                named_ = {str(each.arg): value(each.value) for each in keywords}
                return limits.called(calls[name], *map(value, given), **named_)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp() | ast.Lambda() | ast.IfExp():
                raise ValueError(
                    f"the scheme {text!r}: loops and conditions are not read; write a scheme for each layer, [A, B], "
                    f"or some of them again, [A] * (layers - 1) + [B]"
                )
            case _:
                asked = node.func if isinstance(node, ast.Call) else node
                written = ast.unparse(node)
                # Quoted once where it is all of the scheme.
                which = f"the scheme {text!r}" + ("" if written == text.strip() else f": {written!r}")
                raise ValueError(f"{which} is not known{_hint(ast.unparse(asked), asked is node)}")

    try:
        return value(tree_of(text))
    except limits.TooMuchError as error:
        raise ValueError(f"the scheme {limits.cut(text)!r}: {error}") from None
    except RecursionError:
        raise _too_deep(text) from None
    except ZeroDivisionError:
        raise ValueError(f"the scheme {text!r} divides by zero") from None


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return limits.within(left + right)
    if isinstance(left, limits.Listed) and isinstance(right, limits.Listed):
        return limits.times(limits.Listed((*left, *right)), 1)
    if isinstance(left, limits.Listed) or isinstance(right, limits.Listed):
        raise limits.TooMuchError(
            "layers are added to layers, as in [A] * (layers - 1) + [B]; write what all of them have in each"
        )
    parts: list[object] = []
    for side in (left, right):
        parts.extend(side.parts if isinstance(side, Sum) else (side,))
    return Sum(tuple(parts))


def _hint(asked: str, alone: bool = True) -> str:
    """Return what may have been meant by a name that is not known, or not known there."""
    if why := own.without_verb(asked):
        return f": {why}"
    if alone and (method_called(asked) or asked in CALLS):
        return f"; it takes arguments: {method_called(asked) or asked}(…)"
    methods = [name for name in own.names() if name.lower() not in TRAINED or asked[:1].isupper()]
    known = [name for name in TRAINED if not asked[:1].isupper()] + methods
    return did_you_mean(asked, known) or f"; by name there are {', '.join(TRAINED)}"
