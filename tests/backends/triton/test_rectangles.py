"""Attention over the rectangles that a text is cut into: against the formula of dual chunk attention in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal
from milepost.memory.kind import SEEN, Kind
from milepost.memory.table import MEMORY
from tests.backends.triton.dense import DEVICE, GPU, off

pytest.importorskip("triton")

from milepost.backends.triton.dual_chunk import cuts, rectangles
from milepost.backends.triton.dual_chunk.cuts import Rectangle, cut
from milepost.backends.triton.joining import sums as shares
from milepost.backends.triton.runtime import configs, vendor
from milepost.backends.triton.runtime.configs import Config

TILE = {} if GPU else dict.fromkeys(configs.KERNELS, Config(32, 32, 4, 1))
CHUNK, LOCAL = 12, 4
SIZE = CHUNK - LOCAL
"""Of a chunk, as keys count."""


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However many rectangles there are."""
    monkeypatch.setattr(cuts, "EACH", 1)
    MEMORY.forget()
    yield
    MEMORY.forget()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Rectangle, ...]]:
    """What calls were cut into."""
    found: list[tuple[Rectangle, ...]] = []
    run = rectangles.rectangles
    monkeypatch.setattr(rectangles, "rectangles", lambda q, k, v, how: found.append(how.cut) or run(q, k, v, how))
    return found


def formula(q: Tensor, k: Tensor, v: Tensor, first: int, neighbours: bool, width: int) -> tuple[Tensor, Tensor]:
    """Dual chunk attention as its paper's code places tokens, pair by pair; first: the index of the first query."""
    (_, h, t, d), (_, g, s, _) = q.shape, k.shape
    k, v = k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1)
    p, r = torch.arange(first, first + t, device=q.device), torch.arange(s, device=q.device)
    inside = p % SIZE
    stands = (inside, (inside + SIZE).clamp(max=CHUNK), torch.full_like(inside, min(2 * SIZE - 1, CHUNK)))
    keys = turned(k, r % SIZE, neighbours, width)
    by_chunk = torch.stack([turned(q, each, neighbours, width) @ keys.mT for each in stands])
    between = (p[:, None] // SIZE - r // SIZE).clamp(0, 2)
    score = by_chunk.gather(0, between.expand(1, *q.shape[:2], t, s))[0] * d**-0.5
    score = score.masked_fill(r > p[:, None], -math.inf)
    return score.softmax(-1) @ v, score.logsumexp(-1)


def turned(x: Tensor, position: Tensor, neighbours: bool, width: int) -> Tensor:
    """x e^(i · position · 10000^(−2n/width)) for pair n of the first `width` channels."""
    n = torch.arange(width // 2, dtype=torch.float64, device=x.device)
    angle = position[:, None].double() * 10000.0 ** (-2 * n / width)
    turns = torch.polar(torch.ones_like(angle), angle)
    some, rest = x[..., :width], x[..., width:]
    if neighbours:
        pairs = torch.view_as_complex(some.unflatten(-1, (-1, 2)).contiguous()) * turns
        return torch.cat((torch.view_as_real(pairs).flatten(-2), rest), -1)
    pairs = torch.complex(some[..., : width // 2], some[..., width // 2 :]) * turns
    return torch.cat((pairs.real, pairs.imag, rest), -1)


def drawn(
    b: int, h: int, g: int, t: int, s: int, d: int = 16, dv: int = 16, tokens_first: bool = False, seed: int = 0
) -> list[Tensor]:
    made = torch.Generator().manual_seed(t + 7 * s + 1000 * seed)
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, dv))
    found = [torch.randn(shape, generator=made, dtype=torch.float64).to(DEVICE) for shape in shapes]
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in found] if tokens_first else found


def answers(
    run: Callable[..., tuple[Tensor, Tensor]], given: list[Tensor], dtype: torch.dtype, of: str
) -> list[Tensor]:
    """out, lse and the gradients of all that is given, where the answer `of` which is wanted: out, lse or both."""
    leaves = [each.detach().to(dtype).requires_grad_() for each in given]
    with configs.override(**TILE):
        out, lse = run(*leaves)
        total = torch.zeros((), dtype=torch.float64, device=DEVICE)
        if of != "lse":
            total = total + (out.double() * torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape)).sum()
        if of != "out":
            total = total + (lse.double() * torch.linspace(1, 2, lse.numel(), device=DEVICE).view(lse.shape)).sum()
        return [out, lse, *torch.autograd.grad(total, leaves, allow_unused=of == "lse")]


def compare(
    given: list[Tensor], scheme: mp.Scheme, of: str = "both", neighbours: bool = False, width: int = 16
) -> None:
    first = given[1].shape[2] - given[0].shape[2]
    ours = answers(lambda *each: mp.attend(*each, scheme, backend="triton", return_lse=True), given, torch.float32, of)
    exact = answers(lambda *each: formula(*each, first, neighbours, width), given, torch.float64, of)
    for mine, true in zip(ours, exact, strict=True):
        if true is None or mine is None:
            assert mine is None or not mine.any()
            continue
        torch.testing.assert_close(mine.double(), true, rtol=2e-5, atol=2e-5)


