"""Vectors looked up by distance in the kernels, against the specification in float64: outputs and every gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, everything, sinks, window
from tests.backends.triton.dense import DEVICE, GPU, off

pytest.importorskip("triton")

from milepost.backends.triton import backend
from milepost.backends.triton.near_far import fields
from milepost.backends.triton.relative import diagonal_layout
from milepost.backends.triton.relative import recomputation as remade
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config
from milepost.bench.harness.plain_torch import plain_attention

H, D, T = 2, 16, 41
Make = Callable[[], mp.Scheme]
DOCUMENTS = torch.tensor([[3] * 17 + [-1] * 2 + [1] * 22], device=DEVICE)


def shaw(reach: int, *parts: object) -> Make:
    return lambda: mp.Scheme(mp.Shaw(D, reach=reach, values=False), *parts)


def deberta(reach: int, *parts: object, **more: Any) -> Make:
    return lambda: mp.Scheme(mp.Deberta(12, H, D, reach=reach, **more), *parts)


def xl(reach: int | None, *parts: object) -> Make:
    return lambda: mp.Scheme(mp.TransformerXL(12, H, D, reach=reach), *parts)


def made(make: Make) -> mp.Scheme:
    """A scheme whose weights are not where they begin."""
    torch.manual_seed(4)
    scheme = make().to(DEVICE)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return scheme


def inputs(t: int = T, s: int | None = None, h: int = H, g: int = H, d: int = D, b: int = 1) -> list[Tensor]:
    """q, k and v; in a batch of several, tokens come before heads in memory."""
    torch.manual_seed(3)
    s = t if s is None else s
    drawn = [torch.randn(b, n, heads, d, device=DEVICE).transpose(1, 2) for heads, n in ((h, t), (g, s), (g, s))]
    return [each if b > 1 else each.contiguous() for each in drawn]


def answers(scheme: mp.Scheme, qkv: list[Tensor], backend: str, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """out, lse, and the gradients of q, k, v and of all that is learned."""
    scheme.to(torch.float64 if dtype == torch.float64 else torch.float32)
    q, k, v = leaves = [each.to(dtype).requires_grad_() for each in qkv]
    out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True, **options)
    weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape).to(out.dtype)
    total = (out * weights).sum().to(lse.dtype) + 0.3 * lse.masked_fill(lse.isinf(), 0.0).sum()
    return [out, lse, *torch.autograd.grad(total, [*leaves, *scheme.parameters()])]


@contextmanager
def memory_of_nan() -> Generator[None]:
    """Fill memory that is handed out with NaN, so that a number nobody wrote is seen; a GPU's would run otherwise."""
    torch.use_deterministic_algorithms(not GPU)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def agree(make: Make, qkv: list[Tensor], tile: Config | None = None, **options: Any) -> None:
    scheme = made(make)
    tile = Config(32, 32, 4, 1, False) if tile is None and not GPU else tile
    with configs.override(**(dict.fromkeys(configs.KERNELS, tile) if tile else {})), memory_of_nan():
        ours = answers(scheme, qkv, "triton", torch.float32, **options)
    exact = answers(scheme, qkv, "reference", torch.float64, **options)
    for mine, true in zip(ours, exact, strict=True):
        close(mine, true)


def close(mine: Tensor, true: Tensor) -> None:
    """Within a few last places of float32, of what was summed: a sum may be far smaller than what it is made of."""
    finite = true.isfinite()
    assert torch.equal(mine.isfinite(), finite)
    mine, true = mine.detach().double()[finite], true.detach()[finite]
    assert float((mine - true).norm()) < 4e-6 * max(float(true.norm()), max(1, true.numel()) ** 0.5)


CALLS: dict[str, tuple[Make, dict[str, int], dict[str, Any]]] = {
    "keys": (shaw(5, causal), {}, {}),
    "keys, encoder": (shaw(5, everything), {"g": 1}, {}),
    "keys and queries": (deberta(9, causal), {"g": 1}, {}),
    "keys and queries, encoder": (deberta(9, everything), {"g": 1}, {}),
    "buckets, as the paper has them": (deberta(30, everything, buckets=4, index="paper", bias="both"), {}, {}),
    "biased queries": (xl(7, causal), {"g": 1, "b": 2}, {}),
    "no end": (xl(None, causal), {"t": 20, "s": T}, {}),
    "documents": (deberta(9, causal), {}, {"documents": DOCUMENTS}),
    "documents, encoder": (deberta(9, everything), {}, {"documents": DOCUMENTS}),
    "documents that count through": (
        shaw(9, causal), {}, {"documents": DOCUMENTS, "index": range(T), "key_index": range(T)}
    ),
    "a window with sinks": (deberta(9, causal & (window(7) | sinks(3))), {}, {}),
    "a window shorter than the reach": (shaw(30, window(7)), {}, {}),
    "more keys than queries": (deberta(9, causal), {"t": 20, "s": T}, {}),
    "fewer keys than queries": (deberta(9, causal), {"t": 64, "s": 32}, {"index": range(64), "key_index": range(32)}),
    "whole tiles": (deberta(9, causal), {"t": 64}, {}),
    "turned keys": (deberta(9, mp.Rope(D), causal), {}, {}),
    "slopes, sharpened, with rest": (shaw(9, mp.Alibi(H), mp.LogN(9), mp.SinkLogit(H), everything), {}, {}),
    "two parts": (deberta(5, mp.Shaw(D, reach=12, values=False), causal), {}, {}),
}  # fmt: skip


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_gradients_are_the_specifications(name: str):
    make, shape, options = CALLS[name]
    agree(make, inputs(**shape), **options)


