"""torch's own fused attention, for schemes that do their work before the scores: turning, sharpening, hiding."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from milepost.backends.views import mask, refusal, values, views
from milepost.call.call import Call
from milepost.seams.visible import causal

CANNOT: dict[str, str] = {
    "place": "turns near and far keys differently, which takes two softmaxes merged",
    "relate": "adds tables looked up by distance to the scores",
    "bend": "bends the scores",
    "bend_rows": "bends whole rows of scores",
    "rest": "adds a logit of rest to the softmax",
}
FAST_ON = ("cpu", "cuda")


def refuses(call: Call) -> str | None:
    """Why torch's kernels cannot run this."""
    if call.return_lse:
        return "return_lse was asked for, which torch's function does not give"
    return refusal(call, CANNOT)


def worth(call: Call) -> bool:
    """Whenever it can run."""
    return True


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """Turn, fold the sharpening into the queries, and hand over."""
    factor = call.factor()
    sharp = isinstance(factor, Tensor)
    # A sharpened query is rounded once, after the product.
    (view,) = views(call, call.score_dtype if sharp else call.q.dtype)
    q = (view.q * factor).to(call.q.dtype) if sharp else view.q
    k, v = view.k.to(call.q.dtype), values(call, call.v.dtype)
    seen, is_causal = _visible(call)
    alive = None if seen is None else seen.any(-1, keepdim=True)
    if seen is not None and alive is not None:
        seen = seen | ~alive
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=seen, dropout_p=call.dropout, is_causal=is_causal, scale=1.0 if sharp else factor,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return (out if alive is None else out * alive), None


def _visible(call: Call) -> tuple[Tensor | None, bool]:
    """A mask, or the word that it is the causal one."""
    visible = call.scheme.answering("see")
    t, s = call.q.shape[2], call.k.shape[2]
    if call.plain_index and all(part == causal for part in visible):
        if not visible or t == 1:
            return None, False
        if t == s:
            return None, True
    return mask(call), False
