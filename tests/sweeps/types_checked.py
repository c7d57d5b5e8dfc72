"""What a small causal model of a served type is asked, extended as it is and under three methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import milepost as mp
from milepost.hf.model.extension import by_itself, extended, restore
from milepost.hf.model.models import Layers, backbone_of, own_schedule
from milepost.hf.model.proof import EQUAL, ROUNDING, apart, rounding, sharpened, sizes_of
from milepost.hf.model.proof import whole as plain
from milepost.hf.model.rotary import turn_of
from milepost.hf.model.tables import PADDED
from milepost.hf.model.twin import draw, shrunk, twin_of

BACKEND = "eager"
"""By what `torch.compile` runs: what dynamo traces, as it is."""
TOKENS, PROMPT, NEW, FEW = 40, 9, 6, 12
"""FEW: tokens of a compiled model, whose loops are unrolled."""
TRAINED = 16
"""The trained length of a small model."""
ROWS = 32
"""The rows of a learned table, fewer than there are tokens."""
SEEDS = 5
"""Of how many random weights those are taken that amplify rounding least."""
NEAR = mp.causal & (mp.window(24) | mp.sinks(2))
Change = Callable[[Any], object]


def of_layers(layers: Layers, served: list[str]) -> dict[str, str]:
    """Return what came of each check of a model with layers that are extended."""
    try:
        model = causal(layers)
    except Exception as error:
        return {"logits": said_of(error, "no causal model of it")}
    ways = {way: partial(by_itself, through=way) for way in served}
    others = {name: partial(under, parts) for name, parts in methods(layers, model.config, served).items()}
    # BLOOM and MPT take no positions.
    return checks(model, TOKENS, ways, others, counts=bool(layers.places) and not turns(layers))


def of_table(model_type: str) -> dict[str, str]:
    """Return what came of each check of a model whose learned table of positions is grown."""
    grown = {f"grown, α {alpha}": partial(grow, mp.Hierarchical((2, 2), alpha=alpha)) for alpha in (0.2, 0.4, 0.6)}
    return checks(with_table(model_type), ROWS, {"grown": partial(grow, "hierarchical")}, grown, counts=True)


@torch.no_grad()
def compiled(model: Any, change: Change) -> str:
    """Return how far the logits of an extended and compiled model are from stock's."""
    ids = drawn()[:, :FEW]
    stock = whole(model, ids)
    change(model)
    torch._dynamo.reset()
    run = cast("Any", torch.compile(model, backend=BACKEND))
    return attempt(partial(off_by, run, whole, ids, stock))


def turns(layers: Layers) -> bool:
    """Whether some layer of a model rotates."""
    return any(turn_of(scheme) is not None for scheme in layers.own)


def methods(layers: Layers, config: Any, served: list[str]) -> dict[str, tuple[object, ...]]:
    """Methods of which three are tried: for models that can have all, whose cosines alone are changed, or without."""
    trained = own_schedule(config).trained or TRAINED
    stretch, sharp = mp.Yarn(4, trained=trained, scaled=1.0), mp.LogN(trained=trained)
    if served == ["rotary"]:
        return {"YaRN": (stretch,), "interpolation": (mp.Interpolate(4.0),), "NTK": (mp.Ntk(4.0),)}
    if turns(layers):
        return {
            "ReRoPE": (mp.Rerope(12),), "YaRN": (stretch,), "log-n, window, sinks": (sharp, NEAR),
            "Self-Extend": (mp.SelfExtend(group=4, neighbours=12),), "NTK": (mp.Ntk(4.0),),
        }  # fmt: skip
    return {"log-n": (sharp,), "window, sinks": (NEAR,), "log-n, window": (sharp, mp.causal & mp.window(24))}


@torch.no_grad()
def checks(
    model: Any, tokens: int, ways: Mapping[str, Change], others: Mapping[str, Change], counts: bool = False
) -> dict[str, str]:
    """Return what came of each check: how far off, or yes, or what went wrong.

    tokens: how many the stock model may read. others: methods. counts: whether the model finds positions by itself.
    """
    texts = drawn()
    ids = texts[:, :tokens]
    before, config = {name: each.clone() for name, each in model.state_dict().items()}, model.config.to_dict()
    calls = {"logits": whole, "padded": padded, "packed": packed, "generated": generated}
    stock = {name: call(model, ids) for name, call in calls.items()}
    found = dict.fromkeys(calls, "0")
    equal = True
    for way, change in ways.items():
        change(model)
        for name, call in calls.items():
            found[name] = worse(found[name], attempt(partial(off_by, model, call, ids, stock[name])), way)
        restore(model)
        equal = equal and torch.equal(whole(model, ids), stock["logits"])
    tried: list[str] = []
    for name, change in others.items():
        if sum("refused" not in each for each in tried) < 3:
            tried.append(f"{name}: {method(model, texts, change, counts)}")
            equal = equal and torch.equal(whole(model, ids), stock["logits"])
    found["methods"] = "; ".join(tried)
    now = model.state_dict()
    equal = equal and all(torch.equal(each, now[name]) for name, each in before.items())
    found["restored"] = "yes" if equal and model.config.to_dict() == config else "no"
    return found


