"""Queries and keys through the rotary functions of transformers, and through `turn`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.gemma import modeling_gemma as gemma
from transformers.models.glm import modeling_glm as glm
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.phi3 import modeling_phi3 as phi3
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.roformer import modeling_roformer as roformer

from milepost import AxialRope, Partial, Rope
from tests.oracles import assert_same, inputs
from tests.parity.peers import EXACT, Tables, U, assert_within, halves, image_ids, table_error, turns, twice


def single(cos: Tensor, sin: Tensor) -> Tables:
    return cos, sin


def complex_(cos: Tensor, sin: Tensor) -> Tables:
    return (torch.complex(cos, sin),)


def time_first(apply: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """For functions that take [b t h d]."""

    def run(q: Tensor, k: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
        q, k = apply(q.transpose(1, 2), k.transpose(1, 2), *tables)
        return q.transpose(1, 2), k.transpose(1, 2)

    return run


@dataclass
class Peer:
    """One model's rotary code: its tables, how they lie, and what it turns with them. Heads are 16 wide, or 8."""

    of: int
    turned: int
    pairs: str
    layout: Callable[[Tensor, Tensor], Tables]
    apply: Callable[..., tuple[Tensor, Tensor]]
    rotary: Callable[[Any], Any]
    config: str
    rounds: bool = False
    """Whether queries and keys are rounded to float32 first."""

    def ours(self, theta: float) -> Any:
        rope = Rope(self.turned, theta=theta, pairs=self.pairs)
        return rope if self.of == self.turned else Partial(rope, of=self.of)

    def tables(self, position: Tensor, theta: float) -> Tables:
        """What the model's own class makes, float32."""
        share = {} if self.of == self.turned else {"partial_rotary_factor": self.turned / self.of}
        config = getattr(transformers, self.config)(
            hidden_size=4 * self.of, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
            # DeepSeek has another name for the width of what is turned; the others leave it alone.
            head_dim=self.of, qk_rope_head_dim=self.of,
            rope_parameters={"rope_type": "default", "rope_theta": theta, **share},
        )  # fmt: skip
        made = self.rotary(config)(torch.zeros(1), position)
        return made if isinstance(made, tuple) else (made,)


PEERS = {
    "Llama": Peer(8, 8, "halves", halves, llama.apply_rotary_pos_emb, llama.LlamaRotaryEmbedding, "LlamaConfig"),
    "Gemma": Peer(8, 8, "halves", halves, gemma.apply_rotary_pos_emb, gemma.GemmaRotaryEmbedding, "GemmaConfig"),
    "GPT-NeoX": Peer(
        16, 4, "halves", halves, neox.apply_rotary_pos_emb, neox.GPTNeoXRotaryEmbedding, "GPTNeoXConfig"
    ),
    "Phi-3": Peer(16, 8, "halves", halves, phi3.apply_rotary_pos_emb, phi3.Phi3RotaryEmbedding, "Phi3Config"),
    "gpt-oss": Peer(
        8, 8, "halves", single, gpt_oss.apply_rotary_pos_emb, gpt_oss.GptOssRotaryEmbedding, "GptOssConfig"
    ),
    "GLM": Peer(16, 8, "neighbours", halves, glm.apply_rotary_pos_emb, glm.GlmRotaryEmbedding, "GlmConfig"),
    "Cohere": Peer(
        8, 8, "neighbours", twice, cohere.apply_rotary_pos_emb, cohere.CohereRotaryEmbedding, "CohereConfig", True
    ),
    "Llama 4": Peer(
        8, 8, "neighbours", complex_, time_first(llama4.apply_rotary_emb), llama4.Llama4TextRotaryEmbedding,
        "Llama4TextConfig", True,
    ),
    "DeepSeek-V2": Peer(
        8, 8, "neighbours", complex_, deepseek_v2.apply_rotary_emb, deepseek_v2.DeepseekV2RotaryEmbedding,
        "DeepseekV2Config", True,
    ),
}  # fmt: skip


def both() -> tuple[Tensor, Tensor]:
    q, k, _ = inputs(d=16, t=12)
    return q, k


def pair_sizes(x: Tensor, turned: int, pairs: str) -> Tensor:
    """|a| + |b| of the pair that each channel belongs to, 0 past the turned ones; [… d]."""
    size = x[..., :turned].abs()
    a, b = size.chunk(2, -1) if pairs == "halves" else (size[..., ::2], size[..., 1::2])
    spread = torch.cat((a + b, a + b), -1) if pairs == "halves" else (a + b).repeat_interleave(2, -1)
    return torch.cat((spread, torch.zeros_like(x[..., turned:])), -1)


POSITIONS = torch.stack((torch.arange(12), torch.arange(12) * 7 + 3))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("theta", [10000.0, 5e5])
def test_their_function_turns_as_ours(name: str, theta: float):
    peer = PEERS[name]
    tables = peer.layout(*turns(POSITIONS, peer.turned, theta))
    q, k = (x[..., : peer.of] for x in both())
    for theirs, x in zip(peer.apply(q, k, *tables), (q, k), strict=True):
        ours = peer.ours(theta).turn(x, POSITIONS)
        allowed = U * peer.rounds * pair_sizes(x, peer.turned, peer.pairs) + EXACT
        assert_within(ours, theirs, allowed)


