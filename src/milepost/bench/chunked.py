"""ALiBi and ReRoPE over 8192 tokens without a dense bias: time and memory beside plain causal attention."""

from __future__ import annotations

from milepost import Alibi, KeepSinks, Pivot, Rerope, Rope, Scheme, causal
from milepost.bench.attention import COLD, LIMIT, entry, plain_entry, tensors
from milepost.bench.contest import Contest, Entry
from milepost.bench.settings import Settings, shaped
from milepost.bench.timing import peak_gigabytes

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
NEAR = 1024
"""How far back keys stay where they are."""
BACKWARD = "\nout.sum().backward()"


def on_cpu(settings: Settings) -> list[Contest]:
    """Time, forward and with gradients."""
    shape = settings.sizes.cpu_chunked

    def entries() -> list[Entry]:
        q, k, v, grad = tensors(settings, *shape)
        limit = plain_entry(LIMIT, "limit", (q, k, v), grad)
        given = q, k, v, grad
        return [limit, entry("chunked with ALiBi", _alibi(shape[1]), given, settings, backend="chunked")]

    def moved() -> list[Entry]:
        q, k, v, grad = tensors(settings, *shape)
        parts = {"ReRoPE": Rerope(NEAR), "with Pivot, sinks kept": Pivot(KeepSinks(Rerope(NEAR)), 2 * NEAR)}
        return [
            plain_entry(LIMIT, "limit", (q, k, v), grad),
            *(
                entry(name, _rerope(shape[3], part), (q, k, v, grad), settings, backend="chunked")
                for name, part in parts.items()
            ),
        ]

    words = f"{shaped(*shape)}, {settings.words}"
    return [
        Contest("cpu", f"ALiBi without a dense bias, {words}", COLD, entries, LIMIT),
        Contest("cpu", f"near and far keys, {words}, without gradients", COLD[:1], moved, LIMIT),
    ]


def _rerope(width: int, part: object):
    return lambda: Scheme(Rope(width), part, causal)


def _alibi(heads: int):
    return lambda: Scheme(Alibi(heads), causal)


def memory() -> None:
    """Print the peaks, each measured in a process of its own."""
    print("\npeak memory over the start of the process, GB       forward   forward and backward")
    for name, work in (("plain causal SDPA", PLAIN), ("chunked with ALiBi", OURS), ("SDPA with a dense bias", DENSE)):
        ahead = peak_gigabytes(PREPARE.format(grad=False), work)
        both_ways = peak_gigabytes(PREPARE.format(grad=True), work + BACKWARD)
        print(f"  {name:<44} {ahead:>10.3f}   {both_ways:>10.3f}")
