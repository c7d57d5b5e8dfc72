"""`attend(backend="triton")` against the specification: on a GPU, or small and in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import causal, everything, sinks, window

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = DEVICE == "cuda"
# The interpreter takes each head for itself.
H, D, T = 4 if GPU else 2, 16, 37
SCHEMES: dict[str, Callable[[], mp.Scheme]] = {
    "nothing": lambda: mp.Scheme(causal),
    "encoder": lambda: mp.Scheme(mp.Rope(D), everything),
    "Rope": lambda: mp.Scheme(mp.Rope(D), causal),
    "neighbours, partly": lambda: mp.Scheme(mp.Partial(mp.Rope(8, pairs="neighbours"), of=D), causal),
    "DynamicNtk": lambda: mp.Scheme(mp.Rope(D, stretch=mp.DynamicNtk(20)), causal),
    "Xpos": lambda: mp.Scheme(mp.Xpos(D), causal),
    "Alibi": lambda: mp.Scheme(mp.Alibi(H), causal),
    "OffsetAlibi": lambda: mp.Scheme(mp.OffsetAlibi(H), everything),
    "T5Bias": lambda: mp.Scheme(mp.T5Bias(H, buckets=8, reach=20), causal),
    "Kerple": lambda: mp.Scheme(mp.Kerple(H), causal),
    "cap, slopes": lambda: mp.Scheme(mp.SoftCap(3.0), mp.Alibi(H), causal),
    "LogN, Rope": lambda: mp.Scheme(mp.Rope(D), mp.LogN(9), causal),
    "window, sinks": lambda: mp.Scheme(mp.Rope(D), causal & (window(7) | sinks(3))),
    "Rerope": lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), causal),
    "Rerope, both ways": lambda: mp.Scheme(mp.Rope(D), mp.Rerope(7), everything),
    "LeakyRerope, capped": lambda: mp.Scheme(mp.Rope(D), mp.LeakyRerope(7, 3.0), mp.SoftCap(3.0), causal),
    "SelfExtend, window": lambda: mp.Scheme(mp.Rope(D), mp.SelfExtend(4, 8), causal & window(30)),
    "Pivot, LogN, rest": lambda: mp.Scheme(mp.Rope(D), mp.Pivot(mp.Rerope(7), 9), mp.LogN(9), mp.SinkLogit(H), causal),
    "KeepSinks": lambda: mp.Scheme(mp.Rope(D), mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(7), sinks=3), 9), 9), causal),
    "DualChunk": lambda: mp.Scheme(mp.Rope(D), mp.DualChunk(8, 3), causal),
    "DualChunk, capped, LogN": lambda: mp.Scheme(mp.Rope(D), mp.DualChunk(9, 1), mp.SoftCap(3.0), mp.LogN(9), causal),
    "Stream": lambda: mp.Scheme(mp.Rope(D), mp.Stream(3, 9)),
    "Stream, evicting after, capped": lambda: mp.Scheme(mp.Rope(D), mp.Stream(2, 7, evict="after"), mp.SoftCap(3.0)),
    "rest": lambda: mp.Scheme(mp.Rope(D), mp.SinkLogit(H), causal),
    "Cope": lambda: mp.Scheme(mp.Cope(D, 6), causal),
    "Cope, turned, rest": lambda: mp.Scheme(
        mp.Rope(D), mp.Cope(D, 40, after_scale=True), mp.SinkLogit(H), mp.Scale(0.7), causal
    ),
}


def inputs(t: int = T, s: int = T, g: int = H // 2, b: int = 2 if GPU else 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    shapes = (b, H, t, D), (b, g, s, D), (b, g, s, 24)
    q, k, v = (torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes)
    return q, k, v


def made(name: str, schemes: Mapping[str, Callable[[], mp.Scheme]] = SCHEMES) -> mp.Scheme:
    """A scheme whose weights are not where they begin."""
    torch.manual_seed(4)
    scheme = schemes[name]().to(DEVICE)
    with torch.no_grad():
        for weight in scheme.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return scheme


def close(ours: Tensor, exact: Tensor) -> None:
    within = 2e-5 * max(1.0, float(exact.detach().abs().max()))
    torch.testing.assert_close(ours.double(), exact.double(), rtol=0, atol=within)


def test_far_keys_count_where_a_cap_comes_after_a_slope():
    """From 2,048 keys on, keys that a slope leaves no weight are skipped: a cap after it leaves them some."""
    given, grad = inputs(16, 2048), torch.randn(1, H, 16, 24, device=DEVICE)
    given = [each[:1].detach().requires_grad_() for each in given]
    ours, exact = (
        (out, *torch.autograd.grad(out, given, grad))
        for backend in ("triton", "reference")
        for out in [mp.attend(*given, mp.Scheme(mp.Alibi(H), mp.SoftCap(2.0), causal), backend=backend)]
    )
    for one, other in zip(ours, exact, strict=True):
        close(one, other)


@pytest.mark.parametrize("t", [4, 18])
@torch.no_grad()
def test_where_no_key_is_near_far_ones_are_set_off_against_nothing(t: int):
    """Keys of an encoder that all lie far ahead, for few queries and for many."""
    scheme = mp.Scheme(mp.Rope(D), mp.Pivot(mp.Rerope(4), 6, count="length")).to(DEVICE)
    given = inputs(t, 8)
    how = {"index": range(t), "key_index": range(40, 48), "return_lse": True}
    both = (mp.attend(*given, scheme, backend=backend, **how) for backend in ("triton", "reference"))
    for ours, exact in zip(*both, strict=True):
        close(ours, exact)


@pytest.mark.sample(13)
@pytest.mark.parametrize("name", SCHEMES)
def test_outputs_and_gradients_are_the_specifications(name: str):
    scheme = made(name)
    q, k, v = inputs()
    leaves = [q, k, v, *scheme.parameters()]
    answers = []
    for backend in ("triton", "reference"):
        out, lse = mp.attend(q, k, v, scheme, backend=backend, return_lse=True)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)
        grads = torch.autograd.grad((out * weights).sum() + lse.sum(), leaves, allow_unused=True)
        answers.append((out, lse, *grads))
    for ours, exact in zip(*answers, strict=True):
        assert (ours is None) == (exact is None)
        if ours is not None:
            close(ours, exact)


@pytest.mark.parametrize(
    "place", [mp.Rerope(7), mp.Pivot(mp.LeakyRerope(7, 3.0), 9), mp.SelfExtend(4, 8)], ids=["rerope", "pivot", "self"]
)
def test_without_gradients_far_keys_come_before_near_ones(place: object):
    scheme = mp.Scheme(mp.Rope(D), place, causal)
    q, k, v = (each.detach() for each in inputs())
    # Channels that do not lie side by side.
    v = v.transpose(2, 3).contiguous().transpose(2, 3)
    ours, lse = mp.attend(q, k, v, scheme, backend="triton", return_lse=True)
    exact, exact_lse = mp.attend(q, k, v, scheme, backend="reference", return_lse=True)
    close(ours, exact)
    close(lse, exact_lse)


@pytest.mark.parametrize(
    ("t", "s", "regimes"), [(5, 5, 1), (10, 10, 2), (11, 11, 3), (20, 11, 3), (1, 5, 1), (2, 11, 3)]
)
def test_chunks_that_a_text_does_not_have_are_not_looked_for(
    t: int, s: int, regimes: int, monkeypatch: pytest.MonkeyPatch
):
    from milepost.backends.triton import backend

    launch, launched = backend._launch, []
    # As it goes where chunks are no rectangles.
    monkeypatch.setattr(backend, "_in_rectangles", lambda *_: None)
    monkeypatch.setattr(backend, "_launch", lambda *given: (launched.append(1), launch(*given))[1])
    scheme = mp.Scheme(mp.Rope(D), mp.DualChunk(8, 3), causal)
    q, k, v = (each.detach() for each in inputs(t, s))
    # The keys are the last of the text, or the text is as long as its queries.
    options = {} if t <= s else {"index": range(t), "key_index": range(s)}
    with torch.no_grad():
        close(*(mp.attend(q, k, v, scheme, backend=name, **options) for name in ("triton", "reference")))
    assert len(launched) == regimes


@pytest.mark.parametrize("t", [1, 5, 20])
def test_queries_before_all_keys_see_nothing_whatever_their_chunks(t: int):
    scheme = mp.Scheme(mp.Rope(D), mp.DualChunk(8, 3), causal)
    q, k, v = (each.detach() for each in inputs(t, 7))
    out, lse = mp.attend(q, k, v, scheme, backend="triton", return_lse=True, index=range(t), key_index=range(100, 107))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


@pytest.mark.sample(25)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "encoder"])
def test_decoding_is_the_specifications(name: str, turned: bool):
    scheme = made(name)
    if turned and not scheme.turns_keys_once:
        pytest.skip("this scheme's keys stay raw")
    q, k, v = (each.detach() for each in inputs())
    cache = mp.Cache(scheme) if turned else mp.Cache()
    cache.append(k[:, :, :30], v[:, :, :30])
    for first, last in ((30, 31), (31, 36), (36, 37)):
        cache.append(k[:, :, first:last], v[:, :, first:last])
        ours = mp.attend(q[:, :, first:last], cache.keys, cache.values, scheme, backend="triton")
        exact = mp.attend(q[:, :, first:last], k[:, :, :last], v[:, :, :last], scheme, backend="reference")
        close(ours, exact)


def test_it_is_never_chosen_where_it_is_interpreted():
    if DEVICE == "cuda":
        pytest.skip("there is a GPU")
    q, k, v = inputs()
    assert mp.explain(q, k, v, made("Alibi")).backend != "triton"


def test_what_the_interpreter_does_not_know_is_refused():
    if DEVICE == "cuda":
        pytest.skip("there is a GPU")
    q, k, v = (each.bfloat16() for each in inputs())
    with pytest.raises(mp.CannotRun, match="interpreter does not know bfloat16"):
        mp.attend(q, k, v, made("Alibi"), backend="triton")


@pytest.mark.parametrize("t", [3, 18])
def test_a_strength_that_goes_by_the_length_is_every_querys(t: int):
    torch.manual_seed(t)
    scheme = mp.Scheme(mp.Rope(16), mp.Pivot(mp.Rerope(6), trained=12, count="length"), mp.causal)
    q, k = (torch.randn(1, 2, n, 16, device=DEVICE) for n in (t, 21))
    with torch.no_grad():
        close(mp.attend(q, k, k, scheme, backend="triton"), mp.attend(q, k, k, scheme, backend="reference"))
