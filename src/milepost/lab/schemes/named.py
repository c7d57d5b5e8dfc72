"""Schemes by name or by expression, sized for a model: `rope`, `alibi`, or `Rope(dim, theta=1e5) + LogN(trained)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from milepost.attend import attend
from milepost.lab.schemes.expressions import Sum, classes_in, evaluate, joined, named, titled, words_in
from milepost.lab.schemes.limits import Listed
from milepost.lab.schemes.naming import TRAINED, WINDOW, WINDOW_AND_SINKS
from milepost.lab.schemes.own import origins
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.verbs import answers, verbs_of
from milepost.seams.visible import Visible, causal

BY_LONGEST = ("longest", "group")
"""Words that follow the longest length judged at; group is how many positions must share one to reach it."""


def _trivial(text: str) -> dict[str, str]:
    """Return what stands beside every row without training, and needs no method: to forget all but the last bytes."""
    return {
        WINDOW: joined(text, "(causal & window(trained))"),
        WINDOW_AND_SINKS: joined(text, "(causal & (window(trained - 4) | sinks(4)))"),
    }


ROPE = "Rope(dim, stretch={})"
WITHOUT_TRAINING: dict[str, dict[str, str]] = {
    "rope": {
        **_trivial("Rope(dim)"),
        "interpolation": ROPE.format("DynamicLinear(trained)"),
        "dynamic NTK": ROPE.format("DynamicNtk(trained)"),
        "dynamic YaRN": ROPE.format("DynamicYarn(trained)"),
        "ReRoPE": "Rope(dim) + Rerope(trained // 2)",
        "ReRoPE, log-n": "Rope(dim) + Rerope(trained // 2) + LogN(trained)",
        "ReRoPE, pivot": "Rope(dim) + Pivot(Rerope(trained // 2), trained)",
        "leaky ReRoPE, log-n": "Rope(dim) + LeakyRerope(trained // 4, 16) + LogN(trained)",
        "self-extend": "Rope(dim) + SelfExtend(group, trained // 2 // group * group)",
        "dual chunk": "Rope(dim) + DualChunk(3 * trained // 4, trained // 8)",
        "streaming": "Rope(dim) + Stream(4, trained - 4)",
    },
    "alibi": {
        **_trivial("Alibi(heads)"),
        "dynamic NTK": "Alibi(heads, AlibiDynamicNtk(trained))",
        "log-n": "Alibi(heads) + LogN(trained)",
    },
}
"""What is judged on a checkpoint already trained. The first two of each are the trivial baselines."""
AND_THE_REST: dict[str, dict[str, str]] = {
    "rope": {
        "interpolation, fixed": ROPE.format("Interpolate(longest / trained)"),
        "NTK": ROPE.format("Ntk(longest / trained)"),
        "NTK, mixed": ROPE.format("NtkMixed(longest / trained)"),
        "by parts": ROPE.format("ByParts(longest / trained, trained)"),
        "YaRN": ROPE.format("Yarn(longest / trained, trained)"),
        "Llama 3": ROPE.format("Llama3(longest / trained, trained)"),
        "log-n": "Rope(dim) + LogN(trained)",
        "leaky ReRoPE": "Rope(dim) + LeakyRerope(trained // 4, 16)",
        "ReRoPE, diluted": "Rope(dim) + Dilute(Rerope(trained // 2, at=trained // 8), trained, 2)",
        "ReRoPE, diluted pivot": "Rope(dim) + Dilute(Pivot(Rerope(trained // 2), trained, 0.25), trained, 0.5)",
    },
    "alibi": {
        "interpolation, fixed": "Alibi(heads, AlibiInterpolate(longest / trained))",
        "NTK": "Alibi(heads, AlibiNtk(longest / trained))",
    },
}
"""The other stretches and places, by a factor that reaches the longest length, whatever is read. LongRope is not here:
its factors are searched for, model by model. Nor is Proportional, which is trained with, nor KeepSinks, which is for
models trained elsewhere (`milepost.hf.model.parts`)."""


TO_TUNE: dict[str, dict[str, str]] = {
    "rope": {
        "ReRoPE": "Rope(dim) + Rerope({trained // 4|trained // 2|3 * trained // 4})",
        "ReRoPE, log-n": "Rope(dim) + Rerope({trained // 4|trained // 2|3 * trained // 4}) + LogN(trained)",
        "ReRoPE, pivot": "Rope(dim) + Pivot(Rerope(trained // 2), trained, {0.25|0.5|1})",
        "leaky ReRoPE, log-n": "Rope(dim) + LeakyRerope({trained // 8|trained // 4|trained // 2}, 16) + LogN(trained)",
        "self-extend": "Rope(dim) + SelfExtend(group, max(group, "
        "{trained // 4|trained // 2|3 * trained // 4} // group * group))",
        "dual chunk": "Rope(dim) + DualChunk({trained // 2|3 * trained // 4|7 * trained // 8}, trained // 8)",
        "dynamic NTK": ROPE.format("DynamicNtk(trained, {1|2|4})"),
        "log-n": "Rope(dim) + LogN({trained // 2|trained|2 * trained})",
        "leaky ReRoPE": "Rope(dim) + LeakyRerope({trained // 8|trained // 4|trained // 2}, 16)",
        "ReRoPE, diluted": "Rope(dim) + Dilute(Rerope(trained // 2, at=trained // 8), trained, {1|2|4})",
        "ReRoPE, diluted pivot": "Rope(dim) + "
        "Dilute(Pivot(Rerope(trained // 2), trained, 0.25), trained, {0.25|0.5|1})",
        "YaRN": ROPE.format("Yarn(max(1, {0.5|1|2} * longest / trained), trained)"),
        "NTK": ROPE.format("Ntk(max(1, {0.5|1|2} * longest / trained))"),
    },
    "alibi": {
        "log-n": "Alibi(heads) + LogN({trained // 2|trained|2 * trained})",
        "NTK": "Alibi(heads, AlibiNtk(max(1, {0.5|1|2} * longest / trained)))",
    },
}
"""Rows with a setting that can be chosen on validation text: of three for each, so that none is tried more often."""


def build(name: str, shape: Shape, trained: int, longest: int) -> Schedule:
    """Return the schedule of a scheme given by name or expression; without a visible part it is causal."""
    text = expression(name)
    sizes = {
        "dim": shape.dim, "heads": shape.heads, "width": shape.width, "layers": shape.layers,
        "trained": trained, "longest": longest, "group": min(max(2, 2 * longest // trained), trained // 2),
    }  # fmt: skip
    made = _layers(text, sizes)
    firsts: dict[int, Scheme] = {}
    schemes: list[Scheme] = []
    for number, layer in enumerate(made):
        first = firsts.get(id(layer))
        if first is None:
            first = firsts[id(layer)] = Scheme(*_parts(layer))
            if schemes and any(answers(part, "embed") for part in first.parts):
                raise ValueError(f"the scheme {text!r}: what embeds acts once; write it in the first layer alone")
            schemes.append(first)
        elif any(isinstance(part, nn.Module) for part in _within(first)):
            schemes.append(_like(first, _parts(_layers(text, sizes)[number])))
        else:
            schemes.append(first)
    return Schedule(schemes)


def rows_on(name: str, *, free: bool, every: bool, own: Sequence[str], tune: bool = False) -> dict[str, str]:
    """Return the training-free rows on a scheme's checkpoint, by label: ours, if they are wanted, and the user's own.

    With `tune`, ours leave their settings open.
    """
    name = named(name)
    rows = WITHOUT_TRAINING.get(name, {}) if free else {}
    if free and every:
        rows = rows | AND_THE_REST.get(name, {})
    if tune:
        rows = rows | {label: text for label, text in TO_TUNE.get(name, {}).items() if label in rows}
    rows = (_trivial(expression(name)) if own else {}) | rows
    return rows | _own_rows(own, [*WITHOUT_TRAINING["rope"], *AND_THE_REST["rope"], *rows, "as trained"])


def _own_rows(own: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Return the user's own rows by what they are called, which nothing else may be."""
    found: dict[str, str] = {}
    for label, text in map(titled, own):
        if label != text and label.casefold() in map(str.casefold, taken):
            raise ValueError(f"a row of ours is called {label!r}; give yours another name")
        if found.get(label, text) != text or label.casefold() in {each.casefold() for each in found if each != label}:
            raise ValueError(f"two rows are called {label!r}; give one of them another name")
        found[label] = text
    return found