def scheme_of(neighbours: bool = False, width: int = 16, d: int = 16) -> mp.Scheme:
    rope = mp.Rope(width, pairs="neighbours" if neighbours else "halves")
    return mp.Scheme(rope if width == d else mp.Partial(rope, of=d), mp.DualChunk(CHUNK, LOCAL), causal)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("t", "of"), [*((t, "both") for t in (5, SIZE, 13, 2 * SIZE, 37)), (26, "out"), (26, "lse")])
def test_answers_and_gradients_are_the_formulas(t: int, of: str, noted: list[Any]):
    compare(drawn(1, 2, 2, t, t), scheme_of(), of)
    assert noted


@pytest.mark.sample(1)
@pytest.mark.parametrize(("b", "tokens_first"), [(1, True), (2, False)])
def test_grouped_heads_and_narrower_values(b: int, tokens_first: bool, noted: list[Any]):
    compare(drawn(b, 4, 2, 37, 37, dv=12, tokens_first=tokens_first), scheme_of())
    assert noted


@pytest.mark.sample(2)
@pytest.mark.parametrize(("neighbours", "width"), [(True, 16), (False, 12), (True, 12), (False, 10)])
def test_pairs_that_neighbour_and_channels_that_are_not_turned(neighbours: bool, width: int, noted: list[Any]):
    compare(drawn(1, 2, 1, 26, 26), scheme_of(neighbours, width), neighbours=neighbours, width=width)
    assert noted


@pytest.mark.parametrize("t", [20, 30])
def test_queries_at_the_end_of_a_longer_text(t: int, noted: list[Any]):
    compare(drawn(1, 2, 1, t, 50), scheme_of())
    # Those of a chunk that begin late in it have a rectangle before their square.
    assert any(not each.slanted and each.turn == 0 for each in noted[0])


def test_keys_that_nobody_sees_get_no_gradient(monkeypatch: pytest.MonkeyPatch):
    # Whatever memory held.
    room = rectangles._like
    monkeypatch.setattr(rectangles, "_like", lambda *given: room(*given).fill_(math.nan))
    method, given = mp.DualChunk(CHUNK, LOCAL), drawn(1, 2, 1, 20, 50)
    made = cut(method, (0, 1, 2), 7, 20, 0, 50, 2, True)
    assert made is not None

    def waves(position: Tensor) -> tuple[Tensor, Tensor]:
        angle = position[None, :, None].double() * 10000.0 ** (-torch.arange(8, device=DEVICE) / 8)
        return angle.cos().float(), angle.sin().float()

    index, key_index = torch.arange(7, 27, device=DEVICE), torch.arange(50, device=DEVICE)
    queries = {number: waves(regime.query(index)) for number, regime in enumerate(method.place())}
    how = rectangles.Rectangles(made, queries, waves(key_index % SIZE), False, 0.25)
    ours = answers(lambda *each: rectangles.rectangles(*each, how), given, torch.float32, "both")
    exact = answers(lambda *each: formula(*each, 7, False, 16), given, torch.float64, "both")
    for mine, true in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=2e-5, atol=2e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("b", [1, 2])
def test_without_gradients_the_same_comes_out(b: int, noted: list[Any]):
    given = [each.float() for each in drawn(b, 2, 1, 37, 37)]
    with torch.no_grad(), configs.override(**TILE):
        alone = mp.attend(*given, scheme_of(), backend="triton")
    assert len(noted) == 1
    assert torch.equal(alone, answers(lambda *x: mp.attend(*x, scheme_of(), backend="triton", return_lse=True), given,
                                      torch.float32, "out")[0])  # fmt: skip


def test_what_changes_scores_or_has_few_queries_goes_the_other_way(noted: list[Any]):
    place = mp.DualChunk(CHUNK, LOCAL)
    q, k, v = (each.float() for each in drawn(1, 2, 2, 37, 37))
    documents = torch.arange(37, device=DEVICE)[None] // 20
    with configs.override(**TILE), torch.no_grad():
        for scheme, more in (
            (mp.Scheme(mp.Rope(16), place, mp.LogN(16), causal), {}),
            (mp.Scheme(mp.Rope(16), place, mp.SoftCap(5.0), causal), {}),
            (mp.Scheme(mp.Rope(16), mp.Dilute(place, 20), causal), {}),
            (scheme_of(), {"documents": documents}),
        ):
            mine = mp.attend(q, k, v, scheme, backend="triton", **more)
            exact = mp.attend(q.double(), k.double(), v.double(), scheme, backend="reference", **more)
            torch.testing.assert_close(mine.double(), exact, rtol=2e-5, atol=2e-5)
        mp.attend(q[:, :, -1:], k, v, scheme_of(), backend="triton")
    assert not noted


