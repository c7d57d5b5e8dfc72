"""Which token stands where: `position_ids`, masks and caches count as they do in stock transformers, in every type.

Both ways are compared with stock, the model's own scheme put through `attend` or through its rotary module. `make
sweep-positions` compares every served type in every kind of call; here some are.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

import milepost as mp
from milepost.hf import extend, restore
from milepost.hf.model.models import KNOWN, REPLACED
from milepost.hf.model.positions import dense
from tests.hf.tiny import continued, tiny, tokens

CLOSE = 1e-5
T = 24
PACKED = torch.cat((torch.arange(10), torch.arange(14)))[None]
OFFSET = torch.arange(T)[None] + 37
POSE = torch.cat((torch.arange(9), torch.arange(15) + 30))[None]
ONES = torch.ones(2, T, dtype=torch.long)
UNTOLD = ("bloom", "mpt")
"""Types whose stock model takes no position_ids."""


def holed() -> Tensor:
    """A mask with padding on the left of one row, on the right of the other, and a hole in both."""
    mask = ONES.clone()
    mask[0, :5], mask[0, 11:13], mask[1, 7:10], mask[1, 22:] = 0, 0, 0, 0
    return mask


def left() -> Tensor:
    """A mask with padding on the left."""
    mask = ONES.clone()
    mask[0, :5] = 0
    return mask


def counted(mask: Tensor) -> Tensor:
    """Positions as `generate` makes them of a mask."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def one_pass(model: Any, **given: Any) -> Iterator[Tensor]:
    """The logits of one call, of the tokens that are no padding."""
    mask = given.get("attention_mask", ONES)
    yield model(tokens(2, T), **given).logits[mask.bool()]


def ids(positions: Tensor) -> Callable[[Any], Iterator[Tensor]]:
    """One row of positions for all, one for each, with a mask and without, with a cache and without."""

    def calls(model: Any) -> Iterator[Tensor]:
        yield from one_pass(model, position_ids=positions)
        yield from one_pass(model, position_ids=positions, use_cache=False)
        yield from one_pass(model, position_ids=positions.expand(2, -1), attention_mask=ONES, use_cache=False)

    return calls


def padding(model: Any) -> Iterator[Tensor]:
    """Padding on the left, and holes, with positions that count slots and with positions that count tokens."""
    for mask in (left(), holed()):
        yield from one_pass(model, attention_mask=mask)
        if model.config.model_type not in UNTOLD:
            yield from one_pass(model, attention_mask=mask, position_ids=counted(mask))


def steps(model: Any, cache: Any, positions: Tensor | None, mask: Tensor | None) -> Iterator[Tensor]:
    """A text in blocks of several sizes, with one cache."""
    text = tokens(2, T)
    real = ONES.bool() if mask is None else mask.bool()
    for a, b in ((0, 11), (11, 16), (16, 17), (17, 18), (18, T)):
        given = {} if positions is None else {"position_ids": positions[:, a:b]}
        given |= {} if mask is None else {"attention_mask": mask[:, :b]}
        yield model(text[:, a:b], past_key_values=cache, **given).logits[real[:, a:b]]


def cached(model: Any) -> Iterator[Tensor]:
    """Caches that grow and caches of one size, with all of the positions and masks above."""
    told = model.config.model_type not in UNTOLD
    for positions in (None, PACKED, OFFSET, POSE, POSE.expand(2, -1)) if told else (None,):
        yield from steps(model, DynamicCache(config=model.config), positions, None)
    for mask in (left(), holed()):
        yield from steps(model, DynamicCache(config=model.config), None, mask)
    # transformers' own BLOOM and MPT size their bias by the text, too, and fail on a static cache.
    for positions, mask in ((None, None), (None, left()), (POSE, None)) if told else ():
        yield from steps(model, StaticCache(model.config, T + 3), positions, mask)


KINDS = {"packed": ids(PACKED), "offset": ids(OFFSET), "PoSE": ids(POSE), "padded": padding, "cached": cached}


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


@pytest.mark.sample(36)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", sorted(KNOWN | REPLACED))
def test_every_call_is_stock(model_type: str, kind: str):
    model, calls = tiny(model_type), KINDS[kind]
    if model_type == "nemotron":
        # Its squares magnify roundings: in float32 stock itself is further than CLOSE from float64.
        model.double()
    if model_type in UNTOLD and kind not in ("padded", "cached"):
        extend(model, through="attend")
        with pytest.raises(ValueError, match=f"a {model_type} model takes no position_ids"):
            list(calls(model))
        return
    stock = list(calls(model))
    for through in ("attend",) if model_type in REPLACED else ("attend", "rotary"):
        extend(model, through=through)
        for n, (ours, theirs) in enumerate(zip(calls(model), stock, strict=True)):
            assert (ours - theirs).abs().max() < CLOSE, (through, n)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "cohere2", "bloom", "falcon", "gptj", "mpt"])
