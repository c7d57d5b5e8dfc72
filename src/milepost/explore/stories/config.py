"""Read your model's config: what each of its layers does with positions, from the text of a config.json."""

from __future__ import annotations

import json
import pprint
import re
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from milepost.configs import attention_layers, read
from milepost.configs.reader import LENGTH, Reader
from milepost.configs.rotation import Rotary
from milepost.configs.stored import KEY
from milepost.explore.analyses.angles import angles_seen
from milepost.explore.composer.reading import MOST, text_of
from milepost.explore.composer.reading import read as read_scheme
from milepost.explore.controls import NotPossibleError, Words
from milepost.explore.scene import Dial, Dials, Line, Lines, Say, Scene, Table
from milepost.explore.stories.story import Guess, Story
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.schedule import ranges
from milepost.scheme import Scheme
from milepost.seams.arguments import spell

CONTROL = "config"
OLMO3 = """\
{
  "model_type": "olmo3",
  "hidden_size": 4096,
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "max_position_embeddings": 65536,
  "rope_theta": 500000,
  "sliding_window": 4096,
  "rope_scaling": {
    "rope_type": "yarn",
    "factor": 8.0,
    "attention_factor": 1.2079441541679836,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 8192
  },
  "layer_types": [
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"
  ]
}
"""
"""The positions of Olmo-3-7B, as its config.json has them."""
LAYERS_AT_MOST, CHANNELS_AT_MOST = 256, 1024
SHOWN, PAIRS = 2, 128
"""How many rotations are drawn as clocks, and of how many pairs at most."""
NOTHING = Say("nothing", "无")
UNKNOWN = 4096
"""Read at this length where the config says none."""
LONGEST = 1 << 17
"""Keys are counted in at most so many tokens."""
REFUSALS = (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)
"""What a broken config can come to, wherever it is noticed."""


@dataclass(frozen=True)
class _Layers:
    """Layers that do the same, how many keys the last token of a text sees in them, and how far back the first is."""

    scheme: Scheme
    layers: list[int]
    seen: int
    far: int


def read_config(config: str) -> Scene:
    """Return the layers that the text of a config.json describes."""
    given = _parsed(config)
    try:
        with torch.device("meta"):
            # Tables of a config are as large as it says: none is filled.
            reader, schemes = _schemes(given)
        length = reader.get(*LENGTH)
        trained = next(iter(schemes.values())).trained
    except NotPossibleError:
        raise
    except REFUSALS as error:
        raise _refused(f"{error}" or type(error).__name__) from error
    # Keys are counted by masks, which have no weights.
    try:
        whole = min(max(length or 0, trained or 0) or UNKNOWN, LONGEST)
        kinds = _kinds(schemes, whole)
        figures = (
            _table(kinds, trained),
            _reaches(reader.layers, kinds, whole, trained),
            *_clocks(kinds, whole, trained),
        )
        return Scene(
            figures,
            _says(reader, kinds, schemes, whole, trained),
            _code(given, schemes, whole),
            _to_try(kinds),
            (("trained", min(trained or whole, LONGEST)), ("length", whole)),
        )
    except REFUSALS as error:
        raise _refused(f"{type(error).__name__}: {error}") from error


def _parsed(text: str) -> dict[str, Any]:
    """Return the object that the text is: neither a path nor a name is read."""
    try:
        given: Any = json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        why = Say(
            f"this is not JSON: {error.msg} at {at}; paste the text of a config.json",
            f"这不是 JSON：第 {error.lineno} 行第 {error.colno} 列（{error.msg}）；请粘贴 config.json 的内容",
        )
        raise NotPossibleError(CONTROL, why) from error
    except RecursionError as error:
        raise NotPossibleError(CONTROL, Say("this is nested too deeply", "嵌套太深")) from error
    except ValueError as error:
        # A whole number of thousands of digits, which Python does not read.
        raise _refused(f"{error}".partition(";")[0]) from error
    if not isinstance(given, dict):
        raise NotPossibleError(
            CONTROL,
            Say('paste the whole object, {"model_type": "llama", …}', '请粘贴整个对象：{"model_type": "llama", …}'),
        )
    found = cast("dict[str, Any]", given)
    if any(KEY in each for each in (found, *found.values()) if isinstance(each, dict)):
        raise NotPossibleError(
            CONTROL,
            Say(
                "this config stores an extension by milepost; print(mp.Schedule.of(folder)) reads it",
                "这个配置存有 milepost 的扩展；请用 print(mp.Schedule.of(folder)) 读取",
            ),
        )
    return found


def _refused(why: str) -> NotPossibleError:
    short = why if len(why) <= 500 else f"{why[:500]} …"
    return NotPossibleError(CONTROL, Say(short, f"读不了这个配置：{short}"))


