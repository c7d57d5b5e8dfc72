"""Runs the blocks of a chapter and keeps what each shows."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
from dataclasses import asdict, dataclass
from typing import Any

from guide.builder import store
from guide.builder.chapter import Chapter, Code


@dataclass(frozen=True)
class Shown:
    """What a block shows: text, a picture, or neither."""

    text: str = ""
    svg: str = ""
    says: str = ""
    """What the picture shows, in a sentence."""


def run(chapter: Chapter) -> list[Shown]:
    """Return what each block shows, from the cache where nothing changed; a failing block raises what it raised."""
    code = [each.text for each in chapter.code]
    keys = [store.key_of("block", *code[: number + 1]) for number in range(len(code))]
    found = [store.kept(key) for key in keys]
    if any(each is None for each in found):
        names: dict[str, Any] = {"__name__": f"guide_{chapter.name.replace('-', '_')}"}
        found = [
            store.keep(key, asdict(_shown(block, names, chapter)))
            for key, block in zip(keys, chapter.code, strict=True)
        ]
    return [Shown(**each) for each in found]


def _shown(block: Code, names: dict[str, Any], chapter: Chapter) -> Shown:
    """Run a block; its last line, if it is an expression, is shown as a notebook would."""
    file = f"{chapter.language}/{chapter.path.name}, block {block.number + 1} (line {block.line})"
    # So that a traceback shows the line that failed.
    linecache.cache[file] = (len(block.text), None, block.text.splitlines(keepends=True), file)
    tree = ast.parse(block.text, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)
        value = eval(compile(ast.Expression(last.value), file, "eval"), names) if last is not None else None
    if hasattr(value, "svg"):
        return Shown(printed.getvalue(), value.svg(), getattr(value, "says", ""))
    return Shown(printed.getvalue() + (f"{value!r}\n" if value is not None else ""))
