"""Attention of an extended model: raw queries and keys go to `attend`, under the scheme of their layer.

Where transformers calls attention by name, ours is registered. Elsewhere (BLOOM, Falcon, GPT-J, MPT) modules of ours
take the place of the model's own, with its weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from milepost import DeepseekScale, Llama4Scale, Partial, QkNorm, Rope, Schedule, Scheme, attend
from milepost.call.options import Options
from milepost.hf.model.models import (
    MODELS,
    Place,
    StandIn,
    attentions_in,
    forward_of,
    is_attention,
    is_stock,
    places_of,
    settings_of,
    switches_of,
)
from milepost.hf.model.positions import (
    POSITIONS,
    REAL,
    demand_marked,
    dense,
    of_rows,
    read,
    reads_positions,
    refuse_edited,
    refuse_unnamed,
    refuse_weights,
    slots,
)
from milepost.hf.model.rotary import Turned
from milepost.memory.surroundings import autocast_dtype
from milepost.seams.verbs import Side, answers

NAME = "milepost"
"""What the two functions are called in transformers' registries, and where a layer keeps its scheme."""
READ = frozenset({"scaling"})
"""The settings of a module of transformers that are read at every call."""


Watch = Callable[[Tensor, Tensor, Tensor, Scheme, Options], None]
"""What is shown the raw queries, keys and values of a layer, its scheme and what was told of the tokens."""
WATCHING: ContextVar[tuple[Watch, ...]] = ContextVar("WATCHING", default=())
"""Who watches the layers of extended models now, in this thread; see `watched`."""


@contextmanager
def watched(watch: Watch) -> Generator[None]:
    """Show what the layers of extended models attend with, one layer after the other; not in compiled graphs."""
    token = WATCHING.set((*WATCHING.get(), watch))
    try:
        yield
    finally:
        WATCHING.reset(token)


@dataclass(frozen=True)
class Layer:
    """What the attention of one layer is given."""

    scheme: Scheme
    scale: float
    """The softmax scale that the model's own scheme has; where the module says another, the ratio is kept."""
    still: int = 0
    """How many channels stand before those that a scheme has first: those that do not turn (DeepSeek), or half."""
    edits: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the module says of windows, caps, causality and all else, which is in the scheme."""
    asked: Asked | None = None
    """Where the module's forward is not that of transformers."""


class Asked:
    """Hooks on a module whose forward is not transformers': whether it attends by `attention`."""

    def __init__(self) -> None:
        self.yes = False

    def put(self, module: nn.Module) -> list[Any]:
        """Register them; returns what removes them."""
        return [module.register_forward_pre_hook(self.begin), module.register_forward_hook(self.end)]

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Wait for `attention`."""
        self.yes = False

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Refuse what was computed elsewhere: from queries and keys that nothing has rotated."""
        if not self.yes:
            raise RuntimeError(
                f"milepost: the forward of this {type(module).__name__} is not that of transformers, and does not "
                f"attend by config._attn_implementation, so it has no positions; use the forward of transformers, or "
                f"restore(model)"
            )


