"""What a page sends, read with suspicion: small, flat JSON with numbers that a machine has."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import Say

MOST = 1 << 16
"""Bytes of a request."""
DEEP = 6
"""How many brackets stand in one another."""
LARGEST = 2.0**53
"""Numbers are not larger: beyond, not every whole number is one that JavaScript has."""


def asked(body: bytes) -> dict[str, Any]:
    """Return the object of a request; a NotPossibleError says what is wrong with any other text."""
    if len(body) > MOST:
        refuse(f"a request has at most {MOST:,} bytes", f"请求最多 {MOST:,} 字节")
    # Brackets are counted before anything is read: the reader itself would go as deep as they do.
    if _depth(body) > DEEP:
        refuse(f"nested more than {DEEP} deep", f"嵌套超过 {DEEP} 层")
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_number, parse_int=_whole, parse_float=_float)
    except (ValueError, RecursionError):
        refuse("this is no JSON", "这不是 JSON")
    if not isinstance(found, dict):
        refuse("give an object", "请给一个对象")
    _whole_letters(found, "")
    return cast("dict[str, Any]", found)


def refuse(en: str, zh: str, control: str = "") -> NoReturn:
    """Say no in both languages."""
    raise NotPossibleError(control, Say(en, zh))


def text_of(given: dict[str, Any], name: str, most: int = 80) -> str:
    """Return a short text of a request."""
    found = given.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= most:
        refuse(f"{name}: give a text of at most {most} letters", f"{name}：请给出最多 {most} 个字符的文本", name)
    return found


def _depth(body: bytes) -> int:
    """Return the most brackets that are open at once, those within strings left out."""
    deepest = open_ = 0
    quoted = escaped = False
    for byte in body:
        if quoted:
            quoted, escaped = escaped or byte != 0x22, byte == 0x5C and not escaped
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            open_ += 1
            deepest = max(deepest, open_)
        elif byte in b"]}":
            open_ -= 1
    return deepest


def _whole_letters(found: Any, control: str) -> None:
    """Refuse half a letter, \\ud800 alone: no answer that repeats it could be sent."""
    if isinstance(found, str) and any("\ud800" <= letter <= "\udfff" for letter in found):
        refuse(f"{control}: half of a letter".removeprefix(": "), f"{control}：半个字符".removeprefix("："), control)
    if isinstance(found, list):
        for each in cast("list[Any]", found):
            _whole_letters(each, control)
    if isinstance(found, dict):
        for name, each in cast("dict[str, Any]", found).items():
            _whole_letters(name, control)
            _whole_letters(each, name)


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)


def _whole(digits: str) -> int:
    # Asked before it is read: a number of a million digits takes a minute.
    if len(digits) > 17 or abs(int(digits)) > LARGEST:
        raise ValueError("too large")
    return int(digits)


def _float(digits: str) -> float:
    found = float(digits) if len(digits) <= 40 else math.inf
    if not abs(found) <= LARGEST:
        raise ValueError("too large")
    return found


__all__ = ["asked", "refuse", "text_of"]
