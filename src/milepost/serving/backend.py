# pyright: basic, reportMissingImports=false
"""Attention of vLLM's layers by `attend`: pages hold raw keys, and each text is gathered and attended to by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, MultipleOf

from milepost import Scheme
from milepost.serving.pages import Texts, attend_in_pages, write

NAME = "MILEPOST"


class RawKeys(AttentionBackend):
    """Pages of raw keys, in any layout and of any size."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[Attend]:
        return Attend

    @staticmethod
    def get_builder_cls() -> type[TextsOfStep]:
        return TextsOfStep

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]


@dataclass
class Step:
    """What all layers share in one step."""

    texts: Texts


class TextsOfStep(AttentionMetadataBuilder[Step]):
    """Where each text of a step lies."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Step:
        """Return the texts of a step; a prefix that all share (cascade attention) is read as part of each."""
        common = common_attn_metadata
        if common.causal is not True:
            raise ValueError("milepost in vLLM: a step that sees keys ahead was asked for, and schemes are causal")
        count = common.num_reqs
        starts = common.query_start_loc_cpu[: count + 1].tolist()
        return Step(Texts(starts, common.seq_lens[:count].tolist(), common.block_table_tensor[:count]))


class Attend(AttentionImpl[Step]):
    """The attention of one layer under its scheme."""

    def __init__(self, scheme: Scheme, of: AttentionImpl[Any]) -> None:
        """Take the sizes of a layer from the implementation that vLLM gave it."""
        self.scheme = scheme
        self.num_heads, self.head_size, self.num_kv_heads = of.num_heads, of.head_size, of.num_kv_heads
        self.scale, self.kv_cache_dtype = of.scale, of.kv_cache_dtype

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Put the raw keys and the values of new tokens into the pages [pages g size 2d]."""
        write(kv_cache, key, value, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Step | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query: [n h d], raw; output: [n h d]."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("milepost in vLLM: outputs that are quantised by attention were not run")
        if attn_metadata is None:
            # vLLM measures memory and compiles: nobody reads the answer.
            return output.zero_()
        return attend_in_pages(query, kv_cache, attn_metadata.texts, self.scheme, output)