@pytest.mark.parametrize("t", [1, 18, 19, 20, 21] if GPU else [1, 19, 20])
def test_a_reach_as_long_as_the_text_or_about_it(t: int):
    agree(deberta(19, everything), inputs(t))


@pytest.mark.parametrize("t", [1, 20])
def test_a_reach_as_long_as_a_causal_text_or_about_it(t: int):
    agree(deberta(19, causal), inputs(t))


@pytest.mark.parametrize("seen", [causal, everything] if GPU else [everything], ids=str)
def test_far_squares_have_nothing_to_look_up(seen: object):
    # Three squares of 128 each way, the last one ragged: whole blocks past the reach, about it and within.
    agree(deberta(9, seen), inputs(290), None if GPU else Config(128, 128, 4, 1, False))


@pytest.mark.sample(3 if GPU else 1)
@pytest.mark.parametrize(
    ("b", "room", "first"),
    # The rows' gradients square by square, too; and queries that stand elsewhere than the keys.
    [(1, diagonal_layout.ROOM, 0), (2, 1, 0), (1, diagonal_layout.ROOM, 16)]
    if GPU
    else [(1, 1, 0), (1, diagonal_layout.ROOM, 16)],
)
def test_squares_of_an_encoder_have_distances_of_their_own(
    b: int, room: int, first: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(diagonal_layout, "ROOM", room)
    # As long as the reach, in whole squares: each meets 384 of the 511 distances.
    options = {"index": range(first, first + 256), "key_index": range(256)} if first else {}
    agree(deberta(300, everything), inputs(256, b=b), None if GPU else Config(128, 128, 4, 1, False), **options)


@pytest.mark.parametrize("make", [deberta(9, causal), xl(9, mp.SinkLogit(H), causal)], ids=["Deberta", "XL"])
def test_far_keys_apart_are_the_specifications(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fields, "worth_it", lambda *_: True)
    agree(make, inputs())


@pytest.mark.sample(3)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "make",
    [deberta(9, causal), deberta(9, mp.Rope(D), causal), xl(9, mp.SinkLogit(H), causal), shaw(5, causal)],
    ids=["Deberta", "Deberta, turned", "XL", "Shaw"],
)  # fmt: skip
def test_heads_in_turn_answer_as_all_at_once(make: Make, apart: bool, monkeypatch: pytest.MonkeyPatch):
    # Products that would be large are made for some heads after others, and once more for their gradients.
    monkeypatch.setattr(backend, "LARGE", 0)
    if apart:
        monkeypatch.setattr(fields, "worth_it", lambda *_: True)
    made_again: list[int] = []
    own = remade.remade
    monkeypatch.setattr(remade, "remade", lambda *given: made_again.append(1) or own(*given))
    agree(make, inputs(b=2))
    assert len(made_again) == H


def test_rest_is_weighed_against_far_keys_that_are_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fields, "worth_it", lambda *_: True)
    scheme, (q, k, v) = made(lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=12), mp.SinkLogit(H), causal)), inputs(30)
    ours, exact = (mp.attend(q, k, v, scheme, backend=backend) for backend in ("triton", "reference"))
    close(ours, exact.double())


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("kind", ["keys", "keys and queries", "biased queries"])
def test_far_keys_on_torchs_own_kernel_err_no_more_than_torch(kind: str, width: int):
    parts: dict[str, Callable[[], object]] = {
        "keys": lambda: mp.Shaw(width, reach=100, values=False),
        "keys and queries": lambda: mp.Deberta(64, 4, width, reach=100),
        "biased queries": lambda: mp.TransformerXL(64, 4, width, reach=100),
    }
    scheme = made(lambda: mp.Scheme(parts[kind](), causal))
    qkv = [each.bfloat16() for each in inputs(700, h=4, g=4, d=width)]

    def of_output(attention: Callable[..., Tensor], dtype: torch.dtype, learned: torch.dtype) -> list[Tensor]:
        own, leaves = copy.deepcopy(scheme).to(learned), [each.to(dtype).requires_grad_() for each in qkv]
        out = attention(*leaves, own)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape).to(out.dtype)
        return [out, *torch.autograd.grad((out * weights).sum(), [*leaves, *own.parameters()])]

    exact = of_output(plain_attention, torch.float64, torch.float64)
    plain = of_output(plain_attention, torch.bfloat16, torch.bfloat16)
    ours = of_output(lambda *given: mp.attend(*given, backend="triton"), torch.bfloat16, torch.float32)
    for mine, torchs, true in zip(ours, plain, exact, strict=True):
        assert off(mine, true) <= 2 * off(torchs, true) + 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="an interpreter gives the same bits whatever the kernel does")
