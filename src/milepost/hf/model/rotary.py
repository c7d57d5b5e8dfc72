"""What stands in the place of a model's rotary module: one that answers our cosines and sines, or none at all."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from milepost import AxialRope, Partial, Rope, Schedule, Scheme
from milepost.hf.config.rope_parameters import frequencies, reached
from milepost.hf.model.models import Layers, StandIn, Turner, settings_of
from milepost.seams.verbs import answers

Form = Literal["once", "halves", "neighbours", "complex", "apart"]
"""How a model lays cosines out: one a pair, all of them twice in a row, each of them twice, or as complex numbers; or
those of all pairs for each axis of positions, all twice in a row, of which it takes what it needs itself."""
Widths = dict[str | None, int]
"""How many channels a module answers for each type of layers."""
FORMS: tuple[Form, ...] = ("once", "halves", "neighbours", "complex", "apart")


class Turned(StandIn):
    """Answers the cosines and sines of a rotation of ours in the form that the model wants; None turns nothing.

    Angles are float64, whatever the model is cast to. The model's own module is kept inside, so that it moves with the
    model until it is put back.
    """

    own = StandIn.own | {"edits", "form", "turns", "waves", "widths"}

    def __init__(
        self, original: nn.Module, turns: Mapping[str | None, Any], form: Form, widths: Mapping[str | None, int]
    ) -> None:
        # The original is a child: hooks of its state dict are called there.
        super().__init__(original, "ward_")
        self.original = original
        self.edits = settings_of(original)
        self.waves = {name: Waves(each) for name, each in original._buffers.items() if each is not None}
        self.turns, self.widths = dict(turns), dict(widths)
        self.form: Form = form

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor] | Tensor:
        """Return cosines and sines [b|1 t channels]; x gives the device and the dtype.

        position_ids: [b|1 t], or [axes b|1 t] where tokens of images have several positions. In complex form cosines
        and sines are one tensor, as wide as there are pairs.
        """
        turn = self.turns[layer_type]
        if turn is None:
            # RecurrentGemma asks with values, which have heads, Gemma 3n with several hidden states.
            axes = position_ids.shape[:1] if self.form == "apart" else ()
            cos = x.new_ones(*axes, 1, x.shape[-2], self.widths[layer_type])
            sin = torch.zeros_like(cos)
        else:
            position = axes_last(position_ids.to(x.device))
            if position.dim() == 3 and axes_of(turn) is None:
                raise ValueError(
                    f"milepost: position_ids are {list(position_ids.shape)}, and {turn!r} reads one position of a token"
                )
            cos, sin = (laid_out(each, self.form) for each in waves(turn, position, self.form))
        if self.form == "complex":
            return torch.complex(cos.float(), sin.float())
        return cos.to(x.dtype), sin.to(x.dtype)

    def refuse_edited(self) -> None:
        """Refuse a change of the model's own module, which nobody asks."""
        changed = [name for name, each in self.edits.items() if getattr(self.original, name, None) != each]
        if not torch.compiler.is_compiling():
            changed += [name for name, each in self.waves.items() if each.changed(self.original._buffers.get(name))]
        if changed:
            raise RuntimeError(
                f"milepost: {', '.join(changed)} of {type(self.original).__name__} changed after extend, and "
                f"the layers' schemes keep what was said before; put it back, or restore(model), change it, and extend "
                f"again"
            )

    def extra_repr(self) -> str:
        """What it turns by."""
        return ", ".join(str(each) for each in self.turns.values())


class Waves:
    """The numbers of a buffer as they were. They are compared where the tensor is another or was written to."""

    def __init__(self, buffer: Tensor) -> None:
        self.values = buffer.detach().to("cpu", copy=True)
        self.seen, self.version = buffer, version(buffer)

    def changed(self, now: Tensor | None) -> bool:
        """Return whether other numbers are there now; a cast of the model only rounds them."""
        if now is None or now.device.type == "meta" or (now is self.seen and version(now) == self.version):
            return now is None
        theirs, dtypes = now.detach().cpu(), (now.dtype, torch.bfloat16, torch.float16)
        if not any(torch.equal(self.values.to(each).to(now.dtype), theirs) for each in dtypes):
            return True
        self.seen, self.version = now, version(now)
        return False