@pytest.mark.parametrize("name", PEERS)
def test_their_tables_and_function_turn_as_ours_up_to_float32(name: str):
    peer, theta = PEERS[name], 10000.0
    q, k = (x[..., : peer.of] for x in both())
    error = table_error(POSITIONS, peer.turned, theta).repeat(1, 1, 2)
    error = error if peer.pairs == "halves" else error.unflatten(-1, (2, -1)).mT.flatten(-2)
    error = torch.cat((error, torch.zeros(2, 12, peer.of - peer.turned)), -1)[:, None]
    tables = peer.tables(POSITIONS, theta)
    for theirs, x in zip(peer.apply(q, k, *tables), (q, k), strict=True):
        ours = peer.ours(theta).turn(x, POSITIONS)
        # Where x and the products are float32 too, each of the two costs U, and so does their sum.
        allowed = (error + 4 * U) * pair_sizes(x, peer.turned, peer.pairs) + EXACT
        assert_within(ours, theirs, allowed)


@pytest.mark.parametrize("name", PEERS)
def test_a_million_tokens_in_they_agree_where_their_angles_are_exact(name: str):
    # θ = 2^width makes the frequencies 1, 1/4, 1/16 …: float32 then holds every angle, and rounds its cosine alone.
    peer = PEERS[name]
    theta, position = 2.0**peer.turned, POSITIONS + 1_000_000
    q, k = (x[..., : peer.of] for x in both())
    for theirs, x in zip(peer.apply(q, k, *peer.tables(position, theta)), (q, k), strict=True):
        ours = peer.ours(theta).turn(x, position)
        allowed = 6 * U * pair_sizes(x, peer.turned, peer.pairs) + EXACT
        assert_within(ours, theirs, allowed)


def test_gpt_j_turns_neighbours_of_the_first_channels():
    q, k = both()
    cos, sin = turns(POSITIONS, 6)
    for x in (q, k):
        turned = gptj.apply_rotary_pos_emb(x[..., :6].transpose(1, 2), sin, cos).transpose(1, 2)
        ours = Partial(Rope(6, pairs="neighbours"), of=16).turn(x, POSITIONS)
        assert_same(ours, torch.cat((turned, x[..., 6:]), -1), within=EXACT)


def test_the_table_of_gpt_j_is_float32_of_ours():
    theirs = gptj.create_sinusoidal_positions(90, 6)
    cos, sin = Rope(6).cos_sin(torch.arange(90), dtype=torch.float64)
    error = table_error(torch.arange(90), 6, 10000.0).repeat(1, 2)
    assert_within(torch.cat((sin, cos), -1), theirs, error)


def test_roformer_turns_neighbours():
    q, k = (x[:, :2] for x in both())
    table = torch.cat(turns(torch.arange(12), 16)[::-1], -1)[None, None]
    theirs = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(table, q, k)
    for x, other in zip((q, k), theirs, strict=True):
        assert_same(Rope(16, pairs="neighbours").turn(x, torch.arange(12)), other, within=EXACT)
    own = roformer.RoFormerSinusoidalPositionalEmbedding(12, 16).create_weight()
    # Angles are float64 there, and the table is rounded.
    assert_same(table[0, 0], own, within=U)


def test_deepseek_v3_turns_neighbours_and_lays_them_out_as_halves():
    q, k = both()
    theirs = deepseek_v3.apply_rotary_pos_emb_interleave(q, k, *halves(*turns(POSITIONS, 16)))
    for x, other in zip((q, k), theirs, strict=True):
        ours = Rope(16, pairs="neighbours").turn(x, POSITIONS)
        assert_same(torch.cat((ours[..., ::2], ours[..., 1::2]), -1), other, within=EXACT)


def test_qwen2_vl_turns_by_time_height_and_width():
    ids = image_ids()
    assert (ids[0] != ids[1]).any(), "the ids are those of plain text"
    assert (ids[1] != ids[2]).any(), "the ids are those of plain text"
    t = ids.shape[-1]
    q, k, _ = inputs(t=t, d=128)
    config = transformers.Qwen2VLConfig().text_config
    config.hidden_size, config.num_attention_heads = 512, 4
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    rotary = qwen2_vl.Qwen2VLRotaryEmbedding(config)
    rope, position = AxialRope(128, (16, 24, 24), theta=1e6), ids.permute(1, 2, 0)
    # First its own recomposition of float64 tables, then the class as it stands.
    cos, sin = turns(ids, 128, 1e6)
    exact = tuple(rotary.recomposition_frequencies(table) for table in (cos, sin))
    rounded = rotary(torch.zeros(1), ids)
    error = table_error(ids.amax(0), 128, 1e6).repeat(1, 1, 2)[:, None] + 2 * U
    for x, theirs, as_it_stands in zip(
        (q, k), qwen2_vl.apply_rotary_pos_emb(q, k, *exact), qwen2_vl.apply_rotary_pos_emb(q, k, *rounded), strict=True
    ):
        ours = rope.turn(x, position)
        assert_same(ours, theirs, within=EXACT)
        assert_within(ours, as_it_stands, error * pair_sizes(x, 128, "halves") + EXACT)
