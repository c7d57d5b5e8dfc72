"""What of a transformers model is changed: its rotary modules, its attention modules and its config; nothing else."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import math
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import nn

from milepost import Alibi, Learned, Nope, Scale, Schedule, Scheme, Sinusoidal
from milepost.configs import read
from milepost.configs.falcon_slopes import FalconSlopes
from milepost.configs.layer_types import PASSED_OVER
from milepost.configs.model_types import NOT_READ
from milepost.configs.reader import LENGTH, Reader
from milepost.configs.source import text_of
from milepost.hf.config.far_layers import reach, sees
from milepost.hf.config.rope_parameters import has_types
from milepost.schedule import stock_schedule
from milepost.seams.visible import Visible

KNOWN = frozenset({
    "apertus", "arcee", "bitnet", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "gpt_neox", "gpt_oss", "granite", "helium", "llama", "ministral", "mistral",
    "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
})  # fmt: skip
"""Model types whose attention is known to go by name; any other is proven at first, see `proof`."""


REPLACED = frozenset({"bloom", "falcon", "gptj", "mpt"})
"""Model types whose attention is not reached by name: their attention modules are replaced by ours."""
ROWS = "its positions are rows of a table that are added to the embeddings, and its table is not grown"
NOT_YET: dict[str, str] = dict.fromkeys(
    ("bigbird_pegasus", "git", "gpt_neo", "megatron-bert", "openai-gpt", "opt", "prophetnet", "rembert", "roc_bert"),
    ROWS,
) | {
    "codegen": "it keeps a table of its own cosines in every layer, and attends by code that no registry reaches",
    "cpmant": "it adds learned numbers for buckets of distances to its scores, by code of its own",
    "ctrl": "its positions are waves that are added to the embeddings, which no method of attention changes",
    "roformer": "its cosines are an embedding of its own, and it attends by code that no registry reaches",
    "xlm": ROWS,
    "xlnet": "its distances are projected to keys by code of its own, which no registry reaches",
    "xmod": ROWS,
}
"""Why some model types that milepost can read are not extended."""
ROTARY, ROTARIES = ("rotary_emb", "pos_emb"), "rotary_embs"
"""What models call the module that answers cosines and sines, and several of them."""
MODELS = ("transformers.models.", "transformers_modules.")
"""Where transformers has the classes of models, and those that come with a checkpoint."""
Kept = TypeVar("Kept")
NOT_COMPARED = frozenset({
    "gradient_checkpointing", "layer_idx", "max_position_embeddings", "max_positions", "max_seq_length", "training",
})  # fmt: skip
"""Settings of modules that change no answer here."""


@dataclass(frozen=True)
class Place:
    """One module of a model, and where it stands."""

    parent: nn.Module
    name: str
    module: nn.Module

    def put(self, module: nn.Module) -> None:
        """Let another module stand in its place."""
        setattr(self.parent, self.name, module)


@dataclass(frozen=True)
class Turner(Place):
    """A module that answers cosines and sines."""

    layers: frozenset[int] | None = None
    """The layers that ask it; None where all do."""

    @property
    def by_type(self) -> bool:
        """Whether it is asked for the cosines of a type of layers (Gemma 3)."""
        return "layer_type" in inspect.signature(type(self.module).forward).parameters


@dataclass(frozen=True)
class Layers:
    """The layers of a model that can be extended."""

    model: Any
    """What the user has: any model of transformers, or one that wraps it."""
    backbone: Any
    """The model inside that has the layers."""
    model_type: str
    own: Schedule
    """What its layers do by themselves."""
    attentions: tuple[Any, ...]
    """The attention module of each layer."""
    turners: tuple[Turner, ...]
    places: tuple[Place, ...]
    """Where the attention modules stand, for models whose are replaced."""
    near: frozenset[int] = frozenset()
    """Which of the own schemes no stretch of the rotation goes to: see `near_in`."""
    longest: int | None = None
    """The longest length that the config says, before an extension may say another."""
    turned_back: bool = False
    """Whether the second half of the channels turns into the first; schemes have it first."""

    @property
    def config(self) -> Any:
        """The config that the layers read."""
        return self.backbone.config

    def head_width(self, module: Any) -> int:
        """The channels of a query in an attention module."""
        names = ("qk_head_dim", "head_dim", "head_size")
        return next(getattr(module, name) for name in names if getattr(module, name, None))

    def layer_type(self, layer: int) -> str | None:
        """The type of a layer, by its number in the model, where the config lists types."""
        listed = getattr(self.config, "layer_types", None)
        return listed[layer] if listed else None


def layers_of(model: object) -> Layers:
    """Find what there is to change, or say why this model cannot be served; changes nothing."""
    backbone = backbone_of(demand_model("extend", model))
    config = cast("Any", backbone).config
    reader = read(config, "extend")
    model_type = reader.model_type
    if as_run(config) is not config:
        bias_max = config.attn_config.alibi_bias_max
        raise ValueError(
            f"extend: this config says alibi_bias_max {bias_max}, and the MPT of transformers passes over it: its "
            f"slopes are those of 8. To keep what the model does, set model.config.attn_config.alibi_bias_max = 8; for "
            f"slopes of {bias_max}, also give extend an Alibi({config.n_heads}, bias_max={bias_max})"
        )
    own = own_schedule(config)
    attentions = tuple(attentions_in(backbone))
    if [each.layer_idx for each in attentions] != list(own.layers):
        raise ValueError(
            f"extend: the {model_type} config has {len(own)} layers, and the model has attention in the layers "
            f"{', '.join(str(each.layer_idx) for each in attentions)}; the config disagrees with the model"
        )
    if model_type in REPLACED:
        places = tuple(places_of(backbone, attentions))
        return Layers(model, backbone, model_type, own, attentions, (), places, longest=reader.get(*LENGTH))
    turners, near, back = (
        tuple(turners_in(backbone)),
        near_in(reader, own),
        getattr(reader.family, "turned_back", False),
    )
    return Layers(model, backbone, model_type, own, attentions, turners, (), near, reader.get(*LENGTH), back)


def near_in(reader: Reader, own: Schedule) -> frozenset[int]:
    """Return which schemes are those of layers that never meet a new distance, and have rope settings of their own.

    A stretch would change them for nothing; where one setting serves all layers, no config could leave them alone.
    """
    if not has_types(reader):
        return frozenset()
    schemes = [scheme for scheme in own.schemes if isinstance(scheme, Scheme)]
    known = reach(reader, schemes, own.trained) if own.trained else math.inf
    return frozenset(n for n, scheme in enumerate(schemes) if sees(scheme) <= known and sees(scheme) < math.inf)


def as_run(config: Any) -> Any:
    """Return a config as transformers' own model runs it: its MPT passes over alibi_bias_max."""
    settings = getattr(config, "attn_config", None)
    if getattr(config, "model_type", None) != "mpt" or getattr(settings, "alibi_bias_max", 8) == 8:
        return config
    run = copy.deepcopy(config)
    run.attn_config.alibi_bias_max = 8
    return run


