"""Where the heads of a model look in a sentence, before and after a scheme, as figures of the page."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from milepost.configs import attending
from milepost.configs import read as read_config
from milepost.configs.reader import HEADS
from milepost.explore.composer.reading import demand_small
from milepost.explore.controls import Control, NotPossibleError, Slider, Switch, Words, read
from milepost.explore.heads import weights_in
from milepost.explore.scene import Figure, Map, Say, Scene
from milepost.hf.config.source import config_of
from milepost.hf.files.read import read_model
from milepost.hf.measuring.trials import tokens_of
from milepost.schedule import ranges

SENTENCE = "Enhanced Transformer with Rotary Position Embedding"
MOST = 64
"""So many tokens of a sentence are drawn."""
WEIGHT = Say("attention weight", "注意力权重")


class Reader:
    """A model of a folder that reads sentences; its weights are loaded when the first is asked for."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        config = read_config(config_of(folder, f"explore --model {folder}"), "explore")
        self.layers = attending(config) or range(config.layers)
        self.heads = int(config.need("the number of heads", *HEADS))
        self._loaded: tuple[Any, Any] | None = None

    @property
    def controls(self) -> tuple[Control, ...]:
        """What a reader sets."""
        return (
            Words("text", Say("Sentence", "句子"), SENTENCE, 400, 2),
            Slider("layer", Say("Layer", "层"), 0, max(1, self.layers[-1]), self.layers[0]),
            Slider("head", Say("Head", "头"), 0, max(1, self.heads - 1), 0),
            Switch("changed", Say("Compare with a scheme", "与一个方案比较"), True),
            Words("scheme", Say("Scheme, as extend takes it", "方案（extend 的写法）"), "Rerope(4)", 200),
        )

    def scene(self, given: Any) -> Scene:
        """Return the weights of one layer: one head large, unchanged and with the scheme, and every head small."""
        state = read(self.controls, given)
        if self._loaded is None:
            self._loaded = read_model(self.folder, "explore")
        model, tokenizer = self._loaded
        ids = tokens_of(state["text"], tokenizer)
        if not 2 <= len(ids) <= MOST:
            many = f"{len(ids)} tokens; give 2 to {MOST}"
            raise NotPossibleError("text", Say(many, f"{len(ids)} 个 token；请给 2 至 {MOST} 个"))
        words = tuple(_word(tokenizer, int(each)) for each in ids)
        layer, head = int(state["layer"]), int(state["head"])
        found = {Say("unchanged", "原样"): weights_in(model, ids)}
        if state["changed"]:
            try:
                demand_small(state["scheme"])
                changed = weights_in(model, ids, state["scheme"])
            except (ValueError, TypeError, ArithmeticError) as error:
                why = " ".join(str(error).split())[:400]
                raise NotPossibleError("scheme", Say(why, f"无法使用：{why}")) from error
            found[Say(f"with {state['scheme']}", f"使用 {state['scheme']}")] = changed
        for name, value, numbers in (("layer", layer, self.layers), ("head", head, range(self.heads))):
            if value not in numbers:
                raise NotPossibleError(name, Say(f"give one of {ranges(numbers)}", f"请给 {ranges(numbers)} 之一"))
        large = [
            _map(Say(f"Head {head}, {name.en}", f"头 {head}，{name.zh}"), weights[layer][head], words)
            for name, weights in found.items()
        ]
        name, last = list(found.items())[-1]
        small = [_map(Say(f"{n}", f"{n}"), weights, words, small=True) for n, weights in enumerate(last[layer])]
        figures: tuple[Figure, ...] = (*large, *small)
        return Scene(figures, said_of(layer, head, name, found), _code(self.folder, state))


def _map(title: Say, weights: Tensor, words: tuple[str, ...], *, small: bool = False) -> Map:
    t = len(words)
    cells = [[float(weights[i, j]) if j <= i or weights[i, j] else float("nan") for j in range(t)] for i in range(t)]
    return Map(
        title, Say("key", "键"), Say("query", "查询"), cells, words, words, WEIGHT, limits=(0.0, 1.0), small=small
    )


def said_of(layer: int, head: int, name: Say, found: dict[Say, dict[int, Tensor]]) -> Say:
    """Return what changed, with its number."""
    plain, last = next(iter(found.values())), found[name]
    if len(found) == 1:
        return Say(f"The small maps are the heads of layer {layer}.", f"小图是第 {layer} 层的各个头。")
    moved = (last[layer] - plain[layer]).abs().sum(-1).mean(-1) / 2
    most = int(moved.argmax())
    share, largest = 100 * float(moved[head]), 100 * float(moved[most])
    began = f"{name.en[:1].upper()}{name.en[1:]}"
    other = (
        Say(f", the most of layer {layer}", f"，是第 {layer} 层中最多的")
        if most == head
        else Say(
            f"; of layer {layer} head {most} changes most, {largest:.1f} %",
            f"；第 {layer} 层中转移最多的是头 {most}，{largest:.1f} %",
        )
    )
    return Say(
        f"{began}, {share:.1f} % of the weight of head {head} goes to other keys{other.en}. The small maps are the "
        f"heads of the layer {name.en}.",
        f"{name.zh}后，头 {head} 有 {share:.1f} % 的权重转移到别的键{other.zh}。小图是该层各头。",
    )


def _word(tokenizer: Any, token: int) -> str:
    """Return a token as it is written; a blank is shown."""
    text = str(tokenizer.decode([token]))
    return text.replace(" ", "␣").replace("\n", "↵") or "∅"


def _code(folder: str, state: dict[str, Any]) -> str:
    given = f", given={state['scheme']!r}" if state["changed"] else ""
    return (
        "from milepost.explore.heads import weights_in\n"
        "from milepost.hf.files.read import read_model\n"
        "from milepost.hf.measuring.trials import tokens_of\n\n"
        f"model, tokenizer = read_model({folder!r}, 'explore')\n"
        f"ids = tokens_of({state['text']!r}, tokenizer)\n"
        f"weights = weights_in(model, ids{given})  # of each layer by its number, [h t t]\n"
        f"print(weights[{int(state['layer'])}][{int(state['head'])}])"
    )


__all__ = ["Reader", "said_of"]