def version(buffer: Tensor) -> int:
    """Return how often a tensor was written to; −1 where that is not counted."""
    return -1 if buffer.is_inference() else buffer._version


def laid_out(table: Tensor, form: Form) -> Tensor:
    """A number for each pair [… n] as the model wants it."""
    if form in ("once", "complex"):
        return table
    return table.repeat_interleave(2, -1) if form == "neighbours" else torch.cat((table, table), -1)


def waves(turn: Any, position: Tensor, form: Form, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of pairs at positions [b|1 t] or [b|1 t axes]; in the form "apart" [axes b|1 t n]."""
    if form != "apart":
        return turn.cos_sin(position, length)
    # On plain positions every pair turns by the one that there is.
    each = [turn.cos_sin(one, length) for one in position.unbind(-1)]
    return torch.stack([cos for cos, _ in each]), torch.stack([sin for _, sin in each])


def turn_of(scheme: Scheme) -> Any:
    """The part of a scheme that turns pairs of channels, or None."""
    return next((part for part in scheme.parts if getattr(part, "rotary", False)), None)


def axes_of(turn: object) -> int | None:
    """How many positions of a token a rotation reads, None where it is one."""
    return getattr(turn, "axes", None)


def axes_last(position: Tensor) -> Tensor:
    """Positions as milepost has them, [b t axes], from those of transformers, [axes b t]; [b t] stays."""
    return position if position.dim() < 3 else position.movedim(0, -1)


def same_beside(one: Scheme, other: Scheme) -> bool:
    """Whether two schemes agree in everything but the rotation; of sinks there is one kind, the model's own."""
    ours, theirs = ([part for part in each.parts if part is not turn_of(each)] for each in (one, other))
    return len(ours) == len(theirs) and all(
        part == its or (answers(part, "rest") and answers(its, "rest")) for part, its in zip(ours, theirs, strict=True)
    )


def plain(turn: object) -> bool:
    """Whether cosines and sines by position say all of a rotation, and every key may be turned when it comes."""
    if isinstance(turn, Partial):
        return turn.temperature == "rotary" and plain(turn.method)
    return isinstance(turn, (Rope, AxialRope)) and not turn.by_length


def turns_by_type(layers: Layers, schedule: Schedule, turner: Turner) -> dict[str | None, Any] | None:
    """The one rotation of each type of layers, or None where layers that share the cosines turn differently."""
    found: dict[str | None, Any] = {}
    for layer, scheme in schedule.items():
        if turner.layers is not None and layer not in turner.layers:
            continue
        turn = turn_of(scheme)
        kind = layers.layer_type(layer) if turner.by_type else None
        # Layers that do not turn at all do not ask for cosines (SmolLM3, Cohere 2).
        if turn is not None and found.setdefault(kind, turn) != turn:
            return None
    return found


# What a model's own module answers


def form_of(layers: Layers, turner: Turner) -> tuple[Form, Widths]:
    """How the model's own module lays cosines out, and in how many channels for each type of layers.

    It must answer what the config says, near and far: what could be read wrongly is found here.
    """
    turns = turns_by_type(layers, layers.own, turner)
    if not turns:
        raise ValueError(f"extend: layers of this {layers.model_type} model turn differently, with one rotary module")
    buffer = next(turner.module.buffers(), None)
    if buffer is not None and buffer.device.type == "meta":
        raise ValueError(
            f"extend: {type(turner.module).__name__} of this {layers.model_type} model is on the meta device, so it "
            f"cannot be asked how it turns; load the weights first, then extend"
        )
    forms: tuple[Form, ...] = FORMS
    widths, error = Widths(), precision(turner.module)
    for kind, turn in turns.items():
        for length in lengths(getattr(turn, "method", turn)):
            found, widths[kind] = forms_at(turner.module, kind, turn, length, error)
            forms = tuple(form for form in forms if form in found)
        if not forms:
            raise ValueError(
                f"extend: {type(turner.module).__name__} of this {layers.model_type} model turns otherwise than its "
                f"config says: {turn!r}. The module was built before the config, or its frequencies, were changed: set "
                f"model.config to what the module does, or build the model anew from the config; nothing was changed"
            )
    return forms[0], widths


def forms_at(
    module: nn.Module, kind: str | None, turn: Any, length: int, error: torch.finfo
) -> tuple[tuple[Form, ...], int]:
    """In which forms a rotary module answers what a rotation says in a text of some length, and how many channels."""
    position, theirs = asked(module, kind, length, axes_of(turn))
    most = position.amax(-1, keepdim=True) if position.dim() == 3 else position[..., None]
    angle = most * frequencies(getattr(turn, "method", turn), length).to(position.device)
    # What rounding makes of an angle.
    within = 1e-5 + max(1e-5, error.eps) * angle + most * error.tiny * error.eps
    # One tensor of complex numbers comes as three.
    apart, complexes = theirs[0].dim() == 4, len(theirs) == 3
    told: list[Form] = [form for form in FORMS if (form == "complex", form == "apart") == (complexes, apart)]
    found: list[Form] = [form for form in told if near(theirs[:2], waves(turn, position, form, length), within, form)]
    return tuple(found), theirs[0].shape[-1]


def lengths(rope: Rope | AxialRope) -> list[int]:
    """Lengths on both sides of every change of a rotation's frequencies."""
    trained = getattr(rope.stretch, "trained", 64)
    return [trained, trained + 1, max(2 * trained, reached(rope, trained))]


def asked(
    module: nn.Module, kind: str | None, length: int, axes: int | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Positions of a text of some length, and the cosines and sines that a rotary module has for them.

    Positions are [1 n], or [1 n axes], of which no two axes are alike.
    """
    # Some modules remember the longest text that they have seen, until they see a short one; the model's own is not
    # touched.
    module = copy.deepcopy(module)
    device = next((each.device for each in module.buffers()), torch.device("cpu"))
    powers = (4**n for n in range(length.bit_length()))
    for places in ([0, 1], [0, *(each for each in powers if each < length - 1), length - 1]):
        position = torch.tensor([places], device=device)
        if axes is not None:
            position = torch.stack([position.roll(-axis, -1) for axis in range(axes)], -1)
        theirs_of = position if axes is None else position.movedim(-1, 0)
        given = (torch.zeros(1, len(places), 1, device=device), theirs_of)
        theirs = module(*given, *(() if kind is None else (kind,)))
    if isinstance(theirs, Tensor) and theirs.is_complex():
        theirs = (theirs.real, theirs.imag, theirs)
    return position, cast("tuple[Tensor, ...]", theirs)


def precision(module: nn.Module) -> torch.finfo:
    """What the frequencies of a rotary module were rounded to: `.bfloat16()` rounds what transformers keeps."""
    kept = [each for each in module.buffers() if each.is_floating_point()]
    for dtype in (torch.bfloat16, torch.float16):
        # Off the CPU products of float32 may be made in fewer bits as well.
        if all(each.device.type != "cpu" or torch.equal(each.to(dtype).to(each.dtype), each) for each in kept):
            return torch.finfo(dtype)
    return torch.finfo(torch.float32)


def near(theirs: tuple[Tensor, ...], ours: tuple[Tensor, Tensor], within: Tensor, form: Form) -> bool:
    """Whether cosines and sines agree in a layout. within: how far each may lie apart, [… n]."""
    pairs = [(one, laid_out(its, form)) for one, its in zip(theirs, ours, strict=True)]
    most = laid_out(within, form)
    return all(one.shape == its.shape and bool(((one - its).abs() <= most).all()) for one, its in pairs)
