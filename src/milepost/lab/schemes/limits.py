"""What an expression may ask for: numbers and tables that a machine has, so that none can stop it or fill it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from milepost.seams.arguments import as_called_in_0_1
from milepost.seams.visible import Visible

WHOLE = 1 << 31
"""The largest whole number."""
AXIS = 1 << 16
"""The largest head, width or number of heads."""
LEARNED = 1 << 28
"""The most numbers that a part may learn: a gigabyte of them."""
LAYERS = 1 << 12
"""The most layers that a list may have."""
Operation = Callable[[Any, Any], Any]
AXES = ("dim", "head_dim", "model_dim", "heads", "width", "of")


class Listed(tuple[Any, ...]):
    """What stands in square brackets: layer by layer, where it is a scheme."""


class TooMuchError(ValueError):
    """What was asked for is too large."""


def cut(text: str, most: int = 80) -> str:
    """Return a text that is too long to print, by its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def within(value: Any) -> Any:
    """Return a value, if it is no number beyond all bounds."""
    if isinstance(value, complex):
        raise TooMuchError(f"{value} is no real number")
    if isinstance(value, int) and abs(value) > 1 << 64:
        raise TooMuchError(f"{cut(hex(value), 20)} is too large a number")
    return value


def _numbers(verb: str, left: Any, right: Any) -> None:
    """Refuse what Python would multiply or format: texts and tuples of any length."""
    if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        said = f"only numbers can be {verb}, not {cut(repr(left), 40)} and {cut(repr(right), 40)}"
        if isinstance(left, Listed):
            said = f"a list of layers cannot be {verb}; write [A] * (layers - 1)"
        elif verb == "subtracted":
            said += "; a name with a dash stands alone, inside an expression write what it stands for"
        raise TooMuchError(said)


def _made(verb: str, by: Operation) -> Operation:
    def made(left: Any, right: Any) -> Any:
        _numbers(verb, left, right)
        try:
            return within(by(left, right))
        except OverflowError:
            raise TooMuchError(f"{left!r} and {right!r} {verb} give too large a number") from None

    return made


def times(left: Any, right: Any) -> Any:
    """Return a product of numbers, or a list so often."""
    listed, often = (left, right) if isinstance(left, Listed) else (right, left)
    if not isinstance(listed, Listed):
        return _product(left, right)
    if not isinstance(often, int) or often < 0:
        raise TooMuchError(
            f"a list is repeated a whole number of times, not {cut(repr(often), 40)}; write [A] * (layers // 2), say"
        )
    if len(listed) * often > LAYERS:
        raise TooMuchError(f"a list has at most {LAYERS:,} layers, not {len(listed)} times {within(often)}")
    return Listed(tuple(listed) * often)


def _seen(sign: str, by: Operation) -> Operation:
    def made(left: Any, right: Any) -> Any:
        if isinstance(left, Visible) and isinstance(right, Visible):
            return by(left, right)
        raise TooMuchError(
            f"{sign} joins what is seen, such as causal {sign} window(64), not {cut(repr(left), 40)} and "
            f"{cut(repr(right), 40)}; parts are joined by +"
        )

    return made


both = _seen("&", lambda left, right: left & right)
either = _seen("|", lambda left, right: left | right)
minus = _made("subtracted", lambda left, right: left - right)
_product = _made("multiplied", lambda left, right: left * right)
floored = _made("divided", lambda left, right: left // right)
divided = _made("divided", lambda left, right: left / right)
rest = _made("divided", lambda left, right: left % right)


def power(base: Any, exponent: Any) -> Any:
    """base to the exponent, if its size is that of a number people write."""
    _numbers("raised to a power", base, exponent)
    # Asked before it is computed: 9 ** 9 ** 9 has 370 million digits.
    if base and abs(exponent) * abs(math.log2(abs(base))) > (64 if isinstance(base, int) else 1000):
        raise TooMuchError(f"{base} ** {exponent} is too large a number, or too small")
    return within(base**exponent)


def called(method: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Return a method with its arguments, if what it would build is not too large.

    Expressions are kept in stores, so arguments may come as 0.1 took them.
    """
    given, named = as_called_in_0_1(method, given, named)
    name = getattr(method, "__name__", str(method))
    try:
        signature = inspect.signature(method)
        had = signature.bind_partial(*given, **named).arguments
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        lacking = [
            each.name
            for each in signature.parameters.values()
            if each.kind in kinds and each.default is each.empty and each.name not in had
        ]
    except (TypeError, ValueError):
        lacking = list[str]()
    if lacking:
        raise TypeError(f"{name} needs {' and '.join(lacking)}")
    try:
        arguments = inspect.signature(method).bind(*given, **named).arguments
    except (TypeError, ValueError):
        # What it does not take, it refuses in its own words.
        arguments = dict[str, Any]()
    for argument, value in arguments.items():
        most = AXIS if argument in AXES else WHOLE
        if isinstance(value, int) and abs(value) > most:
            raise TooMuchError(f"{name} with {argument}={value:,}: at most {most:,}")
    if isinstance(method, type) and issubclass(method, nn.Module):
        learned = _learned(method, given, named)
        if learned > LEARNED:
            raise TooMuchError(f"{name} would learn {learned:,} numbers; at most {LEARNED:,}")
    return method(*given, **named)


def _learned(method: type[nn.Module], given: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Return how many numbers a method would learn, found without room for them and without drawing any."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            return sum(weight.numel() for weight in method(*given, **named).parameters())
        except (ValueError, TypeError, NotImplementedError, RuntimeError):
            # Refused, or not to be built that way: then it is built, or refused, where it is asked for.
            return 0
