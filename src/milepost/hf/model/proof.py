"""Whether a model of transformers that nobody has listed can be extended: a small twin of it answers.

The twin of a model's class and config is run as transformers has it, and again as `extend` changes it, under the scheme
that it has by itself: whole texts, padded, packed, far from the start, long, in training, and by a cache in steps. Both
must agree to 1e-5. A second twin has all the layers of the model, and the attention of each is compared with that of
stock for the same input: what goes by the number of a layer is seen there. The first must also notice when its rotation
is taken away, when its positions are changed and when its mask is dropped, by 1e-2 each: what it does not notice, equal
answers say nothing of. Where `attend` brings a temperature, the twin's queries and keys must also follow it: a norm
behind the rotation takes it off, and no equal answer shows that.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.configs import read
from milepost.hf.model.attention import watched
from milepost.hf.model.models import Layers, as_run, attentions_in, own_schedule, turners_in
from milepost.hf.model.rotary import axes_of, turn_of
from milepost.hf.model.settings import without
from milepost.hf.model.twin import WINDOWS, draw, is_size, shrunk, twin_of

NOTICED, EQUAL, AFAR_EQUAL = 1e-2, 1e-5, 1e-3
"""Of the largest output: what a change must reach, what must not differ, and what must not far from the start, where
transformers' angles are rounded to float32."""
ROUNDING, EPSILON = 2e-6, 1.2e-7
"""What rounding its weights, by so much, may do to a twin: one that amplifies it more says nothing at 1e-5."""
GAINS = (1.0, 2.0, 0.5, 4.0, 0.25)
LENGTH, AFAR, LONG = 21, 20_003, 600
IN_A_LAYER = 1e-4
"""What must not differ in one layer, which no change that is noticed reaches."""
ELSEWHERE = re.compile("mlp|moe|ffn|expert|sparsity")
"""What configs list by layer that is not about attention."""
NO_COUNT = re.compile(f"{WINDOWS.pattern}|max_position.*|.*head_dim")
"""What counts tokens and is known, or counts none: widths of heads stay as they are."""
PROVEN: dict[tuple[object, ...], str | None] = {}
"""What was proven in this process: None, or why not."""
Run = Callable[[nn.Module], Tensor]
ByItself = Callable[[nn.Module, Any], object]


def demand_proof(layers: Layers, path: str, extend: ByItself, config: Any = None, tempered: bool = False) -> None:
    """Refuse a model unless its twin, extended by `extend(twin, path)`, does what stock transformers does.

    config: that of the model as it was, where it is extended now. tempered: whether the rotations that are put in have
    another factor on cosines and sines than the model's own.
    """
    kind = cast("type[nn.Module]", type(layers.backbone))
    if not kind.__module__.startswith("transformers."):
        raise ValueError(
            f"extend: {kind.__name__} is a class of {kind.__module__}, and not of transformers. What it does is not "
            f"known, and its code is not run to find out, so it cannot be extended"
        )
    tempered = tempered and path == "attend"
    config = layers.config if config is None else config
    asked = question(layers, path, config, tempered)
    if asked not in PROVEN:
        try:
            PROVEN[asked] = unproven(layers, path, extend, config, tempered)
        except Exception as error:
            PROVEN[asked] = f"a small model of its class does not run: {type(error).__name__}: {first_line(error)}"
    why = PROVEN[asked]
    if why is not None:
        raise ValueError(
            f"extend: a {layers.model_type} model cannot be extended through {path!r}: {why}. Nothing was changed"
        )


def question(layers: Layers, path: str, config: Any, tempered: bool) -> tuple[object, ...]:
    """What a proof answers: the class, versions, the path, its layers, its twin, and all of its config but sizes."""
    import transformers

    from milepost import __version__

    kinds = kinds_of(layers, config)
    fields = cast("dict[str, Any]", config.to_dict())
    kept = {name: each for name, each in fields.items() if not is_size(name)}
    # A size may be a switch: one group of keys, as many as heads, or a rank that is null.
    both = [kept, cast("dict[str, Any]", shrunk(config, kinds).to_dict())]
    told = [{name: each[name] for name in each if not name.startswith(("_", "torch_", "dtype"))} for each in both]
    versions = (torch.__version__, transformers.__version__, __version__, platform.machine())
    kind = cast("type[nn.Module]", type(layers.backbone))
    return kind, path, tempered, *versions, str(kinds), json.dumps(told, sort_keys=True, default=repr)