def test_generate_goes_on_from_padding_on_the_right_as_stock_does(model_type: str, cache: str):
    if cache == "static" and model_type in UNTOLD:
        pytest.skip("transformers' own BLOOM and MPT fail on a static cache")
    model, mask = tiny(model_type), left().flip(1)
    said, logits = continued(model, tokens(2, T), mask, cache_implementation=cache)
    ours = continued(extend(model, through="attend"), tokens(2, T), mask, cache_implementation=cache)
    assert torch.equal(ours[0], said)
    assert (ours[1] - logits).abs().max() < CLOSE


@pytest.mark.parametrize("through", ["attend", "rotary"])
@pytest.mark.parametrize("how", ["compiled", "exported"])
def test_packed_texts_in_one_graph_are_stock(how: str, through: str):
    model, row = tiny("llama", num_hidden_layers=1), tokens(1, T)
    stock, alone = (model(row, position_ids=each, use_cache=False).logits for each in (PACKED, None))
    assert (stock - alone).abs().max() > 1e-3, "packing makes no difference"
    extend(model, through=through)
    if how == "compiled":
        torch.compiler.reset()
        run: Any = torch.compile(model, backend="eager", fullgraph=True)
    else:
        given = {"input_ids": row, "position_ids": PACKED, "use_cache": False}
        run = torch.export.export(model, (), given).module()
    for positions, wanted in ((PACKED, stock), (torch.arange(T)[None], alone)):
        logits = run(input_ids=row, position_ids=positions, use_cache=False).logits
        assert (logits - wanted).abs().max() < CLOSE


LONG = {"offset": OFFSET, "PoSE": POSE, "packed": PACKED, "rows": OFFSET.expand(2, -1)}


@pytest.mark.parametrize("name", LONG)
def test_the_length_is_that_of_the_last_position(name: str):
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = extend(tiny("llama", max_position_embeddings=16), mp.DynamicNtk(16, factor=2.0), through="attend")
    # Without a cache and a mask transformers finds several texts in a row, and each has its own length.
    alone: list[dict[str, Any]] = [{"use_cache": False}] if name in ("offset", "rows") else []
    for given in ({}, {"attention_mask": ONES}, *alone):
        # A new model each time: stock remembers the longest text it has seen.
        stock = tiny("llama", max_position_embeddings=16, rope_parameters=dynamic)
        both = [each(tokens(2, T), position_ids=LONG[name], **given).logits for each in (model, stock)]
        assert (both[0] - both[1]).abs().max() < CLOSE


def test_packed_texts_have_their_own_length():
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model, text = extend(tiny("llama", max_position_embeddings=8), mp.DynamicNtk(8, factor=2.0)), tokens(2, T)
    positions = torch.cat((torch.arange(9), torch.arange(15) + 30))[None]
    logits = model(text, position_ids=positions, use_cache=False).logits
    for part in (slice(0, 9), slice(9, T)):
        stock = tiny("llama", max_position_embeddings=8, rope_parameters=dynamic)
        alone = stock(text[:, part], position_ids=positions[:, part], use_cache=False).logits
        assert (logits[:, part] - alone).abs().max() < CLOSE


def test_texts_that_start_behind_a_cache_have_no_length_of_their_own():
    seen = torch.ones(1, 1, 4, 7, dtype=torch.bool).tril(3)
    seen[..., 2:, :5] = False
    with pytest.raises(ValueError, match="several texts are packed into the rows of a cache"):
        dense(seen, 4, 7, hidden=False, check=True, by_length=True)
    assert dense(seen, 4, 7, hidden=False, check=True, by_length=False) is not None


