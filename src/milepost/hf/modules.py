"""Attention modules of ours with a model's own weights, for models whose attention is not reached by name."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from milepost.call.options import Options
from milepost.hf import slots
from milepost.hf.attention import attended, refuse
from milepost.scheme import Scheme
from milepost.seams.demand import checking_values


class Replaced(nn.Module):
    """Stands in the place of an attention module: the same children under the same names, so the same state_dict."""

    upside_down = False
    """Whether a mask of booleans says which keys are hidden."""

    def __init__(self, original: Any, scheme: Scheme) -> None:
        super().__init__()
        for name, child in original.named_children():
            self.add_module(name, child)
        # Not a child: its weights are here already.
        self.__dict__["original"] = original
        self.__dict__["scheme"], self.layer_idx = scheme, original.layer_idx
        # A new module is in training, whatever its model is; dropout goes by that.
        self.training = original.training

    def put_back(self) -> nn.Module:
        """The module that was here, with the children as they are now: what wraps a weight stays."""
        original: nn.Module = self.__dict__["original"]
        for name, child in self.named_children():
            setattr(original, name, child)
        original.training = self.training
        return original

    def attended(self, qkv: tuple[Tensor, Tensor, Tensor], cache: Any, mask: Tensor | None, dropout: float) -> Tensor:
        """Queries, keys and values [b h t d], raw, to what the layer's heads answer: [b t h·d]."""
        q, k, v = qkv
        if cache is not None:
            k, v = cast("tuple[Tensor, Tensor]", cache.update(k, v, self.layer_idx))
        where = self.where(mask, q.shape[2], k.shape[2])
        out = attended(self.__dict__["scheme"], q, k, v, where, dropout if self.training else 0.0)
        return out.reshape(*out.shape[:2], -1)

    def where(self, mask: Tensor | None, t: int, s: int) -> Options:
        """Which tokens t queries and s keys are, by the mask that transformers made."""
        return read(mask, t, s, self.upside_down, first=self.layer_idx == 0)


def heads(x: Tensor, width: int) -> Tensor:
    """[b t h·d] → [b h t d]."""
    return x.reshape(*x.shape[:2], -1, width).transpose(1, 2)


class Gptj(Replaced):
    """GPT-J: neighbouring channels are turned, and its tables of cosines are not asked for."""

    out_proj: Any
    resid_dropout: Any

    def forward(
        self,
        hidden_states: Tensor,
        layer_past: Any = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """What transformers' module takes and answers."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        projected = (getattr(self, name)(hidden_states) for name in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (heads(each, own.head_dim) for each in projected)
        out = self.out_proj(self.attended((q, k, v), layer_past, attention_mask, own.attn_dropout.p))
        return self.resid_dropout(out), None


class Bloom(Replaced):
    """BLOOM: ALiBi; the residual is added inside."""

    query_key_value: Any
    dense: Any

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor | None = None,
        attention_mask: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """What transformers' module takes and answers."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        joined: Any = self.query_key_value(hidden_states).unflatten(-1, (own.num_heads, 3, own.head_dim))
        q, k, v = (each.transpose(1, 2) for each in joined.unbind(-2))
        out = self.dense(self.attended((q, k, v), layer_past, attention_mask, own.attention_dropout.p))
        return residual + nn.functional.dropout(out, own.hidden_dropout, self.training), None


class Mpt(Replaced):
    """MPT: ALiBi, and a mask that says which keys are hidden."""

    upside_down = True
    Wqkv: Any
    out_proj: Any

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """What transformers' module takes and answers."""
        own: Any = self.__dict__["original"]
        joined: Any = self.Wqkv(hidden_states)
        if own.clip_qkv:
            joined = joined.clamp(-own.clip_qkv, own.clip_qkv)
        q, k, v = (heads(each, own.head_dim) for each in joined.chunk(3, dim=-1))
        return self.out_proj(self.attended((q, k, v), past_key_values, attention_mask, own.attn_dropout_p)), None


class Falcon(Replaced):
    """Falcon: rotations or ALiBi, and three ways to lay queries, keys and values out."""

    query_key_value: Any
    dense: Any

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """What transformers' module takes and answers."""
        refuse({"output_attentions": output_attentions})
        own: Any = self.__dict__["original"]
        joined: Any = self.query_key_value(hidden_states)
        h, g, d = own.num_heads, own.num_kv_heads, own.head_dim
        if own.new_decoder_architecture:
            q, k, v = joined.unflatten(-1, (g, -1, d)).split((h // g, 1, 1), -2)
            # Its cache keeps a key for every query.
            q, k, v = q.flatten(2, 3), *(each.expand_as(q).flatten(2, 3) for each in (k, v))
        elif own.multi_query:
            q, k, v = joined.unflatten(-1, (-1, d)).split((h, 1, 1), -2)
        else:
            q, k, v = joined.unflatten(-1, (h, 3, d)).unbind(-2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        # Dropout is applied with ALiBi alone there.
        dropout = 0.0 if alibi is None else own.attention_dropout.p
        return self.dense(self.attended((q, k, v), layer_past, attention_mask, dropout)), None


OURS: dict[str, type[Replaced]] = {"bloom": Bloom, "falcon": Falcon, "gptj": Gptj, "mpt": Mpt}
"""The module that takes the place of each model type's own."""


def read(mask: Tensor | None, t: int, s: int, upside_down: bool, first: bool) -> Options:
    """What `attend` is given for a causal mask [b h|1 t s] of transformers: who is padding, who is not there yet."""
    if mask is None:
        return {}
    if mask.dtype == torch.long:
        # Not transformers' own: a stream says which tokens it has.
        return slots.read(mask, t, s)
    if mask.is_floating_point():
        seen = mask[:, 0] > torch.finfo(mask.dtype).min / 2
    else:
        seen = mask[:, 0].bool() ^ upside_down
    real, count = seen.any(1), seen.sum(-1)
    index, key_index = (count - 1).clamp(min=0), (real.cumsum(-1) - 1).clamp(min=0)
    if first and checking_values(mask.device):
        causal = (key_index[:, None] <= index[..., None]) & real[:, None] & (count > 0)[..., None]
        if not torch.equal(causal, seen):
            raise ValueError(
                f"milepost: the attention mask {list(mask.shape)} for {t} queries and {s} keys hides more than padding "
                f"and keys ahead; an extended model takes the mask of padding, [b, n], and makes the rest itself"
            )
    return {
        "key_index": key_index, "index": index,
        "key_documents": torch.where(real, 0, -1), "documents": torch.where(count > 0, 0, -1),
    }  # fmt: skip