def own_schedule(config: Any) -> Schedule:
    """What the layers of a model do by themselves; Falcon's slopes as it rounds them."""
    # Tables that a scheme learns are drawn, and nobody reads these.
    with undrawn():
        own = stock_schedule(read(as_run(config), "extend"))
    if not (getattr(config, "model_type", None) == "falcon" and config.alibi):
        return own
    scheme = own[0]
    parts = [Alibi(part.heads, stretch=FalconSlopes(config.head_dim)) if isinstance(part, Alibi) else part
             for part in scheme.parts]  # fmt: skip
    made = Scheme(*parts)
    made.trained = scheme.trained
    schedule = Schedule([made] * len(own))
    schedule.trained = own.trained
    return schedule


def backbone_of(model: nn.Module) -> nn.Module:
    """The module that has the layers: the one that a rotary module stands in."""
    name = type(model).__name__
    kind = getattr(cast("Any", model).config, "model_type", None)
    if kind in REPLACED:
        return innermost(model)
    turners = list(turners_in(model))
    found = {id(each.parent): each.parent for each in turners if each.layers is None}
    if len(found) == 1 and all(each.layers is None for each in turners):
        return next(iter(found.values()))
    # A tower for images or sound rotates by a module of its own, and has a config of its own.
    config: Any = cast("Any", model).config
    text = text_of(config) or config
    spoken = [each for each in found.values() if reads_text(each, text)]
    # Attention may have a rotary module of its own besides (Nemotron in older releases).
    whole = [each for each in spoken if set(spoken) <= set(each.modules())]
    if len(whole) == 1:
        return whole[0]
    if found:
        raise ValueError(
            f"extend: {name} has rotary modules in {len(found)} places, so it is not clear which layers are meant; "
            f"give the language model in it"
        )
    why = NOT_YET.get(str(kind)) or NOT_READ.get(str(kind)) or (None if turners else without_rotation(model))
    if why is None:
        return innermost(model)
    raise ValueError(
        f"extend: {name} ({kind}) cannot be extended: {why}. Models that have one are, if a small model of their class "
        f"proves equal to stock transformers; so are {', '.join(sorted(REPLACED))}. The tables of BERT, RoBERTa and "
        f"GPT-2 can be grown, and the buckets of T5 stretched"
    )


