"""Why an engine cannot run a scheme, in the words of its parts, and the nearest that it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from milepost import Interpolate, Ntk, Scheme, Yarn
from milepost.hf.exporting.source import Source
from milepost.hf.model.rotary import same_beside, turn_of
from milepost.seams.arguments import spell
from milepost.seams.verbs import answers

FACTOR = 4
"""How far the nearest stretches where what was asked for says no factor."""


class Engine(Protocol):
    """Something that runs models: whether it can run this one, and how that is written."""

    @property
    def name(self) -> str:
        """Return what --to calls it."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the libraries that it needs beside those of milepost.hf."""
        ...

    def refuses_model(self, source: Source) -> str | None:
        """Return why it runs no model of this type, whatever the scheme, or None."""
        ...

    def refuses(self, source: Source) -> str | None:
        """Return why it cannot run the scheme of this model, or None."""
        ...

    def write(self, source: Source, folder: Any) -> dict[str, str]:
        """Write the files; returns what the card says beside the scheme, by its heading."""
        ...


def beyond_rotation(source: Source) -> str | None:
    """Return in words the parts of a scheme that are neither the model's own nor a rotation; None without any."""
    for layer, scheme in source.schedule.items():
        own = source.layers.own[layer]
        if not same_beside(own, scheme):
            return f"{_listed(own, scheme)} in layer {layer} changes more than the rotation"
    return None


def _listed(own: Scheme, scheme: Scheme) -> str:
    rest = any(answers(part, "rest") for part in own.parts)
    new = [part for part in scheme.parts if part not in own.parts and part is not turn_of(scheme)]
    new = [part for part in new if not (rest and answers(part, "rest"))]
    gone = [part for part in own.parts if part not in scheme.parts and part is not turn_of(own)]
    return " and ".join(map(spell, new)) or f"leaving {' and '.join(map(spell, gone))} out"


def demand_runs(engine: Engine, source: Source, engines: dict[str, Engine]) -> None:
    """Refuse what an engine cannot run, and name the nearest that works: another method, or another engine."""
    why = engine.refuses_model(source)
    if why is not None:
        other = next((each for each in engines.values() if each is not engine and runs(each, source)), None)
        instead = "" if other is None else f". Nearest that works: {source.line(other.name)}"
        raise ValueError(f"{source.called} --to {engine.name}: {why}{instead}")
    why = engine.refuses(source)
    if why is None:
        return
    found = nearest(engine, source)
    other = next((each for each in engines.values() if each is not engine and runs(each, source)), None)
    if found is not None:
        why += f". Nearest that {engine.name} runs: {found[0]}, {source.line(engine.name, found[1])}"
    if other is not None:
        why += f". As it is: {source.line(other.name)}"
    raise ValueError(f"{source.called} --to {engine.name}: {why}")


def runs(engine: Engine, source: Source) -> bool:
    """True if an engine runs a model under its scheme."""
    return engine.refuses_model(source) is None and engine.refuses(source) is None


def nearest(engine: Engine, source: Source) -> tuple[str, tuple[object, ...]] | None:
    """Return a method that an engine can run on this model, in words and as parts, or None."""
    for words, parts in _others(source):
        try:
            other = source.under(*parts) if parts else source.unchanged()
        except (ValueError, TypeError):
            # The model has a stretch already, or nothing that could be stretched.
            continue
        if engine.refuses(other) is None:
            return words, parts
    return None


def _others(source: Source) -> Iterator[tuple[str, tuple[object, ...]]]:
    turns = [turn for turn in map(turn_of, source.schedule) if turn is not None]
    stretches: list[Any] = [getattr(getattr(turn, "method", turn), "stretch", None) for turn in turns]
    factors = (getattr(each, "factor", None) for each in stretches if each is not None)
    # A dynamic stretch has no factor, or 1.
    factor = next((each for each in factors if each and each > 1), FACTOR)
    if source.trained is not None:
        yield "YaRN, which is static", (Yarn(factor, trained=source.trained),)
    yield "NTK, which is static", (Ntk(float(factor)),)
    yield "linear interpolation", (Interpolate(float(factor)),)
    yield "the model as its config has it", ()