def _schemes(given: dict[str, Any]) -> tuple[Reader, dict[int, Scheme]]:
    """Return what every layer that attends over tokens does, by its number."""
    reader = read(given, "Scheme.of")
    if reader.layers > LAYERS_AT_MOST:
        many = Say(f"{reader.layers:,} layers; at most {LAYERS_AT_MOST:,} are drawn", f"最多画 {LAYERS_AT_MOST:,} 层")
        raise NotPossibleError(CONTROL, many)
    family = reader.family
    layers = list(range(reader.layers))
    if isinstance(family, Rotary) and family.hybrid:
        layers = attention_layers(reader, family.rule)
    if not layers:
        raise NotPossibleError(CONTROL, Say("no layer attends over tokens", "没有一层是对 token 做注意力的"))
    if isinstance(family, Rotary) and family.width(reader, layers[0]) > CHANNELS_AT_MOST:
        wide = Say(f"more than {CHANNELS_AT_MOST:,} channels a head", f"每个头超过 {CHANNELS_AT_MOST:,} 维")
        raise NotPossibleError(CONTROL, wide)
    return reader, {layer: Scheme.of(given, layer=layer) for layer in layers}


def _kinds(schemes: dict[int, Scheme], whole: int) -> list[_Layers]:
    """Return the kinds of layers, by how they would be written."""
    found: dict[str, list[int]] = {}
    for layer, scheme in schemes.items():
        found.setdefault(repr(scheme.parts), []).append(layer)
    return [_Layers(schemes[each[0]], each, *_seen(schemes[each[0]], whole)) for each in found.values()]


def _seen(scheme: Scheme, whole: int) -> tuple[int, int]:
    """Return how many of the keys of a text its last token sees, and the tokens from the first of them to itself."""
    zero = torch.zeros((), dtype=torch.long)
    seen = scheme.see(zero, zero, torch.tensor([[whole - 1]]), torch.arange(whole)[None])
    return (whole, whole) if seen is None else (int(seen.sum()), whole - int(seen.flatten().byte().argmax()))


def _rotation(scheme: Scheme) -> Any:
    """Return what turns pairs of channels; of a partial rotation, the part that does."""
    turn: Any = next(iter(scheme.answering("turn")), None)
    return turn.method if isinstance(turn, Partial) else turn


def _table(kinds: list[_Layers], trained: int | None) -> Table:
    rows: list[tuple[Say | str | float, ...]] = []
    for kind in kinds:
        turns, seen = kind.scheme.answering("turn"), kind.scheme.answering("see")
        stretch = getattr(_rotation(kind.scheme), "stretch", None)
        others = [part for part in kind.scheme.parts if not any(part is each for each in (*turns, *seen))]
        rows.append(
            (
                ranges(kind.layers),
                len(kind.layers),
                ", ".join(map(_bare, turns)) or Say("none", "无"),
                _short(spell(stretch)) if stretch is not None else Say("none", "无"),
                ", ".join(map(repr, seen)) or Say("everything", "全部可见"),
                ", ".join(map(spell, others)) or NOTHING,
            )
        )
    head = (
        Say("layers", "层"),
        Say("how many", "层数"),
        Say("rotation", "旋转"),
        Say("stretch", "扩展"),
        Say("sees", "可见范围"),
        Say("besides", "此外"),
    )
    # A column that says nothing of any layer is left out.
    last = len(head) if any(row[-1] != NOTHING for row in rows) else len(head) - 1
    known = f"{trained:,}" if trained else None
    return Table(
        Say(f"Layers; trained length {known or 'not in the config'}", f"各层；训练长度 {known or '配置中没有'}"),
        head[:last],
        tuple(row[:last] for row in rows),
    )


def _to_try(kinds: list[_Layers]) -> tuple[str, ...]:
    """Return the layers as the composer takes them, without those that it cannot draw."""
    found: list[str] = []
    for kind in kinds[:MOST]:
        text = text_of(kind.scheme)
        try:
            read_scheme(text)
        except REFUSALS:
            continue
        found.append(text)
    return tuple(found)


def _short(text: str) -> str:
    """Return a text whose numbers have at most six digits."""
    return re.sub(r"\d+\.\d{6,}", lambda found: f"{float(found[0]):.6g}", text)


def _bare(turn: Any) -> str:
    """Return a rotation as one would write it, without its stretch, which has a column of its own."""
    if isinstance(turn, Partial) and isinstance(turn.method, Rope):
        return spell(replace(turn, method=replace(turn.method, stretch=None)))
    return spell(replace(turn, stretch=None) if isinstance(turn, Rope) else turn)


def _reaches(layers: int, kinds: list[_Layers], whole: int, trained: int | None) -> Lines:
    reach = [float("nan")] * layers
    for kind in kinds:
        for layer in kind.layers:
            reach[layer] = kind.seen
    lines = [Line(Say("keys seen", "看到的键"), reach)]
    if trained:
        lines.append(Line(Say(f"trained length, {trained:,}", f"训练长度 {trained:,}"), [trained] * layers, 1, True))
    return Lines(
        Say(f"Keys that the last of {whole:,} tokens sees", f"{whole:,} 个 token 中最后一个看到多少个键"),
        Say("layer", "层"),
        Say("keys", "键"),
        list(range(layers)),
        tuple(lines),
        y_scale="log",
    )


