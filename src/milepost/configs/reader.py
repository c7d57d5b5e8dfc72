"""Look up the keys of one configuration, under all their names, and check the values."""

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

COUNTS = frozenset((*HEADS, *WIDTH, *LAYERS, *HEAD_WIDTH, *LENGTH, "rotary_dim", "qk_rope_head_dim"))
"""Keys whose value is an integer, at least 1."""
NUMBERS = frozenset(
    (
        *("rope_theta", "rotary_emb_base", "rope_base", "partial_rotary_factor", "rotary_pct"),
        *("attention_multiplier", "query_pre_attn_scalar", "attn_logit_softcapping"),
    )
)
"""Keys whose value is a number above 0."""
FLAGS = frozenset(
    (
        *("is_causal", "is_decoder", "use_sliding_window", "alibi", "rope_interleave", "use_qk_norm"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "attn_temperature_tuning", "relative_attention"),
    )
)
"""Keys whose value is true or false."""
OWN_HEAD_WIDTH = frozenset(
    (
        *("afmoe", "cohere2_moe", "cwm", "ernie4_5", "flint", "gemma", "gemma2", "glm", "glm4", "gpt_oss", "helium"),
        *("hy_v3", "kolibri1", "laguna", "llama4_text", "mellum", "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text"),
        *("ministral3", "muse_spark_text", "nemotron_h", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
        *("qwen3_vl_text", "seed_oss", "solar_open", "step3p5", "t5_gemma_module", "vaultgemma", "zaya"),
    )
)
"""Types that have a head_dim of their own in transformers where the config gives none, and not width / heads."""


@dataclass(frozen=True)
class Family:
    """The facts shared by all models of one model_type.

    parts makes the parts of one layer's scheme. defaults are what published configs of this family leave out. shares
    means that a learned part belongs to the model, one for all layers. twice: every layer that the config counts has
    two attention modules, which are layers here (LongCat).
    """

    parts: Callable[[Reader, int], list[object]]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shares: bool = True
    twice: bool = False


class Reader:
    """One configuration and its family; errors name the user's call and the keys that were looked for."""

    def __init__(self, source: object, asked: str, model_type: str, family: Family, version: object = None) -> None:
        self.source, self.asked, self.model_type, self.family = source, asked, model_type, family
        self.version = version
        self.made: dict[object, Any] = {}

    @property
    def called(self) -> str:
        """The user's own call, as the head of an error."""
        return f"{self.asked}(a {self.model_type} config)"

    def given(self, *names: str) -> Any:
        """Return the value of the first name that the configuration itself gives; None where it gives none."""
        found = [(name, each) for name in names if (each := self._checked(name)) is not None]
        numbers = {each for _, each in found if isinstance(each, (int, float))}
        if len(numbers) > 1:
            listed = ", ".join(f"{name} is {each!r}" for name, each in found)
            raise ValueError(f"{self.called}: two names of one setting disagree: {listed}; keep one")
        return found[0][1] if found else None

    def _checked(self, name: str) -> Any:
        found = look_up(self.source, name)
        # XLNet's config object has -1 for a model without a longest length.
        if found is None or (name in LENGTH and found == -1):
            return None
        if name in COUNTS and (type(found) is not int or found < 1):
            raise self.refuse(name, found, "and must be an integer, at least 1")
        if name in NUMBERS:
            self.number(name, found)
        if name in FLAGS and not isinstance(found, bool):
            raise self.refuse(name, found, "and must be true or false")
        return found

    def number(self, name: str, value: object, *, zero: bool = False) -> None:
        """Raise where a value is no finite number above 0, or at least 0."""
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
        if not (0 < number < float("inf") or (zero and number == 0)):
            raise self.refuse(name, value, f"and must be a number, {'at least' if zero else 'greater than'} 0")

    def get(self, *names: str) -> Any:
        """Return what `given` finds, or else the family's own default; None without either."""
        found = self.given(*names)
        return look_up(self.family.defaults, *names) if found is None else found

    def own(self, name: str, *types: str) -> Any:
        """Return what `get` finds of a key that only models of these types have; raise where another has it."""
        found = self.get(name)
        if found is not None and self.model_type not in types:
            raise self.unread(name, found)
        return found

    def need(self, what: str, *names: str) -> Any:
        """Return what `get` finds; raise where it finds nothing."""
        found = self.get(*names)
        if found is None:
            raise self.missing(what, *names)
        return found

    def missing(self, what: str, *names: str, advice: str = "add it to the config") -> ValueError:
        """Return the error that lists the keys looked for, and the keys that resemble them."""
        source = cast("Any", self.source)
        keys = [str(key) for key in (source if isinstance(self.source, Mapping) else getattr(source, "__dict__", ()))]
        near = {key: None for name in names for key in difflib.get_close_matches(name, keys)}
        hint = f" The keys nearest to these are {', '.join(near)}." if near else ""
        return ValueError(f"{self.called}: {what} not found; looked for {', '.join(names)}.{hint} Please {advice}.")

    def refuse(self, key: str, value: object, why: str) -> ValueError:
        """Return the error about a value that is wrong or that no part expresses."""
        return ValueError(f"{self.called}: {key} is {value!r}, {why}")

    def unread(self, key: str, value: object) -> ValueError:
        """Return the error about a key that changes nothing in transformers' models of this type."""
        return self.refuse(key, value, f"which transformers' {self.model_type} does not read; remove it")

    @property
    def heads(self) -> int:
        """The number of query heads; of an encoder-decoder, those of its encoder unless is_decoder is set."""
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
        found = self.get(*HEAD_WIDTH)
        if found is None and self.model_type in OWN_HEAD_WIDTH:
            raise self.missing("the channels of a head", *HEAD_WIDTH)
        return found or self.width // self.heads

    @property
    def decodes(self) -> bool:
        """True if an encoder, or one of two stacks, decodes: is_decoder in the config."""
        return bool(self.get("is_decoder"))

    @property
    def causal(self) -> bool:
        """True if keys ahead are hidden where the family hides them; is_causal: false shows them (embedding models)."""
        return self.get("is_causal") is not False

    @property
    def layers(self) -> int:
        """The number of layers; of an encoder-decoder, those of its encoder unless is_decoder is set."""
        if self.decodes and self.given("num_decoder_layers", "decoder_layers") is not None:
            return self.given("num_decoder_layers", "decoder_layers")
        if self.family.twice:
            return 2 * self.need("the number of layers", "num_layers")
        return self.need("the number of layers", *LAYERS)

    @property
    def counted(self) -> bool:
        """True if the config says how many layers there are."""
        return look_up(self.source, *LAYERS) is not None or look_up(self.family.defaults, *LAYERS) is not None

    def layer(self, layer: int) -> int:
        """Return the layer counted from 0; raise where there is no such layer."""
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise TypeError(f"{self.asked}(layer={layer!r}): a layer is an integer, not {type(layer).__name__}")
        count = self.layers if self.counted else None
        if count and not -count <= layer < count:
            raise IndexError(f"{self.asked}(layer={layer}): the {self.model_type} config has {count} layers")
        return layer % count if count else layer

    def learned(self, method: Callable[..., nn.Module], *given: Any, **named: Any) -> nn.Module:
        """Return a part that learns: the one made before with the same arguments, where the family shares it."""
        key = (method, given, tuple(named.items()))
        if not self.family.shares or key not in self.made:
            self.made[key] = method(*given, **named)
        return self.made[key]


def look_up(source: object, *names: str) -> Any:
    """Return the first of the names found among keys or attributes; null counts as not found."""
    for name in names:
        if isinstance(source, Mapping):
            found = cast("Mapping[str, Any]", source).get(name)
        else:
            found = getattr(source, name, None)
        if found is not None:
            return found
    return None