def reads_text(module: nn.Module, text: Any) -> bool:
    """Whether a module with a config is the language model that the config of a text is for."""
    config: Any = getattr(module, "config", None)
    return config is text or config.model_type == text.model_type


def innermost(model: nn.Module) -> nn.Module:
    """The innermost of the models inside one another."""
    return [each for each in model.modules() if hasattr(each, "config") and hasattr(each, "get_input_embeddings")][-1]


def without_rotation(model: nn.Module) -> str | None:
    """Why a model without a rotary module is not extended; None where its layers attend without any positions."""
    try:
        parts = [part for scheme in own_schedule(cast("Any", model).config) for part in scheme.parts]
    except (ValueError, TypeError):
        return "it has no rotary_emb module that answers cosines and sines"
    if any(isinstance(part, Learned) for part in parts):
        return "its positions are rows of a table that are added to the embeddings, and its table is not grown"
    if any(isinstance(part, Sinusoidal) for part in parts):
        return "its positions are waves that are added to the embeddings, which no method of attention changes"
    if all(isinstance(part, (Nope, Scale, Visible)) for part in parts):
        return None
    return f"positions come in by {parts[0]!r}, which is not read from its attention"


def turners_in(model: nn.Module) -> Iterator[Turner]:
    """The modules that answer cosines and sines for the layers, each with the module it stands in."""
    for parent in model.modules():
        if not hasattr(parent, "config"):
            continue
        several = dict(parent.named_children()).get(ROTARIES)
        if several is not None:
            yield from by_base(several, cast("Any", parent).config.layer_rope_theta)
            continue
        for name, child in parent.named_children():
            if name in ROTARY:
                alone = frozenset({parent.layer_idx}) if is_attention(parent) else None
                yield Turner(parent, name, child, cast("Any", alone))


def by_base(several: nn.Module, listed: Sequence[float]) -> Iterator[Turner]:
    """The rotary modules of a model that has one for each base, of which every layer has its own (Granite)."""
    for name, child in several.named_children():
        theta = cast("Any", child).config.rope_parameters["rope_theta"]
        yield Turner(several, name, child, frozenset(n for n, each in enumerate(listed) if each == theta))


def is_attention(module: nn.Module) -> bool:
    """Whether a module is the attention of one layer."""
    return type(module).__name__.endswith(("Attention", "MLA")) and hasattr(module, "layer_idx")


def attentions_in(backbone: nn.Module) -> Iterator[Any]:
    """The attention modules, in the order of their layers."""
    found = [each for each in backbone.modules() if is_attention(each)]
    listed = getattr(getattr(backbone, "config", None), "layer_types", None)
    return iter(
        sorted(
            (each for each in cast("list[Any]", found) if not listed or listed[each.layer_idx] not in PASSED_OVER),
            key=lambda each: each.layer_idx,
        )
    )


