"""Which token stands where: positions, padding, packing and cached keys, in every forward pass of an extended model.

The model's own attention reads positions off queries and keys that are rotated already. `attend` gets them raw, so it
must be given what stock transformers knows:

- **Positions** of all tokens in the cache. `Calls.before`, a hook on the model, puts the new `position_ids` behind
  those of the cache and hands them on in their place. transformers passes them to every layer, through checkpoints,
  devices and compiled graphs. int64 [b|1, t + 1], one more than there are tokens, means that they count one by one, so
  nobody needs to read them; any other dtype is to be read, [b|1, n] for all n slots. int64 [b|1, t] is what
  transformers makes by itself: nobody has looked at them, and they are refused. Where tokens of images have a position
  on each of several axes (M-RoPE), those that are read are [b|1, n, axes], and the model keeps its own position_ids.
- **Slots**: which of these tokens a layer's keys are, and which are padding. transformers calls the registered mask
  function `slots` for each type of layer, and takes any tensor with four axes for a finished mask. Ours are integers,
  [b, 1, rows, s + t], for s keys and then t queries: documents (one row: packed texts), index and documents (a
  stream), or index, documents and slot.

`read` makes the options of `attend` of both. Nothing here depends on values while a graph is traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost import Alibi, QkNorm, Schedule, Scheme, Stream
from milepost.call.documents import over_keys
from milepost.call.options import Options
from milepost.configs.layer_types import PALIGEMMA_TEXTS
from milepost.hf.model.models import Place, attentions_in, places_of
from milepost.hf.model.rotary import axes_last, axes_of, plain, turn_of
from milepost.seams.arguments import spell
from milepost.seams.demand import checking_values
from milepost.seams.visible import Causal

Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A mask function of transformers: batch, head, slot of the query and slot of the key to whether it is visible."""
COUNTED = torch.int64
"""The dtype of positions that count one by one."""
AHEAD = (
    "milepost: this call shows some tokens what comes after them (an image or another block that is seen both "
    "ways), and the layers' schemes are causal; leave the block out, or restore(model) first"
)
POSITIONS, REAL = "milepost_positions", "milepost_real_positions"
"""Arguments in which layers get ours where they do not pass position_ids on, and those of the new tokens as stock."""
HAS_POSITIONS = "milepost_positions"
"""The attribute of a cache's layer whose keys are positions."""


# The options of one call


def read(mask: Tensor | None, positions: Tensor, t: int, s: int, by_length: bool = False) -> Options:
    """Return what `attend` is given for t queries and s keys. mask: of `slots` or of a stream; positions: of `before`.

    by_length: whether the scheme depends on the length of the text, which is then that of the last position.
    """
    if positions.dtype == COUNTED and positions.shape[1] == t:
        raise RuntimeError(
            "milepost: an extended model's layers were reached without the hooks of the module that has them, by "
            "model.forward(…) or by a layer called with positions of its own, so padding, packing and cached tokens "
            "are not known; call the module itself, model(…), which runs its hooks"
        )
    at = None if positions.dtype == COUNTED else positions
    if mask is None or is_empty(mask) or (mask.shape[2] == 1 and at is None and is_ours(mask, t, s)):
        return {} if at is None else located(at, None, t, s)[1] | lasting(at, None, None, t, s, by_length)
    if not is_ours(mask, t, s) or (mask.shape[2] == 2 and at is not None):
        raise ValueError(
            f"milepost: the attention mask is {mask.dtype} {list(mask.shape)} for {t} queries and {s} keys; an "
            f"extended model takes the mask of padding, [b, n] with 1 for every token that counts, and makes the rest"
        )
    rows = mask[:, 0].unbind(1)
    if len(rows) == 1:
        found: Options = {"key_documents": rows[0][:, :s], "documents": rows[0][:, s:]}
        if at is None:
            return found
        return found | located(at, None, t, s)[1] | lasting(at, rows[0][:, s:], rows[0][:, :s], t, s, by_length)
    index, documents = rows[:2]
    found = {
        "key_index": index[:, :s], "index": index[:, s:],
        "key_documents": documents[:, :s], "documents": documents[:, s:],
    }  # fmt: skip
    if at is None:
        return found
    keys, where = located(at, rows[2], t, s)
    return found | where | lasting(keys, documents[:, s:], documents[:, :s], t, s, by_length)


def located(at: Tensor, slot: Tensor | None, t: int, s: int) -> tuple[Tensor, Options]:
    """Return where queries and keys stand. at: positions of all slots, [b|1, n] or [b|1, n axes]; slot: those of keys
    and queries.
    """
    if slot is None:
        if at.shape[1] != s:
            raise RuntimeError(f"milepost: the positions of {at.shape[1]} tokens are known, and a layer has {s} keys")
        keys, queries = at, at[:, s - t :]
    else:
        # A slot that is not filled yet has no position; its document is −1.
        row = torch.arange(slot.shape[0], device=slot.device)[:, None]
        both = of_rows(at, slot.shape[0])[row, slot.clamp(max=at.shape[1] - 1)]
        keys, queries = both[:, :s], both[:, s:]
    return keys, {"position": queries, "key_position": keys}


def of_rows(positions: Tensor, b: int) -> Tensor:
    """Return positions [b|1 n] or [b|1 n axes] for b rows."""
    return positions.expand(b, *positions.shape[1:])


