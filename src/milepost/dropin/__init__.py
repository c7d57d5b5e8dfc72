"""The functions everyone copies, under their usual names and shapes, thin over the core: change one import.

    from milepost.dropin import apply_rotary_emb, precompute_freqs_cis

They keep the names, argument orders and shapes of the code that goes from hand to hand, and work where it breaks. Where
transformers changed its own, both forms run: `apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)` and
`apply_rotary_pos_emb(q, k, cos, sin, position_ids)`, and `LlamaRotaryEmbedding(config)(x, position_ids)` and
`LlamaRotaryEmbedding(dim, max_position_embeddings, base)(x, seq_len)`.
"""

from milepost.dropin.alibi import build_alibi_tensor as build_alibi_tensor
from milepost.dropin.alibi import gen_alibi_mask as gen_alibi_mask
from milepost.dropin.alibi import get_slopes as get_slopes
from milepost.dropin.attention import RotaryAttention as RotaryAttention
from milepost.dropin.complex_rotary import apply_rotary_emb as apply_rotary_emb
from milepost.dropin.complex_rotary import precompute_freqs_cis as precompute_freqs_cis
from milepost.dropin.llama import LlamaRotaryEmbedding as LlamaRotaryEmbedding
from milepost.dropin.rotary import apply_rotary_pos_emb as apply_rotary_pos_emb
from milepost.dropin.rotary import rotary_position_embedding as rotary_position_embedding
from milepost.dropin.rotary import rotate_half as rotate_half
from milepost.dropin.sinusoidal import PositionalEncoding as PositionalEncoding
from milepost.dropin.sinusoidal import sinusoidal_embedding as sinusoidal_embedding
