"""Model types without a rotation: learned tables, sinusoids, biases and slopes."""

import math
from typing import Any

from torch import nn

from milepost.configs.reader import HEADS, LENGTH, Reader, look_up
from milepost.methods.alibi import Alibi
from milepost.methods.alibi_stretches import AlibiInterpolate
from milepost.methods.biases import T5Bias
from milepost.methods.embeddings import Learned, Sinusoidal
from milepost.methods.relations import Deberta, TransformerXL
from milepost.methods.softmax import Scale
from milepost.seams.visible import Visible, causal, window


def seen(reader: Reader) -> list[Visible]:
    """Return the visible part of an encoder: none, or causal where it decodes."""
    return behind(reader) if reader.decodes else []


def behind(reader: Reader) -> list[Visible]:
    """Return the visible part of a decoder: causal, or none with is_causal: false."""
    return [causal] if reader.causal else []


# Rows of a table, added to the embeddings


def table(reader: Reader, *names: str, unused: int = 0, width: int | None = None) -> nn.Module:
    """Return a learned row for each position: as many as a key has, but for those never used."""
    rows = reader.need("the length of the table", *(names or LENGTH)) - unused
    return reader.learned(Learned, rows, width or reader.width)


def encoder(reader: Reader, layer: int) -> list[object]:
    """BERT: a learned row for each position."""
    demand_rows(reader)
    return [table(reader, width=reader.get("embedding_size")), *seen(reader)]


def demand_rows(reader: Reader) -> None:
    """Raise where an encoder has other positions than a table of rows."""
    kind = reader.get("position_embedding_type")
    if kind not in (None, "absolute"):
        raise reader.refuse("position_embedding_type", kind, "and only 'absolute' tables can be read from a config")


def padded_encoder(reader: Reader, layer: int) -> list[object]:
    """RoBERTa: the rows up to that of the padding token are never used, so position 0 is the row after it."""
    demand_rows(reader)
    return [table(reader, unused=reader.need("the padding token", "pad_token_id") + 1), *seen(reader)]


def decoder(reader: Reader, layer: int) -> list[object]:
    """GPT-2 and OPT: a learned row for each position; GPT-2 may change the scale, layer by layer."""
    scale = 1.0 if reader.get("scale_attn_weights") is False else reader.head_width**-0.5
    if reader.get("scale_attn_by_inverse_layer_idx"):
        scale /= layer + 1
    return [table(reader), *([] if scale == reader.head_width**-0.5 else [Scale(scale)]), *behind(reader)]


def gpt_neo(reader: Reader, layer: int) -> list[object]:
    """GPT-Neo: scores are not scaled, and every other layer sees a window. Its layers are causal by themselves."""
    listed: list[str] = reader.get("attention_layers") or [
        kind
        for kinds, times in reader.need("which layers are local", "attention_layers", "attention_types")
        for _ in range(times)
        for kind in kinds
    ]
    local = listed[layer] == "local"
    visible = causal & window(reader.need("the window", "window_size")) if local else causal
    return [table(reader), Scale(1.0), visible]


# Waves, added to the embeddings


def whisper(reader: Reader, layer: int) -> list[object]:
    """Whisper: waves for the sound, learned rows for the text."""
    if reader.decodes:
        return [table(reader, "max_target_positions"), *seen(reader)]
    return [waves(reader)]


def marian(reader: Reader, layer: int) -> list[object]:
    """Marian and Pegasus: sines before cosines, in the paper's wavelengths."""
    return [Sinusoidal(reader.width, layout="concatenated"), *seen(reader)]


def m2m(reader: Reader, layer: int) -> list[object]:
    """M2M-100: fairseq's waves, whose first position is after that of the padding token."""
    return [waves(reader, reader.need("the padding token", "pad_token_id") + 1), *seen(reader)]


def xglm(reader: Reader, layer: int) -> list[object]:
    """XGLM: fairseq's waves, whose first position is 2."""
    return [waves(reader, 2), *behind(reader)]


def waves(reader: Reader, start: int | None = None) -> Sinusoidal:
    """Sines before cosines, the last of them of wavelength 2π · 10000 exactly."""
    return Sinusoidal(reader.width, layout="concatenated", denominator=reader.width / 2 - 1, start=start)


def led(reader: Reader, layer: int) -> list[object]:
    """LED's decoder, a learned row for each position; its encoder is Longformer's."""
    if not reader.decodes:
        raise reader.refuse(
            "is_decoder",
            False,
            "and LED's encoder sees a window and the tokens that each call names as global, which no scheme describes; "
            "with is_decoder: true its decoder is read",
        )
    return [table(reader, "max_decoder_position_embeddings"), *seen(reader)]


# Numbers added to scores


def mpnet(reader: Reader, layer: int) -> list[object]:
    """MPNet: RoBERTa's rows, and T5's buckets over scores that are scaled."""
    buckets = reader.get("relative_attention_num_buckets")
    if buckets != 32:
        raise reader.refuse("relative_attention_num_buckets", buckets, "and MPNet's own code always uses 32")
    bias = reader.learned(T5Bias, reader.heads, buckets=buckets, reach=128, bidirectional=True)
    return [table(reader, unused=2), bias]


