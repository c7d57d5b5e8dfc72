"""The rotation of a layer: its base, its width and its stretch, under all the names these have had."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.configs.layers import Rule, always, full, layer_type, seen
from milepost.configs.reader import Family, Reader, look_up
from milepost.configs.stretches import rope_type, stretch
from milepost.methods.axial_rope import AxialRope
from milepost.methods.nope import Nope
from milepost.methods.partial import Partial
from milepost.methods.proportional import Proportional
from milepost.methods.rope import Rope
from milepost.numerics.rotation import Pairs

BASE = ("rope_theta", "rotary_emb_base", "rope_base")


@dataclass(frozen=True)
class Rotary(Family):
    """A family that turns queries and keys.

    rule gives a layer's type where the config lists none; turned says which layers turn, and turn makes the rotation;
    also makes the parts that stand beside it. bases names, by layer type, the key that holds the base. An old-style
    rope_scaling speaks of the layer types in `stretched` only. latent says that queries have channels without position
    beside those that turn (MLA). once_fixed says that the base was 10000 in the code before transformers 4.33 made it
    a key. encodes says that every key is seen, and prefixed that a prefix is, whose length no config holds (PaliGemma).
    partial says that partial_rotary_factor is read; transformers' other models turn all channels whatever it says, and
    cannot run with it once they are stretched. hybrid says that some layers are not attention at all. width gives the
    channels of a query in one layer.
    """

    parts: Callable[[Reader, int], list[object]] = field(default_factory=lambda: parts_of)
    pairs: Pairs = "halves"
    rule: Rule = full
    turned: Callable[[Reader, int, str], bool] = always
    also: Callable[[Reader, int], list[object]] = lambda reader, layer: []
    turn: Callable[[Reader, int], Any] = lambda reader, layer: rotation(reader, layer)
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    stretched: tuple[str, ...] = ()
    latent: bool = False
    once_fixed: bool = False
    encodes: bool = False
    prefixed: bool = False
    partial: bool = False
    hybrid: bool = False
    width: Callable[[Reader, int], int] = lambda reader, layer: head_width(reader)

    def varies(self, reader: Reader) -> bool:
        """Whether layers may turn differently."""
        listed = reader.given("layer_types") is not None
        return listed or self.hybrid or bool(self.bases) or bool(self.stretched) or self.turned is not always


def family_of(reader: Reader) -> Rotary:
    """The reader's family, as one that turns; raise where it does not."""
    if not isinstance(reader.family, Rotary):
        raise ValueError(
            f"{reader.called}: this model does not turn its queries and keys. Use Scheme.of(config), which gives what "
            f"it does instead"
        )
    return reader.family


def parts_of(reader: Reader, layer: int) -> list[object]:
    """The parts of one layer: the rotation or none, what stands beside it, and what is seen."""
    family = family_of(reader)
    kind = layer_type(reader, layer, family.rule)
    turn = family.turn(reader, layer) if family.turned(reader, layer, kind) else Nope()
    return [turn, *family.also(reader, layer), *seen(reader, kind, family.encodes, family.prefixed)]


def rotation(reader: Reader, layer: int) -> Any:
    """What turns queries and keys in one layer."""
    family = family_of(reader)
    kind = layer_type(reader, layer, family.rule)
    settings = parameters(reader, kind)
    theta, of = base(reader, kind, settings), family.width(reader, layer)
    share = settings.get("partial_rotary_factor") or reader.get("partial_rotary_factor", "rotary_pct") or 1.0
    if rope_type(reader, settings) == "default" and not family.partial:
        share = 1.0
    if rope_type(reader, settings) == "proportional":
        return Rope(of, theta, family.pairs, Proportional(share, settings.get("factor") or 1.0))
    dim = reader.get("qk_rope_head_dim" if family.latent else "rotary_dim") or int(of * share)
    turn = Rope(dim, theta, pairs_of(reader), stretch(reader, settings))
    if settings.get("mrope_section") or reader.get("mrope_section"):
        turn = axial(reader, settings, turn)
    return turn if dim == of else Partial(turn, of=of)


def head_width(reader: Reader) -> int:
    """The channels of a query; where latents are kept (MLA), those without position and those that turn."""
    if not family_of(reader).latent:
        return reader.head_width
    return reader.need("the channels without position", "qk_nope_head_dim") + reader.need(
        "the channels that turn", "qk_rope_head_dim"
    )


def pairs_of(reader: Reader) -> Pairs:
    """How channels pair; DeepSeek-V3 says so itself."""
    return "halves" if reader.given("rope_interleave") is False else family_of(reader).pairs


def axial(reader: Reader, settings: Mapping[str, Any], turn: Rope) -> AxialRope:
    """A rotation by time, height and width (M-RoPE)."""
    sections = tuple(settings.get("mrope_section") or reader.get("mrope_section"))
    if turn.stretch is not None:
        raise reader.refuse(
            "mrope_section", sections, f"and AxialRope takes no stretch, but {turn.stretch!r} was asked for"
        )
    dealt = settings.get("mrope_interleaved") or reader.get("mrope_interleaved")
    return AxialRope(turn.dim, sections, turn.theta, order="interleaved" if dealt else "blocks", pairs=turn.pairs)


# The settings, and what they are called


def parameters(reader: Reader, kind: str) -> Mapping[str, Any]:
    """The rope settings of a layer type: rope_parameters as transformers 5 has it, or rope_scaling as before."""
    new, old = reader.given("rope_parameters"), reader.given("rope_scaling")
    if new and old and new != old:
        raise ValueError(
            f"{reader.called}: rope_parameters and rope_scaling disagree: {new!r} and {old!r}. Please keep one"
        )
    settings: Mapping[str, Any] = new or old or {}
    nested: dict[str, Mapping[str, Any]] = {key: each for key, each in settings.items() if isinstance(each, Mapping)}
    if nested:
        if kind not in nested:
            raise ValueError(f"{reader.called}: rope_parameters speaks of {', '.join(nested)}, but not of {kind}")
        return nested[kind]
    stretched = family_of(reader).stretched
    if not new and stretched and kind not in stretched:
        return {}
    return settings


def base(reader: Reader, kind: str, settings: Mapping[str, Any]) -> float:
    """The base θ. Nothing is assumed: a config that lost its base is refused."""
    family = family_of(reader)
    names = (family.bases[kind],) if kind in family.bases else BASE
    inside, outside = look_up(settings, *BASE), reader.given(*names)
    if inside is not None and outside is not None and inside != outside and kind not in family.bases:
        raise ValueError(
            f"{reader.called}: rope_parameters says rope_theta {inside!r}, and beside it the config says {outside!r}. "
            f"Please keep one"
        )
    found = inside if inside is not None else reader.get(*names)
    if found is not None:
        return float(found)
    if family.once_fixed and before(reader.version, (4, 33)):
        return 10000.0
    raise reader.missing(
        "the base of the rotation",
        "rope_parameters['rope_theta']",
        *names,
        advice="add rope_theta as the model was trained with it; 10000 is not assumed",
    )


def before(version: object, than: tuple[int, int]) -> bool:
    """Whether the version of transformers that wrote a config is earlier."""
    found = re.match(r"(\d+)\.(\d+)", str(version))
    return found is not None and (int(found[1]), int(found[2])) < than
