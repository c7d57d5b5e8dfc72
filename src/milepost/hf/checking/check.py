"""`check`: name every position convention in which two models differ, layer by layer.

Schemes are compared seam by seam, and models are run: both on the same made-up weights, a config as the model that
transformers builds from it. A layer that does not do what its own config says is described by what was measured.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Schedule, Scheme
from milepost.configs import attending, read
from milepost.configs.reader import LENGTH, Reader, look_up
from milepost.hf.checking.diagnosis import diagnose, odd_places
from milepost.hf.checking.report import Checked, Difference, between, number, together
from milepost.hf.checking.running import TOKENS, Runs, Table, skeleton
from milepost.hf.checking.schemes import Function, GivenSlopes, compare
from milepost.hf.config.source import config_of, first_line, schedules_in
from milepost.hf.model.extension import extension_of
from milepost.hf.model.models import as_run, undrawn, unwrapped
from milepost.hf.model.parts import ALIBI, ROTARY, kind_of
from milepost.hf.model.t5 import stretched
from milepost.scheme import with_trained

LARGEST = 2e9
"""How many weights the model of a config may have to be run."""
UNRELATED = {
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "name_or_path", "torch_dtype",
    "transformers_version", "use_cache",
}  # fmt: skip
"""Fields of a config that no logit depends on."""


@dataclass
class Side:
    """One of the two: its schemes by layer ("" for one that serves all), and what of it can be run.

    labels: its layers that attend, those whose scheme cannot be read among them. only: the kinds of encoding that it
    has, None for a whole model. width: the channels of a head. model: what is run;
    own: True if that has weights. extended: True if it runs by a scheme of ours. lacks: what is not known of it, and
    failed: what should have been, and raised an error.
    """

    name: str
    layers: dict[str, Scheme] = field(default_factory=dict[str, Scheme])
    only: Set[str] | None = None
    width: int | None = None
    config: Any = None
    model: nn.Module | None = None
    own: bool = False
    extended: bool = False
    lacks: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    runs: Runs | None = None
    stock: Runs | None = None
    """The run of the model that transformers builds from the model's own config."""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.labels = self.labels or tuple(self.layers)
        parts = (part for scheme in self.layers.values() for part in cast("Iterable[Any]", scheme.parts))
        self.width = next((part.head_dim for part in parts if getattr(part, "rotary", False)), self.width)

    def departs(self, label: str) -> bool:
        """True if a layer does something else than its own config says."""
        runs, stock = self.runs, self.stock
        return runs is not None and stock is not None and stock.comparable(runs, label) and stock.differs(runs, label)


@undrawn()
def check(a: object, b: object, dim: int | None = None) -> Checked:
    """Name every position convention in which two models differ.

    a, b: a model or a config of transformers, a folder with a config.json, that file, its dict or a name of the hub; a
    Scheme, a Schedule or a method of milepost (Rope, Alibi, T5Bias); a function rotary(x, position) with x [b h t d]
    and position [t]; or ALiBi's slopes, [heads]. dim: the channels of a head, where only functions are given.

    "No difference found" means that logits agree where weights do, but for what `not_compared` names; where a model
    failed to run, `not_run` names it, and whether the two differ is not known. Models are run on
    made-up weights; neither their weights nor their state are changed. The values of position tables are compared where
    both have them.
    """
    names = [_named(each) for each in (a, b)]
    sides = [None if is_function(each) else side_of(each, name) for each, name in zip((a, b), names, strict=True)]
    dim = dim or next((each.width for each in sides if each is not None and each.width), None)
    if dim is None and None in sides:
        raise ValueError("check: how many channels does a head have? A function does not show it; pass dim=128")
    one, two = (
        side or Side(f"{name} (function)", {"": Scheme(Function(given, dim or 0))}, {ROTARY})
        for side, given, name in zip(sides, (a, b), names, strict=True)
    )
    return _Comparison(one, two, dim or 64).result()


def _named(given: object) -> str:
    if isinstance(given, (str, os.PathLike)):
        return str(cast("object", given))
    if isinstance(given, Tensor):
        return f"slopes of {given.numel()} heads"
    return str(getattr(given, "__name__", None) or type(given).__name__)


# What was given


def is_function(given: object) -> bool:
    """True if this is a rotary function, which does not show how many channels a head has."""
    if not callable(given) or isinstance(given, (type, Scheme, Schedule)) or kind_of(given) is not None:
        return False
    return look_up(given, "model_type", "config") is None