def expression(name: str) -> str:
    """Return what a name stands for; an expression stands for itself."""
    return TRAINED.get(named(name), name)


def reads_longest(name: str) -> bool:
    """True if a scheme depends on the longest length judged at."""
    return bool(words_in(expression(name)) & {*BY_LONGEST})


def origins_of(name: str) -> tuple[str, ...]:
    """Return what a scheme depends on besides milepost: the files and packages of its methods."""
    return tuple(origins(list(classes_in(expression(name)))))


def learns_bias(name: str) -> bool:
    """True if a scheme may learn something that bends scores, by the verbs of the methods in it."""
    methods = classes_in(expression(name)).values()
    return any(issubclass(each, nn.Module) for each in methods) and any(answers(each, "bend") for each in methods)


def learns_more(name: str) -> bool:
    """True if a scheme learns something that does not bend scores, such as vectors or frequencies."""
    methods = classes_in(expression(name)).values()
    return any(issubclass(each, nn.Module) and not answers(each, "bend") for each in methods)


def own_rate(recipe: Recipe, name: str) -> float | None:
    """Return how many times the model's rate is that of what a scheme learns; None where it learns nothing."""
    return recipe.bias_rate if learns_bias(name) else recipe.learned_rate if learns_more(name) else None


def rates_in_words(recipe: Recipe, name: str) -> str:
    """Return the rates of a scheme as they are printed: `0.002, scheme × 10`."""
    times = own_rate(recipe, name)
    return f"{recipe.rate:g}" if times is None else f"{recipe.rate:g}, scheme × {times:g}"


