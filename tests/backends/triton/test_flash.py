"""The attention kernels against dense float64, outputs and gradients."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.triton.dense import DEVICE, GPU, Case, attention, drawn, off, random_case

pytest.importorskip("triton")

from milepost.backends.triton.attention.flash import flash
from milepost.backends.triton.runtime import configs
from milepost.backends.triton.runtime.configs import Config

flash_module = importlib.import_module("milepost.backends.triton.attention.flash")

HALVES = [torch.bfloat16, torch.float16] if GPU else []
CASES = int(os.environ.get("MILEPOST_KERNEL_CASES", "40" if GPU else "3"))
Answers = tuple[Tensor, Tensor, dict[str, Tensor]]


def answers(attend: Callable[..., tuple[Tensor, Tensor]], case: Case, draws: int = 1) -> Answers:
    """out, lse, and the gradients of random sums over both, one above another."""
    out, lse = attend(case.q, case.k, case.v, **case.options)
    made = torch.Generator().manual_seed(0)
    found: list[tuple[Tensor, ...]] = []
    for _ in range(draws):
        grad, grad_lse = (torch.randn(each.shape, generator=made).to(DEVICE) for each in (out, lse))
        total = (out * grad.to(out.dtype)).sum().to(lse.dtype)
        total = total + (lse * grad_lse.to(lse.dtype)).masked_fill(lse.isinf(), 0.0).sum()
        leaves = list(case.leaves.values())
        found.append(torch.autograd.grad(total, leaves, materialize_grads=True, retain_graph=True))
    grads = (each[0] if draws == 1 else torch.stack(each) for each in zip(*found, strict=True))
    return out, lse, dict(zip(case.leaves, grads, strict=True))


def agree(case: Case, dtype: torch.dtype, **tiles: Config) -> None:
    """The kernel errs at most twice as much as dense torch in the same dtype, both measured against float64."""
    rounded = case.to(dtype, torch.float32)
    # A gradient of one number, such as a slope's, is right to many places by luck: in two bytes it takes several.
    draws = 1 if dtype == torch.float32 else 8
    exact = answers(attention, rounded.to(torch.float64, torch.float64), draws)
    dense = answers(attention, rounded.to(dtype, torch.float32), draws)
    with configs.override(**tiles):
        ours = answers(flash, rounded.to(dtype, torch.float32), draws)
    assert ours[0].dtype == dtype
    assert ours[1].dtype == torch.float32
    # Sums in float32 differ by their order, and weights are made again from a rounded log-sum-exp: a few last places.
    least = 4e-6
    for name, mine, theirs, true in (
        ("out", ours[0], dense[0], exact[0]),
        ("lse", ours[1], dense[1], exact[1]),
        *((name, ours[2][name], dense[2][name], exact[2][name]) for name in exact[2]),
    ):
        bound = 2 * off(theirs, true) + least
        assert off(mine, true) <= bound, (
            f"{name} is off by {off(mine, true):.1e}, dense torch by {off(theirs, true):.1e}"
        )


# The first one takes the interpreter long.
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("first", "many", "options"),
    [
        (0, 1, {"ahead": 0}),
        (0, 30, {"ahead": 0}),
        (0, 260, {"ahead": 0}),
        (-150, 260, {}),
        (-5, 129, {"offset": -30}),
        (0, 128, {"ahead": 0, "behind": 9}),
        (3, 130, {"ahead": 0, "behind": 9, "sinks": 2}),
    ],
    ids=["one", "few", "more than there are", "both sides", "queries before keys", "a window", "sinks"],
)
def test_every_entry_of_a_table_gets_a_gradient(first: int, many: int, options: dict[str, Any]):
    """Memory that is handed out holds NaN here; an entry that nobody looks up gets 0."""
    q, k, v = (torch.randn(1, 2, 140, 16, device=DEVICE) for _ in range(3))
    table = torch.randn(2, many, device=DEVICE, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        (grad,) = torch.autograd.grad(flash(q, k, v, table=table, first=first, **options)[0].sum(), table)
    finally:
        torch.use_deterministic_algorithms(False)
    assert grad.isfinite().all()


@pytest.mark.parametrize("seed", range(CASES) if GPU else range(1, 1 + CASES))
def test_random_calls_agree_with_float64(seed: int):
    dtype = [torch.float32, *HALVES][seed % (1 + len(HALVES))]
    # In the interpreter large tiles cost no more than small ones; the copy engine's descriptors are tried there, too.
    tile = Config(*Random(seed).choice([(32, 32), (64, 32), (32, 64)]), 4, 1, Random(seed).random() < 0.5)
    agree(random_case(seed), dtype, **({} if GPU else dict.fromkeys(configs.KERNELS, tile)))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "options",
    # Of these every fourth one, where each takes seconds.
    [
        {"ahead": 0},
        {"ahead": 0, "behind": 150, "sinks": 3},
        {},
        {"behind": 40, "ahead": 40},
        {"ahead": 0, "slopes": True},
        {"slopes": True, "slopes_ahead": True},
        {"ahead": 0, "table": 20},
        {"ahead": 0, "table": 20, "first": 3},
        {"ahead": 0, "table": 1, "first": 290},
        {"table": 41, "first": -20},
        {"table": 500, "first": -250, "ahead": 7},
        {"ahead": 0, "table": 20, "behind": 150, "sinks": 3},
        {"ahead": 0, "table": 20, "cap": 2.0},
        {"ahead": 0, "slopes": True, "table": 20, "cap": 2.0, "cap_first": True},
    ][:: 1 if GPU else 4],
    ids=str,
)
def test_squares_near_and_far_agree_with_float64(options: dict[str, object], dtype: torch.dtype):
    # Three squares of 128 each way, the last one ragged: whole, masked, near and far blocks all occur.
    torch.manual_seed(1)
    h = 2 if GPU else 1
    made = dict(options)
    for name in ("slopes", "slopes_ahead"):
        if made.get(name):
            made[name] = torch.rand(h, device=DEVICE) * 0.1
    if "table" in made:
        made["table"] = torch.randn(h, int(str(made["table"])), device=DEVICE)
    d = 64 if GPU else 16
    case = Case(*drawn(1, h, 1, 300, 300, d, d), {"scale": d**-0.5, **made})
    agree(case, dtype, **({} if GPU else dict.fromkeys(configs.KERNELS, Config(128, 64, 4, 1))))


@pytest.mark.parametrize("offset", [0, 13])
def test_slopes_of_an_encoder_agree_with_float64(offset: int):
    # Blocks of keys wholly behind, wholly ahead, and about the diagonal; the slopes' gradients, too.
    torch.manual_seed(3)
    slopes = {name: torch.rand(2, device=DEVICE) * 0.1 for name in ("slopes", "slopes_ahead")}
    case = Case(*drawn(2, 2, 2, 100, 113, 16, 16), {"scale": 0.25, "offset": offset, **slopes})
    agree(case, torch.float32, **dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1, False)))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="takes a minute in Triton's interpreter")
@pytest.mark.parametrize("groups", [1, 2])
def test_sinks_that_a_long_row_of_windows_sees_agree_with_float64(groups: int):
    # Long enough that the sinks' gradients are summed in parts, by windows of rows.
    torch.manual_seed(2)
    made = {"scale": 0.25, "ahead": 0, "behind": 100, "sinks": 70 if groups == 1 else 5, "offset": 30}
    case = Case(*drawn(1, 2, groups, 2200, 2230, 16, 16), made)
    agree(case, torch.float32, **({} if GPU else dict.fromkeys(configs.KERNELS, Config(128, 64, 4, 1, False))))


def test_rows_that_see_nothing_give_zeros_and_finite_gradients():
    case = Case(*drawn(1, 1, 1, 40, 20, 16, 16), {"scale": 0.25, "offset": 0, "behind": 4, "ahead": 0})
    case = case.to(torch.float32, torch.float32)
    out, lse, grads = answers(flash, case)
    # Query i sees keys i − 3 … i of 20: those from 23 on see none.
    assert torch.equal(out[:, :, 23:], torch.zeros_like(out[:, :, 23:]))
    assert torch.equal(lse[:, :, 23:], torch.full_like(lse[:, :, 23:], -torch.inf))
    assert all(bool(each.isfinite().all()) for each in grads.values())
    assert not grads["q"][:, :, 23:].any()


def test_parts_merged_by_log_sum_exp_have_the_whole_gradient():
    # The near keys and the far ones apart, joined: what a far field and context parallelism do.
    torch.manual_seed(3)
    case = Case(*drawn(1, 2, 2, 50, 50, 16, 16), {"scale": 0.25}).to(torch.float32, torch.float32)

    def merged(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        near, near_lse = flash(q, k, v, scale=scale, behind=10, ahead=0)
        # Keys at least 10 behind: j − i ≤ −10.
        far, far_lse = flash(q, k, v, scale=scale, ahead=-10)
        lse = torch.logaddexp(near_lse, far_lse)
        return near * (near_lse - lse).exp()[..., None] + far * (far_lse - lse).exp()[..., None], lse

    whole = Case(case.q, case.k, case.v, {"scale": 0.25, "ahead": 0}).to(torch.float64, torch.float64)
    ours, exact = answers(merged, case), answers(attention, whole)
    assert off(ours[0], exact[0]) < 1e-5
    assert off(ours[1], exact[1]) < 1e-5
    assert max(off(ours[2][name], exact[2][name]) for name in "qkv") < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="an interpreter gives the same bits whatever the kernel does")
def test_it_gives_the_same_bits_every_time():
    case = Case(*drawn(1, 2, 1, 70, 70, 16, 16), {"scale": 0.2, "ahead": 0}).to(torch.float32, torch.float32)
    case.options["table"] = torch.randn(2, 30, device=DEVICE, requires_grad=True)
    first, second = answers(flash, case), answers(flash, case)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": (1, 3, 8, 16)}, "q [1, 3, 8, 16], k [1, 2, 8, 16], v [1, 2, 8, 16] do not go together"),
        ({"k": (1, 2, 8, 32)}, "do not go together"),
        ({"slopes": (3,)}, "slopes is [3] in torch.float32; give [2] in torch.float32"),
        ({"table": (8,)}, "table is [8] in torch.float32; give [2, n] in torch.float32"),
        ({"sharpen": (4, 8)}, "sharpen is [4, 8] in torch.float32; give [1, 8]"),
        ({"scale": -1.0}, "scale is -1.0; it must not be negative: negate q instead"),
        ({"cap": 0.0}, "cap is 0.0; it must be positive, or None for no cap"),
        ({"slopes_ahead": (2,)}, "slopes_ahead was given without slopes; give both"),
    ],
    ids=str,
)
def test_errors_say_what_to_do(change: dict[str, object], says: str):
    shapes = {"q": (1, 2, 8, 16), "k": (1, 2, 8, 16), "v": (1, 2, 8, 16)}
    made = {
        name: torch.randn(each, device=DEVICE) if isinstance(each, tuple) else each
        for name, each in {**shapes, **change}.items()
    }
    with pytest.raises(ValueError) as error:
        flash(made.pop("q"), made.pop("k"), made.pop("v"), **made)
    assert says in str(error.value)


def test_dtypes_that_differ_are_refused():
    q = torch.randn(1, 1, 8, 16, device=DEVICE)
    with pytest.raises(ValueError, match="give all three in bfloat16, float16 or float32"):
        flash(q.half(), q, q)
    with pytest.raises(ValueError, match="256 is the most"):
        flash(*(torch.randn(1, 1, 8, 300, device=DEVICE) for _ in range(3)))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("short", [0, 1024], ids=["several loops", "one loop"])
@pytest.mark.parametrize("sinks", [0, 3])
def test_windows_of_any_width_agree_with_float64(
    sinks: int, short: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """The rows that see a block of keys: masked, whole and masked ones apart, or all in one masked loop."""
    monkeypatch.setattr(flash_module, "SHORT", short)
    torch.manual_seed(4)
    case = Case(*drawn(1, 2, 1, 170, 170, 16, 16), {"scale": 0.25, "ahead": 0, "behind": 90, "sinks": sinks})
    agree(case, dtype, **({} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))))


# Keys that a slope leaves no weight


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_module, "REACH_FROM", 0)


@pytest.mark.usefixtures("skipping")
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("t", "s", "offset"), [(150, 150, 0), (40, 170, 110)])
def test_keys_that_weigh_nothing_are_not_missed(t: int, s: int, offset: int, dtype: torch.dtype):
    """Slopes of which some leave a few blocks of keys, some none, one all, and one that rises."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, heads, n, 16, device=DEVICE) for heads, n in ((4, t), (2, s), (2, s)))
    slopes = torch.tensor([2.0, 0.6, 0.0, -0.02], device=DEVICE)
    case = Case(q, k, v, {"scale": 0.3, "ahead": 0, "offset": offset, "slopes": slopes})
    assert flash_module.Call(q, k, v, flash_module.Facets(slopes, scale=0.3, offset=offset, ahead=0)).reach
    agree(case, dtype, **({} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))))


