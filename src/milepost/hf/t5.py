"""T5's self-attention through `attend`: each stack under its own scheme, with the table that was trained.

Attention over the encoder's output has no positions and is left as it is.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.call.options import Options
from milepost.hf.attention import refuse
from milepost.hf.models import Layers, Place
from milepost.hf.modules import Replaced, heads
from milepost.hf.parts import changed, check
from milepost.methods.t5_bias import T5Bias
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import Learner
from milepost.seams.demand import checking_values

Stacks = dict[str, Layers]
"""The encoder and the decoder of a model, or the one of them that it has."""


class TrainedBias(Learner):
    """T5's bias with the table of a model, which is asked where it stands: it may be moved, trained or offloaded.

        score  ←  score + table[b, h],   b the bucket of p − r in `shape`

    module: has the table as its `relative_attention_bias`.
    """

    additive = True

    def __init__(self, shape: T5Bias, module: nn.Module) -> None:
        super().__init__()
        # No children: the weights are the model's, and stay there.
        self.__dict__["shape"], self.__dict__["module"] = shape, module

    @property
    def constant_past(self) -> tuple[float, float]:
        """From these distances on, behind and ahead, one bucket has all."""
        return self.__dict__["shape"].constant_past

    def table(self, device: torch.device) -> Tensor:
        """The numbers of all buckets, [buckets h], with gradients."""
        shape: T5Bias = self.__dict__["shape"]
        table: Any = self.__dict__["module"].relative_attention_bias
        if type(table) is nn.Embedding and table.weight.device.type != "meta":
            return table.weight.to(device)
        # Offloaded, or wrapped in one that adds to it: called, it answers with all that there is.
        return table(torch.arange(shape.buckets, device=device)).to(device)

    def by_bucket(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """The table, and the bucket of each distance [n]."""
        return self.table(distance.device), self.__dict__["shape"].by_bucket(distance)[1]

    def by_distance(self, distance: Tensor) -> Tensor:
        """What is added at each distance [n]: [h n], float32 or better."""
        table, bucket = self.by_bucket(distance)
        found = table[bucket].T
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score + self.table(score.device)[self.__dict__["shape"].bucket(p - r), head].to(score.dtype)

    def __repr__(self) -> str:
        return f"{self.__dict__['shape']!r} with its trained table"


class T5Attention(Replaced):
    """Self-attention of T5, mT5 or umT5; the bias that a layer hands on to the next is not made."""

    o: Any

    def __init__(self, original: Any, scheme: Scheme) -> None:
        super().__init__(original, scheme)
        given = inspect.signature(cast("Any", type(original)).forward).parameters
        # Beside its answer, a module of T5 gives the bias, and in newer releases always the weights.
        self.beside = 2 if "position_bias" in given and "output_attentions" not in given else 1

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor | None, ...]:
        """What transformers' module takes and answers; T5 says mask where umT5 says attention_mask."""
        refuse({"output_attentions": others.get("output_attentions")})
        own: Any = self.__dict__["original"]
        q, k, v = (heads(getattr(self, name)(hidden_states), own.key_value_proj_dim) for name in "qkv")
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        out = self.o(self.attended((q, k, v), cache, attention_mask if mask is None else mask, own.dropout))
        return (out, *[None] * self.beside)

    def where(self, mask: Tensor | None, t: int, s: int) -> Options:
        """A decoder's mask is causal, an encoder's is that of padding."""
        return super().where(mask, t, s) if self.__dict__["original"].is_decoder else padding(mask, t, s)


def padding(mask: Tensor | None, t: int, s: int) -> Options:
    """What `attend` is given for the mask of an encoder, [b 1 t|1 s]: tokens count from the first that is no padding.

    Queries that are padding see what the others see, as in transformers; nobody sees them.
    """
    if mask is None:
        return {}
    seen = (mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool())[:, 0]
    real = seen.any(1)
    if checking_values(mask.device) and not torch.equal(seen, real[:, None].expand_as(seen)):
        raise ValueError(
            f"milepost: the attention mask {list(mask.shape)} hides some keys from some of the {t} queries of an "
            f"encoder and not from others; an extended model takes the mask of padding, [b, n]"
        )
    index = torch.arange(s, device=mask.device) - real.int().argmax(1)[:, None]
    index = index.clamp(min=0)
    return {
        "key_index": index, "index": index,
        "key_documents": torch.where(real, 0, -1), "documents": torch.zeros_like(index),
    }  # fmt: skip


def stacks_of(model: nn.Module, reach: int) -> Stacks:
    """The stacks of a model, with the schemes that they have when their buckets reach so far; changes nothing."""
    found: Stacks = {}
    for stack in cast("list[Any]", [each for each in model.modules() if hasattr(each, "block")]):
        places = tuple(
            # Of a model that was extended already, the modules that it had at first.
            Place(parent, name, child.__dict__["original"] if isinstance(child, Replaced) else child)
            for parent in stack.modules()
            for name, child in parent.named_children()
            if name == "SelfAttention"
        )
        config = copy.deepcopy(stack.config)
        config.relative_attention_max_distance = reach
        own, modules = Schedule.of(config), tuple(each.module for each in places)
        if len(places) != len(own):
            raise ValueError(
                f"extend: the {config.model_type} config has {len(own)} layers, and the model has self-attention in "
                f"{len(places)}; the config disagrees with the model"
            )
        name = "decoder" if stack.is_decoder else "encoder"
        found[name] = Layers(model, stack, config.model_type, own, modules, (), places)
    return found


def schedules_for(stacks: Stacks, given: Sequence[object]) -> dict[str, Schedule]:
    """The schemes of each stack with the parts put in, or an error that says why they cannot be."""
    found = {name: changed(layers, given) for name, layers in stacks.items()}
    for name, layers in stacks.items():
        for layer, scheme in enumerate(found[name]):
            check(layers, layer, scheme)
            if scheme.is_causal and not layers.own[layer].is_causal:
                seen = ", ".join(map(repr, scheme.answering("see")))
                raise ValueError(
                    f"extend: the {name} of this {layers.model_type} model sees keys ahead, and {seen} hides them; "
                    f"what both stacks can be given looks both ways, such as window(64, ahead=63)"
                )
    return found


def put_attention(stacks: Stacks, schedules: dict[str, Schedule]) -> None:
    """Let modules of ours attend in every stack; those of a stack that shares one table ask its first layer for it."""
    for name, layers in stacks.items():
        first: T5Attention | None = None
        for place, scheme in zip(layers.places, schedules[name], strict=True):
            module = T5Attention(place.module, scheme)
            first = module if first is None else first
            holder = module if hasattr(module, "relative_attention_bias") else first
            module.__dict__["scheme"] = with_table(scheme, holder)
            place.put(module)


def with_table(scheme: Scheme, module: nn.Module) -> Scheme:
    """The scheme with the table that a module has in place of a new one."""
    made = Scheme(*(TrainedBias(part, module) if isinstance(part, T5Bias) else part for part in scheme.parts))
    made.trained = scheme.trained
    return made


def put_back(stacks: Stacks) -> None:
    """Let the model's own modules attend again."""
    for layers in stacks.values():
        for place in layers.places:
            now = getattr(place.parent, place.name)
            if isinstance(now, Replaced):
                place.put(now.put_back())
