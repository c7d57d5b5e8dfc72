"""The rotation of a layer: its base, its width, its pairs and its stretch, under all the names these have had."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.configs.layer_types import Rule, always, full, layer_type, seen
from milepost.configs.reader import HEAD_WIDTH, Family, Reader, look_up
from milepost.configs.rope_types import BASE, Settings, by_layer_type, rope_type, settings_given, settings_of, stretch
from milepost.methods.nope import Nope
from milepost.methods.partial import Partial
from milepost.methods.rope import AxialRope, Rope
from milepost.methods.rope_stretches import Proportional
from milepost.numerics.rotation import Pairs


@dataclass(frozen=True)
class Rotary(Family):
    """A family that rotates queries and keys.

    rule gives a layer's type where the config lists none; rotates is True for the layers that rotate, and rotation
    makes what they rotate by; extra makes the scales, caps and sinks next to it. base names the keys of the base, and
    bases the one of each layer type. An old-style rope_scaling is about the layer types in `stretched` only. latent:
    queries have channels without position next to those that rotate (MLA). turned_back: the second half of the
    channels turns into the first (nanochat), so a scheme has it first. once_fixed: the base was 10000 in the code
    before transformers 4.33 made it a key. encodes: every key is seen; prefixed: a prefix is, whose length no config
    has (PaliGemma). partial: partial_rotary_factor is read; transformers' other models rotate all channels whatever it
    is, and cannot run with it once they are stretched. hybrid: some layers are not attention at all. width gives the
    channels of a query in one layer. settings are keys of rope_parameters that only this family reads.
    """

    parts: Callable[[Reader, int], list[object]] = field(default_factory=lambda: parts_of)
    pairs: Pairs = "halves"
    rule: Rule = full
    rotates: Callable[[Reader, int, str], bool] = always
    extra: Callable[[Reader, int], list[object]] = lambda reader, layer: []
    rotation: Callable[[Reader, int], Any] = lambda reader, layer: rotation(reader, layer)
    base: tuple[str, ...] = BASE
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    stretched: tuple[str, ...] = ()
    latent: bool = False
    turned_back: bool = False
    once_fixed: bool = False
    encodes: bool = False
    prefixed: bool = False
    partial: bool = False
    hybrid: bool = False
    width: Callable[[Reader, int], int] = lambda reader, layer: head_width(reader)
    settings: tuple[str, ...] = ()
    typed: bool = False

    @property
    def by_type(self) -> bool:
        """True if transformers has rope settings for each layer type."""
        return self.typed or bool(self.bases) or bool(self.stretched)

    def varies(self, reader: Reader) -> bool:
        """True if layers may rotate differently."""
        listed = reader.given("layer_types") is not None
        return listed or self.hybrid or bool(self.bases) or bool(self.stretched) or self.rotates is not always


def family_of(reader: Reader) -> Rotary:
    """Return the reader's family, as one that rotates; raise where it does not."""
    if not isinstance(reader.family, Rotary):
        raise ValueError(
            f"{reader.called}: this model does not rotate its queries and keys. Use Scheme.of(config), which gives "
            f"what it does instead"
        )
    return reader.family


def parts_of(reader: Reader, layer: int) -> list[object]:
    """Return the parts of one layer: the rotation or none, scales, caps and sinks, and what is visible."""
    family = family_of(reader)
    kind = layer_type(reader, layer, family.rule)
    rotation = family.rotation(reader, layer) if family.rotates(reader, layer, kind) else Nope()
    return [rotation, *family.extra(reader, layer), *seen(reader, kind, family.encodes, family.prefixed)]


def rotation(reader: Reader, layer: int) -> Any:
    """Return the rotation of one layer."""
    family = family_of(reader)
    kind = layer_type(reader, layer, family.rule)
    settings = parameters(reader, kind)
    demand_as_in_code(reader)
    theta, of, share = base(reader, kind, settings), family.width(reader, layer), rotated_share(reader, settings)
    if rope_type(reader, settings) == "proportional":
        factor = settings.get("factor") or 1.0
        return Rope(of, theta=theta, pairs=family.pairs, stretch=Proportional(share, factor=factor))
    dim = rotated_channels(reader, int(of * share))
    if dim < 1:
        raise reader.refuse("partial_rotary_factor", share, f"and of {of} channels none would rotate")
    made = Rope(dim, theta=theta, pairs=pairs_of(reader), stretch=stretch(reader, settings))
    beside = reader.given("mrope_section")
    if beside is not None and "mrope_section" not in family.settings:
        raise reader.unread("mrope_section", beside)
    if settings.get("mrope_section") or reader.get("mrope_section"):
        made = axial(reader, settings, made)
    return made if dim == of else Partial(made, of=of)