@pytest.mark.parametrize("method", [mp.SelfExtend(3, 6), mp.DualChunk(12, 4)], ids=lambda each: type(each).__name__)
def test_a_padded_row_is_that_row_alone(method: Any):
    """Positions of a method that is not relative depend neither on the kind of cache nor on other rows."""
    model, text, mask = extend(tiny("llama"), method), tokens(2, T), left()
    hole = mask.clone()
    hole[1, 9:11] = 0
    alone = model(text[:1, 5:]).logits
    caches = [lambda: None, lambda: DynamicCache(config=model.config), lambda: StaticCache(model.config, T + 3)]
    for each in (mask, hole):
        for made in caches:
            assert (model(text, attention_mask=each, past_key_values=made()).logits[:1, 5:] - alone).abs().max() < CLOSE
        # The first blocks of a text may be all padding.
        for made in caches[1:]:
            cache, blocks = made(), list[Tensor]()
            for a, b in ((0, 3), (3, 4), (4, 11), (11, 12), (12, T)):
                blocks.append(model(text[:, a:b], attention_mask=each[:, :b], past_key_values=cache).logits)
            assert (torch.cat(blocks, 1)[:1, 5:] - alone).abs().max() < CLOSE


@pytest.mark.parametrize("model_type", ["mistral", "gpt_oss"])
@pytest.mark.parametrize("blocks", [(3, 17, T), (7, 8, 9, T), (1, 8, 12, T), (5, 9, 20, T)])
def test_a_window_of_fixed_size_is_filled_in_blocks(model_type: str, blocks: tuple[int, ...]):
    model, text = extend(tiny(model_type), mp.Rerope(6)), tokens(2, T)
    for capacity in (T, T + 5):
        cache = StaticCache(model.config, capacity)
        parts = [model(text[:, a:b], past_key_values=cache).logits for a, b in pairwise((0, *blocks))]
        assert (torch.cat(parts, 1) - model(text).logits).abs().max() < CLOSE


@pytest.mark.parametrize("part", [None, mp.Rerope(4)])
@pytest.mark.parametrize("model_type", ["qwen2", "olmo3"])
def test_a_window_of_fixed_size_behind_a_layer_without_one(model_type: str, part: Any):
    model = tiny(model_type, layer_types=["full_attention", "sliding_attention"])
    extend(model, *(() if part is None else (part,)), through="attend")
    for n in (3, 7, 8, 12):
        texts, mask = tokens(2, n), torch.ones(2, n, dtype=torch.long)
        made, logits = continued(model, texts, mask, n=8, cache_implementation="static")
        theirs, their_logits = continued(model, texts, mask, n=8)
        assert torch.equal(made, theirs)
        assert (logits - their_logits).abs().max() < CLOSE
    text, blocks = tokens(2, T), pairwise((0, 3, 5, 7, 8, 9, 12, T))
    cache = StaticCache(model.config, T + 5)
    cache.early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
    logits = torch.cat([model(text[:, a:b], past_key_values=cache).logits for a, b in blocks], 1)
    assert (logits - model(text).logits).abs().max() < CLOSE


FILLED: dict[str, tuple[Any, ...]] = {"stock": (), "attend": (mp.Rerope(8),), "rotary": (mp.Yarn(4, 64),)}


@pytest.mark.parametrize("now", FILLED)
@pytest.mark.parametrize("before", FILLED)
def test_a_cache_filled_under_another_scheme_is_refused(before: str, now: str):
    def put(name: str) -> Any:
        return extend(model, *FILLED[name]) if FILLED[name] else restore(model)

    model = tiny("llama", num_hidden_layers=1)
    cache = put(before)(tokens(2, T), use_cache=True).past_key_values
    put(now)
    if before == now:
        model(tokens(2, 1), past_key_values=cache)
        return
    with pytest.raises(ValueError, match=r"this DynamicCache was filled under .* Start with a new cache after extend"):
        model(tokens(2, 1), past_key_values=cache)


def modules_with(model: Any, name: str, value: object) -> None:
    for each in model.modules():
        if name in each.__dict__:
            setattr(each, name, value)