def lasting(
    at: Tensor, documents: Tensor | None, key_documents: Tensor | None, t: int, s: int, by_length: bool
) -> Options:
    """Return the length of each text, 1 + its last position, if the scheme depends on it. at: of the keys, [b|1 s]."""
    if not by_length:
        return {}
    at = at.amax(-1) if at.dim() == 3 else at
    # With a cache there is one text a row: `slots` makes no more, and `dense` refuses them.
    if t != s or documents is None or key_documents is None:
        real = at if key_documents is None else at.masked_fill(key_documents < 0, 0)
        return {"length": real.amax(-1).long() + 1}
    return {"length": over_keys(at.long(), "amax", documents, key_documents)[0] + 1}


def is_ours(mask: Tensor, t: int, s: int) -> bool:
    """Return True if a finished mask is one of `slots` or of a stream, for t queries and s keys."""
    return mask.dtype == torch.long and mask.dim() == 4 and mask.shape[2] <= 3 and mask.shape[3] == s + t


def is_empty(mask: Tensor) -> bool:
    """Return True for the mask of a stream whose keys are the whole text: the shapes say all."""
    return mask.dtype == torch.long and mask.dim() == 4 and mask.shape[3] == 0


# Slots


def slots(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Seen | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **others: Any,
) -> Tensor | None:
    """Return which tokens the queries and the keys of a layer are; the mask function that is registered.

    Queries are in the slots q_offset …, keys in kv_offset …; attention_mask [b, n] is True for what is no padding. The
    index counts real tokens. In layers with a window (local_size) it counts slots, as transformers' window does.
    None where queries are the last of the keys and there is neither padding nor packing.
    """
    if use_vmap:
        raise ValueError(
            "milepost: this call brings a mask of its own (or_mask_function or and_mask_function), which no scheme "
            "says; leave it out, or restore(model) first"
        )
    config: Any = others.get("config")
    if getattr(config, "is_causal", True) is not False:
        # Where there is no mask sdpa asks the layers, and those of PaliGemma's text see what is ahead.
        prefixed = getattr(config, "use_bidirectional_attention", None) is True and config.model_type in PALIGEMMA_TEXTS
        if prefixed and q_length != 1:
            raise ValueError(AHEAD)
        refuse_ahead(mask_function, batch_size, q_offset, q_length, device)
    whole = isinstance(q_offset, int) and kv_offset == 0 and q_offset + q_length == kv_length
    if whole and attention_mask is None:
        return packed(mask_function, batch_size, q_length, device) if q_offset == 0 else None
    total = kv_offset + kv_length
    real = torch.ones(batch_size, total, dtype=torch.bool, device=device)
    if attention_mask is not None:
        real = attention_mask[:, :total].to(device, torch.bool)
        # Past its end transformers sees nothing.
        real = nn.functional.pad(real, (0, total - real.shape[1]))
    slot = torch.arange(total, device=device).expand(batch_size, -1)
    so_far, on = real.cumsum(-1), slot - real.int().argmax(-1, keepdim=True)
    # A query of padding sees the text before it, as in transformers, and counts on behind its end: `generate` goes on
    # from texts that are padded on the right.
    index = torch.where(~real & (so_far == real.sum(-1, keepdim=True)), on, so_far - 1) if local_size is None else on
    index, own = index.clamp(min=0), (torch.arange(q_length, device=device) + q_offset).expand(batch_size, -1)
    documents, sees = torch.where(real & (slot < q_offset + q_length), 0, -1), torch.where(so_far > 0, 0, -1)
    both = ((index, index), (documents, sees), (slot, slot))
    rows = (torch.cat((keys[:, kv_offset:], queries.gather(1, own)), 1) for keys, queries in both)
    return torch.stack(tuple(rows), 1)[:, None]


def packed(seen: Seen | None, b: int, n: int, device: Any) -> Tensor | None:
    """Return the documents of rows of n tokens, [b, 1, 1, 2n]; None for single tokens.

    transformers finds packed texts in the positions, and says so in its mask function alone: there a token does not see
    the one before it.
    """
    if n == 1 or seen is None:
        return None
    documents = nn.functional.pad(~_sees(seen, b, 1, n - 1, -1, device), (1, 0)).cumsum(-1)
    return torch.cat((documents, documents), 1)[:, None, None]


def refuse_ahead(seen: Seen | None, b: int, first: int | Tensor, n: int, device: Any) -> None:
    """Refuse tokens that see the one after them; in a traced graph there may be any number of them, one among these."""
    if seen is None or (isinstance(n, int) and n == 1):
        return
    rows, here = torch.arange(b, device=device)[:, None], torch.arange(n, device=device)[None] + first
    # The last one is asked about itself, and its answer does not count.
    last = first + n - 1
    ahead = torch.as_tensor(seen(rows, torch.zeros_like(rows), here, (here + 1).clamp(max=last))).expand(b, n)
    must(~(ahead & (here < last)).any(), AHEAD)


def _sees(seen: Seen, b: int, first: int | Tensor, n: int, step: int, device: Any) -> Tensor:
    """Return whether each of n tokens from slot `first` on sees the one `step` after it, [b n]."""
    rows, here = torch.arange(b, device=device)[:, None], torch.arange(n, device=device)[None] + first
    return torch.as_tensor(seen(rows, torch.zeros_like(rows), here, here + step)).expand(b, n)