def causal(layers: Layers) -> Any:
    """A small causal model of the type."""
    config = shrunk(*sizes_of(layers))
    if hasattr(config, "max_position_embeddings"):
        # GPT-J has cosines for so many positions and no more.
        config.max_position_embeddings = TRAINED if not layers.places else TOKENS
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = cast("Any", twin_of(cast("Any", kind), copy.deepcopy(config)))
    if layers.places:
        draw(model, 1.0)
    else:
        # As its twin in the proof: at a gain at which rounding stays small, and positions and masks are noticed.
        backbone, rounded = backbone_of(model), dict[int, float]()
        gain, _, missed = sharpened(backbone)
        if missed is not None:
            raise ValueError(missed)
        # Gemma 3n amplifies rounding by some weights, and not by others.
        for seed in (*range(SEEDS), None):
            seed = min(rounded, key=rounded.__getitem__) if seed is None else seed
            draw(model, 1.0, seed)
            draw(backbone, gain, seed)
            rounded[seed] = rounding(model, plain(model))
            if rounded[seed] <= ROUNDING:
                break
    for each in model.modules():
        each.__dict__.pop("milepost_begun", None)
    return model


def with_table(model_type: str) -> Any:
    """A small causal model with a learned table of positions."""
    first = 2 if model_type in PADDED else 0
    kind: Any = CONFIG_MAPPING[model_type]
    names = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": ROWS}
    if "n_embd" not in kind().to_dict():
        names = {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "embedding_size": 32, "max_position_embeddings": ROWS + first, "pad_token_id": 1 if first else 0,
            "is_decoder": True,
        }  # fmt: skip
    config = kind(vocab_size=128, **names)
    model = cast("Any", twin_of(cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]), config))
    draw(model, 1.0)
    model.__dict__.pop("milepost_begun")
    return model


def under(parts: tuple[object, ...], model: Any) -> None:
    """Extend a model by a method."""
    # The proof was asked before, with the lengths of the type's own config.
    with patch("milepost.hf.model.extension.demand_proof"):
        extended(model, parts)


def grow(by: object, model: Any) -> None:
    """Grow the table of a model."""
    extended(model, (by,), to=2 * ROWS)


def off_by(model: Any, call: Callable[[Any, Tensor], Tensor], ids: Tensor, stock: Tensor) -> float:
    """How far what a model puts out is from stock."""
    return apart(call(model, ids), stock)


def attempt(run: Callable[[], float]) -> str:
    """Return how far off something is, or why it fails."""
    try:
        return f"{run():.1g}"
    except Exception as error:
        return said_of(error, "refused" if str(error).startswith("milepost: ") else "fails")


def said_of(error: Exception, what: str) -> str:
    """Say what an error is, in a line."""
    return f"{what}, {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def worse(one: str, other: str, way: str) -> str:
    """Return which of two results is worse, the second with its way where it is not within bounds."""
    if not within(one):
        return one
    if not within(other):
        return f"{other} ({way})"
    return max(one, other, key=float)


def within(said: str) -> bool:
    """Whether something is off by 1e-5 or less."""
    return said[:1].isdigit() and float(said.split(" ")[0]) <= EQUAL


def method(model: Any, ids: Tensor, change: Change, counts: bool) -> str:
    """Return how far a text by a cache is from the text at once under a method, or why the method is refused."""
    try:
        change(model)
    except ValueError as error:
        return f"refused, {str(error).split('. ')[0][:120]}"
    found = attempt(lambda: apart(by_steps(model, ids, counts), whole(model, ids)))
    restore(model)
    return found


def drawn() -> Tensor:
    """Texts, without the tokens that pad."""
    return torch.randint(2, 128, (2, TOKENS), generator=torch.Generator().manual_seed(5))


def whole(model: Any, ids: Tensor) -> Tensor:
    """The logits of a text at once."""
    return model(input_ids=ids, use_cache=False).logits.double()


def padded(model: Any, ids: Tensor) -> Tensor:
    """The logits of texts one of which is padded on the left; those of padding left out."""
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return model(input_ids=ids, attention_mask=mask, use_cache=False).logits.double()[mask.bool()]


def packed(model: Any, ids: Tensor) -> Tensor:
    """The logits of two texts in a row."""
    position = torch.cat((torch.arange(15), torch.arange(ids.shape[1] - 15)))[None].expand(2, -1)
    return model(input_ids=ids, position_ids=position, use_cache=False).logits.double()


def by_steps(model: Any, ids: Tensor, counts: bool) -> Tensor:
    """The logits of a text by a cache, piece by piece."""
    cache, outs, start = None, list[Tensor](), 0
    # Jamba forgets its state where several tokens come behind a cache.
    for step in (TOKENS - 8, *[1] * 8):
        end = start + step
        at = {} if counts else {"position_ids": torch.arange(start, end)[None].expand(2, -1)}
        given = {"input_ids": ids[:, start:end], "past_key_values": cache, "use_cache": True} | at
        out = model(**given)
        # MiniMax has a cache of its own.
        cache, start = out.past_key_values, end
        outs.append(out.logits.double())
    return torch.cat(outs, 1)


def generated(model: Any, ids: Tensor) -> Tensor:
    """The logits by which the model goes on, cached, from two prompts one of which is padded, and its tokens."""
    mask = torch.ones_like(ids[:, :PROMPT])
    mask[0, :3] = 0
    given = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    asked = {"output_logits": True, "return_dict_in_generate": True}
    out = model.generate(input_ids=ids[:, :PROMPT], attention_mask=mask, **given, **asked)
    # Another token is another text, and its logits are far off.
    chosen = torch.nn.functional.one_hot(out.sequences[:, -NEW:], out.logits[0].shape[-1])
    return torch.cat((torch.stack(out.logits, 1).double(), chosen.double()), -1)
