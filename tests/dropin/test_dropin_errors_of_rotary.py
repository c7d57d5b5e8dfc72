"""What the rotary drop-ins refuse, and in what words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from milepost import dropin
from milepost.dropin import LlamaRotaryEmbedding
from tests.refusals import INF, NAN, refused

MROPE = {
    "model_type": "qwen2_vl",
    "head_dim": 16,
    "rope_theta": 1e4,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def turn(xq: Tensor, xk: Tensor | None = None, dim: int = 8, end: int = 9, **settings: Any) -> Any:
    table = dropin.precompute_freqs_cis(dim, end)
    return dropin.apply_rotary_emb(xq, xq if xk is None else xk, table, **settings)


def by_tables(q: Tensor, k: Tensor, ids: Tensor, cos: Tensor | None = None, rows: int = 9) -> Any:
    cos = zeros(1, 1, rows, q.shape[-1]) if cos is None else cos
    return dropin.apply_rotary_pos_emb(q, k, cos, zeros(1, 1, rows, q.shape[-1]), ids)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (
            lambda: turn(zeros(8, 8)),
            ValueError,
            "apply_rotary_emb: xq and xk are [b t h d], or [b t d] …given xq [8, 8]",
        ),
        (lambda: turn(zeros(2, 5, 8), zeros(2, 5, 1, 8)), ValueError, "apply_rotary_emb: xq and xk are [b t h d], or"),
        (
            lambda: turn(zeros(2, 5, 3, 8), zeros(2, 6, 3, 8)),
            ValueError,
            "apply_rotary_emb: xq and xk differ in more than their heads; given xq [2, 5, 3, 8], xk [2, 6, 3, 8]",
        ),
        (
            lambda: turn(zeros(2, 5, 3, 7)),
            ValueError,
            "apply_rotary_emb: xq [2, 5, 3, 7] has 7 channels; they are rotated in pairs, so their number must be even",
        ),
        (
            lambda: turn(zeros(2, 5, 3, 8), dim=24),
            ValueError,
            "apply_rotary_emb: freqs_cis is for 24 channels, but xq [2, 5, 3, 8] has 8; make it as wide as one head: "
            "precompute_freqs_cis(8, …)",
        ),
        (
            lambda: turn(zeros(2, 12, 3, 8)),
            ValueError,
            "apply_rotary_emb: freqs_cis has 9 rows, but 12 tokens from start=0 need 12; make it longer: "
            "precompute_freqs_cis(8, 12); if tokens are on axis 2, as after transpose(1, 2), give axis=2",
        ),
        (
            lambda: turn(zeros(2, 1, 8), start=9),
            ValueError,
            "apply_rotary_emb: freqs_cis has 9 rows, but 1 tokens from start=9 need 10; make it longer: "
            "precompute_freqs_cis(8, 10)",
        ),
        (
            lambda: turn(zeros(2, 3, 9, 8)),
            ValueError,
            "apply_rotary_emb: freqs_cis has 9 rows, which is axis 2 of xq [2, 3, 9, 8], but tokens are on axis 1; "
            "give axis=1 for [b t h d] with a longer table, or axis=2 for [b h t d]",
        ),
        (
            lambda: turn(zeros(2, 5, 8), axis=2),
            ValueError,
            "apply_rotary_emb(axis=2): tokens are on axis 1, or on axis 2",
        ),
        (lambda: turn(zeros(2, 5, 3, 8), axis=3), ValueError, "apply_rotary_emb(axis=3): tokens are on axis 1, or on"),
        (lambda: turn(zeros(2, 5, 3, 8), start=-1), ValueError, "apply_rotary_emb(start=-1): start must be at least 0"),
        (
            lambda: turn(zeros(2, 5, 3, 8), start=True),
            TypeError,
            "apply_rotary_emb(start=True): start must be an integer",
        ),
        (
            lambda: dropin.apply_rotary_emb(zeros(2, 5, 8), zeros(2, 5, 8), zeros(5, 4)),
            ValueError,
            "apply_rotary_emb: freqs_cis is complex [n d/2] or [b t d/2], or real with (cos, sin) as a last axis of 2; "
            "given torch.float32 [5, 4]; casting a complex table to a real dtype drops its sines: precompute it again",
        ),
        (
            lambda: dropin.apply_rotary_emb(zeros(2, 5, 8), zeros(2, 5, 8), zeros(3, 5, 4, 2)),
            ValueError,
            "apply_rotary_emb: freqs_cis with a batch axis has a row for each token, [2, 5, 4], and takes no start; "
            "given [3, 5, 4] and start=0",
        ),
    ],
)
def test_turning_by_complex_tables(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


def test_saying_the_axis_settles_what_a_shape_could_mean():
    assert turn(zeros(2, 3, 9, 8), axis=1)[0].shape == turn(zeros(2, 3, 9, 8), axis=2)[0].shape == (2, 3, 9, 8)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (
            lambda: dropin.precompute_freqs_cis(7, 4),
            ValueError,
            "precompute_freqs_cis(dim=7): dim must be even, because",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8.0, 4),
            TypeError,
            "precompute_freqs_cis(dim=8.0): dim must be an integer",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8, -1),
            ValueError,
            "precompute_freqs_cis(end=-1): end must be at least 0",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8, 4.5),
            TypeError,
            "precompute_freqs_cis(end=4.5): end must be an integer",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8, 4, NAN),
            ValueError,
            "precompute_freqs_cis(theta=nan): theta must be fin",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8, 4, 1),
            ValueError,
            "precompute_freqs_cis(theta=1): theta must be greater",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8),
            TypeError,
            "precompute_freqs_cis: end and seq_len are one thing; given neither, give one",
        ),
        (
            lambda: dropin.precompute_freqs_cis(8, 4, d_model=8),
            TypeError,
            "precompute_freqs_cis: dim and d_model are one thing; given both, give one",
        ),
        (
            lambda: LlamaRotaryEmbedding(7),
            ValueError,
            "LlamaRotaryEmbedding(head_dim=7): head_dim must be even, because",
        ),
        (lambda: LlamaRotaryEmbedding(8, 0), ValueError, "LlamaRotaryEmbedding(max_position_embeddings=0): max_pos"),
        (lambda: LlamaRotaryEmbedding(8, 4, INF), ValueError, "LlamaRotaryEmbedding(base=inf): base must be finite"),
        (
            lambda: LlamaRotaryEmbedding(8)(zeros(1, 8), -2),
            ValueError,
            "LlamaRotaryEmbedding(seq_len=-2): seq_len must",
        ),
        (
            lambda: LlamaRotaryEmbedding(8)(zeros(1, 8), 2.0),
            TypeError,
            "LlamaRotaryEmbedding(seq_len=2.0): seq_len must",
        ),
        (lambda: LlamaRotaryEmbedding(8)(zeros(8)), ValueError, "LlamaRotaryEmbedding: x is [b h t d]; given [8]"),
        (
            lambda: LlamaRotaryEmbedding(),
            TypeError,
            "LlamaRotaryEmbedding: give the width of a head (head_dim, also called dim) or a config; given none of",
        ),
        (lambda: LlamaRotaryEmbedding(8, dim=8), TypeError, "LlamaRotaryEmbedding: give …; given head_dim and dim"),
        (lambda: LlamaRotaryEmbedding(8, config={}), TypeError, "LlamaRotaryEmbedding: …; given head_dim and config"),
        (
            lambda: LlamaRotaryEmbedding(MROPE),
            ValueError,
            "LlamaRotaryEmbedding: the config rotates by AxialRope(16, (2, 3, 3)), which reads several positions",
        ),
        (
            lambda: LlamaRotaryEmbedding(8)(zeros(8), torch.zeros(2, 3, dtype=torch.bool)),
            TypeError,
            "LlamaRotaryEmbedding: position_ids are numbers [t] or [b t], given torch.bool [2, 3]",
        ),
        (
            lambda: LlamaRotaryEmbedding(8)(torch.arange(8)),
            TypeError,
            "LlamaRotaryEmbedding: x must be of a floating dty",
        ),
    ],
)
def test_tables_of_turns(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


Q, K, IDS = zeros(2, 4, 5, 8), zeros(2, 2, 5, 8), torch.arange(5)


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (
            lambda: dropin.rotate_half(zeros(2, 7)),
            ValueError,
            "rotate_half: x [2, 7] has 7 channels; they are rotated in",
        ),
        (
            lambda: by_tables(Q[0], K[0], IDS),
            ValueError,
            "apply_rotary_pos_emb: q is [b h t d] and k [b g t d]; given q",
        ),
        (
            lambda: by_tables(Q, K[:, :, :3], IDS),
            ValueError,
            "apply_rotary_pos_emb: q is [b h t d] and k [b g t d]; giv",
        ),
        (lambda: by_tables(Q[..., :7], K[..., :7], IDS), ValueError, "apply_rotary_pos_emb: q [2, 4, 5, 7] has 7 chan"),
        (
            lambda: by_tables(Q, K, IDS, cos=zeros(2, 1, 9, 8)),
            ValueError,
            "apply_rotary_pos_emb: cos and sin are [2, 5, 8], a row for each token, or a table [1, 1, n, 8] or [n, 8]; "
            "given [2, 1, 9, 8] and [1, 1, 9, 8]",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(2, 6, 8), zeros(2, 6, 8)),
            ValueError,
            "apply_rotary_pos_emb: cos and sin are [2, 5, 8], a row for each token, or …given [2, 6, 8] and [2, 6, 8]",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(2, 5, 10), zeros(2, 5, 10)),
            ValueError,
            "apply_rotary_pos_emb: cos and sin are [2, 5, 8], a row for each token, or",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(9, 8), zeros(9, 8)),
            ValueError,
            "apply_rotary_pos_emb: cos and sin have 9 rows for 5 tokens; give position_ids, the row that each token",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(2, 5, 8), zeros(2, 5, 8), 3),
            ValueError,
            "apply_rotary_pos_emb(unsqueeze_dim=3): heads are on axis 1, [b h t d], or on axis 2, [b t h d]",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(2, 5, 8), zeros(2, 5, 8), unsqueeze_dim=True),
            ValueError,
            "apply_rotary_pos_emb(unsqueeze_dim=True): heads are on axis 1",
        ),
        (
            lambda: dropin.apply_rotary_pos_emb(Q, K, zeros(2, 5, 8), zeros(2, 5, 8), unsqueeze_dim=2),
            ValueError,
            "apply_rotary_pos_emb: with unsqueeze_dim=2 q is [b t h d] and k [b t g d]; given q [2, 4, 5, 8], k [2, 2",
        ),
        (lambda: by_tables(Q, K, IDS.float()), TypeError, "apply_rotary_pos_emb: position_ids must be integers, given"),
        (
            lambda: by_tables(Q, K, torch.arange(4)),
            ValueError,
            "apply_rotary_pos_emb: position_ids must be [5], [1, 5] or [2, 5], given [4]",
        ),
        (
            lambda: by_tables(Q, K, IDS + 53),
            ValueError,
            "apply_rotary_pos_emb: position_ids has 57, but cos and sin have 9 rows; ask "
            "LlamaRotaryEmbedding for more: seq_len=58",
        ),
        (lambda: by_tables(Q, K, IDS - 1), ValueError, "apply_rotary_pos_emb: position_ids has -1; positions count"),
        (
            lambda: dropin.rotary_position_embedding(Q, K[..., :6]),
            ValueError,
            "rotary_position_embedding: q is [b h t d] and k [b g s d]; given q [2, 4, 5, 8], k [2, 2, 5, 6]",
        ),
        (
            lambda: dropin.rotary_position_embedding(Q, K[:, :, :3]),
            ValueError,
            "rotary_position_embedding: queries are the last of the keys, but there are 5 queries and 3 keys; given q",
        ),
        (
            lambda: dropin.rotary_position_embedding(Q[..., :7], K[..., :7]),
            ValueError,
            "rotary_position_embedding: q [2, 4, 5, 7] has 7 channels; they are rotated in pairs",
        ),
        (
            lambda: dropin.rotary_position_embedding(Q, K, start="0"),
            TypeError,
            "rotary_position_embedding(start='0'): start must be an integer, not str",
        ),
    ],
)
def test_turning_by_real_tables(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


@pytest.mark.parametrize(
    "laid",
    [lambda angle: angle.repeat_interleave(2, -1), lambda angle: angle],
    ids=["each angle twice in a row, as in Cohere", "each angle once, as in gpt-oss"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_whose_halves_differ_are_other_peoples_tables(laid: Callable[[Tensor], Tensor], dtype: torch.dtype):
    """The function of the same name in Cohere's and gpt-oss's code takes rows that mean something else."""
    angle = laid(torch.arange(6.0)[:, None] * 10000.0 ** (-torch.arange(4) / 4))[None]
    q = torch.randn(1, 2, 6, 8, dtype=dtype)
    with pytest.raises(ValueError, match="apply_rotary_pos_emb: the halves of a row of cos and sin differ, by "):
        dropin.apply_rotary_pos_emb(q, q, angle.cos().to(dtype), angle.sin().to(dtype))