def test_it_gives_the_same_bits_every_time():
    scheme, qkv = made(deberta(30, everything)), inputs(300)
    first, second = (answers(scheme, qkv, "triton", torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (lambda: mp.Scheme(mp.Shaw(D), causal), {}, "Shaw(16) adds to the values, which these kernels do not do yet"),
        (shaw(9, causal), {"position": torch.arange(T, device=DEVICE) * 2}, "the kernels measure by their indices"),
        (shaw(9, causal), {"key_index": torch.arange(T, device=DEVICE) // 2}, "indices may have two tokens there"),
        (shaw(9, mp.Rope(D), mp.Rerope(7), causal), {}, "with parts that move tokens is unsupported by these kernels"),
        (shaw(9, mp.SoftCap(5.0), causal), {}, "SoftCap(5) caps what Shaw(16, reach=9, values=False) adds to"),
        (shaw(9, mp.T5Bias(H), causal), {}, "T5Bias(2) adds by distance next to Shaw(16, reach=9, values=False)"),
        (shaw(9, mp.OffsetAlibi(H), causal), {}, "OffsetAlibi(2) adds by distance next to Shaw(16"),
    ],
    ids=["values", "position", "index", "place", "cap", "bias", "step"],
)  # fmt: skip
def test_what_is_refused_says_why(make: Make, options: dict[str, Any], says: str):
    q, k, v = inputs()
    with pytest.raises(mp.CannotRun) as error:
        mp.attend(q, k, v, make().to(DEVICE), backend="triton", **{"key_index": None} | options)
    assert says in str(error.value)


def test_few_queries_and_many_distances_are_refused():
    q, k, v = inputs()
    scheme = shaw(9, causal)().to(DEVICE)
    with torch.no_grad(), pytest.raises(mp.CannotRun, match="is not decoded by these kernels: there are few queries"):
        mp.attend(q[:, :, -1:], k, v, scheme, backend="triton")
    q, k, v = (torch.empty(1, H, 5000, D, device=DEVICE) for _ in range(3))
    with pytest.raises(mp.CannotRun, match="tells 5000 distances apart, and the kernels take 4096 at most"):
        mp.attend(q, k, v, xl(None, causal)().to(DEVICE), backend="triton")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"by_row": (1, H, T, 8), "table": (H, 8)}, "by_row and by_key do not go together with a table"),
        ({"by_row": (1, H, 3, 8)}, f"by_row is [1, {H}, 3, 8] in torch.float32; give [1, {H}, {T}, 8]"),
        ({"by_row": (1, H, T, 8), "by_key": (1, H, T, 16)}, f"by_key is [1, {H}, {T}, 16] in"),
        ({"by_key": (1, H, T, 8), "sharpen": (T,)}, "sharpen has no gradient with by_row and by_key; detach it"),
    ],
    ids=["table", "tokens", "distances", "sharpen"],
)  # fmt: skip
def test_errors_say_what_to_do(options: dict[str, tuple[int, ...]], says: str):
    from milepost.backends.triton.attention.flash import flash

    made = {name: torch.randn(shape, device=DEVICE, requires_grad=True) for name, shape in options.items()}
    q, k, v = inputs()
    with pytest.raises(ValueError) as error:
        flash(q, k, v, **made)
    assert says in str(error.value)


def test_torch_checks_the_operators():
    from milepost.backends.triton.attention.flash import UNLIMITED

    q, k, v = inputs(5)
    facets = (None, None, None, None, 0.25, 0, UNLIMITED, 0, 0, 0, 0.0, False)
    more = (None,) * 4 + tuple(torch.randn(1, H, 5, 8, device=DEVICE) for _ in range(2))
    checks = ("test_faketensor",)
    torch.library.opcheck(torch.ops.milepost.flash.default, (q, k, v, *facets, *more), test_utils=checks)
    out, lse = torch.ops.milepost.flash(q, k, v, *facets, *more)
    given = (torch.randn_like(out), None, q, k, v, out, lse, False, False, *facets, *more)
    torch.library.opcheck(torch.ops.milepost.flash_backward.default, given, test_utils=checks)


# What Inductor says of TF32 has nothing to do with us.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_it_traces_whole_with_its_gradient():
    scheme, qkv = made(deberta(9, causal)), [each.requires_grad_() for each in inputs(24)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mp.attend(q, k, v, scheme, backend="triton")

    traced = torch.compile(attend, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    leaves = [*qkv, *scheme.parameters()]
    grads = [torch.autograd.grad(each(*qkv).square().sum(), leaves) for each in (traced, attend)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5 * max(1.0, float(theirs.abs().max())))