def unproven(layers: Layers, path: str, extend: ByItself, config: Any = None, tempered: bool = False) -> str | None:
    """Return why a twin does not prove that the model is extended rightly; None where it does."""
    kind = cast("type[nn.Module]", type(layers.backbone))
    sizes = sizes_of(layers, config)
    twin = twin_of(kind, shrunk(*sizes))
    gain, error, missed = sharpened(twin)
    if missed is not None:
        return f"a small model of its class does not show what it does with positions: {missed}"
    draw(twin, gain)
    own = dict(answers(twin))
    calls = CALLS if counts(own) else CALLS | {CACHED: by_counted_steps}
    own = own if calls is CALLS else dict(answers(twin, calls))
    extend(twin, path)
    for (name, theirs), (_, ours) in zip(own.items(), answers(twin, calls), strict=True):
        if isinstance(theirs, str):
            continue
        if isinstance(ours, str):
            return f"a small model of its class, extended by its own scheme, fails on {name}: {ours}"
        # Far from the start transformers' angles are rounded to float32.
        off, most = apart(ours, theirs), max(AFAR_EQUAL, 1000 * error) if name in ROUNDED else EQUAL
        if not off <= most:
            return (
                f"a small model of its class, extended by its own scheme, is {off:.2g} of its largest output off on "
                f"{name}, so its attention does more than its config was read to say"
            )
    deep = twin_of(kind, shrunk(*sizes, deep=True))
    draw(deep, gain)
    odd = differing(deep, lambda: extend(deep, path))
    if odd is not None:
        return (
            f"its layer {odd} attends otherwise than its config was read to say, and the layers that a small model "
            f"needs do not show it"
        )
    if tempered and not follows_cosines(twin):
        return (
            "it normalizes queries and keys behind the rotation, which takes the temperature of the rotation off "
            "there, and `attend` would put it on; leave it out: Yarn(…, scaled=1.0)"
        )
    return None


def sizes_of(layers: Layers, config: Any = None) -> tuple[Any, list[object], list[str], bool]:
    """Return what the config of a model's twin is made of. config: that of the model as it was, if it is extended."""
    kind = cast("type[nn.Module]", type(layers.backbone))
    config = as_run(layers.config if config is None else config)
    kinds = kinds_of(layers, config)
    twin = narrow(kind, config, kinds)
    few = crossed(kind, config, kinds, twin)
    return config, kinds, few, twin is not None


def narrow(kind: type[nn.Module], config: Any, kinds: Sequence[object]) -> nn.Module | None:
    """Return a twin that is narrower than its heads together; None where a class reads the one for the other."""
    try:
        twin = twin_of(kind, shrunk(config, kinds))
        whole(twin)
    except Exception:
        return None
    return twin


def kinds_of(layers: Layers, config: Any) -> list[object]:
    """Return what each layer is, as far as positions go: its scheme, its module, and what the config lists by layer."""
    fields = cast("dict[str, Any]", config.to_dict())
    count = read(config, "extend").layers
    about = (each for name, each in fields.items() if not ELSEWHERE.search(name))
    lists = [cast("list[Any]", each) for each in about if isinstance(each, list)]
    named = [each for each in lists if len(each) == count and all(one in (0, 1) or type(one) is str for one in each)]
    schemes = {layer: str(scheme) for layer, scheme in layers.own.items()}
    return [(schemes.get(n), *(each[n] for each in named)) for n in range(count)]