def must(right: Tensor, message: str, *shape: object) -> None:
    """Raise unless a condition holds. In a traced graph it is checked when the graph runs.

    shape: what takes the places of {} in the message; in a traced graph, whose shapes may be open, they are "…".
    """
    if not torch.compiler.is_compiling():
        if not bool(right):
            raise ValueError(message.format(*shape))
        return
    message = message.replace("{}", "…")
    if hasattr(torch, "_assert_async"):
        torch._assert_async(right, message)  # pyright: ignore
    else:
        raise RuntimeError(f"{message}. Whether that is so cannot be checked in a traced graph here; run it eagerly")


def dense(mask: Tensor | None, t: int, s: int, hidden: bool, check: bool, by_length: bool) -> Tensor | None:
    """Return a causal mask [b h|1 t s] of transformers' own in the form of `slots`: index, documents and slot.

    For layers whose mask is not made by `slots`. hidden: whether True says that a key is hidden. Of a mask that says
    more than padding, packing and causality nothing could be read: check refuses it. by_length: whether the scheme
    depends on the length of the text, of which a cache has one a row.
    """
    if mask is None or mask.dtype == torch.long:
        return mask
    seen = mask[:, 0] > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask[:, 0].bool() ^ hidden
    real, some = seen.any(1), seen.any(-1)
    slot = torch.arange(s, device=mask.device).expand(seen.shape[0], -1)
    # A query sees itself last.
    own = torch.where(some, s - 1 - seen.flip(-1).int().argmax(-1), 0)
    last = torch.where(real, slot, -1).cummax(-1).values
    before = nn.functional.pad(last[:, :-1], (1, 0), value=-1).gather(1, own)
    starts = some & (before >= 0) & ~seen.gather(2, before.clamp(min=0)[..., None])[..., 0]
    new = torch.zeros_like(real).scatter(1, own, starts)
    if check and by_length and t != s:
        must(
            ~starts.any(),
            "milepost: several texts are packed into the rows of a cache, and the schemes of this model follow the "
            "length of each; give each text its own row",
        )
    count = (real.cumsum(-1) - 1).clamp(min=0)
    index = count - torch.where(new, count, 0).cummax(-1).values
    documents = torch.where(real, new.cumsum(-1), -1)
    # A query of padding behind a text counts on, as in `slots`; all queries are one behind the other.
    there = torch.arange(t, device=mask.device) + (own - torch.arange(t, device=mask.device)).amax()
    on = torch.where(some & (own == last[:, -1:]), there - own, 0)
    query = [index.gather(1, own) + on, torch.where(some, documents.gather(1, own), -1)]
    if check:
        causal = (index[:, None] <= query[0][..., None]) & (documents[:, None] == query[1][..., None])
        must(
            ((causal & real[:, None] & some[..., None]) == seen).all(),
            "milepost: the attention mask {} for {} queries and {} keys hides more than padding and keys ahead; an "
            "extended model takes the mask of padding, [b, n], and makes the rest itself",
            list(mask.shape),
            t,
            s,
        )
    both = zip((index, documents, slot), (*query, own + on), strict=True)
    return torch.stack([torch.cat(each, 1) for each in both], 1)[:, None]


# Hooks around the forward pass


class Hooks:
    """Hooks that can be removed, and registered again. Each `put` registers some and returns their handles."""

    def __init__(self) -> None:
        self.puts: list[Callable[[], list[Any]]] = []
        self.handles: list[Any] = []

    def add(self, put: Callable[[], list[Any]]) -> None:
        """Register hooks."""
        self.puts.append(put)
        self.handles.extend(put())

    def put(self) -> None:
        """Register again what was removed."""
        self.handles = [each for put in self.puts for each in put()]

    def remove(self) -> None:
        """Remove them all."""
        for each in self.handles:
            each.remove()
        self.handles = []