def try_out(schedule: Schedule, shape: Shape, longest: int) -> None:
    """Let the first token and the last through every scheme: one for another model or shorter texts is refused."""
    x, index = torch.zeros(1, 2, shape.width), torch.tensor([0, longest - 1])
    q, k = (torch.zeros(1, heads, 2, shape.dim) for heads in (shape.heads, shape.groups))
    with torch.no_grad():
        schedule[0].embed(x, index)
        for scheme in {id(each): each for each in schedule}.values():
            attend(q, k, k, scheme.attention, index=index, key_index=index, backend="reference")


def hides_ahead(part: object) -> bool:
    """True if a part sees to it that no query ever sees a key after its own; one such part is enough for a scheme."""
    return "see" in verbs_of(part) and bool(getattr(part, "is_causal", False))


def refuse_ahead(schedule: Schedule, text: str, kind: str = "scheme") -> None:
    """Refuse what would read the answer: asked for the next token, no layer may see it."""
    for scheme in schedule:
        if not any(map(hides_ahead, scheme.parts)):
            seen = _seen(scheme)
            raise ValueError(
                f"the {kind} {text!r} sees ahead ({seen}), so a model that is asked for the next token could read it; "
                f"leave {seen} out, which makes it causal, or write causal & ({seen})"
            )