def crossed(kind: type[nn.Module], config: Any, kinds: Sequence[object], twin: nn.Module | None) -> list[str]:
    """Return the fields of a config that count tokens under names nobody knows: a twin notices when they are few.

    An indexer that keeps so many keys does nothing in a shorter text, and would pass unseen. twin: the narrow one.
    """
    fields = cast("dict[str, Any]", shrunk(config, kinds, narrow=twin is not None).to_dict())
    large = (name for name, each in fields.items() if type(each) is int and each > LENGTH)
    asked = [each for each in large if not (is_size(each) or NO_COUNT.fullmatch(each))]
    if not asked:
        return []
    plain = twin_of(kind, shrunk(config, kinds, narrow=False)) if twin is None else twin
    draw(plain, 1.0)
    shapes, before = [each.shape for each in plain.parameters()], whole(plain)
    found: list[str] = []
    for name in asked:
        try:
            other = twin_of(kind, shrunk(config, kinds, [name], twin is not None))
            if [each.shape for each in other.parameters()] != shapes:
                continue
            draw(other, 1.0)
            if apart(whole(other), before) > EQUAL:
                found.append(name)
        except Exception:
            # It is a size, or cannot be so small.
            continue
    return found


# What a twin is asked


def tokens(rows: int = 2) -> Tensor:
    """Texts [b t]."""
    random = torch.Generator().manual_seed(1)
    return torch.randint(1, 128, (rows, LENGTH), generator=random)


@torch.no_grad()
def run(model: nn.Module, given: Tensor, **others: Any) -> Tensor:
    """Return what a model puts out for tokens, [b t width]."""
    others = {"use_cache": False} | others
    out = model(input_ids=given, **others)
    return out[0].double()


def whole(model: nn.Module) -> Tensor:
    """A text at once."""
    return run(model, tokens())


def padding() -> Tensor:
    """Which tokens count: 5 of the first text do not."""
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    return mask


def real(out: Tensor) -> Tensor:
    """What is put out for tokens that count."""
    return out[padding()[:, -out.shape[1] :].bool()]


def padded(model: nn.Module) -> Tensor:
    """A padded text at once."""
    return real(run(model, tokens(), attention_mask=padding()))


def counted() -> Tensor:
    """Positions by which padding does not count."""
    return (padding().cumsum(-1) - 1).clamp(min=0)


def padded_and_counted(model: nn.Module) -> Tensor:
    """A padded text whose positions count its own tokens."""
    return real(run(model, tokens(), attention_mask=padding(), position_ids=counted()))


def packed(model: nn.Module) -> Tensor:
    """Two texts in a row."""
    position = torch.cat((torch.arange(9), torch.arange(LENGTH - 9)))[None].expand(2, -1)
    return run(model, tokens(), position_ids=position)


def far(model: nn.Module) -> Tensor:
    """A text far from the start."""
    return run(model, tokens(), position_ids=torch.arange(AFAR, AFAR + LENGTH)[None].expand(2, -1))


def long(model: nn.Module) -> Tensor:
    """One longer text, by itself."""
    random = torch.Generator().manual_seed(3)
    return run(model, torch.randint(1, 128, (1, LONG), generator=random))


