"""RoPE as Llama's own code has it: neighbouring channels as complex numbers, turned by a table of unit ones."""

import torch
from torch import Tensor

from milepost.dropin.tables import count, paired
from milepost.methods.rope import Rope
from milepost.numerics.rotation import rotate
from milepost.seams import demand
from milepost.seams.rotary import over_heads


def precompute_freqs_cis(
    dim: int | None = None,
    end: int | None = None,
    theta: float = 10000.0,
    *,
    d_model: int | None = None,
    seq_len: int | None = None,
) -> Tensor:
    """Return the turns of positions 0 … end − 1, complex64 [end dim/2].

        freqs_cis[p, n]  =  e^(i · p · θ^(−2n/dim))

    One function for three that go by this name: dim is also called d_model, end also seq_len, and the result is always
    complex, never a real view [end dim/2 2]. dim is the width of one head, not of the model, where there are heads.
    Angles are formed in float64, so the table is as good at row 10⁶ as at row 1.
    """
    width, rows = _either("dim", dim, "d_model", d_model), _either("end", end, "seq_len", seq_len)
    demand.even(precompute_freqs_cis, "dim", width, "channels are turned in pairs")
    demand.finite(precompute_freqs_cis, "theta", theta, above=1)
    return torch.complex(*Rope(width, theta=theta).cos_sin(torch.arange(count("precompute_freqs_cis", "end", rows))))


def apply_rotary_emb(
    xq: Tensor, xk: Tensor, freqs_cis: Tensor, *, start: int = 0, axis: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rotate neighbouring channels of queries and keys by a table of complex numbers.

    xq: [b t h d] or, without heads, [b t d]; xk likewise, with as many heads as it likes. Returns both in their own
    shapes and dtypes; products are formed in float32 or better.
    freqs_cis: [n d/2] from precompute_freqs_cis, n ≥ start + t, of which rows start … start + t − 1 are taken: with a
    cache, start is how many tokens came before. Or [b t d/2], each row of the batch at positions of its own:
    freqs_cis[position_ids]. Complex, or real with (cos, sin) as a last axis of 2.

    One function for three that go by this name: with and without heads, tables that fit and longer ones, complex and
    real ones. For queries [b h t d], as after transpose(1, 2), give axis=2.
    """
    start = count("apply_rotary_emb", "start", start)
    cos, sin = _cos_sin(freqs_cis)
    axis = _token_axis(xq, xk, cos, axis, start)
    _check_table(xq, cos, axis, start)
    if cos.dim() == 2:
        cos, sin = (each[start : start + xq.shape[axis]] for each in (cos, sin))
    if xq.dim() == 4:
        cos, sin = (each.unsqueeze(-2) if axis == 1 else over_heads(each) for each in (cos, sin))
    cos, sin = cos.to(xq.device), sin.to(xq.device)
    return rotate(xq, cos, sin, pairs="neighbours"), rotate(xk, cos, sin, pairs="neighbours")


def _either(name: str, value: int | None, other: str, another: int | None) -> int:
    """One number that goes by two names."""
    given = [each for each in (value, another) if each is not None]
    if len(given) != 1:
        which = "both" if given else "neither"
        raise TypeError(f"precompute_freqs_cis: {name} and {other} are one thing; given {which}, give one")
    return given[0]


def _cos_sin(freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the table's cosines and sines, [n d/2] or [b t d/2]."""
    if freqs_cis.is_complex() and freqs_cis.dim() in (2, 3):
        return freqs_cis.real, freqs_cis.imag
    if freqs_cis.is_floating_point() and freqs_cis.dim() in (3, 4) and freqs_cis.shape[-1] == 2:
        return freqs_cis[..., 0], freqs_cis[..., 1]
    hint = "; casting a complex table to a real dtype drops its sines: precompute it again"
    raise ValueError(
        f"apply_rotary_emb: freqs_cis is complex [n d/2] or [b t d/2], or real with (cos, sin) as a last axis of 2; "
        f"given {freqs_cis.dtype} {list(freqs_cis.shape)}{hint if freqs_cis.is_floating_point() else ''}"
    )


def _token_axis(xq: Tensor, xk: Tensor, cos: Tensor, axis: int | None, start: int) -> int:
    """Return the token axis of xq and xk; refuse shapes that do not match or that are ambiguous."""
    shapes = f"xq {list(xq.shape)}, xk {list(xk.shape)}"
    if xq.dim() != xk.dim() or xq.dim() not in (3, 4):
        raise ValueError(f"apply_rotary_emb: xq and xk are [b t h d], or [b t d] without heads; given {shapes}")
    if axis not in (None, 1) and (axis, xq.dim()) != (2, 4):
        raise ValueError(
            f"apply_rotary_emb(axis={axis}): tokens are on axis 1, or on axis 2 of [b h t d]; given {shapes}"
        )
    paired("apply_rotary_emb", xq=xq, xk=xk)
    rows = cos.shape[0]
    if axis is None and xq.dim() == 4 and cos.dim() == 2 and start == 0 and xq.shape[1] < rows == xq.shape[2]:
        raise ValueError(
            f"apply_rotary_emb: freqs_cis has {rows} rows, which is axis 2 of xq {list(xq.shape)}, but tokens are "
            f"on axis 1; give axis=1 for [b t h d] with a longer table, or axis=2 for [b h t d]"
        )
    axis = 1 if axis is None else axis
    if any(xq.shape[n] != xk.shape[n] for n in (0, axis, -1)):
        raise ValueError(
            f"apply_rotary_emb: xq and xk differ in more than their heads; given {shapes}{_hint(xq, axis)}"
        )
    return axis


def _check_table(xq: Tensor, cos: Tensor, axis: int, start: int) -> None:
    """Raise unless the table is as wide as the channels, and long enough."""
    b, t, d = xq.shape[0], xq.shape[axis], xq.shape[-1]
    if cos.shape[-1] != d // 2:
        raise ValueError(
            f"apply_rotary_emb: freqs_cis is for {2 * cos.shape[-1]} channels, but xq {list(xq.shape)} has {d}; "
            f"make it as wide as one head: precompute_freqs_cis({d}, …)"
        )
    if cos.dim() == 3 and (start or cos.shape[1] != t or cos.shape[0] not in (1, b)):
        raise ValueError(
            f"apply_rotary_emb: freqs_cis with a batch axis has a row for each token, [{b}, {t}, {d // 2}], and "
            f"takes no start; given {list(cos.shape)} and start={start}{_hint(xq, axis)}"
        )
    if cos.dim() == 2 and cos.shape[0] < start + t:
        raise ValueError(
            f"apply_rotary_emb: freqs_cis has {cos.shape[0]} rows, but {t} tokens from start={start} need {start + t}; "
            f"make it longer: precompute_freqs_cis({d}, {start + t}){_hint(xq, axis)}"
        )


def _hint(xq: Tensor, axis: int) -> str:
    """Return a hint about the axis where shapes do not match and there are heads."""
    return "; if tokens are on axis 2, as after transpose(1, 2), give axis=2" if xq.dim() == 4 and axis == 1 else ""
