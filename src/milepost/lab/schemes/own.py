"""Methods of the user's own in the lab: classes in a file, or in a package with the entry point `milepost.methods`.

    milepost compare 'mine.py:WaveBias(heads)' alibi
    milepost compare 'WaveBias(heads) + LogN(trained)' --methods mine.py

A file is its text: that is what runs here and on every worker, what a cell's key depends on, and what is kept with a
model. So it must stand alone: it can import installed packages, but no files beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import linecache
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import ModuleType

from milepost.catalogue.names.spelling import method_called
from milepost.seams.known import class_called, classes, installed, version_of
from milepost.seams.verbs import VERBS, verbs_of

# A file and a colon before a name: `mine.py:WaveBias`, with or without folders.
FROM_FILE = re.compile(r"([^\s'\":+&|(),]+\.py):\s*(?=[A-Za-z_])")


@dataclass(frozen=True)
class Source:
    """A file of methods."""

    name: str
    """The file's name, without its folders."""
    text: str

    @cached_property
    def digest(self) -> str:
        """Return what tells one text from another."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def module(self) -> str:
        """Return the name under which Python knows it."""
        return f"milepost_methods_{self.digest}"


_by_name: dict[str, tuple[type, Source]] = {}
"""The classes of the files in use."""


def read(path: str | Path) -> Source:
    """Return a file of methods, read."""
    path = Path(path)
    try:
        return Source(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file of methods {path} cannot be read: {error}") from None


def apart(text: str) -> tuple[str, list[str]]:
    """Return an expression without the files in it, and those files: `mine.py:WaveBias(heads)` is `WaveBias(heads)`."""
    return FROM_FILE.sub("", text), FROM_FILE.findall(text)


def use(sources: Iterable[Source]) -> None:
    """Let expressions name the classes of some files, and of no others."""
    found: dict[str, tuple[type, Source]] = {}
    for source in sources:
        for name, each in methods_of(source).items():
            if name in found and found[name][1] != source:
                raise ValueError(f"{found[name][1].name} and {source.name} both have a {name}; rename one of them")
            found[name] = each, source
    if found != _by_name:
        _by_name.clear()
        _by_name.update(found)


@contextlib.contextmanager
def using(sources: Iterable[Source]) -> Generator[None]:
    """Return the same for a while; then those that were in use before."""
    before = dict(_by_name)
    use(sources)
    try:
        yield
    finally:
        _by_name.clear()
        _by_name.update(before)


def named(name: str) -> type | None:
    """Return the class of that name: milepost's own, one of the files in use, or one of an installed package."""
    found = _by_name.get(name)
    return found[0] if found else class_called(name) or installed(name)


def names() -> list[str]:
    """Return every name that an expression may call, but those of packages."""
    return [*classes(), *_by_name]


def origins(names: Sequence[str]) -> list[str]:
    """Return what some classes depend on besides milepost: digests of files, and packages with their versions."""
    files = [_by_name[name][1].digest for name in names if name in _by_name]
    packages = [version_of(name) for name in names if name not in _by_name and class_called(name) is None]
    return sorted({*files, *(each for each in packages if each is not None)})


def sources(names: Sequence[str]) -> tuple[Source, ...]:
    """Return the files that some classes are from."""
    return tuple(dict.fromkeys(_by_name[name][1] for name in names if name in _by_name))


def methods_of(source: Source) -> dict[str, type]:
    """Return the methods of a file, by name."""
    module = sys.modules.get(source.module) or _run(source)
    own = {name: each for name, each in vars(module).items() if _is_own(each, source) and not name.startswith("_")}
    found = {name: each for name, each in own.items() if verbs_of(each)}
    if not found:
        what = f"{', '.join(own)} {'has' if len(own) == 1 else 'have'} no verb" if own else "there is no class in it"
        raise ValueError(f"{source.name} has no method, a class with a verb such as bend, turn or embed: {what}")
    for name in found:
        if class_called(name) or method_called(name):
            raise ValueError(f"{source.name}: milepost has a method called {method_called(name) or name}; rename yours")
        if not name[0].isupper():
            raise ValueError(f"{source.name}: the class {name} must begin with a capital, as in an expression")
    return found


def without_verb(name: str) -> str:
    """Why a class of the files in use is no method, if it is one; otherwise nothing."""
    for source in {source for _, source in _by_name.values()}:
        found = vars(sys.modules[source.module]).get(name)
        if inspect.isclass(found) and _is_own(found, source):
            methods = [each for each in vars(found) if not each.startswith("_")]
            meant = [(each, verb) for each in methods for verb in get_close_matches(each, list(VERBS), 1, 0.75)]
            hint = f"; it has `{meant[0][0]}`, did you mean `{meant[0][1]}`?" if meant else ""
            return f"{name} of {source.name} has no verb such as bend, turn or embed{hint}"
    return ""


def _is_own(each: object, source: Source) -> bool:
    return inspect.isclass(each) and each.__module__ == source.module


def _run(source: Source) -> ModuleType:
    """The module of a text; tracebacks, and torch.compile, find its lines though there may be no such file here."""
    file = f"<{source.name} {source.digest}>"
    module = ModuleType(source.module)
    module.__file__ = file
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    # Dataclasses look their module up by its name.
    sys.modules[source.module] = module
    try:
        exec(compile(source.text, file, "exec"), vars(module))
    except ImportError as error:
        del sys.modules[source.module]
        raise ValueError(
            f"{source.name}: {error}; a file of methods is sent to workers alone, so what it imports must be installed "
            f"there; put the rest into the file"
        ) from error
    except Exception as error:
        del sys.modules[source.module]
        raise ValueError(f"{source.name} cannot be run: {type(error).__name__}: {error}") from error
    return module
