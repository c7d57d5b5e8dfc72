"""A schedule: which scheme each layer uses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from milepost.configs import attending, read
from milepost.configs.reader import Reader
from milepost.configs.stored import METHODS, changed, entries, unread_in
from milepost.scheme import Scheme, with_trained
from milepost.seams.equation import called


class Schedule(nn.Module):
    """One scheme for each layer. The same object twice shares its weights.

    local = Scheme(Rope(64), causal & window(512))
    schedule = Schedule([local, local, local, Scheme(Nope(), causal)] * 8)
    out = attend(q, k, v, schedule[layer])

    layers: the numbers of the layers that attend, where others do not (linear, state-space, convolution). A schedule
    counts and yields those that attend; `schedule[layer]` takes the number that a layer has in the model.
    """

    trained: int | None = None
    """The length its model was trained at; `Schedule.of` sets it, saving keeps it, and `same_as` ignores it."""

    def __init__(self, schemes: Sequence[Scheme], *, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        if not isinstance(schemes, (list, tuple)):
            raise TypeError(f"Schedule({type(schemes).__name__}): give a list of schemes, one for each layer")
        if not schemes:
            raise ValueError("Schedule([]): a schedule needs at least one scheme, one for each layer")
        for layer, scheme in enumerate(schemes):
            if not isinstance(scheme, Scheme):
                raise TypeError(f"Schedule: layer {layer} is a {type(scheme).__name__}; wrap its parts: Scheme(…)")
        distinct = list({id(scheme): scheme for scheme in schemes}.values())
        self.schemes = nn.ModuleList(distinct)
        self.order = tuple(next(n for n, each in enumerate(distinct) if each is scheme) for scheme in schemes)
        self.layers = range(len(schemes)) if layers is None else demand_numbers(layers, len(schemes))
        """The numbers of the layers that attend."""

    @staticmethod
    def of(config: object) -> Schedule:
        """Read the schemes of all layers of a model from its configuration, which `Scheme.of` describes.

        Layers that agree are one object; tables that the model shares over its layers are shared.
        """
        reader = read(config, "Schedule.of")
        stored, own = unread_in(reader.source), stock_schedule(reader)
        return own if stored is None else schedule_in(stored, own, reader.decodes, "Schedule.of")

    def __getitem__(self, layer: int) -> Scheme:
        if isinstance(self.layers, range):
            if not -len(self) <= layer < len(self):
                raise IndexError(f"Schedule: asked for layer {layer} of {len(self)} layers")
            return self._at(layer)
        if layer not in self.layers:
            raise IndexError(
                f"Schedule: asked for layer {layer}, which does not attend; layers that do: {ranges(self.layers)}"
            )
        return self._at(self.layers.index(layer))

    def _at(self, place: int) -> Scheme:
        scheme = self.schemes[self.order[place]]
        assert isinstance(scheme, Scheme)
        return scheme

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Scheme]:
        return map(self._at, range(len(self)))

    def items(self) -> Iterator[tuple[int, Scheme]]:
        """Yield the number and the scheme of each layer that attends."""
        return zip(self.layers, self, strict=True)

    def same_as(self, other: object) -> bool:
        """Return True if the other schedule is built the same way, shared layers included."""
        if not isinstance(other, Schedule) or (self.order, list(self.layers)) != (other.order, list(other.layers)):
            return False
        ours, theirs = self._distinct(), other._distinct()
        alike = all(one.same_as(another) for one, another in zip(ours, theirs, strict=True))
        return alike and _shared(ours) == _shared(theirs)

    def _distinct(self) -> list[Scheme]:
        return [scheme for scheme in self.schemes if isinstance(scheme, Scheme)]

    def to_dict(self) -> dict[str, Any]:
        """Return the distinct schemes, the order of the layers and the trained length; weights are in state_dict()."""
        schemes = self._distinct()
        return {
            "schedule": list(self.order),
            "schemes": [scheme.to_dict() for scheme in schemes],
            "shared": [list(places) for places in _shared(schemes)],
            **({} if isinstance(self.layers, range) else {"layers": list(self.layers)}),
            **({} if self.trained is None else {"trained": self.trained}),
        }

    @staticmethod
    def from_dict(plain: dict[str, Any], *, methods: Iterable[type] = ()) -> Schedule:
        """Build a schedule from to_dict(); name classes of your own in `methods`."""
        if not {"schedule", "schemes"} <= set(plain):
            raise ValueError(
                f"Schedule.from_dict: expected {{'schedule': […], 'schemes': […]}}, given the keys {sorted(plain)}"
            )
        methods = tuple(methods)
        schemes = [Scheme.from_dict(each, methods=methods) for each in plain["schemes"]]
        parts = [list(scheme.parts) for scheme in schemes]
        places: list[list[tuple[int, int]]] = plain.get("shared", [])
        for (first, place), *others in places:
            for scheme, part in others:
                parts[scheme][part] = parts[first][place]
        order: list[int] = plain["schedule"]
        rebuilt = [Scheme(*each) for each in parts]
        for new, scheme in zip(rebuilt, schemes, strict=True):
            new.trained = scheme.trained
        schedule = Schedule([rebuilt[number] for number in order], layers=plain.get("layers"))
        schedule.trained = plain.get("trained")
        return schedule

    def __repr__(self) -> str:
        """The schemes as one would write them, each after the layers that use it."""
        kinds = [f"{ranges(layers)}{weights}: {called(scheme)}" for layers, weights, scheme in self.kinds()]
        return f"Schedule({self._counted()}; {'; '.join(kinds)})"

    def __str__(self) -> str:
        """The schemes as their equations, each after the layers that use it."""
        lines = [self._counted()]
        for layers, weights, scheme in self.kinds():
            word = "layer" if len(layers) == 1 else "layers"
            lines += [f"{word} {ranges(layers)}{weights}:", textwrap.indent(str(scheme), "  ")]
        return "\n".join(lines)

    def _counted(self) -> str:
        attending = "" if isinstance(self.layers, range) else " that attend"
        return f"{len(self)} layer{'s' if len(self) > 1 else ''}{attending}"

    def kinds(self) -> Iterator[tuple[list[int], str, Scheme]]:
        """Yield each kind of scheme, as it is printed: its layers, its sets of weights if several, and it."""
        printed = [str(scheme) for scheme in self.schemes]
        kinds: dict[str, list[int]] = {}
        for layer, number in zip(self.layers, self.order, strict=True):
            kinds.setdefault(printed[number], []).append(layer)
        for layers in kinds.values():
            weights = {tuple(map(id, self[layer].parameters())) for layer in layers}
            yield layers, f" ({len(weights)} sets of weights)" if len(weights) > 1 else "", self[layers[0]]


def stock_schedule(reader: Reader) -> Schedule:
    """Return what a config describes to stock transformers, whatever extension it stores besides.

    Layers that do not attend are passed over.
    """
    distinct: dict[tuple[object, ...], Scheme] = {}
    schemes: list[Scheme] = []
    layers = attending(reader)
    for layer in range(reader.layers) if layers is None else layers:
        # Parts that learn equal only themselves, so layers with weights of their own stay apart.
        parts = tuple(reader.family.parts(reader, layer))
        if parts not in distinct:
            distinct[parts] = with_trained(reader, parts)
        schemes.append(distinct[parts])
    schedule = Schedule(schemes, layers=layers)
    schedule.trained = schemes[0].trained
    return schedule


def schedule_in(stored: dict[str, Any], own: Schedule, decodes: bool, called: str) -> Schedule:
    """Return the schedule of a stored extension, of the encoder or of the decoder where it has two.

    own: what the rest of the config describes now. It must be what it was when the extension was stored.
    """
    plain, before = entries(stored, decodes)
    if not before or not read_schedule(before).same_as(own):
        raise changed(called, own)
    schedule = read_schedule(plain)
    schedule.trained = own.trained if schedule.trained is None else schedule.trained
    for scheme, its in zip(schedule, own, strict=True):
        scheme.trained = its.trained if scheme.trained is None else scheme.trained
    return schedule


def read_schedule(plain: dict[str, Any]) -> Schedule:
    """Return a schedule from its dict, in which methods of other people's configs may be."""
    return Schedule.from_dict(plain, methods=METHODS)


def demand_numbers(layers: Sequence[int], count: int) -> tuple[int, ...] | range:
    """Return the numbers of layers, as many as there are schemes, in order; a range stays one, and leaves none out."""
    numbers = tuple(layers)
    rising = all(one < other for one, other in pairwise(numbers))
    if len(numbers) != count or not rising or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(
            f"Schedule(layers={list(numbers)}): give the number of each layer that attends, in order, one for each of "
            f"the {count} schemes"
        )
    return range(count) if layers == range(count) else numbers


def ranges(layers: Sequence[int]) -> str:
    """Numbers in order, those that follow one another as a range: `0–2, 4`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _shared(schemes: Sequence[Scheme]) -> list[list[tuple[int, int]]]:
    """Where parts that learn stand in more than one scheme, as (scheme, part): those share their weights."""
    places: dict[int, list[tuple[int, int]]] = {}
    for number, scheme in enumerate(schemes):
        for place, part in enumerate(scheme.parts):
            if isinstance(part, nn.Module):
                places.setdefault(id(part), []).append((number, place))
    return [each for each in places.values() if len(each) > 1]
