# pyright: basic, reportMissingImports=false, reportArgumentType=false
"""vLLM's own model classes, whose rotary modules leave queries and keys raw and whose layers attend by `attend`.

`MilepostLlamaForCausalLM` and its kin are attributes of this module, made when vLLM asks for them.
"""

from __future__ import annotations

import math
from typing import Any

import vllm
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType

from milepost import Schedule, Scheme
from milepost.serving.backend import Attend, RawKeys
from milepost.serving.engine import demand_engine
from milepost.serving.folders import ARCHITECTURES, PREFIX, demand_served

ROTARY = "vllm.model_executor.layers.rotary_embedding"
"""Where vLLM has the classes of its rotary modules."""


class Raw(nn.Module):
    """Stands where a rotary module stood: the scheme of the layer rotates, in `attend`."""

    def forward(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return queries and keys as they are."""
        return query, key


def __getattr__(name: str) -> Any:
    architecture = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or architecture not in ARCHITECTURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return extended(architecture)


def extended(architecture: str) -> type[nn.Module]:
    """Return the class of a model of vLLM with every layer under the scheme that its config stores."""
    stock: Any = ModelRegistry.models[architecture].load_model_cls()

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        demand_engine(vllm_config, vllm.__version__, current_platform.device_type)
        # Raises if the rest of the config was edited, by --hf-overrides say, after the extension was stored.
        schedule = Schedule.of(vllm_config.model_config.hf_config)
        demand_served(schedule)
        stock.__init__(self, vllm_config=vllm_config, prefix=prefix)
        put(self, schedule, architecture)

    return type(PREFIX + architecture, (stock,), {"__init__": __init__, "__module__": __name__})


def put(model: nn.Module, schedule: Schedule, architecture: str) -> None:
    """Let every layer of a model attend under its scheme, with queries and keys that nothing has rotated."""
    found = {extract_layer_index(each.layer_name): each for each in model.modules() if isinstance(each, Attention)}
    if sorted(found) != list(schedule.layers):
        raise ValueError(
            f"milepost in vLLM: {architecture} attends in the layers {sorted(found)}, and the folder stores schemes "
            f"for {list(schedule.layers)}"
        )
    rotated = list(rotary_modules(model))
    for layer, attention in found.items():
        beside = [parent for parent, _ in rotated if any(each is attention for each in parent.children())]
        if len(beside) != 1:
            raise ValueError(
                f"milepost in vLLM: layer {layer} of {architecture} does not rotate by one module beside its "
                f"attention, so keys are not known to be raw"
            )
        demand_plain(layer, attention, schedule[layer])
    for parent, name in rotated:
        setattr(parent, name, Raw())
    for layer, attention in found.items():
        attention.impl = Attend(schedule[layer], attention.impl)
        attention.attn_backend = RawKeys


def rotary_modules(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return where the rotary modules of vLLM stand in a model: they are shared with others, and not to be changed."""
    return [
        (parent, name)
        for parent in model.modules()
        if not type(parent).__module__.startswith(ROTARY)
        for name, child in parent.named_children()
        if type(child).__module__.startswith(ROTARY)
    ]


def demand_plain(layer: int, attention: Attention, scheme: Scheme) -> None:
    """Refuse a layer that vLLM runs otherwise than its scheme says."""
    impl: Any = attention.impl
    wrong = {
        "attends both ways": attention.attn_type != AttentionType.DECODER,
        "has values of another width": attention.head_size_v != attention.head_size,
        "has a sliding window": attention.sliding_window is not None,
        "reads the keys of another layer": attention.kv_sharing_target_layer_name is not None,
        "has ALiBi slopes": getattr(impl, "alibi_slopes", None) is not None,
        "has sinks": attention.has_sink,
        "caps its logits": bool(getattr(impl, "logits_soft_cap", None)),
        f"scales scores by {impl.scale:.6g} and not by {scheme.scale(attention.head_size):.6g}": not math.isclose(
            impl.scale, scheme.scale(attention.head_size), rel_tol=1e-6
        ),
    }
    said = [what for what, is_so in wrong.items() if is_so]
    if said:
        raise ValueError(f"milepost in vLLM: layer {layer} {', '.join(said)}, which was not run; serve it in Python")
