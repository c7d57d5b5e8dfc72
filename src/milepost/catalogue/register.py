"""What methods there are: read off the package itself, so that the list cannot lag behind."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from types import ModuleType

from torch import nn

from milepost import methods as package
from milepost.backends import BACKENDS
from milepost.seams import visible
from milepost.seams.equation import formula_of
from milepost.seams.facets import facets_of
from milepost.seams.known import classes, exports, is_method
from milepost.seams.verbs import answers, verbs_of

STRETCH_VERBS = ("frequencies", "magnitude", "slopes", "sample")
"""What is asked of those that are not parts of a scheme: stretches of RoPE, stretches of ALiBi, and samplers."""

SOURCE = r"\(([^()]*)\)\.?$"
LINKS = (
    (r"arXiv:(\d{4}\.\d{4,5})", "https://arxiv.org/abs/{}"),
    (r"(kexue\.fm/archives/\d+|github\.com/[\w.-]+/[\w.-]+)", "https://{}"),
)


@dataclass(frozen=True)
class Entry:
    """One method: what it is called, what it does and who can run it."""

    name: str
    verbs: tuple[str, ...]
    formula: str
    paper: str
    relative: bool | None
    """None where it depends on what the method holds or on its arguments, and where there is nothing to ask."""
    learned: bool
    backends: tuple[str, ...]
    does: str
    """The first sentence of its docstring."""
    facets: tuple[str, ...] = ()
    """What it also says about itself, for fast kernels; `milepost.seams.facets` explains each."""

    @property
    def title(self) -> str:
        """What papers call it: `StreamingLLM`."""
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
        """Every method with its verbs, formula, paper, and the backends that can run it alone."""
        return [_entry(name, each) for name, each in sorted(classes().items()) if is_method(each)]


# `import milepost.methods.rope` finds the folder and `mp.methods()` the list: both are one object.
package.__class__ = MethodsPackage
methods: MethodsPackage = package


def visibles() -> list[Entry]:
    """What a visible expression is made of: `causal`, `window` and the others."""
    named = sorted((name, each) for name, each in exports().items() if _is_visible(each))
    return [_other(name, each, ("see",)) for name, each in named]


def functions() -> list[Entry]:
    """Every other export that one calls: functions, and modules such as a schedule."""
    # What methods are made of is no function.
    apart = ("milepost.seams.arguments", "milepost.seams.verbs")
    return [
        _other(name, each, ())
        for name, each in sorted(exports().items())
        if callable(each) and not (is_method(each) or _is_visible(each) or each.__module__ in apart)
        if not (inspect.isclass(each) and issubclass(each, Exception))
    ]


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
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
        paper=(inspect.getdoc(sys.modules[method.__module__]) or "").split("\n")[0],
        relative=_relative(method),
        learned=issubclass(method, nn.Module),
        backends=tuple(
            each for each, backend in BACKENDS.items() if not any(asks(method, asked) for asked in backend.CANNOT)
        ),
        does=first_sentence(inspect.getdoc(method) or ""),
        facets=facets_of(method),
    )


def asks(method: type, asked: str) -> bool:
    """Whether a backend meets a verb or facet when it runs the method; what stretches slopes acts inside what bends."""
    return answers(method, asked) or (asked == "bend" and hasattr(method, "slopes") and not verbs_of(method))


def _relative(method: type) -> bool | None:
    declared = inspect.getattr_static(method, "relative", None)
    return None if declared is None or isinstance(declared, property) else bool(declared)


def _other(name: str, each: object, verbs: tuple[str, ...]) -> Entry:
    spoken = type(each) if isinstance(each, visible.Visible) else each
    doc = inspect.getdoc(MethodsPackage.__call__ if each is package else spoken) or ""
    does = first_sentence(doc)
    # A function tells its source where a method's file does: at the end of its own first line, or of the module's.
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