class Calls:
    """Hooks around each forward pass of an extended model: what it is given is checked and completed.

    by: what the model is extended with, in words that are equal for equal extensions. attends: whether layers go
    through `attend`. named: the attention function that layers must call, None where modules of ours are in their
    place. listed: whether its layers are known to pass position_ids on.
    """

    def __init__(
        self,
        module: nn.Module,
        schedule: Schedule | tuple[()],
        by: str,
        attends: bool,
        named: str | None,
        listed: bool = True,
    ) -> None:
        self.schedule, self.by, self.attends, self.named = schedule, by, attends, named
        signature = inspect.signature(type(module).forward).parameters
        self.parameters = list(signature)[1:]
        passes = any(each.kind is each.VAR_KEYWORD for each in signature.values())
        self.hands_on = attends and passes and not listed
        self.edits = of_config(cast("Any", module).config)
        # peft adapts the last layers.
        self.last = next(places_of(module, list(attentions_in(module))[-1:]), None) if named is not None else None
        self.by_slot = all(map(by_slot, schedule))
        self.absolute = any(not scheme.relative or scheme.by_length for scheme in schedule)
        self.axes = next((each for each in (axes_of(turn_of(scheme)) for scheme in schedule) if each), None)
        self.single = next((part for scheme in schedule for part in by_one_position(scheme)), None)
        # A model's own norms behind its rotation see the positions that stock transformers counts, padding included.
        self.skips_padding = any(not each.relative or each.by_length for each in map(without_norms, schedule))

    def put(self, module: nn.Module, outer: nn.Module) -> list[Any]:
        """Register the hooks on the module with the layers and on the model around it; returns what removes them."""
        hooks: list[Any] = [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after, with_kwargs=True, always_call=True),
        ]
        if self.attends and "position_ids" not in self.parameters:
            hooks.append(outer.register_forward_pre_hook(refuse_positions, with_kwargs=True))
        if not self.attends:
            # Stock attention asks nothing, and module.forward(…) runs no hooks but those of what is inside.
            places = places_of(module, list(attentions_in(module)))
            own = [each.module for each in places if each.name != "EncDecAttention"]
            hooks.append(own[0].register_forward_pre_hook(self.begin, with_kwargs=True))
            hooks.append(own[-1].register_forward_hook(self.end, with_kwargs=True))
        return hooks

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a cache of another model in the first layer."""
        filled = None if torch.compiler.is_compiling() else filled_by(cache_in(args, kwargs), self.by, False)
        if filled is not None:
            filled.open = True

    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Mark a cache as filled by this extension, behind the last layer."""
        cache = None if torch.compiler.is_compiling() else cache_in(args, kwargs)
        if cache is not None:
            cache.__dict__.setdefault("update", Filled(cache, self.by)).close(False)

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Refuse what cannot be honoured, and put the positions of all tokens in the place of position_ids."""
        # Dynamo of torch 2.9 demands names and values of one number.
        given = dict(zip(self.parameters[: len(args)], args, strict=True)) | kwargs
        config: Any = module.config
        cache: Any = self_attention(given.get("past_key_values"))
        refuse_unnamed(config, self.named)
        if self.attends:
            refuse_quantised(cache)
        filled = filled_by(cache, self.by, self.attends and "position_ids" in self.parameters)
        if filled is not None:
            filled.open = True
        if not self.attends:
            return (), given
        refuse_edited(self.edits, of_config(config), "its config")
        refuse_weights(given, config)
        if self.last is not None:
            refuse_adapted(self.last)
        if filled is not None:
            refuse_uneven(cache)
        tokens: Tensor = next(each for each in (given.get("inputs_embeds"), given.get("input_ids")) if each is not None)
        if given.get("use_cache") is False:
            refuse_reread(cache, tokens.shape[1])
        if "position_ids" in self.parameters:
            self.locate(given, filled, cache, tokens)
        else:
            refuse_positions(module, args, kwargs)
        stream = getattr(cache, "stream", None)
        if isinstance(stream, Stream):
            self.stream(stream, given, cache, tokens)
        return (), given

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Mark the cache as filled by this extension, and let a new one keep the positions of its tokens."""
        cache: Any = self_attention(kwargs.get("past_key_values"))
        if cache is None and output is not None:
            found = cast(
                "Iterable[Any]", output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
            )
            cache = next((each for each in map(self_attention, found) if hasattr(each, "get_seq_length")), None)
        if cache is None:
            return
        filled: Any = cache.__dict__.get("update")
        if not isinstance(filled, Filled):
            if output is None:
                return
            filled = cache.__dict__["update"] = Filled(cache, self.by)
            positions = kwargs.get(POSITIONS, kwargs.get("position_ids"))
            if self.attends and positions is not None:
                tokens = next(
                    each for each in (kwargs.get("inputs_embeds"), kwargs.get("input_ids")) if each is not None
                )
                filled.keep(of_rows(self.on_axes(positions[:, : tokens.shape[1]]), tokens.shape[0]))
        filled.close(output is None)

    def locate(self, given: dict[str, Any], filled: Filled | None, cache: Any, tokens: Tensor) -> None:
        """Put the positions of all tokens in the place of position_ids, and leave out a mask that masks nothing."""
        ids: Tensor | None = given.get("position_ids")
        mask: Any = given.get("attention_mask")
        b, t = tokens.shape[:2]
        past = 0 if cache is None else cache.get_seq_length()
        fixed = getattr(cache, "is_compileable", False)
        padding: Tensor | None = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        streams = hasattr(cache, "stream")
        if ids is None:
            new = (torch.arange(t, device=tokens.device) + past)[None]
            if self.skips_padding and padding is not None and not streams:
                new = (new - before_text(padding, None if filled is None else filled.positions, past)).clamp(min=0)
        elif ids.dim() == 2 and ids.shape[0] in (1, b) and ids.shape[1] == t:
            new = ids
        elif self.axes is not None and self.fits(ids, b, t):
            # One more than there are axes: the first row counts tokens, and tells packed texts apart.
            new = axes_last(ids[-self.axes :])
        else:
            axes = "" if self.axes is None else f", or with {self.axes} axes [{self.axes}, {b}, {t}]"
            raise ValueError(
                f"milepost: position_ids are {list(ids.shape)} for {b} rows of {t} tokens; give [{b}, {t}] or [1, {t}]"
                f"{axes}"
            )
        if self.single is not None and new.dim() == 3:
            must(
                (new == new[..., :1]).all(),
                f"milepost: {spell(self.single)} reads one position of a token, and tokens of this text have "
                f"{self.axes} that differ (an image or a video), between which no distance is defined for it. Give "
                f"text alone, or extend by a stretch (Yarn, Ntk, Interpolate), LogN or a window, which read them all",
            )
            new = new[..., 0]
        if padding is not None and not fixed and isinstance(past, int) and padding.shape[1] < past + t:
            raise ValueError(
                f"milepost: the attention mask has {padding.shape[1]} columns, and with those in the cache there are "
                f"{past + t} tokens; give one column for each of them"
            )
        whole = new
        if filled is not None and filled.positions is not None:
            whole = filled.put(of_rows(self.on_axes(new), b), past)
        if fixed and isinstance(past, int):
            # A window of fixed size hands on the whole text until it is full, without the slots still to be filled.
            whole = whole[:, : past + t]
        if cache is not None and fixed and isinstance(past, Tensor) and any(cache.is_sliding):
            given["attention_mask"] = with_slots(mask, cache, of_rows(whole, b), t)
        if whole.dim() == 3 and not torch.compiler.is_compiling() and bool((whole == whole[..., :1]).all()):
            whole = whole[..., 0]
        plain = mask is None and ids is None and whole is new
        if not plain and not torch.compiler.is_compiling() and not fixed and (mask is None or padding is not None):
            # A stream keeps the last position alone.
            columns = None if padding is None else padding[:, : past + t][:, -whole.shape[1] :]
            start = self.absolute and (ids is not None or not self.skips_padding) and not streams
            all_real, plain = count(whole, columns, start) if whole.dim() == 2 else (False, False)
            if plain and all_real:
                given["attention_mask"] = None
        first = whole[:, -t:] if new.dim() == 3 else new
        ours = _counted(first) if plain else whole if whole.is_floating_point() else _narrow(whole)
        if ids is None or ids.dim() == 2:
            given["position_ids"] = ours
        if self.hands_on:
            given |= {POSITIONS: ours, REAL: of_rows(new, b)}

    def fits(self, ids: Tensor, b: int, t: int) -> bool:
        """Whether positions on axes are [axes|axes + 1, b|1, t]."""
        rows = (self.axes or 0, (self.axes or 0) + 1)
        return ids.dim() == 3 and ids.shape[0] in rows and ids.shape[1] in (1, b) and ids.shape[2] == t

    def on_axes(self, positions: Tensor) -> Tensor:
        """Return positions as the cache keeps them: on every axis, where one may differ from the others later."""
        if self.axes is None or self.single is not None or positions.dim() == 3:
            return positions
        return positions[..., None].expand(*positions.shape, self.axes)

    def stream(self, stream: Stream, given: dict[str, Any], cache: Any, tokens: Tensor) -> None:
        """Let a stream say which tokens it has, in the place of the mask that transformers would make."""
        refuse_other(stream, cast("Schedule", self.schedule), cache)
        mask = given.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
            raise ValueError(
                f"milepost: with {cache!r} the attention mask is that of padding, [b, n] with 1 for every token"
            )
        if given["position_ids"].dtype != COUNTED:
            raise ValueError(
                f"milepost: {cache!r} places tokens by itself, and position_ids (or a hole in the attention mask) do "
                f"not count them one by one; leave position_ids out, and mask padding on the left alone"
            )
        b, t = tokens.shape[:2]
        given["attention_mask"] = cache.begin(mask, b, t, tokens.device, self.by_slot)


