"""Before the first layer of an extended model: what raw keys cannot do is refused, and a stream makes room."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.hf.rotary import plain, turn_of
from milepost.methods.alibi import Alibi
from milepost.methods.stream import Stream
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import spell
from milepost.seams.demand import checking_values
from milepost.seams.visible import Causal


class Guard:
    """Looks at the arguments of a forward pass: the cache, the mask and the positions.

    named: the attention function that the layers must call, None where modules of ours are in their place.
    """

    def __init__(self, schedule: Schedule, named: str | None) -> None:
        self.schedule, self.named = schedule, named
        self.by_slot = all(map(by_slot, schedule))

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Raise where keys would stand elsewhere than their slots say, or are not kept as they are.

        A stream says itself which tokens it has, in the place of the mask that transformers would make.
        """
        refuse_unnamed(cast("Any", module).config, self.named)
        cache: Any = kwargs.get("past_key_values")
        refuse_quantised(cache)
        positions, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
        if isinstance(positions, Tensor) and not isinstance(mask, dict):
            check_positions(positions, mask, cache)
        stream = getattr(cache, "stream", None)
        if not isinstance(stream, Stream):
            return None
        refuse_other(stream, self.schedule, cache)
        refuse_whole(mask, cache)
        tokens = next(
            each for each in (kwargs.get("inputs_embeds"), kwargs.get("input_ids"), *args) if each is not None
        )
        b, t = tokens.shape[:2]
        return args, kwargs | {"attention_mask": cache.begin(mask, b, t, tokens.device, self.by_slot)}


def refuse_unnamed(config: Any, named: str | None) -> None:
    """Refuse an attention that was set afterwards: it would get queries and keys that nothing has turned."""
    now = config._attn_implementation
    if named is not None and now != named:
        raise RuntimeError(
            f"milepost: this model was extended through {named!r}, and its attention was set to {now!r} afterwards, "
            f"which knows nothing of positions here; set it before extend, or restore(model) first"
        )


def by_slot(scheme: Scheme) -> bool:
    """Whether a query of a stream attends alike if the keys that were kept are counted as the whole text.

    Stream gives them those positions. Another window or log-n would count the tokens between as well.
    """
    turn = turn_of(scheme)
    others = [part for part in scheme.answering("see") if not isinstance(part, (Stream, Causal))]
    return not others and not scheme.answering("sharpen") and (turn is None or plain(turn))


def refuse_other(stream: Stream, schedule: Schedule, cache: Any) -> None:
    """Refuse a cache that drops keys which the layers see, or that they would place elsewhere."""
    for layer, scheme in enumerate(schedule):
        if stream not in scheme.parts:
            raise ValueError(
                f"milepost: {cache!r} keeps what {spell(stream)} sees, and layer {layer} of this model has {scheme!r}; "
                f"first extend(model, {spell(stream)})"
            )
        if any(isinstance(part, Alibi) for part in scheme.parts):
            raise ValueError(
                f"milepost: {cache!r} serves models that turn queries and keys; this one makes its slopes from a mask "
                f"of all tokens. Generate with a dynamic cache, which grows"
            )


def refuse_whole(mask: Any, cache: Any) -> None:
    """Refuse a mask that is not one of padding."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
        raise ValueError(
            f"milepost: with {cache!r} the attention mask is that of padding, [b, n] with 1 for every token"
        )


def refuse_quantised(cache: Any) -> None:
    """Refuse caches that keep keys in a few bits: raw keys are turned anew at every step."""
    for layer in [cache, *(getattr(cache, "layers", None) or ())]:
        if "Quantized" in type(layer).__name__:
            raise ValueError(
                f"milepost: {type(layer).__name__} keeps keys in a few bits, and an extended model reads them raw at "
                f"every step; use a dynamic, static or offloaded cache"
            )


def check_positions(positions: Tensor, mask: Tensor | None, cache: Any) -> None:
    """Refuse positions that do not count the tokens that are no padding: a cache does not keep them.

    Without a mask and without a cache, a position that starts over starts another text, as transformers has it.
    """
    if positions.dim() != 2 or torch.compiler.is_compiling() or (mask is None and cache is None):
        return
    t = positions.shape[1]
    if t == 1 and not checking_values(positions.device):
        return
    if mask is None:
        wrong = positions.diff(dim=-1) != 1
    elif mask.dim() == 2 and mask.shape[1] >= t:
        counts = mask.to(positions.device).long().cumsum(-1)[:, -t:]
        real = mask.to(positions.device)[:, -t:].bool()
        # Counted from the first token, or from the first slot; each row moved as a whole is the same.
        steps = positions.diff(dim=-1) - counts.diff(dim=-1)
        wrong = (steps != 0) & real[:, 1:] & real[:, :-1]
    else:
        return
    if bool(wrong.any()):
        raise ValueError(
            "milepost: position_ids do not count the tokens of each text one by one, and an extended model's cache "
            "keeps keys without positions; leave position_ids out. To pack texts, give no attention_mask and no cache"
        )
