"""ALiBi over 8192 tokens without a dense bias: time and memory beside plain causal attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from milepost import Alibi, Scheme, attend, causal
from milepost.bench.timing import peak_gigabytes, race, table

PREPARE = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from milepost import Alibi, Scheme, attend, causal
torch.manual_seed(0)
GRAD = {grad}
q, k, v = (torch.randn(1, 8, 8192, 64, requires_grad=GRAD) for _ in range(3))
scheme = Scheme(Alibi(8), causal)
attend(q[:, :, :64], k[:, :, :64], v[:, :, :64], scheme, backend="chunked").sum()
"""
OURS = 'out = attend(q, k, v, scheme, backend="chunked")'
PLAIN = "out = sdpa(q, k, v, is_causal=True)"
DENSE = "i = torch.arange(8192); out = sdpa(q, k, v, attn_mask=scheme.bias(i, i))"
BACKWARD = "\nout.sum().backward()"


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 8192, 64) for _ in range(3))
    scheme = Scheme(Alibi(8), causal)
    forward = race(
        {
            "plain causal SDPA": lambda: sdpa(q, k, v, is_causal=True),
            "chunked with ALiBi": lambda: attend(q, k, v, scheme, backend="chunked"),
        },
        repeats=3,
    )
    table("ALiBi, b1 h8 t8192 d64, float32, causal, forward", forward, "plain causal SDPA")
    a, b, c = (each.clone().requires_grad_() for each in (q, k, v))

    def both(out: Tensor) -> None:
        torch.autograd.grad(out.sum(), (a, b, c))

    backward = race(
        {
            "plain causal SDPA": lambda: both(sdpa(a, b, c, is_causal=True)),
            "chunked with ALiBi": lambda: both(attend(a, b, c, scheme, backend="chunked")),
        },
        repeats=2,
    )
    table("the same, forward and backward", backward, "plain causal SDPA")
    print("\npeak memory over the start of the process, GB       forward   forward and backward")
    for name, work in (("plain causal SDPA", PLAIN), ("chunked with ALiBi", OURS), ("SDPA with a dense bias", DENSE)):
        ahead = peak_gigabytes(PREPARE.format(grad=False), work)
        both_ways = peak_gigabytes(PREPARE.format(grad=True), work + BACKWARD)
        print(f"  {name:<44} {ahead:>10.3f}   {both_ways:>10.3f}")