def longt5(reader: Reader, layer: int) -> list[object]:
    """LongT5: T5 within local_radius keys on each side; its decoder is T5's."""
    bias, scale, *rest = t5(reader, layer)
    if reader.decodes:
        return [bias, scale, *rest]
    kind = reader.get("encoder_attention_type")
    if kind not in (None, "local"):
        raise reader.refuse(
            "encoder_attention_type", kind, "and the sums of blocks that its tokens see besides are no keys of a scheme"
        )
    radius = reader.need("the keys on each side", "local_radius")
    return [bias, scale, window(radius + 1, ahead=radius)]


def bloom(reader: Reader, layer: int) -> list[object]:
    """BLOOM: ALiBi, written as m·j, which under the softmax equals −m·(i − j)."""
    return [slopes(reader), causal]


def mpt(reader: Reader, layer: int) -> list[object]:
    """MPT: ALiBi; its own scale where it has one."""
    settings: Any = reader.get("attn_config") or {}
    if look_up(settings, "alibi") is False:
        raise reader.refuse("attn_config['alibi']", False, "and MPT without ALiBi has learned rows that are not read")
    steepest = look_up(settings, "alibi_bias_max")
    scale = look_up(settings, "softmax_scale")
    return [
        slopes(reader, bias_max=8 if steepest is None else steepest),
        *([] if scale is None else [Scale(scale)]),
        causal,
    ]


def falcon_alibi(reader: Reader) -> list[object]:
    """Falcon-RW: ALiBi added before the scores are divided by √d, so every slope is √d times flatter."""
    return [slopes(reader, AlibiInterpolate(math.sqrt(reader.head_width))), causal]


def slopes(reader: Reader, stretch: AlibiInterpolate | None = None, bias_max: float = 8) -> Alibi:
    """ALiBi of a causal model; m·j is a penalty of the distance behind the query only."""
    if not reader.causal:
        raise reader.refuse(
            "is_causal", False, "and this model's slopes then favour keys ahead, where Alibi's lower them as well"
        )
    return Alibi(reader.heads, stretch=stretch, bias_max=bias_max)


def t5(reader: Reader, layer: int) -> list[object]:
    """T5: one bucketed table for all layers of a stack (umT5: one a layer), and scores that are not scaled."""
    bias = reader.learned(
        T5Bias,
        reader.need("the number of heads", "num_heads", *HEADS),
        buckets=reader.need("the number of buckets", "relative_attention_num_buckets"),
        reach=reader.need("the reach of the buckets", "relative_attention_max_distance"),
        bidirectional=not reader.decodes,
    )
    return [bias, Scale(1.0), *seen(reader)]


# Tables that meet queries and keys


def transformer_xl(reader: Reader, layer: int) -> list[object]:
    """Transformer-XL: sinusoids of the distance; u and v are the model's own unless untie_r."""
    if reader.get("attn_type") not in (None, 0):
        raise reader.refuse("attn_type", reader.get("attn_type"), "and only 0, the relative encoding, can be read")
    if reader.get("same_length"):
        raise reader.refuse("same_length", True, "which hides keys by the length of the memory")
    part = TransformerXL(reader.width, reader.heads, reader.head_width, reach=clamp(reader))
    first = reader.made.setdefault("first", part)
    if not reader.get("untie_r"):
        part.u, part.v = first.u, first.v
    return [part, causal]


def xlnet(reader: Reader, layer: int) -> list[object]:
    """XLNet: Transformer-XL's encoding, both ways unless attn_type is "uni"."""
    ways: Any = reader.get("attn_type") or "bi"
    if ways not in ("bi", "uni"):
        raise reader.refuse("attn_type", ways, "and it is 'bi' or 'uni'")
    if reader.get("bi_data"):
        raise reader.refuse("bi_data", True, "which turns distances round in half of the batch")
    part = TransformerXL(reader.width, reader.heads, reader.head_width, reach=clamp(reader))
    return [part, *([causal] if ways == "uni" else [])]


def clamp(reader: Reader) -> int | None:
    """The distance past which all are alike; zero and less mean none."""
    length = reader.get("clamp_len") or 0
    return length if length > 0 else None


def deberta(reader: Reader, layer: int) -> list[object]:
    """DeBERTa: content and position apart, one table for all layers, projected by each."""
    if not reader.get("relative_attention"):
        return encoder(reader, layer)
    kinds: Any = reader.get("pos_att_type") or ()
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else list(kinds)
    if sorted(kinds) != ["c2p", "p2c"]:
        raise reader.refuse("pos_att_type", kinds, "and Deberta has both 'c2p' and 'p2c'")
    reach = reader.get("max_relative_positions") or -1
    buckets = reader.get("position_buckets") or -1
    part = Deberta(
        reader.width,
        reader.heads,
        reader.head_width,
        reach=reach if reach > 0 else reader.need("the reach of the table", *LENGTH),
        buckets=buckets if buckets > 0 else None,
        # v1 has a bias where positions are projected to queries; v2 and v3 have one on both sides.
        bias="both" if reader.model_type == "deberta-v2" else "queries",
    )
    part.table = reader.made.setdefault("table", part.table)
    if not reader.get("position_biased_input"):
        return [part, *seen(reader)]
    return [table(reader), part]