def in_training(model: nn.Module) -> Tensor:
    """A text as in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model.train()
        try:
            return whole(model)
        finally:
            model.eval()


def by_steps(model: nn.Module, steps: Sequence[int] = (12, 1, 1, 4, 3), **others: Tensor) -> Tensor:
    """A text by a cache, piece by piece."""
    from transformers import DynamicCache

    cache, outs, start = DynamicCache(config=cast("Any", model).config), list[Tensor](), 0
    for step in steps:
        end = start + step
        given = {
            name: each[:, :end] if name == "attention_mask" else each[..., start:end] for name, each in others.items()
        }
        outs.append(run(model, tokens()[:, start:end], past_key_values=cache, use_cache=True, **given))
        start = end
    return torch.cat(outs, 1)


def by_counted_steps(model: nn.Module) -> Tensor:
    """A text by a cache, with its positions."""
    return by_steps(model, position_ids=torch.arange(LENGTH)[None].expand(2, -1))


def steps_padded(model: nn.Module) -> Tensor:
    """A padded text by a cache."""
    return real(by_steps(model, attention_mask=padding(), position_ids=counted()))


AT_ONCE, CACHED = "a text at once", "a text read by a cache"
CALLS: dict[str, Run] = {
    AT_ONCE: whole,
    "a padded text": padded,
    "a padded text with positions": padded_and_counted,
    "two texts packed in a row": packed,
    "a text far from the start": far,
    "a long text": long,
    "a text in training": in_training,
    CACHED: by_steps,
    "a padded text read by a cache": steps_padded,
}

ROUNDED = ("a text far from the start", "a long text")


def of_an_image(axes: int) -> Tensor:
    """Positions [axes 2 t] of a text with an image of 2 × 3 tokens in it, a token later in the second row."""
    axis, image = torch.arange(axes)[:, None], torch.arange(6)
    # Time stands still; rows and columns count on from it.
    grid = 7 + torch.where(axis == 0, 0, torch.where(axis == 1, image // 3, image % 3))
    before, behind = (each[None].expand(axes, -1) for each in (torch.arange(7), torch.arange(10, LENGTH - 3)))
    first = torch.cat((before, grid, behind), 1)
    return torch.stack((first, first + 1), 1)


def axial(model: nn.Module) -> Tensor:
    """A text with the positions of an image in it."""
    return run(model, tokens(), position_ids=of_an_image(axes_in(model)))


def axial_packed(model: nn.Module) -> Tensor:
    """Two texts in a row, each with an image, told apart by one more row of positions."""
    one = of_an_image(axes_in(model))[..., :12]
    both = torch.cat((one, one[..., : LENGTH - 12]), -1)
    return run(model, tokens(), position_ids=torch.cat((starts_over(12), both)))


def starts_over(at: int) -> Tensor:
    """Positions [1 2 t] that count tokens, and begin again at one of them."""
    return torch.cat((torch.arange(at), torch.arange(LENGTH - at)))[None, None].expand(1, 2, -1)


def axial_by_steps(model: nn.Module) -> Tensor:
    """A padded text with an image, by a cache in which it is cut in two."""
    return real(by_steps(model, attention_mask=padding(), position_ids=of_an_image(axes_in(model))))


AXIAL: dict[str, Run] = {
    "a text with an image's positions": axial,
    "two texts packed in a row, with images' positions": axial_packed,
    "a text with an image's positions read by a cache": axial_by_steps,
}


def axes_in(model: nn.Module) -> int:
    """How many positions of a token the rotations of a model read; 1 where they read one."""
    own = own_schedule(without(cast("Any", model).config))
    return next((axes for axes in (axes_of(turn_of(scheme)) for scheme in own) if axes), 1)


def counts(own: dict[str, Tensor | str]) -> bool:
    """Return whether stock counts on behind a cache by itself: Bamba begins at 0 again unless it is given positions."""
    whole, steps = own[AT_ONCE], own[CACHED]
    return isinstance(whole, str) or isinstance(steps, str) or apart(steps, whole) < AFAR_EQUAL


def answers(model: nn.Module, calls: dict[str, Run] = CALLS) -> Iterator[tuple[str, Tensor | str]]:
    """Yield what a model answers to every call, or its error."""
    for name, call in (calls | AXIAL if axes_in(model) > 1 else calls).items():
        try:
            yield name, call(model)
        except Exception as error:
            yield name, f"{type(error).__name__}: {first_line(error)}"


def apart(ours: Tensor, theirs: Tensor) -> float:
    """How far two outputs differ, in parts of the largest; NaN where one has them."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    return str(error).split("\n", 1)[0]


# Every layer


def differing(twin: nn.Module, change: Callable[[], object]) -> int | None:
    """Return the first layer whose attention `change` changes, each given what the others put out before."""
    before = dict[int, Tensor]()

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        before[cast("Any", module).layer_idx] = first_of(output)

    with hooked(attentions_in(twin), keep):
        out = whole(twin)
    change()
    odd = list[int]()

    def compare(module: nn.Module, args: Any, output: Any) -> Any:
        layer = cast("int", cast("Any", module).layer_idx)
        if not apart(first_of(output), before[layer]) <= IN_A_LAYER:
            odd.append(layer)
        return before[layer] if isinstance(output, Tensor) else (before[layer], *output[1:])

    with hooked(attentions_in(twin), compare):
        after = whole(twin)
    return odd[0] if odd else None if apart(after, out) <= IN_A_LAYER else max(before)