def side_of(given: object, name: str) -> Side:
    """Read what is not a function."""
    if isinstance(given, Tensor):
        if given.dim() != 1:
            raise ValueError(f"check: a tensor is taken for ALiBi's slopes, [heads]; {name} is {list(given.shape)}")
        return Side(name, {"": Scheme(GivenSlopes(given))}, {ALIBI})
    if isinstance(given, Scheme):
        return Side(name, {"": given})
    if isinstance(given, Schedule):
        alike = len(given.schemes) == 1 and isinstance(given.layers, range)
        return Side(name, {"": next(iter(given))} if alike else _layers(given))
    if isinstance(given, nn.Module) and look_up(given, "config") is not None:
        return _of_model(unwrapped(given), name)
    kind = kind_of(given)
    if kind is not None and look_up(given, "model_type") is None:
        return Side(f"{name} (method)", {"": Scheme(given)}, {kind})
    return _of_config(given, name)


def _layers(*stacks: Schedule) -> dict[str, Scheme]:
    """Label the layers that attend, by their numbers in the model, of one stack or of an encoder and a decoder."""
    names = ("",) if len(stacks) == 1 else ("encoder ", "decoder ")
    pairs = zip(names, stacks, strict=False)
    return {f"{name}layer {n}": each for name, stack in pairs for n, each in stack.items()}


def _of_model(model: nn.Module, name: str) -> Side:
    config = cast("Any", model).config
    done, buckets = extension_of(model), stretched(model)
    if done is None and (buckets is None or not buckets.schedules):
        return _read(Side(f"{name} (model)", config=as_run(config), model=model, own=True))
    layers = _layers(*([done.schedule] if done is not None else cast("Any", buckets).schedules.values()))
    width = read(config, "check").head_width
    return Side(f"{name} (extended)", layers, width=width, config=config, model=model, own=True, extended=True)


def _of_config(given: object, name: str) -> Side:
    config = config_of(given, "check")
    kept = schedules_in(given, "check")
    if kept:
        why = f"attention outputs: {name} was saved extended; load it with milepost.hf.load to run it"
        return Side(f"{name} (saved extended)", _layers(*kept), config=config, extended=True, lacks=[why])
    side = _read(Side(f"{name} (config)", config=config))
    try:
        if isinstance(side.config, Mapping):
            import transformers

            plain = dict(cast("Mapping[str, Any]", side.config))
            side.config = transformers.AutoConfig.for_model(plain.pop("model_type"), **plain)
        side.model = skeleton(copy.deepcopy(side.config))
    except Exception as error:  # whatever transformers raises, the scheme is still compared
        why = f"attention outputs of {name}: transformers builds no model from it ({first_line(error)})"
        (side.failed if _is_theirs(config) else side.lacks).append(why)
        if not side.layers:
            # Neither we nor transformers know it: the reader's error explains that best.
            read(config, "check")
    return side


def _is_theirs(config: object) -> bool:
    """True if this is a config of a model that transformers has, and that does not come with a checkpoint."""
    from transformers import CONFIG_MAPPING

    return look_up(config, "model_type") in CONFIG_MAPPING


def _read(side: Side) -> Side:
    """Fill in the schemes that a config says, of both stacks where there are two."""
    config, lacks = side.config, list(side.lacks)
    try:
        reader = read(config, "check")
    except ValueError as error:
        if look_up(config, "model_type") is None:
            raise
        return replace(side, lacks=[*lacks, f"what {side.name} does past {TOKENS} tokens: {first_line(error)}"])
    stacks = {"": reader}
    if look_up(config, "is_encoder_decoder") and not reader.decodes:
        stacks = {"encoder ": reader, "decoder ": read({**_plain(config), "is_decoder": True}, "check")}
    layers, labels, distinct = dict[str, Scheme](), list[str](), dict[tuple[object, ...], Scheme]()
    for stack, each in stacks.items():
        for n in _attending(each):
            labels.append(f"{stack}layer {n}")
            try:
                parts = tuple(each.family.parts(each, n))
                layers[f"{stack}layer {n}"] = distinct.setdefault(parts, with_trained(each, parts))
            except (ValueError, IndexError) as error:
                why = first_line(error).split(": ", 1)[-1].split(", so no scheme")[0]
                lacks.append(f"scheme of {stack}layer {n} of {side.name}: {why}")
    return replace(side, layers=layers, labels=tuple(labels), width=reader.head_width, lacks=lacks)