def places_of(backbone: nn.Module, modules: Sequence[nn.Module]) -> Iterator[Place]:
    """Where modules stand, in their own order."""
    found = {
        id(child): Place(parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
    }
    return (found[id(each)] for each in modules)


def settings_of(module: nn.Module, read: Collection[str] = ()) -> dict[str, Any]:
    """Return the plain attributes of an attention module that its class knows: what a scheme may have of its own.

    Dropout is left out: it is read at every call. read: what else is.
    """
    names, ends = names_in(type(module))
    return {
        name: each
        for name, each in vars(module).items()
        if (each is None or isinstance(each, (bool, int, float, str, tuple)))
        and (name in names or name.endswith(ends))
        and not (name.startswith("_") or "dropout" in name or name in NOT_COMPARED or name in read)
    }


@cache
def names_in(kind: type) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the attributes that the source of a class sets or reads, and the ends of those that it puts together.

    Gemma 3 has an f"{layer_type}_attention_scaling" for each type of layers. Of a user's subclass the classes of
    transformers count: a name that nothing there knows is a counter, or whatever else the user keeps.
    """
    nodes = list[ast.AST]()
    for each in kind.__mro__:
        if each.__module__.startswith(MODELS):
            try:
                nodes += ast.walk(classes_in(each.__module__)[each.__qualname__])
            except (OSError, TypeError, KeyError):
                # There is no source: any name may be one of its own.
                return frozenset(), ("",)
    texts = [node.values[-1] for node in nodes if isinstance(node, ast.JoinedStr) and node.values]
    ends = {str(each.value) for each in texts if isinstance(each, ast.Constant)}
    names = frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))
    return names, tuple(each for each in ends if each.startswith("_")) if nodes else ("",)


@cache
def classes_in(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes in the source of a module; `inspect` reads all of it again for each."""
    parsed = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}


def switches_of(module: nn.Module) -> dict[str, Any]:
    """Return what a module that has layers switches on and off (Falcon's use_alibi)."""
    return {name: each for name, each in settings_of(module).items() if isinstance(each, bool)}


def as_built(model: nn.Module, config: Any) -> Any:
    """Return a model as transformers builds it from a config, which becomes its own, without weights."""
    kinds = (each for each in type(model).__mro__ if each.__module__.startswith("transformers.models."))
    kind = cast("Any", next(kinds, type(model)))
    config._attn_implementation = "eager"
    # Neither matters here, and a model cannot be built from some: a padding token that the vocabulary lacks, and the
    # name of a dtype, which save_pretrained leaves in the config.
    # Some classes refuse None there.
    config.pad_token_id = None if getattr(config, "pad_token_id", None) is None else 0
    config.dtype = torch.float32
    with undrawn("meta"):
        return kind(config)


@contextmanager
def undrawn(device: str = "cpu") -> Generator[None]:
    """Make modules on a device, and leave the random state of every device as it was."""
    # What is drawn on the CPU moves the state of no other device.
    with torch.random.fork_rng(devices=[]), torch.device(device):
        yield


def demand_as_built(module: nn.Module, built: dict[str, Any], where: str = "") -> None:
    """Refuse a module that was changed by hand: schemes are made from the config, which says what was built."""
    for name, says in built.items():
        now = getattr(module, name, None)
        if now != says:
            raise ValueError(
                f"extend: {name} of {type(module).__name__}{where} is {now!r}, and its config says {says!r}; one of "
                f"them was changed by hand, and schemes are made from the config. Put it back, or change both; what a "
                f"part says (a window, a cap, a mask) can be given to extend instead"
            )


def forward_of(module: nn.Module) -> Any:
    """Return the function that a module's forward runs, without the hooks of accelerate around it."""
    kept = vars(module)
    found = kept["_old_forward"] if "_hf_hook" in kept else kept.get("forward")
    return type(module).forward if found is None else getattr(found, "__func__", found)


def is_stock(module: nn.Module) -> bool:
    """Return whether a module's forward is that of transformers, and not of a subclass or patched."""
    return str(getattr(forward_of(module), "__globals__", {}).get("__name__")).startswith("transformers.")