def by_one_position(scheme: Scheme) -> list[Any]:
    """Return the parts of a scheme that measure distances from one position of a token."""
    return [part for verb in ("place", "bend", "relate") for part in scheme.answering(verb)]


def without_norms(scheme: Scheme) -> Scheme:
    """Return a scheme without the norms of its model."""
    return Scheme(*(part for part in scheme.parts if not isinstance(part, QkNorm)))


def reads_positions(module: nn.Module) -> bool:
    """Whether an attention module takes position_ids by name, and does not only pass them on."""
    return "position_ids" in inspect.signature(type(module).forward).parameters


def refuse_reread(cache: Any, t: int) -> None:
    """Refuse a whole text behind itself, with one token more: generate gives it with a cache and use_cache=False."""
    past = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, int) and past > 0 and t == past + 1:
        raise ValueError(
            f"milepost: use_cache=False was given with a cache of {past} tokens, and {t} more come: generate then "
            f"reads its whole text again at every step, behind the same text. Say generate(…, use_cache=True), since "
            f"the config of an MPT says False; where these are new tokens, leave use_cache=False out"
        )


def with_slots(mask: Any, cache: Any, whole: Tensor, t: int) -> Any:
    """Return a mask that says the slots of windows of fixed size, also of one that is full with this call's tokens.

    mask: None, or of each type of layer, as `generate` makes them. A window has fewer keys than there are positions in
    `whole`, so that no mask would say too little.
    """
    if mask is None:
        return torch.ones(whole.shape[:2], dtype=torch.bool, device=whole.device)
    by_type = cast("dict[str, Any]", mask if isinstance(mask, dict) else {})
    if None not in by_type.values():
        return cast("Any", mask)
    s = next(layer for layer in cache.layers if layer.is_sliding).get_mask_sizes(t)[0]
    first = torch.tensor(s - t, device=whole.device)
    slotted = slots(whole.shape[0], t, s, first, local_size=s, device=whole.device)
    return {kind: slotted if each is None else each for kind, each in by_type.items()}