EDITS: dict[str, tuple[str, Any]] = {
    "a window": ("mistral", lambda model: setattr(model.config, "sliding_window", 3)),
    "no window": ("mistral", lambda model: setattr(model.config, "sliding_window", None)),
    "both ways": ("llama", lambda model: setattr(model.config, "is_causal", False)),
    "modules both ways": ("llama", lambda model: modules_with(model, "is_causal", False)),
    "types of layers": ("gemma3_text", lambda model: setattr(model.config, "layer_types", ["full_attention"] * 2)),
    "caps of modules": ("gemma2", lambda model: modules_with(model, "attn_logit_softcapping", 0.5)),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_stock_reads_at_every_call_is_refused_when_it_changes_after_extend(name: str):
    kind, edit = EDITS[name]
    model = extend(tiny(kind), through="attend")
    model(tokens())
    edit(model)
    with pytest.raises(RuntimeError, match="changed after extend, and the layers' schemes keep"):
        model(tokens())
    edit(restore(model))
    model(tokens())


def test_a_mask_of_whole_numbers_with_four_axes_is_refused_by_name():
    model = extend(tiny("llama"), mp.Rerope(8))
    for t, dtype in ((1, torch.long), (2, torch.long), (3, torch.long), (2, torch.int32), (12, torch.long)):
        mask, where = torch.ones(2, 1, t, t, dtype=dtype), torch.arange(t)[None] * 2
        with pytest.raises(ValueError, match=rf"the attention mask is {dtype} .* takes the mask of padding, \[b, n\]"):
            model(tokens(2, t), attention_mask=mask, position_ids=where)
    # As wide as one of ours, of keys and then queries, and with two rows, of which none is the slots.
    with pytest.raises(ValueError, match="takes the mask of padding"):
        model(tokens(2, 2), attention_mask=torch.ones(2, 1, 2, 4).long(), position_ids=torch.arange(2)[None] * 2)


def saved(cache: Any) -> Any:
    kept = io.BytesIO()
    torch.save(cache, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


def chosen(cache: Any) -> Any:
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 2]))
    return cache


def cut(cache: Any) -> Any:
    longer = copy.deepcopy(cache)
    longer.crop(-2)
    return longer


EXTENSIONS = {"attend": ("llama", mp.Rerope(8)), "rotary": ("llama", mp.Yarn(4, trained=64)),
              "replaced": ("bloom", mp.AlibiNtk(2))}  # fmt: skip


@pytest.mark.parametrize("way", [copy.deepcopy, saved, chosen, cut], ids=lambda way: way.__name__)
@pytest.mark.parametrize("through", EXTENSIONS)
def test_a_copy_of_a_cache_goes_on_as_the_cache_does(through: str, way: Callable[[Any], Any]):
    name, part = EXTENSIONS[through]
    model, texts = extend(tiny(name), part), tokens(2, 20)
    full, prefix = model(texts).logits, model(texts[:, :15]).past_key_values
    for _ in range(2):
        cache = way(copy.deepcopy(prefix))
        n = cache.get_seq_length()
        assert (model(texts[:, n:], past_key_values=cache).logits - full[:, n:]).abs().max() < CLOSE
        with pytest.raises(ValueError, match="was filled under the extension"):
            restore(copy.deepcopy(model))(texts[:, :1], past_key_values=way(copy.deepcopy(prefix)))


def forked(cache: Any) -> Any:
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new


@pytest.mark.parametrize("through", EXTENSIONS)
def test_a_fork_of_a_cache_leaves_the_cache_as_it_was(through: str):
    name, part = EXTENSIONS[through]
    model, prefix, ends = extend(tiny(name), part), tokens(2, 15), (tokens(2, 5, 2), tokens(2, 5, 3))
    cache = model(prefix).past_key_values
    forks = [forked(cache), forked(cache), forked(forked(cache))]
    for end, its in zip((*ends, ends[0]), forks, strict=True):
        steps = torch.cat([model(end[:, n : n + 1], past_key_values=its).logits for n in range(5)], 1)
        assert (steps - model(torch.cat((prefix, end), 1)).logits[:, 15:]).abs().max() < CLOSE
        assert [each.keys.shape[2] for each in cache.layers] == [15] * len(cache.layers)
    lost = forked(cache)
    del lost.layers[2:]
    if through == "attend":
        with pytest.raises(ValueError, match="has keys and not the positions of their tokens"):
            model(ends[0], past_key_values=lost)


@pytest.mark.parametrize("ids", [None, OFFSET[:, :1]])
def test_keys_that_are_dropped_by_hand_are_dropped_with_their_positions_or_refused(ids: Tensor | None):
    stock, keep = tiny("llama"), torch.tensor([0, 1, 2, 3, *range(12, 20)])
    model, text, new = extend(copy.deepcopy(stock), through="attend"), tokens(2, 20), tokens(2, 1, 2)

    def dropped(its: Any, layers: slice) -> Any:
        cache = its(text).past_key_values
        for layer in cache.layers[layers]:
            layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
        return cache

    def after(its: Any, cache: Any) -> Tensor:
        return its(new, past_key_values=cache, position_ids=ids).logits

    theirs = after(stock, dropped(stock, slice(2)))
    assert (after(model, dropped(model, slice(None))) - theirs).abs().max() < CLOSE
    for layers in (slice(1), slice(1, 2), slice(2)):
        cache = dropped(model, layers)
        # A call that was refused changes nothing.
        for _ in range(2):
            with pytest.raises(ValueError, match=r"drop keys from all of cache\.layers alike"):
                after(model, cache)