@pytest.mark.usefixtures("skipping")
@pytest.mark.parametrize("cap_first", [False, True])
def test_a_cap_after_a_slope_bounds_the_scores_of_far_keys(cap_first: bool):
    """A cap of 2 leaves every key at least e^−4 of the largest weight, so none may be skipped."""
    torch.manual_seed(5)
    slopes = torch.tensor([2.0, 0.6], device=DEVICE)
    options = {"scale": 0.3, "ahead": 0, "offset": 138, "slopes": slopes, "cap": 2.0, "cap_first": cap_first}
    case = Case(*drawn(1, 2, 2, 32, 170, 16, 16), options)
    agree(case, torch.float32, **({} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))))


@pytest.mark.usefixtures("skipping")
def test_keys_that_weigh_nothing_are_skipped():
    """A weight of e^−49 times a value of e^50 would be seen: in the answer, and in what comes back to the value."""
    t = 192
    q, k, v = (torch.randn(1, 1, t, 16, device=DEVICE) * size for size in (0.01, 0.01, 1.0))
    huge = v.clone()
    huge[:, :, :32] = 1e22
    found = []
    for each in (v, huge):
        leaves = [x.clone().requires_grad_() for x in (q, k, each)]
        with configs.override(**({} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1)))):
            out, _ = flash(*leaves, scale=0.3, ahead=0, slopes=torch.full([1], 0.5, device=DEVICE))
            late = out[:, :, 128:]
            found.append([late, *torch.autograd.grad(late.sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert (found[0][3][:, :, :32] == 0).all()


@pytest.mark.usefixtures("skipping")
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_skipped(which: int, wrong: float):
    given = [torch.randn(1, 1, 160, 16, device=DEVICE) for _ in range(3)]
    given[which][:, :, 3] = wrong
    options = {"scale": 0.3, "ahead": 0, "slopes": torch.ones(1, device=DEVICE)}
    with configs.override(**({} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1)))):
        ours, _ = flash(*given, **options)
    exact, _ = attention(*(each.double() for each in given), **options)
    assert (ours.isnan().any(-1) == exact.isnan().any(-1)).all()