def count(positions: Tensor, mask: Tensor | None, from_zero: bool) -> tuple[bool, bool]:
    """Return whether no token [b n] is padding, and whether positions count tokens one by one, without holes.

    from_zero: whether each row must start at 0; it may start anywhere where distances are all that counts.
    """
    follows, first = positions.diff(dim=-1) == 1, positions[:, :1] == 0
    if mask is None:
        return True, bool(follows.all() & first.all() if from_zero else follows.all())
    real = mask.to(positions.device, torch.bool)
    starts, behind = real & (real.cumsum(-1) == 1), real.cumsum(-1) > 0
    # Padding behind a text counts on, and a text does not go on behind padding.
    right = nn.functional.pad(follows & (real[:, :-1] | ~real[:, 1:]), (1, 0)) | starts | ~behind
    if from_zero:
        right = right & ((positions == 0) | ~starts)
    both = cast("list[bool]", torch.stack((real.all(), right.all())).tolist())
    return both[0], both[1]


def before_text(padding: Tensor, kept: Tensor | None, past: int | Tensor) -> Tensor:
    """Return by how much positions lag behind slots: the padding on the left of each row, [b 1].

    A row's positions depend neither on the kind of cache nor on the padding of other rows. kept: positions of the
    `past` slots that are in the cache already; where a row's text began there, it goes on as it was counted.
    """
    first = padding.bool().int().argmax(-1, keepdim=True)
    if kept is None or kept.shape[0] != first.shape[0]:
        return first
    # The first token of a text stands at one place on all axes.
    kept = kept[..., 0] if kept.dim() == 3 else kept
    began = kept.gather(1, first.clamp(max=kept.shape[1] - 1).to(kept.device)).to(first)
    return torch.where(first < past, (first - began).clamp(min=0), first)


def _counted(positions: Tensor) -> Tensor:
    """Return positions that count one by one in the form that says so: with the one that would follow."""
    return torch.cat((positions, positions[:, -1:] + 1), 1).to(COUNTED)


def _narrow(positions: Tensor) -> Tensor:
    """Return whole numbers in a dtype that says that they are to be read."""
    if checking_values(positions) and positions.numel() and int(positions.abs().amax()) >= 2**31:
        raise ValueError("milepost: position_ids of 2³¹ and more are not read; count from a smaller number")
    return positions.to(torch.int32)


