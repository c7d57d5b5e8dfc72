"""A model of the lab as a folder of transformers: config.json, safetensors and a tokenizer of bytes.

The lab's layers are Qwen3's, weight by weight: RMSNorm before each half, grouped queries, queries and keys normed head
by head before they are turned, SwiGLU. Without those norms they are Llama's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from milepost import Rope, Scheme, causal
from milepost.configs import read
from milepost.configs.layer_types import FULL
from milepost.hf.config.rope_parameters import expressed
from milepost.lab.cells.store import Store
from milepost.lab.schemes.named import build
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import Recipe
from milepost.lab.training.train import read_checkpoint
from milepost.refusal import need
from milepost.seams import demand

ASKED = SimpleNamespace(called="export")
"""Whom errors name."""
EPS = 1e-6
"""The lab's norms add it to the mean square."""
BYTES = 256


def write_lab_model(
    model: Model | str | os.PathLike[str], folder: str | os.PathLike[str], trained: int | None = None
) -> None:
    """Write a RoPE model of the lab into a folder that stock transformers reads, with the same logits.

    model: the checkpoint of a milepost compare, or a model. trained: the length it was trained at, which a checkpoint
    says itself. The tokenizer is one of bytes, with the lab's own ids; a model of another vocabulary gets none.
    """
    need("export", "hf", ("transformers", "safetensors"))
    from transformers import AutoConfig
    from transformers import AutoModelForCausalLM as Auto

    if not isinstance(model, Model):
        model, trained = _checkpoint(model)
    demand.whole(ASKED, "trained", trained)
    assert trained is not None
    rope = _rope(model)
    config = AutoConfig.for_model(**_config(model.shape, rope, trained))
    made = cast("Any", Auto).from_config(config, dtype=torch.float32)
    weights = dict(_weights(model))
    output = weights["model.embed_tokens.weight"] if model.head is None else model.head.weight.detach().clone()
    made.load_state_dict(weights | {"lm_head.weight": output})
    made.save_pretrained(folder)
    if model.shape.vocabulary == BYTES:
        tokenizer_of_bytes().save_pretrained(folder)


def _checkpoint(given: object) -> tuple[Model, int]:
    """Return a model that `milepost compare` trained, and at which length, by the store in the same folder."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(
            f"export({type(given).__name__}): give a model of transformers or of the lab, the folder of one, or the "
            f"path of a checkpoint that milepost compare wrote"
        )
    path = Path(cast("str | os.PathLike[str]", given))
    called, store = f"export({str(path)!r})", path.parent / "lab.sqlite"
    if not path.is_file():
        raise FileNotFoundError(f"{called}: no such file; milepost compare --out DIR writes DIR/….safetensors")
    if not store.is_file():
        raise FileNotFoundError(f"{called}: there is no {store}, in which milepost compare keeps what a checkpoint is")
    kept = Store(store)
    try:
        settings: dict[str, Any] = kept.cell(path.stem)["settings"]
    except KeyError as error:
        raise ValueError(f"{called}: {error.args[0]}") from None
    finally:
        kept.close()
    if settings["task"]:
        raise ValueError(f"{called}: this model was trained on {settings['task']}; models of language are exported")
    shape, recipe = Shape.of(settings["shape"]), Recipe(**settings["recipe"])
    model = Model(shape, build(settings["name"], shape, recipe.length, settings["judging"]["longest"]))
    tensors, _ = read_checkpoint(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(tensors[f"model.{name}"])
    return model, recipe.length


def _rope(model: Model) -> Rope:
    """The one rotation of a model, of which transformers' layers are capable."""
    for scheme in model.schedule:
        turn = next((part for part in scheme.parts if isinstance(part, Rope)), None)
        plain = turn is not None and turn.pairs == "halves" and turn.stretch is None
        if turn is None or not plain or not scheme.same_as(Scheme(turn, causal)):
            raise ValueError(
                f"export: this model's layers have {scheme!r}, and those of Qwen3 and Llama are "
                f"Scheme(Rope({model.shape.dim}), causal); export a model that was trained with rope"
            )
    found = {part for scheme in model.schedule for part in scheme.parts if isinstance(part, Rope)}
    if len(found) > 1:
        each = ", ".join(map(repr, found))
        raise ValueError(f"export: its layers turn differently ({each}), and those of Qwen3 do not")
    return found.pop()


def _config(shape: Shape, rope: Rope, trained: int) -> dict[str, Any]:
    sizes = {
        "model_type": "qwen3" if shape.normed else "llama",
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.groups,
        "head_dim": shape.dim, "rms_norm_eps": EPS, "tie_word_embeddings": shape.tied,
        "attention_bias": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    settings = expressed(read(sizes, "export"), {FULL: rope}, trained).transformers
    assert settings is not None
    return sizes | settings


def _weights(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that Qwen3 and Llama have for them."""
    shape = model.shape
    yield "model.embed_tokens.weight", model.tokens.weight.detach()
    yield "model.norm.weight", model.norm.weight.detach()
    for number, layer in enumerate(model.layers):
        own = {name: weight.detach() for name, weight in layer.named_parameters()}
        rows = [each * shape.dim for each in (shape.heads, shape.groups, shape.groups)]
        into: tuple[Tensor, ...] = torch.split(own["attention.into.weight"], rows)
        gate, up = own["up.weight"].chunk(2)
        named = {
            "self_attn.q_proj": into[0], "self_attn.k_proj": into[1], "self_attn.v_proj": into[2],
            "self_attn.o_proj": own["attention.out.weight"], "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": own["down.weight"], "input_layernorm": own["first.weight"],
            "post_attention_layernorm": own["second.weight"],
        }  # fmt: skip
        if shape.normed:
            named["self_attn.q_norm"] = own["attention.queries.weight"]
            named["self_attn.k_norm"] = own["attention.keys.weight"]
        yield from ((f"model.layers.{number}.{name}.weight", weight.clone()) for name, weight in named.items())


def tokenizer_of_bytes() -> Any:
    """A tokenizer of transformers whose ids are the bytes of UTF-8."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # No character has a token of its own, so each falls back to its bytes.
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(BYTES)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)
