"""Bad input gets an error that says what was asked, what is wrong and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost import Scheme, causal
from tests.oracles import inputs

INF, NAN = math.inf, math.nan
ROPE = Scheme(mp.Rope(8), causal)
T = torch.arange(6)


def small(**sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [2 4 6 8], k and v [2 2 6 8] in float32, unless told otherwise."""
    q, k, v = inputs(**({"t": 6} | sizes))
    return q.float(), k.float(), v.float()


def refused(kind: type[Exception], text: str, ask: Callable[[], Any]) -> None:
    """The error is of this kind, and its text begins as given; `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in text.split("…"))
    with pytest.raises(kind, match="^" + pattern) as error:
        ask()
    assert error.type is kind, f"{error.type.__name__} where {kind.__name__} was meant"


# Constructors: the call, the value and the rule


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda: mp.Rope(127), ValueError, "Rope(dim=127): dim must be even, because channels are turned in pairs"),
        (lambda: mp.Rope(0), ValueError, "Rope(dim=0): dim must be at least"),
        (lambda: mp.Rope(-2), ValueError, "Rope(dim=-2): dim must be at least"),
        (lambda: mp.Rope(8.0), TypeError, "Rope(dim=8.0): dim must be an integer, not float"),
        (lambda: mp.Rope(True), TypeError, "Rope(dim=True): dim must be an integer, not bool"),
        (lambda: mp.Rope("8"), TypeError, "Rope(dim='8'): dim must be an integer, not str"),
        (lambda: mp.Rope(None), TypeError, "Rope(dim=None): dim must be an integer, not NoneType"),
        (lambda: mp.Xpos(7), ValueError, "Xpos(dim=7): dim must be even, because channels are turned in pairs"),
        (lambda: mp.Sinusoidal(7), ValueError, "Sinusoidal(dim=7): dim must be even, because each wavelength"),
        (lambda: mp.AxialRope(7, (1, 2)), ValueError, "AxialRope(dim=7): dim must be even"),
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
        (lambda: mp.Yarn(2, 8, fast=1.0, slow=2.0), "Yarn(fast=1.0): fast must be greater than 2"),
        (lambda: mp.Llama3(NAN, 8), "Llama3(factor=nan): factor must be finite"),
        (lambda: mp.Ntk(-1), "Ntk(factor=-1): factor must be greater than 0"),
        (lambda: mp.Interpolate(0), "Interpolate(factor=0): factor must be greater than 0"),
        (lambda: mp.DynamicNtk(8, 0.5), "DynamicNtk(factor=0.5): factor must be at least 1"),
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
        (lambda: mp.Kerple(4, "linear"), "Kerple(form='linear'): form must be one of 'log', 'power'"),
        (lambda: mp.LogN(8, count="n"), "LogN(count='n'): count must be one of 'index', 'length'"),
        (lambda: mp.Stream(1, 4, "never"), "Stream(evict='never'): evict must be one of 'before', 'after'"),
    ],
)
def test_words_that_are_not_among_the_choices(ask: Callable[[], Any], text: str):
    refused(ValueError, text, ask)


def test_an_odd_rope_is_told_of_partial_rotation_and_the_advice_works():
    with pytest.raises(ValueError, match=r"for a partial rotation use ") as error:
        mp.Rope(127)
    advice = str(error.value).rsplit("use ", 1)[1]
    assert isinstance(eval(advice, vars(mp).copy()), mp.Partial)


def test_a_rope_of_one_channel_is_not_told_what_cannot_be():
    with pytest.raises(ValueError, match=r"Rope\(dim=1\): ") as error:
        mp.Rope(1)
    assert "Partial" not in str(error.value), "one channel cannot be turned, not even in part"


def test_a_stretch_must_be_a_stretch():
    refused(TypeError, "Rope(stretch=2.0): a stretch is a method such as Yarn(", lambda: mp.Rope(8, stretch=2.0))
    refused(TypeError, "Rope(stretch=causal): a stretch is a method such as", lambda: mp.Rope(8, stretch=causal))
    refused(TypeError, "Rope(stretch=…Yarn…)…", lambda: mp.Rope(8, stretch=mp.Yarn))


def test_partial_wants_a_method_that_turns_and_has_room_for_it():
    refused(
        TypeError,
        "Partial(Alibi(heads=4)): the method must turn channels, such as Rope",
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


# Scheme


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((mp.Rope,), "Scheme(Rope): this is a class; make one: Rope(…"),
        ((mp.Yarn,), "Scheme(Yarn): this is a class; make one: Yarn(…"),
        (
            (mp.Yarn(2, 8),),
            "Scheme(Yarn(2, 8)): Yarn is not a part of a scheme, it stretches a rotation: Rope(dim, stretch=Yarn(2, 8)",
        ),
        ((mp.DynamicNtk(8),), "Scheme(DynamicNtk(8)): DynamicNtk is not a part of a scheme, it stretches a rotation"),
        ((3,), "Scheme(3): a part is a method or what is visible, such as Rope(64) or causal; int answers none"),
        ((None,), "Scheme(None): a part is a method or what is visible"),
        (("rope",), "Scheme('rope'): a part is a method or what is visible"),
        (([mp.Rope(8), causal],), "Scheme([…]): a part is a method or what is visible…list"),
        ((causal, mp.window), "Scheme(…window…): "),
        ((torch.nn.Linear(2, 2),), "Scheme(Linear(…)): a part is a method or what is visible"),
        ((Scheme(mp.Rope(8)),), "Scheme(Scheme(…"),
        ((mp.Cache(),), "Scheme(…Cache…): a part is a method or what is visible"),
    ],
)
def test_what_is_no_part_of_a_scheme(parts: tuple[Any, ...], text: str):
    refused(TypeError, text, lambda: Scheme(*parts))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((mp.Rope(8), mp.Rope(8)), "Scheme: Rope(8) and Rope(8) both turn pairs of channels…; keep one"),
        (
            (mp.Rope(8), causal, mp.Xpos(8)),
            "Scheme: Rope(8) and Xpos(8) both turn pairs of channels…turned twice; keep one",
        ),
        (
            (mp.Rope(8), mp.Partial(mp.Rope(4), of=8)),
            "Scheme: Rope(8) and Partial(Rope(4), 8) both turn pairs of channels",
        ),
        (
            (mp.Rerope(4), mp.Rope(8), mp.SelfExtend(2, 4)),
            "Scheme: Rerope(4) and SelfExtend(2, 4) both place tokens; keep one",
        ),
        ((mp.Stream(1, 4), mp.Rerope(4)), "Scheme: Stream(1, 4) and Rerope(4) both place tokens; keep one"),
        ((mp.Scale(1.0), mp.Scale(0.5)), "Scheme: Scale(1) and Scale(0.5) both set the scale; keep one"),
        ((mp.Scale(1.0), mp.Deberta(8, 4, 8)), "Scheme: Scale(1) and Deberta(8, 4, 8) both set the scale; keep one"),
        ((mp.Alibi(4), mp.T5Bias(8)), "Scheme: Alibi(4) and T5Bias(8) are made for different numbers of heads"),
        (
            (mp.Alibi(4), mp.Kerple(4), mp.Fire(3)),
            "Scheme: Alibi(4) and Fire(3) are made for different numbers of heads",
        ),
        (
            (mp.Rope(8), mp.DualChunk(8, 2)),
            "Scheme: DualChunk(8, 2) is defined for keys behind the query only; add …causal",
        ),
        ((mp.Cope(8, 4), mp.everything), "Scheme: Cope(8, 4) is defined for keys behind the query only; add …causal"),
        (
            (mp.Cope(8, 4), causal | mp.sinks(2)),
            "Scheme: Cope(8, 4) is defined for keys behind the query only; add …causal",
        ),
        (
            (mp.Rerope(4), mp.Fire(4), causal),
            "Scheme: Rerope(4) moves tokens…, and Fire(4) reads more than distances; keep one",
        ),
    ],
)
def test_parts_that_cannot_stand_together(parts: tuple[Any, ...], text: str):
    refused(ValueError, text, lambda: Scheme(*parts))


def test_what_hides_the_keys_ahead_is_enough_for_those_that_need_it():
    for visible in (causal, mp.window(4), causal & mp.sinks(2), mp.window(3) | causal):
        Scheme(mp.Rope(8), mp.DualChunk(8, 2), visible)
        Scheme(mp.Cope(8, 4), visible)


# Schedule


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda: mp.Schedule([]), ValueError, "Schedule([]): a schedule needs at least one scheme, one for each layer"),
        (lambda: mp.Schedule([ROPE, mp.Rope(8)]), TypeError, "Schedule: layer 1 is a Rope; wrap its parts: Scheme("),
        (lambda: mp.Schedule([Scheme]), TypeError, "Schedule: layer 0 is a"),
        (lambda: mp.Schedule([ROPE, None]), TypeError, "Schedule: layer 1 is a NoneType"),
        (lambda: mp.Schedule(ROPE), TypeError, "Schedule(…list"),
        (lambda: mp.Schedule([ROPE, ROPE])[2], IndexError, "Schedule: …layer 2…2 layers"),
        (
            lambda: mp.Schedule.from_dict({}),
            ValueError,
            "Schedule.from_dict: expected {'schedule': […], 'schemes': […]}",
        ),
        (
            lambda: mp.Schedule.from_dict(ROPE.to_dict()),
            ValueError,
            "Schedule.from_dict: expected …given the keys ['scheme']",
        ),
    ],
)
def test_schedules_that_cannot_be(ask: Callable[[], Any], kind: type[Exception], text: str):
    refused(kind, text, ask)


# Saved schemes


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        ({"is": "Roppe", "dim": 8}, "no method is called 'Roppe'; did you mean Rope…methods=["),
        ({"is": "rope", "dim": 8}, "no method is called 'rope'; did you mean Rope…"),
        ({"is": "Mine"}, "no method is called 'Mine'…pass your own with methods=["),
        (
            {"is": "Rope", "dim": 8, "stretch": {"is": "Yran", "factor": 2}},
            "no method is called 'Yran'; did you mean Yarn…",
        ),
        ({"is": "Rope", "dim": 7}, "Rope(dim=7): dim must be even"),
        ({"dim": 8}, "…'is'…['dim']"),
    ],
)
def test_saved_parts_that_cannot_be_built(saved: dict[str, Any], text: str):
    refused(ValueError, text, lambda: Scheme.from_dict({"scheme": [saved]}))


def test_a_saved_scheme_that_is_none():
    refused(ValueError, "Scheme.from_dict: expected {'scheme': […]}, given the keys []", lambda: Scheme.from_dict({}))
    saved = mp.Schedule([ROPE]).to_dict()
    refused(
        ValueError,
        "Scheme.from_dict: expected …given the keys ['schedule', 'schemes', 'shared']",
        lambda: Scheme.from_dict(saved),
    )


@pytest.mark.parametrize(("arguments", "named"), [({"dim": 8, "base": 1.0}, "base"), ({}, "dim")])
def test_saved_arguments_that_do_not_fit_name_the_method_and_the_argument(arguments: dict[str, Any], named: str):
    with pytest.raises((TypeError, ValueError), match=rf"Rope.*'{named}'"):
        Scheme.from_dict({"scheme": [{"is": "Rope"} | arguments]})


# attend: the tensors


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        (mp.Rope(8), "attend: the fourth argument is a Scheme, given Rope; wrap it: Scheme("),
        ([mp.Rope(8)], "attend: the fourth argument is a Scheme, given list; wrap it: Scheme("),
        (None, "attend: the fourth argument is a Scheme, given NoneType"),
        (mp.Schedule([ROPE]), "attend: the fourth argument is a Scheme, given Schedule; …schedule[layer]"),
    ],
)
def test_attend_wants_a_scheme(scheme: Any, text: str):
    refused(TypeError, text, lambda: mp.attend(*small(), scheme))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda q, k, v: (q[0], k[0], v[0]),
            "attend: q is [b h t d], k [b g s d] and v [b g s dv]; given q [4, 6, 8], k [2, 6, 8]",
        ),
        (lambda q, k, v: (q, k, v[0]), "attend: q is [b h t d]…v [2, 6, 8]"),
        (
            lambda q, k, v: (q[:1], k, v),
            "attend: …do not fit together; given q [1, 4, 6, 8], k [2, 2, 6, 8], v [2, 2, 6, 8]",
        ),
        (lambda q, k, v: (q[..., :4], k, v), "attend: …do not fit together; given q [2, 4, 6, 4], k [2, 2, 6, 8]"),
        (lambda q, k, v: (q, k[:, :, :3], v), "attend: …do not fit together; …k [2, 2, 3, 8], v [2, 2, 6, 8]"),
        (lambda q, k, v: (q, k[:, :1], v), "attend: …do not fit together; …k [2, 1, 6, 8], v [2, 2, 6, 8]"),
        (
            lambda q, k, v: (q[:, :3], k, v),
            "attend: 3 query heads cannot share 2 key heads evenly; given q [2, 3, 6, 8]",
        ),
        (lambda q, k, v: (q[:, :1], k, v), "attend: 1 query heads cannot share 2 key heads evenly"),
        (lambda q, k, v: (q, k[:, :0], v[:, :0]), "attend: 4 query heads cannot share 0 key heads"),
        (lambda q, k, v: (q, k.to("meta"), v), "attend: q, k and v are on different devices: cpu, meta, cpu"),
    ],
)
def test_tensors_that_do_not_fit(change: Callable[..., Any], text: str):
    refused(ValueError, text, lambda: mp.attend(*change(*small()), ROPE))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda q, k, v: (q.double(), k, v),
            "attend: q, k and v need one floating dtype; given torch.float64, torch.float32, torch.float32",
        ),
        (lambda q, k, v: (q, k, v.bfloat16()), "attend: q, k and v need one floating dtype; given …torch.bfloat16"),
        (
            lambda q, k, v: (q.long(), k.long(), v.long()),
            "attend: q, k and v need one floating dtype; given torch.int64",
        ),
        (
            lambda q, k, v: (q.cfloat(), k.cfloat(), v.cfloat()),
            "attend: q, k and v need one floating dtype; given torch.complex64",
        ),
        (lambda q, k, v: (q.tolist(), k, v), "attend: q, k and v are tensors; given list"),
    ],
)
def test_tensors_of_the_wrong_kind(change: Callable[..., Any], text: str):
    refused(TypeError, text, lambda: mp.attend(*change(*small()), ROPE))


def test_weights_on_another_device_are_named():
    text = "attend: q is on cpu but the scheme's weight 1.table is on meta; move it: scheme.to(q.device)"
    scheme = Scheme(mp.Rope(8), mp.T5Bias(4), causal).to("meta")
    refused(ValueError, text, lambda: mp.attend(*small(), scheme))


def test_meta_tensors_give_a_meta_result():
    q, k, v = (each.to("meta") for each in small())
    assert mp.attend(q, k, v, ROPE).shape == (2, 4, 6, 8)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            lambda: mp.Rope(4),
            "Rope(dim=4): given a tensor of 8 channels; to turn only some of them use Partial(Rope(4), of=8)",
        ),
        (
            lambda: mp.Xpos(4),
            "Xpos(dim=4): given a tensor of 8 channels; to turn only some of them use Partial(Xpos(4), of=8)",
        ),
        (lambda: mp.Partial(mp.Rope(4), of=6), "Partial(Rope(4), of=6): given a tensor of 8 channels"),
        (lambda: mp.TransformerXL(8, 4, 4), "TransformerXL(dim=4): given a tensor of 8 channels"),
        (lambda: mp.Cope(4, 4), "Cope(dim=4): given a tensor of 8 channels"),
        (lambda: mp.Shaw(4), "Shaw(…4…8 channels"),
        (lambda: mp.Shaw(8, value_dim=4), "Shaw(…value_dim=4…8 channels"),
        (lambda: mp.Deberta(8, 4, 4), "Deberta(…4…8 channels"),
    ],
)
def test_a_part_made_for_other_channels_says_so(part: Callable[[], Any], text: str):
    refused(ValueError, text, lambda: mp.attend(*small(), Scheme(part(), causal)))


@pytest.mark.parametrize("method", [mp.Rope, mp.Xpos])
def test_a_rotation_wider_than_the_queries_is_not_told_what_cannot_be(method: Callable[[int], Any]):
    with pytest.raises(ValueError, match=r"\(dim=16\): given a tensor of 8 channels") as error:
        mp.attend(*small(), Scheme(method(16), causal))
    assert "Partial" not in str(error.value), "sixteen channels of eight cannot be turned"


@pytest.mark.parametrize(
    "part",
    [mp.Alibi(8), mp.Kerple(8), mp.T5Bias(8), mp.SinkLogit(8), mp.SplitAlibi(8)],
    ids=lambda part: type(part).__name__,
)
def test_a_part_made_for_other_heads_says_so(part: Any):
    text = f"attend: {type(part).__name__}(8) …4 heads; given q [2, 4, 6, 8]"
    refused(ValueError, text, lambda: mp.attend(*small(), Scheme(mp.Rope(8), part, causal)))


def test_no_keys_at_all_give_zeros():
    # A row that sees nothing gives zeros, also where there is nothing to see.
    q, k, v = small()
    told = {"index": T, "key_index": T[:0]}
    assert torch.equal(mp.attend(q, k[:, :, :0], v[:, :, :0], ROPE, **told), torch.zeros(2, 4, 6, 8))
    assert mp.attend(q[:, :, :0], k[:, :, :0], v[:, :, :0], ROPE).shape == (2, 4, 0, 8)


# attend: indices, positions, documents


@pytest.mark.parametrize("name", ["index", "key_index", "documents", "key_documents"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=["float", "bool", "complex"])
def test_counting_takes_integers(name: str, dtype: torch.dtype):
    text = f"attend: {name} must be integers, given {dtype}"
    refused(TypeError, text, lambda: mp.attend(*small(), ROPE, **{name: T.to(dtype)}))


def test_a_float_index_is_pointed_to_position_and_a_mask_to_documents():
    with pytest.raises(TypeError, match=r"give it as position"):
        mp.attend(*small(), ROPE, index=T.float())
    # Who gives booleans has a padding mask in hand.
    with pytest.raises(TypeError, match=r"documents") as error:
        mp.attend(*small(), ROPE, key_index=T > 1)
    assert "fraction" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=["bool", "complex"])
def test_positions_are_numbers(dtype: torch.dtype):
    with pytest.raises(TypeError, match=rf"attend: position must be .*given {dtype}") as error:
        mp.attend(*small(), ROPE, position=T.to(dtype))
    assert "integers" not in str(error.value).replace("integers or", ""), "fractions are welcome as positions"


@pytest.mark.parametrize("name", ["index", "key_index", "position", "key_position", "documents", "key_documents"])
def test_a_list_is_not_a_tensor(name: str):
    text = f"attend: {name} …tensor…, given list"
    refused(TypeError, text, lambda: mp.attend(*small(), ROPE, **{name: [0, 1, 2, 3, 4, 5]}))


@pytest.mark.parametrize("name", ["index", "key_index", "position", "key_position", "documents", "key_documents"])
def test_what_tells_tokens_has_their_shape_and_is_on_their_device(name: str):
    def attend(values: Any) -> Callable[[], Any]:
        return lambda: mp.attend(*small(), ROPE, **{name: values})

    refused(ValueError, f"attend: {name} is on meta but q is on cpu", attend(T.to("meta")))
    refused(ValueError, f"attend: {name} must be [6] or [2, 6]…, given [5]", attend(T[:5]))
    refused(ValueError, f"attend: {name} must be [6] or [2, 6]…, given [3, 6]", attend(T.expand(3, 6)))
    refused(
        ValueError,
        f"attend: {name} must be [6] or [2, 6]…, given [1, 2, 6, 2]",
        attend(T.view(1, 1, 6, 1).expand(1, 2, 6, 2)),
    )


@pytest.mark.parametrize("name", ["index", "key_index"])
def test_negative_indices_are_shown_and_padding_explained(name: str):
    text = f"attend: {name} holds -2; indices count from 0; mark padding with documents=-1"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, **{name: T - 2}))
    # Of a token that is padding nobody asks the index.
    documents = torch.where(T >= 2, 0, -1)
    mp.attend(*small(), ROPE, index=T - 2, key_index=T - 2, documents=documents)


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["position", "key_position"])
def test_positions_must_be_finite(name: str, wrong: float):
    position = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, wrong])
    refused(ValueError, f"attend: {name} holds {wrong}", lambda: mp.attend(*small(), ROPE, **{name: position}))


@pytest.mark.parametrize("told", [{}, {"index": T}, {"key_index": T[:3]}], ids=["none", "index", "key_index"])
def test_more_queries_than_keys_need_both_indices(told: dict[str, Tensor]):
    text = "attend: 6 queries but 3 keys, so the queries cannot be the last of the keys; give index and key_index"
    refused(ValueError, text, lambda: mp.attend(*small(s=3), ROPE, **told))
    assert mp.attend(*small(s=3), ROPE, index=T, key_index=T[:3]).shape == (2, 4, 6, 8)


def test_documents_of_the_queries_do_not_tell_those_of_other_keys():
    text = "attend: documents of 3 queries do not tell those of 6 keys; give key_documents"
    refused(ValueError, text, lambda: mp.attend(*small(t=3, s=6), ROPE, documents=T[:3]))
    text = "attend: 6 queries but 3 keys, so key_documents do not tell documents; give both"
    told = {"index": T, "key_index": T[:3], "key_documents": T[:3]}
    refused(ValueError, text, lambda: mp.attend(*small(s=3), ROPE, **told))


def test_both_answers_of_documents_of_given_as_one():
    both = mp.documents_of(torch.tensor([0, 2, 6]))
    refused(TypeError, "attend: documents …tensor…, given tuple", lambda: mp.attend(*small(), ROPE, documents=both))


@pytest.mark.parametrize("name", ["position", "key_position"])
def test_axes_that_nobody_reads(name: str):
    text = f"attend: {name} is [2, 6, 2], but no part of the scheme reads several axes; give [t] or [b t]"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, **{name: torch.zeros(2, 6, 2)}))


def test_axes_that_are_not_the_ones_read():
    axial = mp.AxialRope(8, (2, 2))
    three = {"position": torch.zeros(2, 6, 3), "key_position": torch.zeros(2, 6, 3)}
    refused(
        ValueError,
        "attend: position has 3 axes, but the scheme reads 2",
        lambda: mp.attend(*small(), Scheme(axial), **three),
    )
    two = {name: values[..., :2] for name, values in three.items()}
    for part in (mp.Alibi(4), mp.Shaw(8), mp.Rerope(3)):
        refused(
            ValueError,
            f"attend: position has 2 axes, but {type(part).__name__}(…) reads one; give [t] or [b t]",
            lambda part=part: mp.attend(*small(), Scheme(axial, part), **two),
        )


@pytest.mark.parametrize("shape", [(6,), (2, 5, 3), (3, 6, 3), (2, 4, 6, 3)], ids=str)
def test_layer_inputs_have_the_shape_of_the_keys(shape: tuple[int, ...]):
    refused(
        ValueError, f"attend: x …[2, 6, …given {list(shape)}", lambda: mp.attend(*small(), ROPE, x=torch.zeros(shape))
    )


# attend: dropout and backends


@pytest.mark.parametrize("dropout", [1.0, -0.1, 30, NAN])
def test_dropout_is_a_share(dropout: float):
    text = f"attend(dropout={dropout}): dropout is a share of the weights, at least 0 and below 1"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, dropout=dropout))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("flax", "flex"), ("Flex", "flex"), ("referense", "reference"), ("SDPA", "sdpa"), ("chunks", "chunked")],
)
def test_a_backend_of_no_name_gets_the_nearest(name: str, meant: str):
    text = f"attend(backend={name!r}): no backend is called that; did you mean {meant}?…there are …reference"
    refused(ValueError, text, lambda: mp.attend(*small(), ROPE, backend=name))


def test_a_backend_of_no_near_name_gets_the_list():
    with pytest.raises(ValueError, match=r"attend\(backend='eager'\): no backend is called that; there are ") as error:
        mp.attend(*small(), ROPE, backend="eager")
    assert all(name in str(error.value) for name in ("sdpa", "flex", "chunked", "reference"))


def test_a_backend_is_named_by_a_string():
    with pytest.raises((TypeError, ValueError), match=r"attend\(backend=3\)"):
        mp.attend(*small(), ROPE, backend=3)


@pytest.mark.parametrize(
    ("part", "does"),
    [
        (lambda: mp.Alibi(4), "Alibi(4) bends the scores"),
        (lambda: mp.Rerope(4), "Rerope(4) turns near and far keys differently"),
        (lambda: mp.Shaw(8, 3), "Shaw(8, reach=3) adds tables looked up by distance"),
        (lambda: mp.Cope(8, 4), "Cope(8, 4) bends whole rows of scores"),
        (lambda: mp.SinkLogit(4), "SinkLogit(4) adds a logit of rest"),
    ],
)
def test_a_backend_that_cannot_run_a_part_names_it_and_those_that_can(part: Callable[[], Any], does: str):
    text = f'backend "sdpa" cannot run this scheme: {does}…Use …"reference", or leave backend unset'
    refused(mp.CannotRun, text, lambda: mp.attend(*small(), Scheme(mp.Rope(8), part(), causal), backend="sdpa"))


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize(
    "part", [lambda: mp.Alibi(4), lambda: mp.Shaw(8), lambda: mp.Cope(8, 4)], ids=["bends", "values", "rows"]
)
def test_the_backends_that_a_refusal_recommends_do_run_it(backend: str, part: Callable[[], Any]):
    scheme = Scheme(part(), causal)
    try:
        mp.attend(*small(), scheme, backend=backend)
    except mp.CannotRun as refusal:
        recommended = re.findall(r'"(\w+)"', str(refusal).split("Use ")[1])
        assert recommended
        for name in recommended:
            assert mp.attend(*small(), scheme, backend=name).shape == (2, 4, 6, 8)


def test_flex_names_the_part_before_the_circumstances():
    # That there is no gradient on the CPU can be mended; that rows are bent cannot, so it comes first.
    scheme = Scheme(mp.Cope(8, 4), causal)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            text = 'backend "flex" cannot run this scheme: Cope(8, 4) bends whole rows of scores'
            refused(mp.CannotRun, text, lambda: mp.attend(*small(), scheme, backend="flex"))


def test_flex_refuses_gradients_on_the_cpu_and_values_added():
    q, k, v = small()
    text = (
        'backend "flex" cannot run this scheme: FlexAttention has no gradient on the CPU…Use "sdpa" or "chunked" or …'
    )
    refused(mp.CannotRun, text, lambda: mp.attend(q.requires_grad_(), k, v, ROPE, backend="flex"))
    with torch.no_grad():
        text = 'backend "flex" cannot run this scheme: Shaw(8) adds to the values'
        refused(mp.CannotRun, text, lambda: mp.attend(q, k, v, Scheme(mp.Shaw(8), causal), backend="flex"))


def test_log_sum_exp_is_not_to_be_had_from_sdpa():
    text = (
        'backend "sdpa" cannot run this scheme: return_lse was asked for, which torch\'s function does not give. Use '
    )
    refused(mp.CannotRun, text, lambda: mp.attend(*small(), ROPE, backend="sdpa", return_lse=True))


# explain


def test_explain_names_the_option_that_was_meant():
    q, k, _ = small()
    text = "explain: no option is called 'positions'; did you mean position or key_position?"
    refused(TypeError, text, lambda: mp.explain(ROPE, q, k, positions=T))
    refused(TypeError, "explain: no option is called 'zzz'", lambda: mp.explain(ROPE, q, k, zzz=1))


def test_explain_speaks_of_explain():
    q, k, _ = small()
    refused(TypeError, "explain: the first argument is a Scheme, given Tensor", lambda: mp.explain(q, k, ROPE))


def test_explain_refuses_what_attend_refuses():
    q, k, v = small()
    with pytest.raises(ValueError, match=r"3 query heads cannot share 2 key heads evenly"):
        mp.explain(ROPE, q[:, :3], k)
    with pytest.raises(TypeError, match=r"index must be integers, given torch.float32"):
        mp.explain(ROPE, q, k, v, index=T.float())


def test_explain_says_who_runs_it_and_why_the_others_do_not():
    q, k, v = small()
    with torch.no_grad():
        told = mp.explain(Scheme(mp.Alibi(4), causal), q, k, v)
    assert told.backend not in told.others
    assert told.others["sdpa"] == "Alibi(4) bends the scores"
    lines = str(told).splitlines()
    assert lines[0] == f"{told.backend}: runs it"
    assert "sdpa: Alibi(4) bends the scores" in lines
    assert mp.explain(ROPE, q, k).backend == "sdpa"


# The pieces


def test_a_learned_table_ends_and_says_what_to_do():
    text = (
        "Learned(length=4): index 5 is past the table, which ends at 3; make a longer table, or use a method that is "
        "defined everywhere, such as Sinusoidal"
    )
    refused(ValueError, text, lambda: Scheme(mp.Learned(4, 8)).embed(torch.zeros(1, 6, 8)))
    refused(
        ValueError,
        text.replace("index 5", "index 9"),
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 2, 8), torch.tensor([0, 9])),
    )


def test_a_learned_table_is_not_read_from_its_end():
    refused(
        ValueError,
        "Learned(length=4): index -1 …",
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 2, 8), torch.tensor([-1, 0])),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=["float", "bool"])
def test_a_learned_table_is_read_by_integers(dtype: torch.dtype):
    refused(
        TypeError,
        "Learned…index must be integers",
        lambda: mp.Learned(4, 8).embed(torch.zeros(1, 4, 8), torch.zeros(4).to(dtype)),
    )


@pytest.mark.parametrize("method", [mp.Learned(4, 8), mp.Sinusoidal(8)], ids=["learned", "sinusoidal"])
def test_embeddings_of_another_width(method: Any):
    with pytest.raises(ValueError, match=r"\(dim=8\): given a tensor of 6 channels"):
        method.embed(torch.zeros(1, 2, 6))


def test_a_bias_stands_only_for_what_adds_to_scores():
    def bias(*parts: object) -> Callable[[], Any]:
        return lambda: Scheme(*parts).bias(T, T)

    refused(ValueError, "scheme.bias: Rope(8) does more than add to a score: it answers turn", bias(mp.Rope(8), causal))
    refused(ValueError, "scheme.bias: SoftCap(3) bends a score by more than a sum", bias(mp.SoftCap(3.0), causal))
    refused(
        ValueError, "scheme.bias: SinkLogit(4) does more than add to a score: it answers rest", bias(mp.SinkLogit(4))
    )


def test_a_score_mod_cannot_do_everything():
    for part, verb in (
        (mp.Rerope(4), "place"),
        (mp.Shaw(8), "relate"),
        (mp.Cope(8, 4), "bend_rows"),
        (mp.SinkLogit(4), "rest"),
    ):
        text = f"scheme.flex: {type(part).__name__}(…) answers {verb}, which no score_mod can do; use attend"
        refused(ValueError, text, lambda part=part: Scheme(part, causal).flex(T, T))
    text = "scheme.flex: documents tell 3 tokens but there are 6 keys"
    refused(ValueError, text, lambda: Scheme(mp.Alibi(4), causal).flex(T, T, documents=T[:3]))


def test_this_file_can_fail():
    with pytest.raises(AssertionError):
        refused(ValueError, "Rope(dim=127): dim must be odd", lambda: mp.Rope(127))
    with pytest.raises(pytest.fail.Exception):
        refused(ValueError, "Rope(dim=8)", lambda: mp.Rope(8))
    with pytest.raises(AssertionError):
        refused(RuntimeError, 'backend "sdpa"', lambda: mp.attend(*small(), Scheme(mp.Alibi(4)), backend="sdpa"))