def refuse_positions(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse position_ids that stock transformers takes and passes over."""
    if kwargs.get("position_ids") is not None:
        config: Any = module.config
        raise ValueError(
            f"milepost: a {config.model_type} model takes no position_ids, and stock transformers passes over them; "
            f"leave them out. To pack texts, give each its own row and a mask of padding"
        )


# Caches


class Filled:
    """The `update` of a cache that an extended model filled: another model, or the same after restore, is refused.

    Keys are raw, or rotated by another stretch, and those of later layers were computed under another scheme.
    """

    def __init__(self, cache: Any, by: str) -> None:
        self.cache, self.by, self.open = cache, by, False
        self.before: Tensor | None = None
        """The positions that a call found in a cache that grows, until it ends."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Take and return what the cache's own method does."""
        if not self.open:
            if not _is_new(self.cache):
                refuse_filled(self.cache, self.by, None)
            del self.cache.__dict__["update"]
        update = cast("Any", type(self.cache)).update
        layer = self.layer if getattr(self.cache, "offloading", False) else None
        if layer is None:
            return update(self.cache, *args, **options)
        # Each layer fetches the one behind it, the model's last one the first: it must not find the positions there.
        self.cache.layers.remove(layer)
        try:
            return update(self.cache, *args, **options)
        finally:
            self.cache.layers.append(layer)

    @property
    def layer(self) -> Any:
        """The layer beside those of the model whose keys are positions, [b 1 n axes|1]; None where none are kept.

        It is cropped, reordered, repeated and copied with the others.
        """
        layers = getattr(self.cache, "layers", ())
        return next((each for each in reversed(layers) if hasattr(each, HAS_POSITIONS)), None)

    @property
    def positions(self) -> Tensor | None:
        """The positions of the tokens in the cache, [b n] or [b n axes]; None where they are not kept."""
        layer = self.layer
        keys = None if layer is None else layer.keys
        return None if keys is None else keys[:, 0] if keys.shape[-1] > 1 else keys[:, 0, :, 0]

    def keep(self, positions: Tensor) -> None:
        """Keep the positions [b n] or [b n axes] of the first tokens."""
        from transformers.cache_utils import DynamicLayer

        layer: Any = DynamicLayer()
        setattr(layer, HAS_POSITIONS, True)
        layer.is_compileable = self.cache.is_compileable
        layer.is_sliding = self.cache.is_sliding[0]
        for name in ("max_batch_size", "max_cache_len"):
            # Older releases of transformers ask every layer of a static cache.
            if hasattr(self.cache.layers[0], name):
                setattr(layer, name, getattr(self.cache.layers[0], name))
        if hasattr(self.cache, "stream"):
            positions = positions[:, -1:]
        if layer.is_compileable:
            # Layers that attend beside a mixer (Falcon-H1) say −1, which is the answer of the mixer.
            room = max(getattr(each, "max_cache_len", -1) for each in self.cache.layers)
            positions = followed(positions, max(room - positions.shape[1], 0))
        demand_whole(self.cache)
        self.cache.layers.append(layer)
        self._set(positions.long() if not positions.is_floating_point() else positions)

    def put(self, positions: Tensor, past: int | Tensor) -> Tensor:
        """Keep those of new tokens [b t] or [b t axes] behind the `past` first; returns those of all."""
        kept = self.positions
        assert kept is not None
        b, t = positions.shape[:2]
        if hasattr(self.cache, "stream"):
            # Of an endless text the last position is enough to see that the next one follows.
            both = torch.cat((kept, positions), 1)
            self._set(both[:, -1:])
            return both
        fixed = self.layer.is_compileable
        other = not isinstance(past, Tensor) and (kept.shape[1] < past if fixed else kept.shape[1] != past)
        if kept.shape[0] != b or other:
            raise ValueError(
                f"milepost: the cache has the positions of {list(kept.shape)} tokens, and this call adds {b} rows of "
                f"{t} after {past}; change caches by their own methods (reorder_cache, crop, batch_select_indices), or "
                f"drop keys from all of cache.layers alike (the last has the positions)"
            )
        if not fixed:
            self.before = kept
            self._set(torch.cat((kept, positions), 1))
        else:
            if isinstance(past, int) and past + t > kept.shape[1]:
                # A window of fixed size goes on for ever, and its length is a number.
                kept = followed(kept, past + t)
                self._set(kept)
            kept[:, torch.arange(t, device=kept.device) + past] = positions.to(kept.dtype)
        found = self.positions
        assert found is not None
        return found

    def close(self, failed: bool) -> None:
        """End a call. The positions of one that failed before a layer had its keys are forgotten."""
        if failed and self.before is not None and self.cache.get_seq_length() == self.before.shape[1]:
            self._set(self.before)
        self.open, self.before = False, None

    def _set(self, positions: Tensor) -> None:
        layer = self.layer
        layer.keys = positions[:, None, :, None] if positions.dim() == 2 else positions[:, None]
        layer.values = layer.keys[..., :0]
        layer.is_initialized, layer.dtype, layer.device = True, positions.dtype, positions.device


def followed(positions: Tensor, n: int) -> Tensor:
    """Return positions [b t] or [b t axes] with room for n tokens behind them."""
    return nn.functional.pad(positions, (0, n) if positions.dim() == 2 else (0, 0, 0, n))


ROWS = ("batch_repeat_interleave", "batch_select_indices")
"""What a cache does to all of its rows."""


def demand_whole(cache: Any) -> None:
    """Let operations on rows raise where the class of a cache has its own: they may pass over the positions.

    That of MiniMax takes a layer for linear attention by its number.
    """
    from transformers import Cache

    kind = cast("type[Any]", type(cache))
    for name in ROWS:
        if getattr(kind, name, None) is not getattr(Cache, name, None) and not hasattr(cache, "stream"):
            setattr(cache, name, partial(refuse_rows, kind.__name__, name))


def refuse_rows(kind: str, name: str, *args: Any, **given: Any) -> None:
    """Say that positions would not follow the keys."""
    raise ValueError(
        f"milepost: {name} of a {kind} is not that of other caches, and may leave the positions of its tokens where "
        f"they were, which an extended model reads; use reorder_cache, or start with a new cache for other rows"
    )


def filled_by(cache: Any, by: str, placed: bool) -> Filled | None:
    """Return the mark of a cache, None where it is new; refuse one that was filled otherwise.

    placed: whether the positions of its tokens are kept in it.
    """
    if cache is None:
        return None
    filled = cache.__dict__.get("update") if hasattr(cache, "__dict__") else None
    if isinstance(filled, Filled) and filled.by == by:
        if filled.cache is not cache:
            # A copy made by copy.copy has the mark of the cache that it was copied from.
            filled = cache.__dict__["update"] = Filled(cache, by)
        if not placed or filled.positions is not None:
            return filled
        if not _is_new(cache):
            raise ValueError(
                f"milepost: this {type(cache).__name__} has keys and not the positions of their tokens, which are in "
                f"the last of cache.layers; copy all of its layers, or use copy.deepcopy(cache)"
            )
    elif not _is_new(cache):
        refuse_filled(cache, filled.by if isinstance(filled, Filled) else None, by)
    if isinstance(filled, Filled):
        del cache.__dict__["update"]
        cache.layers[:] = [each for each in cache.layers if not hasattr(each, HAS_POSITIONS)]
    return None


def refuse_uneven(cache: Any) -> None:
    """Refuse a cache with fewer keys in one of the layers that grow than there are tokens, or than its window keeps."""
    if torch.compiler.is_compiling() or hasattr(cache, "stream"):
        return
    past = cache.get_seq_length()
    for n, layer in enumerate(getattr(cache, "layers", ())):
        if getattr(layer, "keys", None) is None or layer.is_compileable or hasattr(layer, HAS_POSITIONS):
            continue
        there, due = layer.keys.shape[-2], layer.get_mask_sizes(1)[0] - 1
        if layer.get_seq_length() != past or there < due:
            raise ValueError(
                f"milepost: layer {n} of this {type(cache).__name__} has the keys of {there} tokens, and the first one "
                f"those of {past}; drop keys from all of cache.layers alike (the last has the positions), and start "
                f"with a new cache after a call that failed"
            )


def refuse_filled(cache: Any, by: str | None, now: str | None) -> None:
    """Refuse a cache whose keys were made under another scheme. by, now: the extensions, None for stock."""
    unmarked = (
        "a model that is not extended, or put together by hand, which leaves no mark of the model (peft's prefix "
        "tuning does so at every call; use LoRA)"
    )
    was = f"the extension {by}" if by else unmarked
    reads = f"the extension {now}" if now else "a model that is not extended"
    raise ValueError(
        f"milepost: this {type(cache).__name__} was filled under {was}, and is now given to {reads}; its keys mean "
        f"something else there. Start with a new cache after extend and after restore, and give it the whole prompt; "
        f"copy.deepcopy(cache) keeps the mark"
    )


def demand_marked(cache: Any) -> None:
    """Refuse a cache with keys that no hook has looked at: `model.forward(…)` runs none."""
    # A stream counts its tokens before it has them.
    if not (isinstance(cache.__dict__.get("update"), Filled) or hasattr(cache, "stream") or _is_new(cache)):
        refuse_filled(cache, None, "of this model, called without its hooks")


def _is_new(cache: Any) -> bool:
    """Return whether nothing is in a cache yet."""
    length = cache.get_seq_length()
    if isinstance(length, Tensor) and torch.compiler.is_compiling():
        raise RuntimeError(
            f"milepost: whether this {type(cache).__name__} is empty cannot be known in a traced graph; give it its "
            f"first tokens eagerly, or do not initialise it before"
        )
    return not bool(length)


def self_attention(cache: Any) -> Any:
    """Return the cache of self-attention; that of an encoder and a decoder has two."""
    return getattr(cache, "self_attention_cache", cache)


def cache_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the cache of self-attention that a layer is given under whatever name, or None."""
    found = map(self_attention, (*args, *kwargs.values()))
    return next((each for each in found if hasattr(each, "get_seq_length")), None)


def by_slot(scheme: Scheme) -> bool:
    """Return whether a query of a stream attends alike if the keys that were kept are counted as the whole text.

    Stream gives them those positions. Another window or log-n would count the tokens between as well.
    """
    turn = turn_of(scheme)
    others = [part for part in scheme.answering("see") if not isinstance(part, (Stream, Causal))]
    return not others and not scheme.answering("sharpen") and (turn is None or plain(turn))


def refuse_unnamed(config: Any, named: str | None) -> None:
    """Refuse an attention that was set afterwards: it would get queries and keys that nothing has rotated."""
    now = config._attn_implementation
    if named is not None and now != named:
        raise RuntimeError(
            f"milepost: this model was extended through {named!r}, and its attention was set to {now!r} afterwards, "
            f"which knows nothing of positions here; set it before extend, or restore(model) first"
        )


def refuse_weights(given: dict[str, Any], config: Any = None) -> None:
    """Refuse to return attention weights, asked for by a call or, where that says nothing, by a config."""
    asked = given.get("output_attentions")
    if getattr(config, "output_attentions", False) if asked is None else asked:
        raise ValueError(
            "milepost: output_attentions=True asks for attention weights, which attend does not make; leave it out of "
            "the call and of the config"
        )


def of_config(config: Any) -> dict[str, Any]:
    """Return the settings of a config that stock transformers reads at every call, and a scheme has of its own."""
    kinds = getattr(config, "layer_types", None)
    return {
        "sliding_window": getattr(config, "sliding_window", None),
        "layer_types": None if kinds is None else tuple(kinds),
        "is_causal": getattr(config, "is_causal", True),
    }


def refuse_edited(before: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Refuse settings that were changed after extend: the schemes say what they were."""
    if now != before:
        names = [name for name in before if before[name] != now[name]]
        raise RuntimeError(
            f"milepost: {', '.join(names)} of {where} changed after extend, and the layers' schemes keep what was said "
            f"before; put it back, or restore(model), change it, and extend again"
        )


def refuse_adapted(place: Place) -> None:
    """Refuse peft's AdaptionPromptConfig: its module rotates queries once more, by cosines that are not handed on."""
    if any(hasattr(each, "adaption_prompt") for each in (place.parent, getattr(place.parent, place.name))):
        raise ValueError(
            "milepost: peft's AdaptionPromptConfig computes the queries of a layer by itself, from cosines and sines "
            "that a model extended through attend does not hand on; use LoRA, or restore(model) first"
        )


def refuse_other(stream: Stream, schedule: Schedule, cache: Any) -> None:
    """Refuse a cache that drops keys which the layers see, or that they would place elsewhere."""
    for layer, scheme in schedule.items():
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


def refuse_quantised(cache: Any) -> None:
    """Refuse caches that keep keys in a few bits: raw keys are rotated anew at every step."""
    for layer in [cache, *(getattr(cache, "layers", None) or ())]:
        if "Quantized" in type(layer).__name__:
            raise ValueError(
                f"milepost: {type(layer).__name__} keeps keys in a few bits, and an extended model reads them raw at "
                f"every step; use a dynamic, static or offloaded cache"
            )