class StandIn(nn.Module):
    """Stands in the place of a module of a model, kept as `original`: hooks and settings are those of both."""

    own = frozenset({"layer_idx", "training"})
    """The settings that it has for itself."""

    def __init__(self, original: nn.Module, hooks: str = "_hook") -> None:
        """hooks: what is in the names of the hooks that it takes over."""
        super().__init__()
        # The same dicts: a hook is called wherever it was added, and its handle removes it from both.
        names = [name for name in vars(self) if hooks in name]
        self.__dict__.update({name: vars(original)[name] for name in names})
        # A new module is in training, whatever its model is; dropout goes by that.
        self.training = original.training

    def stood_for(self) -> nn.Module | None:
        """Return the module that was here; None while this one is built or copied."""
        kept = self.__dict__
        return kept.get("original", kept.get("_modules", {}).get("original"))

    def __getattr__(self, name: str) -> Any:
        """Return what the module that was here has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.stood_for()
            if original is None or name.startswith("_"):
                raise
            return getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Hand settings, and what a user keeps here, on to the module that was here: it is read from there."""
        original = self.stood_for()
        weights = isinstance(value, (nn.Module, nn.Parameter)) or name in (*self._modules, *self._parameters)
        if original is None or name.startswith("_") or name in self.own or weights:
            super().__setattr__(name, value)
        else:
            setattr(original, name, value)


def demand_model(asked: str, model: object) -> nn.Module:
    """The model itself; a TypeError where it is none of transformers."""
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise TypeError(
            f"{asked}({type(model).__name__}): the first argument is a model of transformers, such as "
            f"AutoModelForCausalLM.from_pretrained(…)"
        )
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The model of transformers itself; PEFT and others wrap it, and may be taken off again."""
    return next((each for each in model.modules() if hasattr(type(each), "get_input_embeddings")), model)


def demand_causal(asked: str, model: object) -> None:
    """Refuse a model that reads one text and writes another."""
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        kind = getattr(config, "model_type", "encoder-decoder")
        raise ValueError(f"{asked} a {kind} model, which reads one text and writes another; give a causal model")


def kept_in(model: nn.Module, name: str, kind: type[Kept]) -> Kept | None:
    """Return what a model or a module inside it keeps under a name, where that is of a kind; None where nothing is."""
    kept = (each.__dict__.get(name) for each in model.modules())
    return next((each for each in kept if isinstance(each, kind)), None)


def longest(model: nn.Module) -> int | None:
    """Return how many tokens a model of transformers can read as it is now, None where no table ends."""
    config: Any = getattr(model, "config", None)
    try:
        ends = [part.length for part in next(iter(own_schedule(config))).parts if isinstance(part, Learned)]
    except (ValueError, TypeError):
        # A model of a type that is not read here.
        ends = []
    for each in model.modules():
        # GPT-J has cosines and sines for so many positions, MPT slopes.
        waves = each.__dict__.get("_buffers", {}).get("embed_positions")
        ends += [len(waves)] if isinstance(waves, torch.Tensor) else []
        ends += [config.max_seq_len] if type(each).__name__ == "MptAttention" else []
    return min(ends, default=None)


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its tokens: with its first weights that are not offloaded; where all are, its hooks move."""
    return next((each.device for each in model.parameters() if each.device.type != "meta"), torch.device("cpu"))


def own_config(model: nn.Module) -> None:
    """Give the model, and those that it stands in, a config of their own: no other made from the same one changes."""
    copies: dict[int, Any] = {}
    for module, config in configs_of(model).items():
        module.__dict__["config"] = copy.deepcopy(config, copies)


@contextmanager
def same_config(model: nn.Module) -> Generator[None]:
    """Extend and restore a model as often as needed; then it has the very config that it had."""
    kept = configs_of(model)
    try:
        yield
    finally:
        for module, config in kept.items():
            module.__dict__["config"] = config


def configs_of(model: nn.Module) -> dict[nn.Module, Any]:
    """Return the config of every module that has one, of a model and of those that it stands in."""
    modules = (each for whole in (model, *around(model)) for each in whole.modules())
    return {each: each.__dict__["config"] for each in modules if each.__dict__.get("config") is not None}


def around(model: nn.Module) -> list[nn.Module]:
    """The models of transformers that hold the same layers; they are saved by a config that is theirs as well."""
    # A module does not know what it stands in.
    modules: list[nn.Module] = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    # A module that is still being built has no children to ask for.
    whole = [each for each in modules if hasattr(type(each), "get_input_embeddings") and "_modules" in vars(each)]
    inmost = [each for each in model.modules() if hasattr(type(each), "get_input_embeddings")][-1:]
    return [each for each in whole if each is not model and any(inner in inmost for inner in each.modules())]