def first_of(output: Any) -> Tensor:
    """What an attention module puts out, without its weights."""
    return output if isinstance(output, Tensor) else output[0]


# What it must notice


def sharpened(twin: nn.Module) -> tuple[float, float, str | None]:
    """Return a gain by which a twin notices every change, what rounding does to it then, and what none notices."""
    best: tuple[float, float] | None = None
    missed: str | None = None
    for gain in GAINS:
        draw(twin, gain)
        plain = whole(twin)
        error = rounding(twin, plain)
        if error > EQUAL / 2 or (best is not None and error >= best[0]):
            continue
        why = unnoticed(twin, plain)
        missed = missed or why
        if why is None:
            best = error, gain
            if error <= ROUNDING:
                break
    if best is None:
        return 0.0, 0.0, missed or "its weights amplify rounding"
    return best[1], best[0], None


def rounding(twin: nn.Module, plain: Tensor) -> float:
    """What rounding to float32 does to a twin: to its weights, for not every class can be run in float64."""
    kept = [each.detach().clone() for each in twin.parameters()]
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for each in twin.parameters():
            each.mul_(1 + EPSILON * (2 * torch.rand(each.shape, generator=random) - 1))
        moved = whole(twin)
        for each, was in zip(twin.parameters(), kept, strict=True):
            each.copy_(was)
    return apart(plain, moved)


def unnoticed(twin: nn.Module, plain: Tensor) -> str | None:
    """Return which change of positions a twin does not notice; None where it notices all. plain: what it puts out."""
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    # Layers that attend without positions notice the mask alone.
    if next(rotary_in(twin), None) is not None:
        with unturned(twin):
            if not apart(whole(twin), plain) >= NOTICED:
                return "nothing changes without its rotation"
        doubled = 2 * torch.arange(LENGTH)[None].expand(2, -1)
        if not apart(run(twin, tokens(), attention_mask=mask, position_ids=doubled), plain) >= NOTICED:
            return "nothing changes with other positions"
    if not apart(run(twin, tokens(), attention_mask=torch.zeros(2, 1, LENGTH, LENGTH)), plain) >= NOTICED:
        return "nothing changes without a mask"
    return None


def follows_cosines(twin: nn.Module) -> bool:
    """Return whether queries and keys of a twin, extended through `attend`, grow in step with its cosines."""

    def nothing(module: nn.Module, args: Any, output: Any) -> Any:
        return torch.zeros_like(output[0]), *output[1:]

    def runs_with(size: int) -> list[Tensor]:
        def larger(module: nn.Module, args: Any, output: Any) -> Any:
            return output * size if isinstance(output, Tensor) else tuple(each * size for each in output)

        seen: list[Tensor] = []

        def see(q: Tensor, k: Tensor, *others: object) -> None:
            seen.extend((q.double(), k.double()))

        # Where attention adds nothing, every layer reads the same.
        with hooked(attentions_in(twin), nothing), hooked(rotary_in(twin), larger), watched(see):
            whole(twin)
        return seen

    steps = zip(*(runs_with(size) for size in (0, 1, 2)), strict=True)
    return all(float((c - 2 * b + a).abs().max()) <= EQUAL * float(c.abs().max()) for a, b, c in steps)


@contextmanager
def unturned(model: nn.Module) -> Generator[None]:
    """Let the rotary modules of a model turn nothing."""

    def still(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return torch.ones_like(output)
        return torch.ones_like(output[0]), torch.zeros_like(output[1])

    with hooked(rotary_in(model), still):
        yield


def rotary_in(model: nn.Module) -> Iterator[nn.Module]:
    """The rotary modules of a model."""
    return (turner.module for turner in turners_in(model))


@contextmanager
def hooked(modules: Iterator[nn.Module], hook: Callable[[nn.Module, Any, Any], Any]) -> Generator[None]:
    """Let a hook change what modules put out."""
    hooks = [each.register_forward_hook(hook) for each in modules]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()