def demand_as_in_code(reader: Reader) -> None:
    """Refuse settings of a rotation that is fixed in the code of transformers, which passes over them."""
    if reader.model_type not in IN_CODE:
        return
    theta = look_up(reader.family.defaults, *BASE)
    for key, value in {**{name: reader.given(name) for name in BASE}, **settings_given(reader)[0]}.items():
        if value is not None and value != (theta if key in BASE else "default"):
            raise reader.unread(key, value)


IN_CODE = ("chatglm", "codegen", "gptj", "roformer")
"""Model types whose rotation is fixed in the code of transformers: no setting changes it."""


def rotated_channels(reader: Reader, by_share: int) -> int:
    """Return how many channels rotate. by_share: as many as the share says, by which most models go."""
    if family_of(reader).latent:
        return reader.get("qk_rope_head_dim") or by_share
    dim: int | None = reader.get("rotary_dim")
    if dim not in (None, by_share) and reader.model_type not in BY_ROTARY_DIM:
        raise reader.refuse(
            "rotary_dim", dim,
            f"and transformers' {reader.model_type} rotates {by_share} channels of a head, by partial_rotary_factor "
            f"or all; let them agree, or remove it",
        )  # fmt: skip
    return dim or by_share


BY_ROTARY_DIM = ("codegen", "gptj", "minimax_m2")
"""Types whose rotary_dim says how many channels rotate."""


def rotated_share(reader: Reader, settings: Settings) -> float:
    """Return the share of the channels that rotate; inside the settings it wins, as in transformers."""
    if rope_type(reader, settings) == "default" and not family_of(reader).partial:
        return 1.0
    inside = settings.get("partial_rotary_factor")
    # GPT-NeoX has a name of its own for it, and reads no other.
    name = "rotary_pct" if "rotary_pct" in reader.family.defaults else "partial_rotary_factor"
    share = reader.get(name) if inside is None else inside
    return 1.0 if share is None else share


def head_width(reader: Reader) -> int:
    """Return the channels of a query; with latent keys (MLA), those without position and those that rotate."""
    if not family_of(reader).latent:
        for name in HEAD_WIDTH[1:]:
            # Types that have no such key divide the width by the heads; one that agrees does no harm.
            given = None if reader.given("head_dim") else reader.given(name)
            if given is not None and given != reader.width // reader.heads:
                reader.own(name, "jetmoe")
        return reader.head_width
    return reader.need("the channels without position", "qk_nope_head_dim") + reader.need(
        "the channels that rotate", "qk_rope_head_dim"
    )


def pairs_of(reader: Reader) -> Pairs:
    """Return how channels pair; DeepSeek-V3 and its kin have a key for it, which transformers' others do not read."""
    family = family_of(reader)
    return "halves" if family.latent and reader.given("rope_interleave") is False else family.pairs


def axial(reader: Reader, settings: Settings, made: Rope) -> AxialRope:
    """Return a rotation by time, height and width (M-RoPE)."""
    sections = tuple(settings.get("mrope_section") or reader.get("mrope_section"))
    inside = settings.get("mrope_interleaved")
    dealt = reader.get("mrope_interleaved") if inside is None else inside
    return AxialRope(
        made.head_dim, sections, theta=made.theta, order="interleaved" if dealt else "blocks", pairs=made.pairs,
        stretch=made.stretch,
    )  # fmt: skip


# The settings, and what they are called


def parameters(reader: Reader, kind: str) -> Settings:
    """Return the rope settings of a layer type, checked key by key."""
    family = family_of(reader)
    found = settings_of(reader, kind, family.settings, family.stretched)
    kinds = by_layer_type(settings_given(reader)[0])
    if kinds and not family.by_type:
        raise ValueError(
            f"{reader.called}: rope_parameters has settings of {', '.join(kinds)}, and transformers' "
            f"{reader.model_type} has one rotation for all layers and passes over them; give it one set of settings"
        )
    return found


def base(reader: Reader, kind: str, settings: Settings) -> float:
    """Return the base θ. Nothing is assumed: a config that lost its base is refused."""
    family = family_of(reader)
    names = (family.bases[kind],) if kind in family.bases else family.base
    inside = {name: settings[name] for name in BASE if settings.get(name) is not None}
    outside = reader.given(*names)
    known = {*inside.values(), *([] if outside is None or kind in family.bases else [outside])}
    if len(known) > 1:
        raise ValueError(
            f"{reader.called}: rope_parameters has rope_theta {next(iter(inside.values()))!r}, and next to it the "
            f"config has {outside!r}. Please keep one"
        )
    found = next(iter(inside.values())) if inside else reader.get(*names)
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
    """True if the version of transformers that wrote a config is earlier."""
    found = re.match(r"(\d+)\.(\d+)", str(version))
    return found is not None and (int(found[1]), int(found[2])) < than
