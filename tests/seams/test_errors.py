"""Bad arguments of constructors get an error that says what was asked, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import milepost as mp
from milepost import Scheme, causal
from milepost.seams.known import exports
from tests.refusals import INF, NAN, refused, small


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (
            lambda: mp.Rope(127),
            ValueError,
            "Rope(head_dim=127): head_dim must be even, because channels are turned in pairs",
        ),
        (lambda: mp.Rope(0), ValueError, "Rope(head_dim=0): head_dim must be at least"),
        (lambda: mp.Rope(-2), ValueError, "Rope(head_dim=-2): head_dim must be at least"),
        (lambda: mp.Rope(8.0), TypeError, "Rope(head_dim=8.0): head_dim must be an integer, not float"),
        (lambda: mp.Rope(True), TypeError, "Rope(head_dim=True): head_dim must be an integer, not bool"),
        (lambda: mp.Rope("8"), TypeError, "Rope(head_dim='8'): head_dim must be an integer, not str"),
        (lambda: mp.Rope(None), TypeError, "Rope(head_dim=None): head_dim must be an integer, not NoneType"),
        (
            lambda: mp.Xpos(7),
            ValueError,
            "Xpos(head_dim=7): head_dim must be even, because channels are turned in pairs",
        ),
        (
            lambda: mp.Sinusoidal(7),
            ValueError,
            "Sinusoidal(model_dim=7): model_dim must be even, because each wavelength",
        ),
        (lambda: mp.AxialRope(7, (1, 2)), ValueError, "AxialRope(head_dim=7): head_dim must be even"),
        (lambda: mp.AxialRope(8, (1, 2)), ValueError, "AxialRope(8, (1, 2)): the sections hold 3 pairs, but 8 …make 4"),
        (lambda: mp.AxialRope(8, 4), TypeError, "AxialRope(sections=4): "),
        (lambda: mp.SplitAlibi(3), ValueError, "SplitAlibi(heads=3): heads must be even, because half of the heads"),
        (lambda: mp.TransformerXL(7, 2, 4), ValueError, "TransformerXL(model_dim=7): model_dim must be even"),
        (lambda: mp.T5Bias(4, buckets=7), ValueError, "T5Bias(buckets=7): buckets must be even, because half of them"),
        (lambda: mp.T5Bias(4, reach=8), ValueError, "T5Bias(reach=8): the first 16 distances have a bucket each"),
        (lambda: mp.SelfExtend(4, 10), ValueError, "SelfExtend(group=4, neighbours=10): group must divide neighbours"),
        (lambda: mp.DualChunk(4, 4), ValueError, "DualChunk(chunk=4, local=4): local must be smaller than chunk"),
        (lambda: mp.Alibi(0), ValueError, "Alibi(heads=0): heads must be at least 1"),
        (lambda: mp.Alibi(2.0), TypeError, "Alibi(heads=2.0): heads must be an integer, not float"),
        (lambda: mp.Learned(0, 4), ValueError, "Learned(length=0): length must be at least 1"),
        (lambda: mp.Cope(8, 1), ValueError, "Cope(positions=1): positions must be at least 2"),
        (lambda: mp.Shaw(8, value_dim=0), ValueError, "Shaw(value_dim=0): value_dim must be at least 1"),
        (lambda: mp.window(0), ValueError, "window(n=0): n must be at least 1"),
        (lambda: mp.window(2.5), TypeError, "window(n=2.5): n must be an integer, not float"),
        (lambda: mp.window(2, ahead=-1), ValueError, "window(ahead=-1): ahead must be at least 0"),
        (lambda: mp.sinks(0), ValueError, "sinks(n=0): n must be at least 1"),
        (lambda: mp.chunks(-4), ValueError, "chunks(n=-4): n must be at least 1"),
    ],
)
def test_sizes_that_cannot_be(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: mp.Rope(8, theta=NAN), "Rope(theta=nan): theta must be finite"),
        (lambda: mp.Rope(8, theta=INF), "Rope(theta=inf): theta must be finite"),
        (lambda: mp.Rope(8, theta=-1.0), "Rope(theta=-1.0): theta must be greater than 1"),
        (lambda: mp.Xpos(8, fade=NAN), "Xpos(fade=nan): fade must be finite"),
        (lambda: mp.Yarn(INF, 8), "Yarn(factor=inf): factor must be finite"),
        (lambda: mp.Yarn(0.5, 8), "Yarn(factor=0.5): factor must be at least 1"),
        (lambda: mp.Yarn(2, 8, scaled=NAN), "Yarn(scaled=nan): scaled must be finite"),
        (lambda: mp.Yarn(2, 8, fast=1.0, slow=2.0), "Yarn(fast=1.0): fast must be at least 2"),
        (lambda: mp.Llama3(NAN, 8), "Llama3(factor=nan): factor must be finite"),
        (lambda: mp.Ntk(-1), "Ntk(factor=-1): factor must be greater than 0"),
        (lambda: mp.Interpolate(0), "Interpolate(factor=0): factor must be greater than 0"),
        (lambda: mp.DynamicNtk(8, factor=0.5), "DynamicNtk(factor=0.5): factor must be at least 1"),
        (lambda: mp.LongRope((NAN,), (1.0,), 8), "LongRope(short=nan): short must be finite"),
        (lambda: mp.LeakyRerope(4, INF), "LeakyRerope(factor=inf): factor must be finite"),
        (lambda: mp.Scale(NAN), "Scale(value=nan): value must be finite"),
        (lambda: mp.SoftCap(0), "SoftCap(cap=0): cap must be greater than 0"),
        (lambda: mp.SoftCap(INF), "SoftCap(cap=inf): cap must be finite"),
    ],
)
def test_numbers_that_are_not_finite_or_out_of_range(ask: Callable[[], Any], text: str):
    refused(ValueError, text, ask)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: mp.Rope(8, pairs="half"), "Rope(pairs='half'): pairs must be one of 'halves', 'neighbours'"),
        (lambda: mp.Yarn(2, 8, ramp="text"), "Yarn(ramp='text'): ramp must be one of 'code', 'paper'"),
        (lambda: mp.Kerple(4, form="linear"), "Kerple(form='linear'): form must be one of 'log', 'power'"),
        (lambda: mp.LogN(8, count="n"), "LogN(count='n'): count must be one of 'index', 'length'"),
        (lambda: mp.Stream(1, 4, evict="never"), "Stream(evict='never'): evict must be one of 'before', 'after'"),
    ],
)
def test_words_that_are_not_among_the_choices(ask: Callable[[], Any], text: str):
    refused(ValueError, text, ask)


def test_an_odd_rope_is_told_of_partial_rotation_and_the_advice_works():
    with pytest.raises(ValueError, match=r"for a partial rotation use ") as error:
        mp.Rope(127)
    advice = str(error.value).rsplit("use ", 1)[1]
    assert isinstance(eval(advice, exports()), mp.Partial)


def test_a_rope_of_one_channel_is_not_told_what_cannot_be():
    with pytest.raises(ValueError, match=r"Rope\(head_dim=1\): ") as error:
        mp.Rope(1)
    assert "Partial" not in str(error.value), "one channel cannot be turned, not even in part"


def test_a_stretch_must_be_a_stretch():
    refused(TypeError, "Rope(stretch=2.0): a stretch is a method such as Yarn(", lambda: mp.Rope(8, stretch=2.0))
    refused(TypeError, "Rope(stretch=causal): a stretch is a method such as", lambda: mp.Rope(8, stretch=causal))
    refused(TypeError, "Rope(stretch=…Yarn…)…", lambda: mp.Rope(8, stretch=mp.Yarn))


def test_partial_wants_a_method_that_turns_and_has_room_for_it():
    refused(
        TypeError,
        "Partial(Alibi(heads=4…)): the method must turn channels, such as Rope",
        lambda: mp.Partial(mp.Alibi(4), of=8),
    )
    refused(TypeError, "Partial(…Rope…): the method must turn channels", lambda: mp.Partial(mp.Rope, of=8))
    refused(
        ValueError,
        "Partial(Rope(8), of=4): the method turns 8 channels, and there are only 4",
        lambda: mp.Partial(mp.Rope(8), of=4),
    )


def test_longrope_wants_a_factor_for_every_pair():
    refused(ValueError, "LongRope: 1 short factors but 2 long ones", lambda: mp.LongRope((1.0,), (1.0, 2.0), trained=8))
    scheme = Scheme(mp.Rope(8, stretch=mp.LongRope((1.0, 2.0), (1.0, 2.0), trained=4)))
    refused(
        ValueError,
        "LongRope: 2 factors for 4 pairs of channels; give one for every pair",
        lambda: mp.attend(*small(), scheme),
    )
    refused(TypeError, "LongRope(short=2.0)…", lambda: mp.LongRope(2.0, 4.0, trained=8))


@pytest.mark.parametrize("other", [3, None, mp.window, mp.Alibi(4)], ids=["number", "None", "function", "method"])
def test_only_what_is_visible_combines_with_what_is_visible(other: Any):
    for combine in (lambda: causal & other, lambda: causal | other):
        with pytest.raises(TypeError):
            combine()


def test_this_file_can_fail():
    with pytest.raises(AssertionError):
        refused(ValueError, "Rope(head_dim=127): head_dim must be odd", lambda: mp.Rope(127))
    with pytest.raises(pytest.fail.Exception):
        refused(ValueError, "Rope(head_dim=8)", lambda: mp.Rope(8))
    with pytest.raises(AssertionError):
        refused(RuntimeError, 'backend "sdpa"', lambda: mp.attend(*small(), Scheme(mp.Alibi(4)), backend="sdpa"))
