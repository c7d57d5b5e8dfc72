"""Reading other people's configurations: what a model's config.json means, said in parts of a scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.configs.families import FAMILIES, NOT_READ, PALIGEMMA, SAME
from milepost.configs.layers import attention_layers, layer_type
from milepost.configs.lengths import trained_length
from milepost.configs.reader import Family, Reader, look_up
from milepost.configs.rotary import family_of
from milepost.configs.source import configuration, text_of
from milepost.methods.rope import Rope
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams.arguments import did_you_mean, spell

MODEL_TYPES = tuple(sorted({*FAMILIES, *SAME, "paligemma"}))


def rope_of(config: object, layer: int | None = None) -> Any:
    """What turns queries and keys in a model, read from its config: a Rope, a Partial, an AxialRope or a TwoPartRope.

    config: a model or a config object of transformers, a folder with a config.json, that file, or its dict, old or new.
    Name a layer where layers turn differently. In models with latent keys (DeepSeek) the channels that turn come first:
    give attend torch.cat((q_rope, q_nope), -1).
    """
    reader = read(config, "Rope.of")
    family = family_of(reader)
    if layer is not None:
        layers = [reader.layer(layer)]
    else:
        layers = attention_layers(reader, family.rule) if family.varies(reader) else [0]
    turns = {
        each: family.turn(reader, each)
        for each in layers
        if family.turned(reader, each, layer_type(reader, each, family.rule))
    }
    found = list(dict.fromkeys(turns.values()))
    if not found:
        where = "no layer turns" if layer is None else f"layer {layer} does not turn"
        raise ValueError(f"{reader.called}: {where} queries and keys. Scheme.of(config) gives what it does instead")
    if len(found) > 1:
        first = {turn: each for each, turn in reversed(turns.items())}
        listed = "; ".join(f"layer {first[turn]} has {spell(turn)}" for turn in found)
        raise ValueError(f"{reader.called}: layers turn differently, so say which: Rope.of(config, layer=0). {listed}")
    return found[0]


def scheme_of(config: object, layer: int = 0) -> Scheme:
    """The scheme of one layer of a model, read from its configuration.

    config: a model or a config object of transformers, a folder with a config.json, that file, or its dict.
    `scheme.trained` is the length that the model was trained at: max_position_embeddings, or the original one where it
    is stretched.

    An encoder-decoder is read as its encoder, or, with is_decoder in the config, as its decoder. With is_causal: false,
    as embedding models have it, there is no causal part. In a model where some layers are linear, convolutions or
    Mamba (Qwen3-Next, Kimi Linear, LFM2), name a layer that attends; any other raises, and the error says which do.

    DeepSeek-V3.2 and GLM-5 choose the index_topk keys that a query sees, by content. They are read as their texts of up
    to index_topk tokens are, where every key is chosen; no scheme says what they do past that.

    PaliGemma is read as transformers runs it on a plain text, causally. It sees a prefix, the n tokens of image and
    prompt, both ways; n is not in the config, so say it:

        *parts, visible = Scheme.of(config, layer).parts
        scheme = Scheme(*parts, visible | sinks(n) & chunks(n))
    """
    reader = read(config, "Scheme.of")
    return made(reader, reader.family.parts(reader, reader.layer(layer)))


def schedule_of(config: object) -> Schedule:
    """The schemes of all layers of a model, read from its configuration, given as to Scheme.of.

    Layers that agree are one object; tables that the model shares over its layers are shared.
    """
    reader = read(config, "Schedule.of")
    distinct: dict[tuple[object, ...], Scheme] = {}
    schemes: list[Scheme] = []
    for layer in range(reader.layers):
        # Parts that learn equal only themselves, so layers with weights of their own stay apart.
        parts = tuple(reader.family.parts(reader, layer))
        if parts not in distinct:
            distinct[parts] = made(reader, parts)
        schemes.append(distinct[parts])
    schedule = Schedule(schemes)
    schedule.trained = schemes[0].trained
    return schedule


def made(reader: Reader, parts: Sequence[object]) -> Scheme:
    """The scheme of these parts, with the length that its model was trained at."""
    scheme = Scheme(*parts)
    scheme.trained = trained_length(reader, parts)
    return scheme


def read(config: object, asked: str) -> Reader:
    """The reader of a configuration; of one that holds several, that of its text."""
    config = configuration(config, asked)
    version = look_up(config, "transformers_version")
    outer = look_up(config, "model_type")
    text = text_of(config)
    source = config if text is None else text
    name = look_up(source, "model_type") or outer
    if name is None:
        raise ValueError(
            f"{asked}: the {type(config).__name__} has no model_type, which says how the rest is meant; give a model "
            f"or a config of transformers, a folder with a config.json, that file, or its dict: "
            f"{{'model_type': 'llama', …}}"
        )
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
        raise not_known(asked, str(name))
    return Reader(source, asked, name, family, look_up(source, "transformers_version") or version)


def not_known(asked: str, name: str) -> ValueError:
    """The error about a model type that is not read: why, or what would have to be known of it."""
    if name in NOT_READ:
        return ValueError(f"{asked}: model_type {name!r} cannot be read: {NOT_READ[name]}")
    near = did_you_mean(name, MODEL_TYPES) or "."
    return ValueError(
        f"{asked}: model_type {name!r} is not known{near} To read it one has to know how its queries and keys "
        f"turn (base, channels, pairs), what is added to its scores and what scales them, and which keys are seen. Say "
        f"that in parts, such as Scheme(Rope(128, theta=500000.0), causal); "
        f"milepost.configs.MODEL_TYPES lists the {len(MODEL_TYPES)} types that are read"
    )


def paligemma(asked: str, text: str | None) -> Family:
    """The family of a PaliGemma, by the model type of its text."""
    if text in PALIGEMMA:
        return PALIGEMMA[text]
    given = "no text_config" if text is None else f"a text_config of model_type {text!r}"
    raise ValueError(f"{asked}: model_type 'paligemma' with {given}; its text is one of {', '.join(PALIGEMMA)}")


# What reads configurations stands above what it makes, so it is put there from here.
Rope.of = staticmethod(rope_of)
Scheme.of = staticmethod(scheme_of)
Schedule.of = staticmethod(schedule_of)

__all__ = ["MODEL_TYPES", "read", "rope_of", "schedule_of", "scheme_of"]