def _clocks(kinds: list[_Layers], whole: int, trained: int | None) -> list[Dials]:
    """Return the clocks of the rotations, each within the distances that its layers meet."""
    found: dict[str, Dials] = {}
    for kind in kinds:
        rope = _rotation(kind.scheme)
        if trained is None or not isinstance(rope, Rope) or rope.head_dim > 2 * PAIRS:
            continue
        plain = replace(rope, stretch=None)
        seen = angles_seen(plain, trained=min(trained, kind.far), length=kind.far, stretched=rope)
        first, new = seen["turns in training"], int((seen["unseen arc"] > 0).sum())
        which = ranges(kind.layers)
        found.setdefault(
            f"{spell(rope)} {kind.far}",
            Dials(
                Say(
                    f"Layers {which}, up to {kind.far:,} tokens away: {new} of {len(first)} pairs meet new angles",
                    f"第 {which.replace(', ', '、')} 层，距离到 {kind.far:,} 为止：{len(first)} 对中有 {new} "
                    "对遇到新角度",
                ),
                tuple(Dial(f"{n}", min(float(each), 1.0), float(seen["turns"][n])) for n, each in enumerate(first)),
            ),
        )
    return list(found.values())[:SHOWN]


def _says(reader: Reader, kinds: list[_Layers], schemes: dict[int, Scheme], whole: int, trained: int | None) -> Say:
    far = sum(len(kind.layers) for kind in kinds if kind.seen == whole)
    turning = sum(len(kind.layers) for kind in kinds if kind.scheme.answering("turn"))
    stretched = sum(len(kind.layers) for kind in kinds if getattr(_rotation(kind.scheme), "stretch", None) is not None)
    name, count = reader.model_type, reader.layers
    en = (
        f"{name}: {count} layers, {len(schemes)} of which attend over tokens"
        if len(schemes) < count
        else (f"{name}: {count} layers")
    )
    zh = f"{name}：共 {count} 层" + (f"，其中 {len(schemes)} 层对 token 做注意力" if len(schemes) < count else "")
    length = f"trained at {trained:,} tokens" if trained else "the config does not say the trained length"
    length_zh = f"训练长度 {trained:,}" if trained else "配置没有写训练长度"
    return Say(
        f"{en}. {far} see the whole of {whole:,} tokens; {turning} rotate, {stretched} with a stretch; {length}.",
        f"{zh}。{far} 层看得到全部 {whole:,} 个 token；{turning} 层有旋转，其中 {stretched} 层做了扩展；{length_zh}。",
    )


def _code(given: dict[str, Any], schemes: dict[int, Scheme], whole: int) -> str:
    layers = list(schemes)
    written = f"range({len(layers)})" if layers == list(range(len(layers))) else f"{layers}"
    return f"""\
import torch
import milepost as mp

config = {pprint.pformat(given, width=100, compact=True, sort_dicts=False)}
schemes = {{layer: mp.Scheme.of(config, layer=layer) for layer in {written}}}
zero, last, keys = torch.tensor(0), torch.tensor([[{whole - 1}]]), torch.arange({whole})[None]
seen = {{layer: scheme.see(zero, zero, last, keys) for layer, scheme in schemes.items()}}
reach = {{layer: {whole} if each is None else int(each.sum()) for layer, each in seen.items()}}
print(schemes[{layers[0]}], reach)
"""


STORY = Story(
    name="config",
    question=Say("What does your model do with positions?", "你的模型怎样处理位置？"),
    lead=Say(
        "A config.json says what rotates, by which base and stretch, and what each layer sees. Paste one: only its "
        "text is read, no file, no path and no code. This is Olmo 3 7B.",
        "config.json 写明了用什么底数、什么扩展来旋转，以及每一层看得到多少。粘贴一个试试：只读它的文字，"
        "不读文件和路径，也不运行代码。这里是 Olmo 3 7B。",
    ),
    look_for=Say(
        "Which layers see everything, and which a window? Where is the stretch: a window shorter than the trained "
        "length needs none. Do any clocks still meet new angles?",
        "哪些层全部可见，哪些层只看窗口？扩展用在哪里：窗口比训练长度短的层用不着。还有表盘会遇到新角度吗？",
    ),
    controls=(Words(CONTROL, Say("config.json", "config.json 的内容"), OLMO3, most=20_000, lines=16),),
    guess=Guess(
        Say("How many layers of Olmo 3 7B see the whole text?", "Olmo 3 7B 有多少层看得到全文？"),
        figure=0,
        answers=(
            Say("All of them", "全部"),
            Say("One in two", "一半"),
            Say("One in four", "四分之一"),
            Say("None", "没有"),
        ),
        right=2,
    ),
    compute=read_config,
    try_own=("Rope(128, theta=500000.0, stretch=Yarn(8, 8192)), causal", "Rope(128, theta=500000.0), causal"),
    try_trained=8192,
    try_length=65_536,
    grid=1,
)

__all__ = ["STORY"]