def test_a_cache_that_was_reset_keeps_the_positions_of_its_new_tokens():
    stock = tiny("llama")
    model, text = extend(copy.deepcopy(stock), through="attend"), tokens(2, T)

    def after(its: Any) -> Tensor:
        cache = its(text).past_key_values
        cache.reset()
        its(text, past_key_values=cache, position_ids=POSE)
        return its(text[:, :2], past_key_values=cache).logits

    assert (after(model) - after(stock)).abs().max() < CLOSE


def test_a_call_that_failed_leaves_no_positions():
    model, text = extend(tiny("llama"), through="attend"), tokens(2, T)
    full, cache = model(text).logits, model(text[:, :12]).past_key_values

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    for layer in model.model.layers:
        failing = layer.register_forward_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(text[:, 12:], past_key_values=cache)
        failing.remove()
        if layer is model.model.layers[0]:
            assert (model(text[:, 12:18], past_key_values=cache).logits - full[:, 12:18]).abs().max() < CLOSE
            cache = model(text[:, :12]).past_key_values
    with pytest.raises(ValueError, match=r"layer 1 of this DynamicCache .* start with a new cache after a call that"):
        model(text[:, 12:], past_key_values=cache)


@pytest.mark.parametrize("through", EXTENSIONS)
def test_a_cache_put_together_by_hand_is_refused(through: str):
    name, part = EXTENSIONS[through]
    model = extend(tiny(name), part)
    cache = model(tokens(2, 15)).past_key_values
    by_hand = DynamicCache([(layer.keys, layer.values) for layer in cache.layers[:2]])
    with pytest.raises(ValueError, match=r"put together by hand, which leaves no mark .*copy\.deepcopy\(cache\) keeps"):
        model(tokens(2, 1), past_key_values=by_hand)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["gemma3_text", "gpt_neox", "llama", "persimmon"])
def test_caches_are_told_apart_where_the_hooks_of_a_rotated_model_are_passed_over(name: str, layers: int):
    more = {"num_hidden_layers": layers} | ({"layer_types": ["full_attention"]} if layers == 1 else {})
    stock, model, text = tiny(name, **more), tiny(name, **more), tokens(2, T)
    cache = stock(text[:, :12]).past_key_values
    inner = extend(model, mp.Yarn(4.0, trained=64), through="rotary").base_model
    with pytest.raises(ValueError, match=r"was filled under a model that is not extended.*given to the extension"):
        inner.forward(text[:, 12:], past_key_values=cache)
    whole = inner(text).last_hidden_state[:, 12:]
    for fill in (inner, inner.forward):
        cache = fill(text[:, :12], use_cache=True).past_key_values
        for go in (inner, inner.forward):
            after = go(text[:, 12:], past_key_values=copy.deepcopy(cache)).last_hidden_state
            assert (after - whole).abs().max() < CLOSE
        with pytest.raises(ValueError, match=r"was filled under the extension.*given to a model that is not extended"):
            stock(text[:, 12:], past_key_values=cache)


@pytest.mark.parametrize("name", ["llama", "gptj", "falcon", "stablelm"])
def test_layers_that_no_hook_has_given_positions_are_refused(name: str):
    model, text = extend(tiny(name), through="attend"), tokens(2, 12)
    backbone = model.base_model
    for given in ({}, {"position_ids": torch.arange(12)[None] % 5}):
        with pytest.raises(RuntimeError, match=r"without the hooks .* call the module itself, model\(…\)"):
            backbone.forward(text, **given)
    hidden = backbone(text).last_hidden_state
    assert torch.equal(torch.func.functional_call(backbone, dict(backbone.named_parameters()), (text,))[0], hidden)


def test_a_layer_runs_again_with_what_it_was_given():
    model, text = extend(tiny("llama"), mp.Rerope(8)), tokens(2, 12)
    layer, kept = model.model.layers[1], list[Any]()
    layer.register_forward_hook(lambda _, args, given, out: kept.append((args, given, out)), with_kwargs=True)
    model(text, position_ids=torch.arange(12)[None] % 5, use_cache=False)
    args, given, out = kept[0]
    assert torch.equal(layer(*args, **given), out)


def test_keys_of_another_model_do_not_reach_modules_of_ours_without_hooks():
    model = tiny("bloom")
    cache = model(tokens(2, 12)).past_key_values
    extend(model, mp.AlibiNtk(2))
    with pytest.raises(ValueError, match="called without its hooks"):
        model.transformer.forward(tokens(2, 1), past_key_values=cache)
