"""The list of methods, read from the package itself, so that it is never out of date."""

import inspect
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import cast

from torch import nn

from milepost.backends import BACKENDS
from milepost.seams import visible
from milepost.seams.equation import formula_of
from milepost.seams.facets import facets_of
from milepost.seams.known import classes, exports, is_method
from milepost.seams.verbs import answers, verbs_of

STRETCH_VERBS = ("frequencies", "magnitude", "slopes", "sample")
"""The methods of those that are not parts of a scheme: stretches of RoPE, stretches of ALiBi, and samplers."""

SOURCE = r"\(([^()]*)\)\.?$"
LINKS = (
    (r"arXiv:(\d{4}\.\d{4,5})", "https://arxiv.org/abs/{}"),
    (r"(kexue\.fm/archives/\d+|github\.com/[\w.-]+/[\w.-]+)", "https://{}"),
)


@dataclass(frozen=True)
class Entry:
    """One method: its name, its purpose and the backends that run it."""

    name: str
    verbs: tuple[str, ...]
    formula: str
    paper: str
    relative: bool | None
    """None where it depends on the arguments, and where it does not apply."""
    learned: bool
    backends: tuple[str, ...]
    does: str
    """The first sentence of its docstring."""
    facets: tuple[str, ...] = ()
    """Its facets for fast kernels; `milepost.seams.facets` explains each."""

    @property
    def title(self) -> str:
        """Its name in papers: `StreamingLLM`."""
        found = re.match(r"([^:()]+):", self.paper)
        return found[1] if found and self.source else ""

    @property
    def source(self) -> str:
        """Authors, year and where to find it: `Su et al., 2021, arXiv:2104.09864`."""
        found = re.search(SOURCE, self.paper)
        return found[1] if found else ""

    @property
    def link(self) -> str:
        """The address of its source, where one is given."""
        found = ((re.search(pattern, self.source), address) for pattern, address in LINKS)
        return next((address.format(match[1]) for match, address in found if match), "")


class MethodsPackage(ModuleType):
    """The package `milepost.methods`, which can also be called: `mp.methods()` lists every method."""

    def __call__(self) -> list[Entry]:
        """List every method with its verbs, formula, paper, and the backends that can run it alone."""
        return [_entry(name, each) for name, each in sorted(classes().items()) if is_method(each)]


# `import milepost.methods.rope` finds the folder and `mp.methods()` the list: both are one object.
package = import_module("milepost.methods")
package.__class__ = MethodsPackage
methods = cast("MethodsPackage", package)


def visibles() -> list[Entry]:
    """Return the elements of a visible expression: `causal`, `window` and the others."""
    named = sorted((name, each) for name, each in exports().items() if _is_visible(each))
    return [_other(name, each, ("see",)) for name, each in named]


def functions() -> list[Entry]:
    """Return every other callable export: functions, and modules such as a schedule."""
    # The base classes of methods are not functions.
    apart = ("milepost.seams.arguments", "milepost.seams.verbs")
    return [
        _other(name, each, ())
        for name, each in sorted(exports().items())
        if callable(each) and not (is_method(each) or _is_visible(each) or each.__module__ in apart)
        if not (inspect.isclass(each) and issubclass(each, Exception))
    ]


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    found = re.match(r"(.+?[.!?])(\s+[A-Z`]|$)", paragraph)
    return found[1] if found else paragraph


def _is_visible(each: object) -> bool:
    return isinstance(each, visible.Visible) or (
        inspect.isfunction(each) and each.__module__ == visible.__name__ and not each.__name__.startswith("_")
    )


def _entry(name: str, method: type) -> Entry:
    verbs = verbs_of(method) or tuple(verb for verb in STRETCH_VERBS if hasattr(method, verb))
    return Entry(
        name=name,
        verbs=verbs,
        formula=formula_of(method),
        paper=paper_of(method),
        relative=_relative(method),
        learned=issubclass(method, nn.Module),
        backends=tuple(
            each for each, backend in BACKENDS.items() if not any(asks(method, asked) for asked in backend.CANNOT)
        ),
        does=first_sentence(inspect.getdoc(method) or ""),
        facets=facets_of(method),
    )


def paper_of(method: type) -> str:
    """Return the line that names a method's source: its own where it shares a file, or else the first of its file."""
    return getattr(method, "paper", "") or (inspect.getdoc(sys.modules[method.__module__]) or "").split("\n")[0]


def asks(method: type, asked: str) -> bool:
    """True if a backend meets a verb or facet when it runs the method; a stretch of slopes acts inside `bend`."""
    return answers(method, asked) or (asked == "bend" and hasattr(method, "slopes") and not verbs_of(method))


def _relative(method: type) -> bool | None:
    declared = inspect.getattr_static(method, "relative", None)
    return None if declared is None or isinstance(declared, property) else bool(declared)


def _other(name: str, each: object, verbs: tuple[str, ...]) -> Entry:
    spoken = type(each) if isinstance(each, visible.Visible) else each
    doc = inspect.getdoc(MethodsPackage.__call__ if each is package else spoken) or ""
    does = first_sentence(doc)
    # A function names its source where a method's file does: at the end of its own first line, or of the module's.
    lines = (does, (inspect.getdoc(inspect.getmodule(each)) or "").split("\n")[0])
    return Entry(
        name=name,
        verbs=verbs,
        formula="",
        paper=next((line for line in lines if re.search(SOURCE, line)), ""),
        relative=True if verbs else None,
        learned=False,
        backends=tuple(BACKENDS) if verbs else (),
        does=re.sub(r"\s*" + SOURCE, ".", does),
        facets=facets_of(visible.Visible) if verbs else (),
    )
