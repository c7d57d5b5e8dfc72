"""`show`: what a model does now, layer by layer, from its configuration alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from milepost.configs import read
from milepost.configs.layer_types import any_type
from milepost.configs.reader import Reader, look_up
from milepost.configs.rope_types import trained_length
from milepost.configs.rotation import Rotary
from milepost.configs.stored import LOADED_BY, Plain, stored_in
from milepost.hf.config.far_layers import reach
from milepost.hf.config.source import config_of
from milepost.hf.wrapped import columns, said, wrapped
from milepost.schedule import Schedule, ranges, stock_schedule
from milepost.seams.equation import called, equation

STOCK, EXTENDED = "stock", "extended"


@dataclass(frozen=True)
class Stack:
    """The layers of a model, or of its encoder or decoder: what they do now, what they did, and which do not attend."""

    name: str
    """Empty for a model that is one stack."""
    now: Schedule
    before: Schedule | None
    """What the checkpoint did, where an extension takes its place."""
    passed_over: dict[str, list[int]]
    """Layers that do not attend, by what they are."""

    def to_dict(self) -> Plain:
        """All of it as JSON can hold it."""
        kinds = [
            {"layers": layers, "scheme": called(scheme), "equation": str(scheme)}
            for layers, _, scheme in self.now.kinds()
        ]
        before = None if self.before is None else self.before.to_dict()
        return {
            "name": self.name, "kinds": kinds, "schedule": self.now.to_dict(), "before": before,
            "layers_that_do_not_attend": self.passed_over,
        }  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What a model does now; `print` shows it, `to_dict()` is JSON.

    trained is the length before any stretch, reached the one that the config promises, both None where it says neither.
    transformers: whether stock transformers reads the rest of the config as the same model.
    """

    model_type: str
    state: str
    """Stock or extended."""
    transformers: bool
    trained: int | None
    reached: int | None
    stacks: tuple[Stack, ...]

    def to_dict(self) -> Plain:
        """All of it as JSON can hold it."""
        readers = [*(["transformers"] if self.transformers else []), "milepost"]
        return {
            "model_type": self.model_type, "state": self.state, "read_by": readers, "trained": self.trained,
            "reached": self.reached, "stacks": [each.to_dict() for each in self.stacks],
        }  # fmt: skip

    def __str__(self) -> str:
        counted = ", ".join(f"{each.name} {_counted(each)}".strip() for each in self.stacks)
        lines = wrapped(f"{self.model_type}: {counted}, {self._lengths()}", indent=2)
        lines += said("state", self.state_in_words)
        for stack in self.stacks:
            if stack.before is not None:
                lines += said("was", f"{stack.name} {stack.before!r}".strip())
            for kind, layers in stack.passed_over.items():
                lines += said("others", f"{_layers(layers)} {'do' if len(layers) > 1 else 'does'} not attend ({kind})")
        if len(self.stacks) > 1:
            lines += said("left out", "attention of the decoder to the encoder")
        return "\n".join([*lines, *(line for stack in self.stacks for line in _equations(stack))])

    def _lengths(self) -> str:
        if self.trained is None:
            return "trained at a length that the config does not say"
        more = f", reads {self.reached:,} by its config" if self.reached not in (None, self.trained) else ""
        return f"trained at {self.trained:,} tokens{more}"

    @property
    def state_in_words(self) -> str:
        """Stock or extended, and who reads it."""
        if self.state == STOCK:
            return "stock: milepost changed nothing; transformers alone reads it"
        if self.transformers:
            return f"extended by milepost, in the words of transformers: transformers alone reads it, as {LOADED_BY}"
        return f"extended by milepost: {LOADED_BY} reads it; transformers alone has no words for it and raises an error"


def show(model: object) -> Shown:
    """Return what a model does now, layer by layer, from its configuration alone; no weights are read.

    model: a model or a config of transformers, stock or extended, a folder with a config.json, also one that `save`
    wrote, that file, its dict, or a name of the hub.

        print(show("path/to/model"))
    """
    config = config_of(model, "show")
    reader = read(config, "show")
    stored = stored_in(reader.source)
    stacks = tuple(_stacks(config, reader, stored))
    schemes = list(stacks[0].now if stored is None or stacks[0].before is None else stacks[0].before)
    trained = trained_length(reader, schemes[0].parts)
    return Shown(
        reader.model_type,
        STOCK if stored is None else EXTENDED,
        stored is None or bool(stored.get("transformers_reads_it")),
        trained,
        None if trained is None else reach(reader, schemes, trained),
        stacks,
    )


def _stacks(config: Any, reader: Reader, stored: Plain | None) -> Iterator[Stack]:
    """The one stack of a model, or the encoder and the decoder of one that has both."""
    both = any(look_up(each, "is_encoder_decoder") for each in (config, reader.source))
    for name in ("encoder", "decoder") if both else ("",):
        # Learned tables are drawn, and the user's random numbers stay what they were.
        with torch.random.fork_rng(devices=[]):
            its = _decoding(config, name == "decoder") if both else config
            own = read(its, "show")
            before = None if stored is None or stored.get("transformers_reads_it") else stock_schedule(own)
            yield Stack(name, Schedule.of(its), before, _passed_over(own))


def _decoding(config: Any, decodes: bool) -> Any:
    """Return a config that says which of two stacks is meant."""
    if isinstance(config, Mapping):
        return {**cast("Mapping[str, Any]", config), "is_decoder": decodes}
    made = copy.copy(config)
    made.is_decoder = decodes
    return made


def _passed_over(reader: Reader) -> dict[str, list[int]]:
    """Return the layers that do not attend, by their type."""
    family = reader.family
    if not isinstance(family, Rotary):
        return {}
    attending, found = set(stock_schedule(reader).layers), dict[str, list[int]]()
    for layer in range(reader.layers):
        if layer not in attending:
            found.setdefault(any_type(reader, layer, family.rule), []).append(layer)
    return found


def _equations(stack: Stack) -> Iterator[str]:
    """Yield the equation of each kind of layer after the numbers of its layers, as wide as the terminal."""
    for layers, weights, scheme in stack.now.kinds():
        yield ""
        yield from wrapped(f"{stack.name} {_layers(layers)}{weights}:".strip(), indent=7)
        attention, *verbs = equation(scheme, columns() - 2).splitlines()
        yield from wrapped(attention, "  ", 10)
        yield from (f"  {line}" for line in verbs)


def _counted(stack: Stack) -> str:
    count, others = len(stack.now), sum(map(len, stack.passed_over.values()))
    attending = f"{count} of {count + others} layers attend" if others else ""
    return attending or f"{count} layer{'s' if count > 1 else ''}"


def _layers(layers: list[int]) -> str:
    return f"{'layer' if len(layers) == 1 else 'layers'} {ranges(layers)}"


__all__ = ["Shown", "show"]