@pytest.mark.sample(2)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("vendor", [False, True])
def test_calls_that_are_played_answer_the_same(
    learns: bool, vendor: bool, monkeypatch: pytest.MonkeyPatch, noted: list[Any]
):
    monkeypatch.setattr("milepost.memory.surroundings.PLAYS_ON", (DEVICE,))
    if vendor and not GPU:
        as_vendor(monkeypatch, [])
    scheme = scheme_of()
    for seed in range(SEEN + 4):
        given = drawn(1, 2, 2, 18, 18, seed=seed)
        if learns:
            compare(given, scheme, "out")
            continue
        with torch.no_grad(), configs.override(**TILE):
            # Each time elsewhere in the memory that they are a part of.
            placed = [torch.cat([each.float()] * (seed + 1))[seed:] for each in given]
            mine, lse = mp.attend(*placed, scheme, backend="triton", return_lse=True)
        for ours, true in zip((mine, lse), formula(*given, 0, False, 16), strict=True):
            torch.testing.assert_close(ours.double(), true, rtol=2e-5, atol=2e-5)
    assert [kind.refused for kind in MEMORY.of(scheme).values() if isinstance(kind, Kind)] == [""]
    # The first was asked who can run it, then some ran as they came, and one was written down.
    assert len(noted) == SEEN + 2


# Torch's own kernel


def in_torch(q: Tensor, k: Tensor, v: Tensor, slanted: bool, scale: float) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """What cuDNN's forward pass answers."""
    score = q @ k.mT * scale
    if slanted:
        score = score.masked_fill(torch.ones_like(score, dtype=torch.bool).triu(1), -math.inf)
    return score.softmax(-1) @ v, score.logsumexp(-1), (q.new_full((), 3.0), q.new_full((), 5.0))


def back_in_torch(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dice: Any, slanted: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What its backward pass answers, with the weights that the log-sum-exp says."""
    assert grad.stride() == out.stride()
    assert lse.shape == q.shape[:3]
    assert len(dice) == 2
    weights = (q @ k.mT * scale - lse[..., None]).exp()
    if slanted:
        weights = weights.tril()
    score = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * scale
    return score @ k, score.mT @ q, weights.mT @ grad


def as_vendor(monkeypatch: pytest.MonkeyPatch, called: list[int]) -> None:
    """Where cuDNN would be called, torch is; called: which passes were."""
    monkeypatch.setattr(vendor, "takes", lambda *given: True)
    monkeypatch.setattr(rectangles, "SMALLEST", 3)
    monkeypatch.setattr(vendor, "forward", lambda *x: called.append(0) or in_torch(*x))
    monkeypatch.setattr(vendor, "backward", lambda *x: called.append(1) or back_in_torch(*x))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("b", "t", "s", "of"), [(1, 34, 34, "out"), (1, 34, 34, "both"), (2, 34, 34, "both"), (1, 22, 34, "both")]
)
def test_on_torchs_own_kernel(b: int, t: int, s: int, of: str, monkeypatch: pytest.MonkeyPatch):
    called: list[int] = []
    as_vendor(monkeypatch, called)
    compare(drawn(b, 2, 2, t, s, tokens_first=t == 22), scheme_of(), of)
    # A gradient of the log-sum-exp is not its to give.
    assert set(called) == ({0, 1} if of == "out" else {0})


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(("b", "h", "g", "t"), [(1, 4, 4, 3000), (2, 4, 4, 1500), (1, 4, 2, 1500), (1, 4, 4, 513)])
def test_two_bytes_err_no_more_than_torch(width: int, b: int, h: int, g: int, t: int, noted: list[Any]):
    from milepost.bench.harness.plain_torch import plain_attention

    scheme = mp.Scheme(mp.Rope(width), mp.DualChunk(384, 64), causal)
    given = [each.bfloat16() for each in drawn(b, h, g, t, t, width, width)]

    def of_output(attention: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in given]
        out = attention(*leaves, scheme)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape).to(out.dtype)
        return [out, *torch.autograd.grad((out * weights).sum(), leaves)]

    exact, plain = (of_output(plain_attention, dtype) for dtype in (torch.float64, torch.bfloat16))
    ours = of_output(lambda *each: mp.attend(*each, backend="triton"), torch.bfloat16)
    assert noted
    for mine, torchs, true in zip(ours, plain, exact, strict=True):
        assert off(mine, true) <= 2 * off(torchs, true) + 1e-4


def test_shares_that_wait_are_folded_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch):
    """A long staircase: the first keys are in many rectangles."""
    folded: list[int] = []
    run = shares.Stretches.__init__

    def heard(self: Any, spans: Any, count: int, write: Any, fold: Any = None) -> None:
        run(self, spans, count, write, fold and (lambda *x: folded.append(x[0]) or fold(*x)))

    monkeypatch.setattr(shares.Stretches, "__init__", heard)
    compare(drawn(2, 1, 1, 90, 90), scheme_of(), "out")
    assert folded
