"""What of an extended folder vLLM is told, and which folders are refused before anything is loaded."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from milepost import Schedule, Scheme
from milepost.configs.source import text_of
from milepost.configs.stored import unmarked, unread_in
from milepost.seams.arguments import spell

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The architectures that were run in vLLM under every method (docs/vllm.md)."""
PREFIX = "Milepost"
"""Before the name of an architecture it names ours in vLLM's registry."""
CALLED = "milepost in vLLM"
"""What errors begin with."""
LONGEST = 2**31 - 1
"""The longest text that --max-model-len may ask for: raw keys have no table of angles that ends."""
SERVE = "read it in Python, milepost.hf.load(folder), or serve a stretch that vLLM reads itself: Yarn, Ntk, Interpolate"
"""What to do with a folder that the plug-in refuses."""
Plain = dict[str, Any]


def is_ours(config: Plain) -> bool:
    """True if the rest of a config does not describe the extension that it stores, so that vLLM alone cannot run it."""
    return any(unread_in(each) is not None for each in (config, text_of(config) or {}))


def served(config: Plain) -> Plain:
    """Return the config that vLLM is to read in place of a marked one: without marks, of an architecture of ours.

    What the config stores of the extension stays in it; the rotation that the rest describes is not run.
    """
    if unread_in(config) is None:
        raise ValueError(
            f"{CALLED}: the extension is stored in the config of the text of a model that reads more than text, "
            f"which the plug-in does not serve; {SERVE}"
        )
    made = cast("Plain", unmarked(config))
    named: list[str] = made.get("architectures") or []
    demand_architecture(named)
    demand_served(Schedule.of(config))
    return made | {"architectures": [PREFIX + named[0]], "model_max_length": LONGEST}


def unserved(architecture: str, schedule: Schedule) -> str | None:
    """Return why the plug-in does not serve a model of an architecture under a schedule, or None."""
    try:
        demand_architecture([architecture])
        demand_served(schedule)
    except ValueError as error:
        return str(error).removeprefix(f"{CALLED}: ").removesuffix(f"; {SERVE}")
    return None


def demand_architecture(named: list[str]) -> None:
    """Refuse all but one architecture that was run. named: those of a config."""
    if len(named) != 1 or named[0] not in ARCHITECTURES:
        raise ValueError(
            f"{CALLED}: the architecture {', '.join(named) or 'that is not named'} was never run by the "
            f"plug-in, which serves {', '.join(ARCHITECTURES)}; {SERVE}"
        )


def demand_served(schedule: Schedule) -> None:
    """Refuse schemes whose result would depend on how the server cuts a text into steps, or that lack their weights."""
    for layer, scheme in schedule.items():
        where = f"{CALLED}: layer {layer} of this folder"
        if scheme.by_length:
            part = next(each for each in scheme.parts if getattr(each, "by_length", False))
            raise ValueError(
                f"{where} has {spell(part)}, which follows the length of the text: keys that a prefix cache or an "
                f"earlier chunk of the prompt left were computed for a shorter one, so logits would depend on what was "
                f"served before. Take a method of one length (Ntk, Yarn, Rerope), or {SERVE}"
            )
        learns = next((each for each in scheme.parts if isinstance(each, nn.Module)), None)
        if learns is not None:
            raise ValueError(f"{where} has {spell(learns)}, which learns, and its weights are not read; {SERVE}")
        demand_kind(where, scheme)


def demand_kind(where: str, scheme: Scheme) -> None:
    """Refuse schemes of other models than causal ones with a rotation of one position a token."""
    turns = any(getattr(each, "rotary", False) for each in scheme.parts)
    if not scheme.is_causal or not turns or scheme.axes is not None:
        raise ValueError(f"{where} is no causal layer with RoPE of one position a token: {scheme!r}; {SERVE}")
