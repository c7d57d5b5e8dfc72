"""A self-attention layer with RoPE inside."""

from torch import Tensor, nn

from milepost.attend import attend
from milepost.cache import Cache
from milepost.methods.rope import Rope
from milepost.scheme import Scheme
from milepost.seams import demand, visible


class RotaryAttention(nn.Module):
    """Self-attention whose queries and keys are turned by their positions, pairs of neighbouring channels.

    Tokens see themselves and what came before; causal=False lets them see everything, as an encoder does. Only the
    four projections are saved. There is no table to outgrow: max_seq_len is kept so that calls need not change, and
    longer texts are welcome.
    """

    def __init__(self, d_model: int, n_heads: int, max_seq_len: int = 2048, *, causal: bool = True) -> None:
        super().__init__()
        demand.whole(self, "d_model", d_model)
        demand.whole(self, "n_heads", n_heads)
        demand.flag(self, "causal", causal)
        if d_model % (2 * n_heads):
            raise ValueError(
                f"RotaryAttention(d_model={d_model}, n_heads={n_heads}): d_model must be a multiple of "
                f"{2 * n_heads}, because each head turns its channels in pairs"
            )
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.max_seq_len = max_seq_len
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.scheme = Scheme(Rope(self.head_dim, pairs="neighbours"), *([visible.causal] if causal else []))

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """x: [b t d_model]; returns the same shape. Given a cache, x continues its tokens, and is appended."""
        width = self.n_heads * self.head_dim
        if x.dim() != 3 or x.shape[-1] != width:
            raise ValueError(f"RotaryAttention: x is [b, t, {width}]; given {list(x.shape)}")
        q, k, v = (
            project(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if cache is None:
            out = attend(q, k, v, self.scheme)
        else:
            cache.append(k, v)
            out = attend(q, cache.keys, cache.values, self.scheme)
        return self.out_proj(out.transpose(1, 2).flatten(2))