def _attending(reader: Reader) -> Sequence[int]:
    """Return the layers that attend; all where that is not known."""
    try:
        found = attending(reader)
    except (ValueError, IndexError):
        found = None
    return range(reader.layers) if found is None else found


def _plain(config: Any) -> dict[str, Any]:
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)


# The comparison


class _Comparison:
    """Two sides, what was found between them, and what was not compared."""

    def __init__(self, a: Side, b: Side, dim: int) -> None:
        self.a, self.b, self.sides = a, b, (a, b)
        self.widths = (a.width or b.width or dim, b.width or a.width or dim)
        only = [{*each.only} for each in self.sides if each.only is not None]
        self.only: set[str] | None = only[0].intersection(*only) if only else None
        lengths = (look_up(side.config, *LENGTH) for side in self.sides)
        self.tokens = min(TOKENS, *(max(4, each // 2) for each in lengths if isinstance(each, int)), TOKENS)
        self.found: list[Difference] = []
        self.kept: dict[tuple[Scheme, Scheme], list[Difference]] = {}
        self.missing = [*a.lacks, *b.lacks]
        self.counts = {"schemes": 0, "attention outputs": 0, "position tables": 0}

    def result(self) -> Checked:
        """Compare everything."""
        if self.only is not None and not self.only:
            raise ValueError(
                f"check: {self.a.name} and {self.b.name} have nothing in common that can be compared: one rotates, "
                f"adds slopes or has buckets where the other does not"
            )
        for side in self.sides:
            self._run(side)
            if side.only is not None:
                self.missing.append(f"everything but {', '.join(side.only)}: {side.name} has nothing else")
        labels = [side.labels for side in self.sides if side.labels and "" not in side.labels]
        if len(set(map(len, labels))) > 1:
            self.found.append(between("layers", (f"{len(each)} layers" for each in labels)))
        elif len(set(labels)) > 1:
            others = (sorted({*each} - {*other}) for each, other in (labels, labels[::-1]))
            self.found.append(between("layers that attend", (", ".join(each[:4]) for each in others)))
        for label in self._labels():
            self._layer(label)
        if self.only is None:
            self._weights()
            self._tables()
            self._config()
        compared = tuple(f"{name} ({count})" for name, count in self.counts.items() if count)
        failed = dict.fromkeys([*self.a.failed, *self.b.failed])
        missing = tuple(dict.fromkeys([*self.missing, *failed]))
        return Checked(self.a.name, self.b.name, together(self.found), compared, missing, tuple(failed))

    def _run(self, side: Side) -> None:
        """Run a side's model, and what transformers builds from its own config."""
        if side.model is None or (self.only is not None and not side.own):
            return
        count = sum(each.numel() for each in side.model.parameters())
        if not side.own and count > LARGEST:
            self.missing.append(f"attention outputs of {side.name}: {count / 1e9:.0f} billion weights are not run")
            return
        try:
            side.runs = Runs(side.model, self.tokens, shown=not side.extended)
            if side.own and not side.extended:
                side.stock = Runs(skeleton(copy.deepcopy(side.config), type(side.model)), self.tokens)
        except Exception as error:  # a model's code may raise anything; what it is, is reported
            what = f"attention outputs of {side.name}" if side.runs is None else f"{side.name} with its own config"
            side.failed.append(f"{what}: it could not be run ({first_line(error)})")

    def _labels(self) -> list[str]:
        """The layers of either side; "" where both have one scheme for all."""
        labels = dict.fromkeys(label for side in self.sides for label in side.layers if label)
        if self.a.runs is not None and self.b.runs is not None:
            labels |= dict.fromkeys(self.a.runs.near.layers)
        return list(labels) or [""]

    def _layer(self, label: str) -> None:
        one, two = (side.layers.get("", side.layers.get(label)) for side in self.sides)
        departing = [side for side in self.sides if side.departs(label)]
        for side in self.sides:
            self._odd(side, label)
        first, second = self.a.runs, self.b.runs
        both = first is not None and second is not None and first.comparable(second, label)
        differ = both and cast("Runs", first).differs(cast("Runs", second), label)
        self.counts["attention outputs"] += both
        # Of a layer that departs from its config, the scheme still counts past the tokens that were run.
        base = [cast("Runs", side.stock or side.runs) for side in self.sides]
        believed = not (departing and both) or not base[0].differs(base[1], label)
        named: list[Difference] = []
        if one is not None and two is not None and believed:
            named = list(self._schemes(one, two, label))
        elif not both and (one is None or two is None):
            self.missing.append(f"{label}: {(self.a if one is None else self.b).name} has none, or it cannot be read")
        self.found += named
        if differ and (departing or not named):
            frame = cast("Runs", departing[0].stock) if departing else base[0]
            self.found += diagnose(cast("Runs", first), cast("Runs", second), frame, label)
        for side in departing if not both else []:
            stock, name = cast("Runs", side.stock), "A" if side is self.a else "B"
            for each in diagnose(stock, cast("Runs", side.runs), stock, label):
                self.found.append(replace(each, convention=f"{each.convention}: {name} against its own config"))

    def _schemes(self, one: Scheme, two: Scheme, label: str) -> Iterator[Difference]:
        self.counts["schemes"] += 1
        if (one, two) not in self.kept:
            self.kept[one, two] = list(compare(one, two, self.widths, self.only))
        for each in self.kept[one, two]:
            # A table is the model's, not a layer's.
            whole = not label or each.convention.startswith("position table")
            yield replace(each, layers=() if whole else (label,))

    def _odd(self, side: Side, label: str) -> None:
        """Name what was changed in a model without any effect on the tokens that were run."""
        runs, stock = side.runs, side.stock
        if runs is None or stock is None or not stock.comparable(runs, label) or side.departs(label):
            return
        odd = odd_places(stock, runs, label, ("its config", side.name))
        self.missing += [f"{each}: no effect on the {self.tokens} tokens that were run" for each in odd]

    # What layers and models learn

    def _weights(self) -> None:
        """Compare the norms inside attention, and what its layers learn of positions: bias tables and sinks."""
        first, second = self.a.runs, self.b.runs
        if first is None or second is None:
            if self.a.config is not None or self.b.config is not None:
                self.missing.append("QK norm, and offsets and values of position tables: both have to be run for these")
            return
        odd: dict[str, list[str]] = {}
        for label, layer in first.near.layers.items():
            other = second.near.layers.get(label)
            if other is None or layer.weights == other.weights:
                self._learned(label, layer.weights if other is not None else {})
                continue
            norms = [{name: each.weights[name] for name in each.weights if "norm" in name} for each in (layer, other)]
            if norms[0] != norms[1] and (set(norms[0]) == set(norms[1]) or not all(norms)):
                words = (", ".join(f"{name} {list(each[name])}" for name in sorted(each)) or "none" for each in norms)
                self.found.append(replace(between("QK norm", words), layers=(label,)))
            names = sorted({name for name, _ in {*layer.weights.items()} ^ {*other.weights.items()}})
            odd.setdefault(", ".join(names[:4]) + ", …" * (len(names) > 4), []).append(label)
        for names, labels in odd.items():
            self.missing.append(f"attention outputs of {len(labels)} layers: their weights are not the same ({names})")

    def _learned(self, label: str, weights: Mapping[str, tuple[int, ...]]) -> None:
        for name in (each for each in weights if "." not in each or "relative" in each):
            paths = (f"{cast('Runs', side.runs).near.layers[label].path}.{name}" for side in self.sides)
            one, two = (_parameter(side, path) for side, path in zip(self.sides, paths, strict=True))
            self._values(one, two, name, label)

    def _values(self, one: Tensor | None, two: Tensor | None, name: str, label: str = "") -> None:
        if one is None or two is None:
            self.missing.append(f"values of {name}: {(self.a if one is None else self.b).name} has no weights")
        else:
            self.found += (replace(each, layers=(label,) if label else ()) for each in _rows(one, two, name))

    def _tables(self) -> None:
        """Compare tables of positions, and whatever else positions add to the input of the first layer."""
        if self.a.runs is None or self.b.runs is None:
            return
        near = self.a.runs.near, self.b.runs.near
        for first, second in zip(near[0].tables.values(), near[1].tables.values(), strict=False):
            self.counts["position tables"] += 1
            self.found += _offsets(first, second)
            one, two = (_parameter(side, table.name) for side, table in zip(self.sides, (first, second), strict=True))
            # The same table read from another row is one difference, not two.
            if one is None or two is None or any(_rows(one, two, "")):
                one, two = (None if x is None else x[t.start :] for x, t in ((one, first), (two, second)))
                self._values(one, two, "the position table")
        one, two = near[0].input, near[1].input
        if one is None or two is None or one.shape != two.shape or any("position" in d.convention for d in self.found):
            return
        # All tokens are the same, so what varies along them is the position.
        size, (one, two) = float(one.abs().max()), (each - each[:, :1] for each in (one, two))
        most = max(float(one.abs().max()), float(two.abs().max()))
        if most > 1e-6 * size and float((one - two).abs().max()) > 1e-3 * most:
            words = (f"changes by up to {number(float(each.abs().max()))}" for each in (one, two))
            self.found.append(between("position embedding", words))

    # What configs say besides

    def _config(self) -> None:
        """List the fields of two configs that differ and that no scheme reads."""
        kinds = [look_up(side.config, "model_type") for side in self.sides]
        if None in kinds:
            return
        if kinds[0] != kinds[1]:
            self.missing.append(f"code outside of attention: {kinds[0]} and {kinds[1]} are different architectures")
            return
        one, two = (_plain(side.config) for side in self.sides)
        names = [name for name in sorted({*one, *two} - UNRELATED) if one.get(name) != two.get(name) and name[0] != "_"]
        told = _told(two)
        # What changes no scheme, neither as A has it nor left out.
        unread = (told is None or told == _told({**two, name: one.get(name)}) == _told({**two, name: None})
                  for name in names)  # fmt: skip
        odd = [name for name, each in zip(names, unread, strict=True) if each]
        if odd:
            shown = ", ".join(f"{name} ({one.get(name)!r}, {two.get(name)!r})"[:60] for name in odd[:6])
            more = f" and {len(odd) - 6} more" if len(odd) > 6 else ""
            self.missing.append(f"config fields that are not about positions: {shown}{more}")


def _told(config: dict[str, Any]) -> object:
    """Return what a config says of positions, or its error; None where the model type is not known."""
    try:
        return [(layer, scheme.to_dict()) for layer, scheme in Schedule.of(config).items()]
    except (ValueError, TypeError, IndexError) as error:
        return None if "is not known" in str(error) or "cannot be read" in str(error) else first_line(error)


def _parameter(side: Side, name: str) -> Tensor | None:
    """Return a parameter's values, where there are any."""
    found = dict(cast("nn.Module", side.model).named_parameters()).get(name) if side.own else None
    return None if found is None or found.device.type == "meta" else found.detach().double().cpu()


def _offsets(a: Table, b: Table) -> Iterator[Difference]:
    """Compare which rows of a table the tokens read."""
    if a.start != b.start:
        yield between("position table offset", (f"the first token reads row {each.start}" for each in (a, b)))
    if a.rows - a.start != b.rows - b.start and (a.rows != b.rows or a.start == b.start):
        yield Difference("position table length", f"{a.rows - a.start:,} positions", f"{b.rows - b.start:,}")
    if a.read.shape == b.read.shape and not torch.equal(a.read - a.start, b.read - b.start):
        yield between("position table order", (f"rows {each.read[:4].tolist()}, …" for each in (a, b)))


def _rows(a: Tensor, b: Tensor, name: str) -> Iterator[Difference]:
    """Compare learned rows, as far as both have them; a shift is named where it is exact."""
    n = min(len(a), len(b))
    if a.shape[1:] != b.shape[1:] or _close(a[:n], b[:n]):
        return
    for shift in (1, 2, 3, -1, -2, -3) if n > 8 else ():
        one, two = (a[shift:n], b[: n - shift]) if shift > 0 else (a[: n + shift], b[-shift:n])
        if _close(one, two):
            words = f"row {max(shift, 0)}", f"has it in row {max(-shift, 0)}"
            yield between(f"values of {name}", words, "The same rows, shifted.", "Move them, or change the offset.")
            return
    gap = (a[:n] - b[:n]).abs()
    words = f"{int((gap.reshape(n, -1).amax(1) > 0).sum())} of {n} rows", f"differ by up to {number(float(gap.max()))}"
    yield between(f"values of {name}", words, "The two were trained apart, or converted differently.")


def _close(one: Tensor, two: Tensor) -> bool:
    """True if two tensors are the same but for what bfloat16 loses."""
    return torch.allclose(one, two, rtol=1e-2, atol=1e-6)