class Unchanged:
    """A hook before each forward pass: refuses what was changed after extend, and would be passed over."""

    def __init__(self, module: nn.Module, attentions: Sequence[Any] = (), ours: Sequence[Place] = ()) -> None:
        """attentions: those that attend by `attention`; ours: where modules of milepost were put."""
        self.switches, self.ours = switches_of(module), [*ours, *places_of(module, attentions)]
        attending = any(not isinstance(each.module, Turned) for each in self.ours)
        self.layers = LayersAsTheyWere(module) if attending else None
        self.forwards = [(each, forward_of(each)) for each in attentions]

    def put(self, module: nn.Module) -> list[Any]:
        """Register it on the module that has the layers; returns what removes it."""
        return [module.register_forward_pre_hook(self.before)]

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Look at everything."""
        now = {name: getattr(module, name, None) for name in self.switches}
        refuse_edited(self.switches, now, type(module).__name__)
        for place in self.ours:
            if isinstance(place.module, Turned):
                place.module.refuse_edited()
            if not torch.compiler.is_compiling():
                refuse_replaced(place)
        if self.layers is not None and not torch.compiler.is_compiling():
            self.layers.refuse_foreign(module)
        config = None
        for attending, forward in self.forwards:
            if attending.config is not config:
                config = attending.config
                refuse_unnamed(config, NAME)
            if forward_of(attending) is not forward:
                raise RuntimeError(
                    f"milepost: the forward of {type(attending).__name__} changed after extend; put it back, or "
                    f"restore(model), change it, and extend again"
                )


def refuse_replaced(place: Place) -> None:
    """Refuse another module in the place of ours; what wraps ours may be there."""
    now = getattr(place.parent, place.name, None)
    if now is place.module or (isinstance(now, nn.Module) and any(each is place.module for each in now.modules())):
        return
    raise RuntimeError(
        f"milepost: {place.name} of {type(place.parent).__name__} was replaced after extend, by {type(now).__name__}, "
        f"which knows nothing of the extension; put it back, or restore(model), replace it, and extend again"
    )


class LayersAsTheyWere:
    """The layers of a model that attends by `attend`: a stock one put among them would attend without positions."""

    def __init__(self, module: nn.Module) -> None:
        self.above, self.known = list(above_attention(module)), list(attentions_in(module))

    def refuse_foreign(self, module: nn.Module) -> None:
        """Refuse attention that the extension did not reach, if any layer changed; layers may be moved and left out."""
        if all(tuple(each.children()) == children for each, children in self.above):
            return
        known = set(map(id, self.known))
        for each in attentions_in(module):
            if id(each) not in known and not attends(each):
                raise RuntimeError(
                    f"milepost: a layer with {type(each).__name__} {each.layer_idx} was put into "
                    f"{type(module).__name__} after extend, which knows nothing of the extension; take it out, or "
                    f"restore(model), put it in, and extend again"
                )
        self.above = list(above_attention(module))


def attends(module: nn.Module) -> bool:
    """Return whether a module attends by `attend`, by itself or by a function of that name."""
    return isinstance(module, Replaced) or isinstance(module.__dict__.get(NAME), Layer)


def above_attention(module: nn.Module) -> Iterator[tuple[nn.Module, tuple[nn.Module, ...]]]:
    """Yield the modules above the layers of a model, with their children: those right above attention are layers."""
    layers = {id(each) for each in module.modules() if any(map(attends, each.children()))}
    for each in module.modules():
        if id(each) not in layers and any(id(inner) in layers for inner in each.modules()):
            yield each, tuple(each.children())


class Ordered:
    """A hook before a state_dict is made: refuses layers that were moved, and would be loaded under others' schemes."""

    def __init__(self, attentions: Sequence[nn.Module], schedule: Schedule) -> None:
        self.attentions, self.schemes = attentions, list(schedule)

    def put(self, module: nn.Module) -> list[Any]:
        """Register it on the module that has the layers; returns what removes it."""
        return [module.register_state_dict_pre_hook(self.before)]

    def before(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Compare where layers stand, which is how weights are named, with where the schedule has their schemes."""
        was = {id(each): layer for layer, each in enumerate(self.attentions)}
        here = (each.stood_for() if isinstance(each, StandIn) else each for each in module.modules())
        now = [was[id(each)] for each in here if id(each) in was]
        if now == list(was.values()) or all(self.schemes[0].same_as(each) for each in self.schemes):
            return
        if len(now) < len(was) or not all(self.schemes[n].same_as(self.schemes[at]) for at, n in enumerate(now)):
            raise RuntimeError(
                f"milepost: layers of this {type(module).__name__} were moved or replaced after extend (now in order: "
                f"{', '.join(map(str, now))}), and their schemes differ, which are saved by number; put them back, or "
                f"restore(model), change layers and config, and extend again"
            )


class Sinks:
    """The logits of attending to nothing that a module of gpt-oss has: its own weights, wherever they are moved."""

    relative = True

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def rest(self) -> Tensor:
        return self.module.sinks  # pyright: ignore

    def __repr__(self) -> str:
        return "Sinks(of its layer)"


class Norms:
    """The norms that a module of HunYuan has behind the rotation: its own weights, on queries and keys as they turn."""

    relative = False

    def __init__(self, module: nn.Module, norm: QkNorm) -> None:
        self.module, self.norm = module, norm

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Normalize queries and keys, which the module leaves to us."""
        if side == "value":
            return x
        name = "query_layernorm" if side == "query" else "key_layernorm"
        return getattr(self.module, name).forward(x)

    def __repr__(self) -> str:
        return "QkNorm(of its layer)"


def left_to_us(module: nn.Module, scheme: Scheme) -> list[Any]:
    """Let a module pass over the norms that the scheme has behind the rotation; returns what undoes it."""
    if not any(isinstance(part, Norms) for part in scheme.parts):
        return []
    norms = (getattr(module, name) for name in ("query_layernorm", "key_layernorm"))
    return [each.register_forward_hook(_as_given) for each in norms]


def _as_given(norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return args[0]


def bound(scheme: Scheme, own: Scheme, module: nn.Module) -> Scheme:
    """The scheme with the module's own sinks in place of new ones, and channels where the module leaves them.

    What the module does to its queries before it attends is left out.
    """
    for part in (each for each in own.parts if isinstance(each, APPLIED)):
        if part not in scheme.parts:
            raise ValueError(
                f"extend: {type(module).__name__} multiplies its queries by {part!r} before they come here, and the "
                f"scheme for it, {scheme!r}, leaves that out; give parts, which are added to what a layer does, or a "
                f"scheme that has it"
            )
        scheme = Scheme(*(each for each in scheme.parts if each != part))
    if brings_apart(module):
        scheme = Scheme(*(halved(part) for part in scheme.parts))
    scheme = Scheme(*(Norms(module, part) if isinstance(part, QkNorm) else part for part in scheme.parts))
    if not scheme.answering("rest"):
        return scheme
    return Scheme(*(Sinks(module) if isinstance(part, nn.Module) and answers(part, "rest") else part
                    for part in scheme.parts))  # fmt: skip


APPLIED = (Llama4Scale,)
"""Parts that modules of transformers apply to their queries, where the config says so."""


def brings_apart(module: nn.Module) -> bool:
    """Return whether the turn of a module brings neighbouring channels half a head apart, whatever the angle.

    DeepSeek's config says whether it does; LongCat's and others' always do.
    """
    said = getattr(getattr(module, "config", None), "rope_interleave", None)
    if said is not None:
        return bool(said)
    files = {each.__module__ for each in type(module).__mro__ if each.__module__.startswith(MODELS)}
    return any(hasattr(sys.modules[each], "apply_rotary_pos_emb_interleave") for each in files)


def halved(part: Any) -> Any:
    """A rotation of neighbours as one of halves; anything else as it is."""
    if isinstance(part, Partial):
        return replace(part, method=halved(part.method))
    return replace(part, pairs="halves") if isinstance(part, Rope) else part


def layer_for(scheme: Scheme, own: Scheme, module: Any, width: int, turned_back: bool = False) -> Layer:
    """What the attention of a module is given; what DeepSeek folds into its scale is in the own scheme already."""
    folded = [part for part in own.parts if isinstance(part, DeepseekScale)]
    scale = own.scale(width)
    for part in folded:
        scale *= float(part.sharpen(torch.zeros(1, 1), torch.ones(1, 1)))
    asked = None if is_stock(module) else Asked()
    still = width // 2 if turned_back else getattr(module, "qk_nope_head_dim", 0)
    return Layer(bound(scheme, own, module), scale, still, settings_of(module, READ), asked)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """query: [b h t d], key: [b g s d], value: [b g s dv], raw. Returns [b t h dv], and no weights.

    Caps, windows and sinks that the module passes on as well (`softcap`, `sliding_window`, `s_aux`) are in the scheme.
    """
    layer: Layer | None = module.__dict__.get(NAME)
    if layer is None:
        raise RuntimeError(
            f"milepost: {type(module).__name__} is asked to attend by {NAME!r}, but its model was not extended; "
            f"use milepost.hf.extend(model, …), or model.set_attn_implementation('sdpa')"
        )
    if layer.asked is not None:
        layer.asked.yes = True
    refuse(others)
    refuse_edited(layer.edits, {name: getattr(module, name, None) for name in layer.edits}, type(module).__name__)
    positions = others.get(POSITIONS, others.get("position_ids"))
    if positions is None:
        raise RuntimeError(
            f"milepost: this transformers does not pass position_ids on to {type(module).__name__}, so where tokens "
            f"stand is not known; use another release, or restore(model)"
        )
    if scaling is not None and scaling != layer.scale:
        query = query * (scaling / layer.scale)
    if layer.still:
        query, key = (torch.cat((x[..., layer.still :], x[..., : layer.still]), -1) for x in (query, key))
    return attended(layer.scheme, query, key, value, attention_mask, positions, dropout), None


def attended(
    scheme: Scheme,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    positions: Tensor,
    dropout: float,
    by_slot: bool = False,
) -> Tensor:
    """Attend with raw queries and keys; returns heads last but one, [b t h dv]. mask, positions: as in `read`.

    by_slot: whether positions count slots, padding included, which the length of a text does not.
    """
    q, k, v = under_autocast(q, k, v)
    by_length = scheme.by_length and not by_slot
    where: Options = read(mask, of_rows(positions, q.shape[0]), q.shape[2], k.shape[2], by_length)
    for watch in () if torch.compiler.is_compiling() else WATCHING.get():
        watch(q, k, v, scheme, where)
    where["dropout"] = dropout
    return attend(q, k, v, scheme, **where).transpose(1, 2).contiguous()


def under_autocast(*given: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the dtype that scaled_dot_product_attention would be given: that of autocast, or their own."""
    dtype = autocast_dtype(given[0].device)
    if dtype is None:
        return given
    return tuple(each if each.dtype == torch.float64 else each.to(dtype) for each in given)


def refuse(others: dict[str, Any]) -> None:
    """Say what `attend` cannot do, rather than leave it out."""
    refuse_weights(others)
    if others.get("position_bias") is not None:
        raise ValueError("milepost: this model adds a position_bias of its own, which an extended model does not read")
    if others.get("cache") is not None:
        raise ValueError("milepost: paged caches (continuous batching) are not read; generate with a dynamic cache")


def passed_on(module: nn.Module) -> list[Any]:
    """Let a module that takes position_ids itself pass ours on (Persimmon), and read those of its tokens (Ministral 3).

    Returns what undoes it.
    """
    if not reads_positions(module):
        return []
    return [module.register_forward_pre_hook(_with_positions, with_kwargs=True)]


def _with_positions(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    ours = kwargs.get(POSITIONS, kwargs.get("position_ids"))
    return args, kwargs | {POSITIONS: ours, "position_ids": kwargs.get(REAL, ours)}


def as_stock(module: nn.Module) -> list[Any]:
    """Let a module that does not attend, and reads position_ids, read those of its tokens (RecurrentGemma).

    Returns what undoes it.
    """
    return [module.register_forward_pre_hook(_with_real, with_kwargs=True)]


def _with_real(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if REAL not in kwargs or "position_ids" not in kwargs:
        return None
    return args, kwargs | {"position_ids": kwargs[REAL]}


def beside_attention(backbone: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that read position_ids and have no attention in them."""
    for each in backbone.modules():
        if reads_positions(each) and not any(is_attention(inner) for inner in each.modules()):
            yield each


def register() -> None:
    """Give transformers' two registries one name each."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, slots)


# Modules in the place of a model's own


class Replaced(StandIn):
    """Stands in the place of an attention module: the same children under the same names, so the same state_dict."""

    hidden = False
    """Whether True in a mask says that a key is hidden."""
    by_slot = False
    """Whether positions count slots, padding included."""
    scaled_by = "scaling"
    """Where transformers' module has its softmax scale."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """The settings of transformers' module that are read at every call."""

    def __init__(self, original: Any, scheme: Scheme) -> None:
        super().__init__(original)
        for name, child in original.named_children():
            self.add_module(name, child)
        # Not a child: its weights are here already.
        self.__dict__["original"], self.__dict__["edits"] = original, settings_of(original, self.reads)
        self.__dict__["scheme"], self.layer_idx = scheme, original.layer_idx

    @classmethod
    def demand(cls, original: nn.Module) -> None:
        """Refuse a module whose forward is not that of transformers: ours would take its place."""
        if not is_stock(original):
            raise ValueError(
                f"extend: the forward of this {type(original).__name__} is not that of transformers, and a module that "
                f"attends by `attend` would take its place; use the forward of transformers, or a forward hook, which "
                f"is kept"
            )

    @classmethod
    def scale(cls, original: Any) -> float:
        """Return the softmax scale of a module of transformers."""
        return float(getattr(original, cls.scaled_by))

    def put_back(self) -> nn.Module:
        """The module that was here, with the children as they are now: what wraps a weight stays."""
        original: nn.Module = self.__dict__["original"]
        for name, child in self.named_children():
            setattr(original, name, child)
        original.training = self.training
        # Which of the two kinds of backward hooks it has; the hooks are the same already.
        original._is_full_backward_hook = self._is_full_backward_hook
        return original

    def attended(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        cache: Any,
        mask: Tensor | None,
        dropout: float,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attend with raw queries, keys and values [b h t d]; returns [b t h·d]. positions: None where they count."""
        q, k, v = qkv
        original, edits = self.__dict__["original"], self.__dict__["edits"]
        refuse_edited(edits, {name: getattr(original, name, None) for name in edits}, type(original).__name__)
        if cache is not None:
            if self.layer_idx == 0:
                demand_marked(cache)
            k, v = cast("tuple[Tensor, Tensor]", cache.update(k, v, self.layer_idx))
        t, s = q.shape[2], k.shape[2]
        mask = self.slots(mask, t, s)
        if self.by_slot:
            positions = torch.arange(s, device=q.device, dtype=torch.int32)[None]
        elif positions is None:
            positions = torch.zeros(1, 0, device=q.device, dtype=torch.long)
        out = attended(self.__dict__["scheme"], q, k, v, mask, positions, dropout, self.by_slot)
        return out.reshape(*out.shape[:2], -1)

    def slots(self, mask: Tensor | None, t: int, s: int) -> Tensor | None:
        """Return which tokens t queries and s keys are, in the form of `positions.slots`, by transformers' mask."""
        by_length = self.__dict__["scheme"].by_length and not self.by_slot
        return dense(mask, t, s, self.hidden, self.layer_idx == 0, by_length)


def put_back(places: Iterable[Place]) -> list[Place]:
    """Let a model's own modules attend again; returns where ours were."""
    ours: list[Place] = []
    for place in places:
        now = getattr(place.parent, place.name)
        if isinstance(now, Replaced):
            ours.append(Place(place.parent, place.name, now))
            place.put(now.put_back())
    return ours


def heads(x: Tensor, width: int) -> Tensor:
    """[b t h·d] → [b h t d]."""
    return x.reshape(*x.shape[:2], -1, width).transpose(1, 2)


def rate(dropout: nn.Module) -> float:
    """Return how much a module of dropout drops now."""
    if isinstance(dropout, nn.Identity):
        return 0.0
    if type(dropout) is not nn.Dropout:
        raise ValueError(f"milepost: attention weights are dropped by nn.Dropout alone, not {type(dropout).__name__}")
    return dropout.p if dropout.training else 0.0


class Gptj(Replaced):
    """GPT-J: neighbouring channels are turned, and its tables of cosines are not asked for."""

    scaled_by = "scale_attn"
    out_proj: Any
    resid_dropout: Any

    @classmethod
    def scale(cls, original: Any) -> float:
        """It divides by what the others multiply with."""
        return 1 / super().scale(original)

    def forward(
        self,
        hidden_states: Tensor,
        layer_past: Any = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Take and return what transformers' module does."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        projected = (getattr(self, name)(hidden_states) for name in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (heads(each, own.head_dim) for each in projected)
        out = self.out_proj(self.attended((q, k, v), layer_past, attention_mask, rate(self.attn_dropout), position_ids))
        return self.resid_dropout(out), None


class Bloom(Replaced):
    """BLOOM: ALiBi; the residual is added inside."""

    scaled_by = "inv_norm_factor"
    query_key_value: Any
    dense: Any

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor | None = None,
        attention_mask: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Take and return what transformers' module does."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        joined: Any = self.query_key_value(hidden_states).unflatten(-1, (own.num_heads, 3, own.head_dim))
        q, k, v = (each.transpose(1, 2) for each in joined.unbind(-2))
        out = self.dense(self.attended((q, k, v), layer_past, attention_mask, rate(self.attention_dropout)))
        return residual + nn.functional.dropout(out, own.hidden_dropout, self.training), None


class Mpt(Replaced):
    """MPT: ALiBi, and a mask that says which keys are hidden."""

    hidden = True
    by_slot = True
    scaled_by = "softmax_scale"
    reads = frozenset({"clip_qkv"})
    Wqkv: Any
    out_proj: Any

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Take and return what transformers' module does."""
        own: Any = self.__dict__["original"]
        joined: Any = self.Wqkv(hidden_states)
        if own.clip_qkv:
            joined = joined.clamp(-own.clip_qkv, own.clip_qkv)
        q, k, v = (heads(each, own.head_dim) for each in joined.chunk(3, dim=-1))
        dropout = own.attn_dropout_p if self.training else 0.0
        return self.out_proj(self.attended((q, k, v), past_key_values, attention_mask, dropout)), None


def adds_slopes_twice(config: Any) -> bool:
    """Return whether transformers' eager attention adds ALiBi's slopes twice: in its mask, and once more to scores."""
    return getattr(config, "model_type", None) == "falcon" and bool(getattr(config, "alibi", False))


class Falcon(Replaced):
    """Falcon: rotations or ALiBi, and three ways to lay queries, keys and values out."""

    scaled_by = "inv_norm_factor"
    query_key_value: Any
    dense: Any

    @classmethod
    def demand(cls, original: Any) -> None:
        """Refuse eager attention with ALiBi: ours adds the slopes once, as sdpa does."""
        super().demand(original)
        if adds_slopes_twice(original.config) and original.config._attn_implementation == "eager":
            raise ValueError(
                "extend: transformers' eager attention of a Falcon with ALiBi adds its slopes twice, which is not what "
                'it was trained with; a model loaded with attn_implementation="sdpa" adds them once, as `attend` does'
            )

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Take and return what transformers' module does."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        joined: Any = self.query_key_value(hidden_states)
        h, g, d = own.num_heads, own.num_kv_heads, own.head_dim
        if own.new_decoder_architecture:
            q, k, v = joined.unflatten(-1, (g, -1, d)).split((h // g, 1, 1), -2)
            # Its cache keeps a key for every query.
            q, k, v = q.flatten(2, 3), *(each.expand_as(q).flatten(2, 3) for each in (k, v))
        elif own.multi_query:
            q, k, v = joined.unflatten(-1, (-1, d)).split((h, 1, 1), -2)
        else:
            q, k, v = joined.unflatten(-1, (h, 3, d)).unbind(-2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        # Dropout is applied with ALiBi alone there, and position_ids are read without it alone.
        dropout, positions = (0.0, position_ids) if alibi is None else (rate(self.attention_dropout), None)
        return self.dense(self.attended((q, k, v), layer_past, attention_mask, dropout, positions)), None


OURS: dict[str, type[Replaced]] = {"bloom": Bloom, "falcon": Falcon, "gptj": Gptj, "mpt": Mpt}
"""The module that takes the place of each model type's own."""
