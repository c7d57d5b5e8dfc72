"""Read other people's configurations: the parts of a scheme that a model's config.json describes."""

from typing import Any, cast

from milepost.configs.layer_types import attention_layers, layer_type
from milepost.configs.model_types import FAMILIES, NOT_READ, PALIGEMMA, SAME
from milepost.configs.reader import Family, Reader, look_up
from milepost.configs.rotation import Rotary, family_of
from milepost.configs.source import configuration, text_of
from milepost.configs.stored import changed, entries, layers_in, parts_in, unread_in
from milepost.methods import rope
from milepost.methods.partial import Partial
from milepost.methods.rope import AxialRope, TwoPartRope
from milepost.methods.rope import Rope as Rope
from milepost.seams.arguments import did_you_mean, spell

MODEL_TYPES = tuple(sorted({*FAMILIES, *SAME, "paligemma"}))


def rope_of(config: object, layer: int | None = None) -> Rope | Partial | AxialRope | TwoPartRope:
    """Read the rotation of a model from its configuration: `Rope.of`."""
    reader = read(config, "Rope.of")
    turns = turns_of(reader, layer)
    stored = unread_in(reader.source)
    if stored is not None:
        now, before = entries(stored, reader.decodes)
        if any(part not in parts_in(before, each) for each, part in turns.items()):
            raise changed("Rope.of", turns)
        turns = {
            each: cast("Any", part)
            for each in (layers_in(now) if layer is None else [reader.layer(layer)])
            for part in parts_in(now, each)
            if getattr(part, "rotary", False)
        }
    found = list(dict.fromkeys(turns.values()))
    if not found:
        where = "no layer rotates" if layer is None else f"layer {layer} does not rotate"
        raise ValueError(f"{reader.called}: {where} queries and keys. Scheme.of(config) gives what it does instead")
    if len(found) > 1:
        first = {turn: each for each, turn in reversed(turns.items())}
        listed = "; ".join(f"layer {first[turn]} has {spell(turn)}" for turn in found)
        raise ValueError(f"{reader.called}: layers rotate differently; name one: Rope.of(config, layer=0). {listed}")
    return found[0]


def turns_of(reader: Reader, layer: int | None) -> dict[int, Any]:
    """Return the rotation of a layer, or of every layer that may differ, by its number."""
    family = family_of(reader)
    if layer is not None:
        layers = [reader.layer(layer)]
    else:
        layers = attention_layers(reader, family.rule) if family.varies(reader) else [0]
    return {
        each: family.rotation(reader, each)
        for each in layers
        if family.rotates(reader, each, layer_type(reader, each, family.rule))
    }


def attending(reader: Reader) -> list[int] | None:
    """Return which layers of a model attend, where others do not; None where all do."""
    if not isinstance(reader.family, Rotary):
        return None
    found = attention_layers(reader, reader.family.rule)
    return None if found == list(range(reader.layers)) else found


def read(config: object, asked: str) -> Reader:
    """Return the reader of a configuration; of one that contains several, that of its text."""
    config = configuration(config, asked)
    version = look_up(config, "transformers_version")
    outer = look_up(config, "model_type")
    text = text_of(config)
    source = config if text is None else text
    name = look_up(source, "model_type") or outer
    if name is None:
        raise ValueError(
            f"{asked}: the {type(config).__name__} has no model_type, by which the rest is read; give a model "
            f"or a config of transformers, a folder with a config.json, that file, or its dict: "
            f"{{'model_type': 'llama', …}}"
        )
    if not isinstance(name, str):
        raise TypeError(f"{asked}: model_type is {name!r}, and must be a string such as 'llama'")
    name = SAME.get(name, name)
    # Jina's own code of its third embedding model goes by the name of the one it began as.
    if name == "xlm-roberta" and look_up(source, "position_embedding_type") == "rotary":
        name = "jina_embeddings_v3"
    # The text of a PaliGemma counts the tokens of an image, which no other Gemma does.
    if outer == "paligemma" or (name in PALIGEMMA and look_up(source, "num_image_tokens") is not None):
        family, name = paligemma(asked, None if text is None and outer == "paligemma" else name), "paligemma"
    elif name in FAMILIES:
        family = FAMILIES[name]
    else:
        raise not_known(asked, name)
    return Reader(source, asked, name, family, look_up(source, "transformers_version") or version)


def not_known(asked: str, name: str) -> ValueError:
    """Return the error about a model type that is not read: why, or what would have to be known of it."""
    if name in NOT_READ:
        return ValueError(f"{asked}: model_type {name!r} cannot be read: {NOT_READ[name]}")
    near = did_you_mean(name, MODEL_TYPES) or "."
    return ValueError(
        f"{asked}: model_type {name!r} is not known{near} To read it one has to know how its queries and keys "
        f"rotate (base, channels, pairs), what is added to its scores and what scales them, and which keys are seen. "
        f"Write that in parts, such as Scheme(Rope(128, theta=500000.0), causal); "
        f"milepost.configs.MODEL_TYPES lists the {len(MODEL_TYPES)} types that are read"
    )


def paligemma(asked: str, text: str | None) -> Family:
    """Return the family of a PaliGemma, by the model type of its text."""
    if text in PALIGEMMA:
        return PALIGEMMA[text]
    given = "no text_config" if text is None else f"a text_config of model_type {text!r}"
    raise ValueError(f"{asked}: model_type 'paligemma' with {given}; its text is one of {', '.join(PALIGEMMA)}")


rope.reader = rope_of
