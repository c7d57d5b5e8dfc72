"""The catalogue entry of one method, for the terminal, Markdown and JSON."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from milepost.catalogue import register, signature
from milepost.catalogue.composing import composes
from milepost.catalogue.examples import CALLS, EXAMPLES, HEAD, written
from milepost.catalogue.groups import FUNCTIONS, GROUPS, Group, group_of
from milepost.seams.arguments import arguments
from milepost.seams.visible import Visible


@dataclass(frozen=True)
class Sheet:
    """One method, or one function, with all that is known of it."""

    name: str
    group: str
    title: str
    does: str
    verbs: tuple[str, ...]
    facets: tuple[str, ...]
    formula: str
    paper: str
    link: str
    relative: bool | None
    learns: bool
    learned: dict[str, list[int]]
    """The parameters, with their shapes in the example."""
    backends: tuple[str, ...]
    refusals: dict[str, str]
    """The reasons of the backends that refuse it."""
    call: str
    """The call with the arguments it needs."""
    arguments: tuple[str, ...] | None
    """All of its arguments with types and defaults; None for what is not called."""
    about: str
    """The whole docstring."""
    composes: tuple[str, ...]
    example: str

    @property
    def runs(self) -> bool:
        """True if it takes part in attention, unlike a sampler or a function."""
        return bool(self.backends) and "sample" not in self.verbs


def sheets(verb: str | None = None) -> list[Sheet]:
    """Return every method and function, seam by seam, in the order of the equation; or those with one verb."""
    made = [_sheet(entry, group_of(entry.verbs)) for entry in register.methods() + register.visibles()]
    made += [_sheet(entry, FUNCTIONS) for entry in register.functions()]
    place = {group.title: number for number, group in enumerate(GROUPS)}
    made = [sheet for sheet in made if verb is None or verb in sheet.verbs]
    return sorted(made, key=lambda sheet: place[sheet.group])


def grouped(listed: Iterable[Sheet]) -> list[tuple[Group, list[Sheet]]]:
    """Return the sheets of each group, without empty groups."""
    listed = list(listed)
    parted = [(group, [sheet for sheet in listed if sheet.group == group.title]) for group in GROUPS]
    return [(group, members) for group, members in parted if members]


def verbs_known() -> list[str]:
    """Return every verb that a group of the catalogue has."""
    return [verb for group in GROUPS for verb in group.verbs]


def _sheet(entry: register.Entry, group: Group) -> Sheet:
    each = getattr(sys.modules["milepost"], entry.name)
    return Sheet(
        name=entry.name,
        group=group.title,
        title=entry.title,
        does=entry.does,
        verbs=entry.verbs,
        facets=entry.facets,
        formula=entry.formula,
        paper=entry.source,
        link=entry.link,
        relative=entry.relative,
        learns=entry.learned,
        learned=_learned(entry, each),
        backends=entry.backends,
        refusals=_refusals(entry, each),
        call=signature.required(each, entry.name),
        arguments=signature.arguments(each),
        about=inspect.getdoc(type(each) if isinstance(each, Visible) else each) or "",
        composes=composes(entry.name, each, entry.verbs) if entry.verbs else (),
        example=_example(entry),
    )


def _example(entry: register.Entry) -> str:
    if entry.name in CALLS:
        return "\n".join((*HEAD, *CALLS[entry.name]))
    return written(EXAMPLES[entry.name], entry.verbs) if entry.name in EXAMPLES else ""


def _learned(entry: register.Entry, each: Any) -> dict[str, list[int]]:
    """Return the weights of the method in its example, by name."""
    if entry.name not in EXAMPLES or not isinstance(each, type):
        return {}
    known = {"mp": sys.modules["milepost"]}
    # Making a method draws random numbers; looking at a catalogue should not.
    with torch.random.fork_rng(devices=[]):
        parts = [eval(part, known) for part in EXAMPLES[entry.name]]
    own = [part for part in parts if isinstance(part, each)]
    return {name: list(weight.shape) for part in own for name, weight in _weights(part)}


def _weights(part: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the weights of a method, or of the methods that it contains."""
    if isinstance(part, nn.Module):
        yield from part.named_parameters()
    else:
        for argument, inner in arguments(part).items():
            if isinstance(inner, nn.Module):
                yield from ((f"{argument}.{name}", weight) for name, weight in inner.named_parameters())


def _refusals(entry: register.Entry, each: Any) -> dict[str, str]:
    """Return the reason of each backend that does not run the method."""
    from milepost.backends import BACKENDS

    reasons: dict[str, str] = {}
    for name, backend in BACKENDS.items():
        if name in entry.backends or not entry.backends:
            continue
        asked, reason = next((asked, reason) for asked, reason in backend.CANNOT.items() if register.asks(each, asked))
        depends = isinstance(inspect.getattr_static(each, asked, None), property)
        reasons[name] = reason + (" (depends on its arguments)" if depends else "")
    return reasons