def refuse_blind(schedule: Schedule, text: str, heads: int, trained: int, longest: int, kind: str = "scheme") -> None:
    """Refuse a layer that sees no key: none of its queries within the trained length does, or the last one of all."""
    head = torch.arange(heads)[:, None, None]
    for number, scheme in enumerate(schedule):
        for queries, keys in ((torch.arange(trained)[:, None], trained), (torch.tensor([[longest - 1]]), longest)):
            seen = scheme.see(torch.tensor(0), head, queries, torch.arange(keys))
            if seen is not None and not bool(seen.any()):
                raise ValueError(
                    f"the {kind} {text!r} sees no key in layer {number} ({_seen(scheme)}), so attention there gives "
                    f"zeros; write what it sees as one expression, such as causal & window(64)"
                )


def _seen(scheme: Scheme) -> str:
    return " and ".join(repr(part) for part in scheme.parts if isinstance(part, Visible))


def refuse_hidden(schedule: Schedule, heads: int) -> None:
    """Refuse what hides later tokens, where a task has them look ahead."""
    for scheme in schedule:
        seen = scheme.see(torch.tensor(0), torch.arange(heads)[:, None], torch.tensor(0), torch.tensor([[1]]))
        if seen is not None and not bool(seen.all()):
            raise ValueError("it hides them; leave out what it sees")


def refuse_leak(schedule: Schedule, text: str, shape: Shape, longest: int, kind: str = "scheme") -> None:
    """Refuse what reads the answer by another way than attention: a token may not change what is made before it."""
    count = min(5, longest)
    x = torch.randn(1, count, shape.width, generator=torch.Generator().manual_seed(0))
    other, index = x.clone(), torch.arange(count)
    other[:, -1] *= -1
    for scheme in {id(each): each for each in schedule}.values():
        made: list[torch.Tensor] = []
        with torch.no_grad():
            for each in (x, other):
                embedded = schedule[0].embed(each, index).view(1, count, shape.heads, shape.dim).transpose(1, 2)
                k = embedded[:, : shape.groups]
                made.append(attend(embedded, k, k, scheme.attention, backend="reference")[:, :, :-1])
        if not torch.allclose(made[0], made[1], atol=1e-5, equal_nan=True):
            raise ValueError(
                f"the {kind} {text!r} lets a token change what is made of those before it, so a model that is asked "
                f"for the next token could read it; see that {scheme!r} reads no later tokens"
            )


def _layers(text: str, sizes: Mapping[str, int]) -> Sequence[Any]:
    """Return what an expression has for each layer; one that is no list is there for all of them."""
    made = evaluate(text, sizes)
    if isinstance(made, tuple) and not isinstance(made, Listed):
        raise ValueError(f"the scheme {text!r} has commas; write layers in square brackets, [A, B], and parts with +")
    if not isinstance(made, Listed):
        return [made] * sizes["layers"]
    if any(isinstance(each, tuple) for each in made):
        raise ValueError(
            f"the scheme {text!r} has a list in a list; a layer is one scheme, such as Rope(dim) + LogN(trained)"
        )
    if len(made) != sizes["layers"]:
        raise ValueError(
            f"the scheme {text!r} lists layers for a model of {len(made)}, and this one has {sizes['layers']}; write "
            f"one for each, such as [A] * (layers - 1) + [B]"
        )
    return made


def _parts(made: Any) -> tuple[object, ...]:
    """Return the parts of a layer; without a visible one it is causal."""
    parts: tuple[object, ...] = made.parts if isinstance(made, Sum) else (made,)
    chosen = any(hides_ahead(part) or isinstance(part, Visible) for part in parts)
    return parts if chosen else (*parts, causal)


def _like(first: Scheme, parts: tuple[object, ...]) -> Scheme:
    """Another layer's scheme: what embeds is the first layer's, since it acts once, and so is what layers share."""
    pairs = zip(first.parts, parts, strict=True)
    return Scheme(*(old if answers(old, "embed") or answers(old, "over_layers") else new for old, new in pairs))


def _within(scheme: Scheme) -> Iterator[object]:
    for part in scheme.parts:
        yield part
        yield from (getattr(part, name) for name in getattr(part, "__dataclass_fields__", {}))
