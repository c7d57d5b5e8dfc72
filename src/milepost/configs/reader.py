"""A model's configuration, whatever it came as: a transformers config object or the dict in its config.json."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads")
WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
HEAD_WIDTH = ("head_dim", "d_kv", "d_head", "kv_channels")
LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True)
class Family:
    """What is true of every model of one model_type.

    parts makes the parts of one layer's scheme. defaults are what a published config of this family leaves out; they
    are its own, never somebody else's. shares says that a learned part belongs to the model, one for all layers.
    """

    parts: Callable[[Reader, int], list[object]]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shares: bool = True


class Reader:
    """Looks things up in one configuration, and says what it looked for where it finds nothing."""

    def __init__(self, source: object, asked: str, model_type: str, family: Family, version: object = None) -> None:
        self.source, self.asked, self.model_type, self.family = source, asked, model_type, family
        self.version = version
        self.made: dict[object, Any] = {}

    @property
    def called(self) -> str:
        """The user's own call, as the head of an error."""
        return f"{self.asked}(a {self.model_type} config)"

    def given(self, *names: str) -> Any:
        """The first of the names that the configuration itself gives; None where it gives none."""
        return look_up(self.source, *names)

    def get(self, *names: str) -> Any:
        """The first of the names that is given, or else the family's own default; None without either."""
        found = self.given(*names)
        return look_up(self.family.defaults, *names) if found is None else found

    def need(self, what: str, *names: str) -> Any:
        """The first of the names that is given; raise where none is."""
        found = self.get(*names)
        if found is None:
            raise self.missing(what, *names)
        return found

    def missing(self, what: str, *names: str, advice: str = "add it to the config") -> ValueError:
        """The error that says what was looked for, and which keys look like it."""
        source = cast("Any", self.source)
        keys = [str(key) for key in (source if isinstance(self.source, Mapping) else getattr(source, "__dict__", ()))]
        near = {key: None for name in names for key in difflib.get_close_matches(name, keys)}
        hint = f" The keys nearest to these are {', '.join(near)}." if near else ""
        return ValueError(f"{self.called}: {what} not found; looked for {', '.join(names)}.{hint} Please {advice}.")

    def refuse(self, key: str, value: object, why: str) -> ValueError:
        """The error about something that is there and cannot be built."""
        return ValueError(f"{self.called}: {key} is {value!r}, {why}")

    @property
    def heads(self) -> int:
        """The number of query heads; of an encoder-decoder, those of its encoder unless it says is_decoder."""
        if self.decodes and self.given("decoder_attention_heads") is not None:
            return self.given("decoder_attention_heads")
        return self.need("the number of heads", *HEADS)

    @property
    def width(self) -> int:
        """The width of the layer's input."""
        return self.need("the width of the model", *WIDTH)

    @property
    def head_width(self) -> int:
        """The channels of one head."""
        return self.get(*HEAD_WIDTH) or self.width // self.heads

    @property
    def decodes(self) -> bool:
        """Whether an encoder, or one of two stacks, decodes: is_decoder in the config."""
        return bool(self.get("is_decoder"))

    @property
    def causal(self) -> bool:
        """Whether keys ahead are hidden where the family hides them; is_causal: false shows them (embedding models)."""
        return self.get("is_causal") is not False

    @property
    def layers(self) -> int:
        """The number of layers; of an encoder-decoder, those of its encoder unless it says is_decoder."""
        if self.decodes and self.given("num_decoder_layers", "decoder_layers") is not None:
            return self.given("num_decoder_layers", "decoder_layers")
        return self.need("the number of layers", *LAYERS)

    def layer(self, layer: int) -> int:
        """The layer counted from 0; raise where there is no such layer."""
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise TypeError(f"{self.asked}(layer={layer!r}): a layer is an integer, not {type(layer).__name__}")
        count = self.get(*LAYERS) and self.layers
        if count and not -count <= layer < count:
            raise IndexError(f"{self.asked}(layer={layer}): the {self.model_type} config has {count} layers")
        return layer % count if count else layer

    def learned(self, method: Callable[..., nn.Module], *given: Any, **named: Any) -> nn.Module:
        """A part that learns: the one made before with the same arguments, where the family shares it."""
        key = (method, given, tuple(named.items()))
        if not self.family.shares or key not in self.made:
            self.made[key] = method(*given, **named)
        return self.made[key]


def look_up(source: object, *names: str) -> Any:
    """The first of the names found among keys or attributes; null counts as not found."""
    for name in names:
        if isinstance(source, Mapping):
            found = cast("Mapping[str, Any]", source).get(name)
        else:
            found = getattr(source, name, None)
        if found is not None:
            return found
    return None
