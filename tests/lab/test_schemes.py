"""Schemes by name and by expression: what builds, what layers share, and what an expression cannot do."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.lab.schemes.expressions import named, spelled, titled
from milepost.lab.schemes.named import AND_THE_REST, TRAINED, WITHOUT_TRAINING, build, rows_on, try_out
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import SIZES
from milepost.seams.verbs import answers
from tests.oracles import assert_same

SHAPE = Shape(32, 3, 4, 2, hidden=32, vocabulary=50)
NAMES = [*TRAINED]
EVERY = {base: rows | AND_THE_REST[base] for base, rows in WITHOUT_TRAINING.items()}
ROWS = [(base, label) for base, rows in EVERY.items() for label in rows]
SINKS = "window and sinks"


def ones(schedule: mp.Schedule) -> list[list[object]]:
    """The parts of each layer."""
    return [list(scheme.parts) for scheme in schedule]


def random_tokens(t: int, b: int = 1) -> Tensor:
    return torch.randint(0, 50, (b, t), generator=torch.Generator().manual_seed(0))


# Every name


SHAPES = [Shape(16, 2, 2), Shape(24, 3, 3), Shape(48, 2, 6, 2)]
# An equation is solved for every token of FLOATER, which takes seconds: one shape and a short text will do.
BUILT = [(name, shape) for name in NAMES for shape in SHAPES if name != "floater" or shape is SHAPES[0]]


@pytest.mark.parametrize(("name", "shape"), BUILT, ids=[f"{name}-{shape.width}" for name, shape in BUILT])
def test_every_name_builds_trains_and_reaches_the_longest_length(name: str, shape: Shape):
    torch.manual_seed(0)
    model = Model(shape, build(name, shape, 16, 64))
    assert len(model.schedule) == shape.layers
    for length in (16, 64) if name != "floater" else (8,):
        tokens = torch.randint(0, 256, (1, length))
        logits = model(tokens)
        assert logits.isfinite().all()
        other = tokens.clone()
        other[0, length // 2] ^= 1
        behind = (model(other) - logits)[:, : length // 2].abs().max()
        assert float(behind.detach()) == 0, "a byte was seen before its time"
    logits.square().mean().backward()
    for weight in model.schedule.parameters():
        assert weight.grad is not None


def test_a_name_is_the_expression_it_stands_for():
    for name, text in TRAINED.items():
        if name != "t5":
            assert build(name, SHAPE, 16, 64).same_as(build(text, SHAPE, 16, 64)), name


def test_expressions_know_the_sizes_of_the_model():
    parts = ones(build("Rope(dim, theta=1e5) + LogN(trained) + Alibi(heads) + causal", SHAPE, 16, 64))[2]
    assert parts == [mp.Rope(8, theta=1e5), mp.LogN(16), mp.Alibi(4), mp.causal]
    wide = "Learned(max(longest, 2 * trained) - 1, width) + (causal & (window(layers) | sinks(-1 + 2 ** 2)))"
    table, seen = ones(build(wide, SHAPE, 16, 64))[0]
    assert (table.length, table.model_dim) == (63, 32)
    assert seen == mp.causal & (mp.window(3) | mp.sinks(3))


def test_without_a_visible_part_a_scheme_is_causal():
    assert ones(build("Rope(dim)", SHAPE, 16, 64))[0] == [mp.Rope(8), mp.causal]
    assert ones(build("Rope(dim) + everything", SHAPE, 16, 64))[0] == [mp.Rope(8), mp.everything]
    assert ones(build("Rope(dim) + window(4)", SHAPE, 16, 64))[0] == [mp.Rope(8), mp.window(4)]
    # It hides what is ahead by itself.
    assert ones(build("Rope(dim) + Stream(2, 6)", SHAPE, 16, 64))[0] == [mp.Rope(8), mp.Stream(2, 6)]
    assert mp.causal in ones(build("SplitAlibi(heads)", SHAPE, 16, 64))[0]


# As people write them


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (["RoPE", "rope", "Rope", "ROPE", " rope ", "rotary", "Rope(dim)", "rope(dim)", "RoPE( dim )"], "rope"),
        (["ALiBi", "alibi", "Alibi", "ALiBi(heads)"], "alibi"),
        (["T5", "t5", "T5Bias", "t5-bias", "t5(heads, reach = min(128, max(32, trained // 2)))"], "t5"),
        (["KERPLE", "Kerple", "kerple"], "kerple"),
        (["FIRE", "Fire", "FIRE(heads, trained)"], "fire"),
        (["CoPE", "cope", "Cope(dim, 64)"], "cope"),
        (["xPos", "XPos", "xpos"], "xpos"),
        (["NoPE", "nope", "Nope()"], "nope"),
        (["Transformer-XL", "TransformerXL", "transformer xl", "transformer_xl"], "transformer-xl"),
        (["Learned", "Learned(longest, width)"], "learned"),
        (["Learned RoPE", "LearnedRope", "learned-rope"], "learned-rope"),
        (["p-RoPE", "P-Rope", "rope(dim, stretch=proportional(0.5))"], "p-rope"),
        (["softmax₁-RoPE", "SoftMax1-RoPE", "RoPE + SoftMax1(heads)"], "softmax1-rope"),
        (["ALiBi-RoPE", "rope + alibi", "RoPE(dim) + ALiBi(heads)"], "alibi-rope"),
        (["KERPLE-log-n", 'kerple + LogN(trained, clip=False)'], "kerple-logn"),
        (['kerple(heads, "power")', "Kerple(heads, 'power')"], "kerple-power"),
        (["HWFA", "hwfa"], "hwfa"),
    ],
)  # fmt: skip
def test_a_scheme_is_the_same_whichever_way_it_is_written(spellings: list[str], name: str):
    for text in spellings:
        assert named(text) == name, text
        assert spelled(text) == name, text
        assert build(text, SHAPE, 16, 64).same_as(build(name, SHAPE, 16, 64)), text


def test_an_expression_has_one_spelling_and_is_shown_as_it_was_written():
    one, other = "RoPE(dim,theta=1e5)+logn( trained )", "Rope(dim, theta=100000.0) + LogN(trained)"
    assert (named(one), spelled(one)) == (one, other)
    assert named(other) == spelled(other) == other
    assert spelled("Rope(dim) + (Causal & Window(4))") == "Rope(dim) + (causal & window(4))"


def test_a_sum_of_two_names_is_not_the_name_that_they_spell_together():
    """Without its sign it would read learned-rope."""
    assert ones(build("learned + rope", SHAPE, 16, 64))[0][1:] == [mp.Rope(8), mp.causal]


# Who shares


def distinct(name: str, kind: type) -> int:
    """How many objects of a class the layers of a scheme hold."""
    found = [part for parts in ones(build(name, SHAPE, 16, 64)) for part in parts if isinstance(part, kind)]
    assert len(found) == SHAPE.layers
    return len({id(part) for part in found})


def test_what_is_learned_is_one_a_layer():
    for name, kind in (("kerple", mp.Kerple), ("fire", mp.Fire), ("shaw", mp.Shaw), ("cope", mp.Cope)):
        assert distinct(name, kind) == 3, name
    assert distinct("learned-rope", mp.LearnedRope) == 3
    assert distinct("Partial(LearnedRope(dim // 2), of=dim)", mp.Partial) == 3


def test_what_embeds_is_shared_since_it_acts_once():
    assert distinct("learned", mp.Learned) == 1
    assert distinct("floater", mp.Floater) == 1
    assert distinct("Learned(longest, width) + Kerple(heads)", mp.Learned) == 1
    assert distinct("Learned(longest, width) + Kerple(heads)", mp.Kerple) == 3


@pytest.mark.parametrize("name", ["t5", "T5Bias(heads)", "T5Bias(heads) + LogN(trained)"])
def test_the_table_of_t5_is_shared_by_all_layers_as_in_its_paper(name: str):
    assert distinct(name, mp.T5Bias) == 1


def test_layers_start_from_different_weights():
    torch.manual_seed(0)
    first, second, _ = (parts[0] for parts in ones(build("shaw", SHAPE, 16, 64)))
    assert isinstance(first, nn.Module)
    assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


# Rows without training


def model_of(name: str, trained: int) -> Model:
    torch.manual_seed(0)
    model = Model(SHAPE, build(name, SHAPE, trained, 4 * trained)).double()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2, mean=1.0 if weight.dim() == 1 else 0.0)
    return model


@pytest.mark.parametrize(("base", "label"), ROWS)
@pytest.mark.parametrize(
    ("trained", "longest"), [(16, 64), (16, 16), (128, 2048), (512, 16384), (128, 8192), (64, 4096), (100, 800)]
)
def test_every_row_builds_at_every_length(base: str, label: str, trained: int, longest: int):
    schedule = build(EVERY[base][label], SHAPE, trained, longest)
    assert len({id(scheme) for scheme in schedule}) == 1
    assert not list(schedule.parameters())


@pytest.mark.parametrize(("base", "label"), ROWS)
def test_every_row_reads_far_past_the_trained_length(base: str, label: str):
    model = model_of(base, 16)
    other = model.using(build(EVERY[base][label], SHAPE, 16, 64)).uncompiled()
    with torch.no_grad():
        assert other(random_tokens(64)).isfinite().all()
        assert float((other(random_tokens(64)) - model(random_tokens(64))).abs().max()) > 1e-6


EXACT = {
    ("rope", "window"), ("rope", "interpolation"), ("rope", "dynamic NTK"), ("rope", "dynamic YaRN"),
    ("rope", "log-n"), ("rope", SINKS), ("rope", "streaming"),
    ("alibi", "window"), ("alibi", SINKS), ("alibi", "dynamic NTK"), ("alibi", "log-n"),
}  # fmt: skip


@pytest.mark.parametrize(("base", "label"), ROWS)
def test_within_the_trained_length_a_row_changes_nothing_unless_it_moves_near_tokens(base: str, label: str):
    model = model_of(base, 16)
    other = model.using(build(EVERY[base][label], SHAPE, 16, 64))
    with torch.no_grad():
        apart = float((other(random_tokens(16, 2)) - model(random_tokens(16, 2))).abs().max())
    assert apart <= 1e-12 if (base, label) in EXACT else apart > 1e-6


@pytest.mark.parametrize(
    ("label", "same_until"),
    # The first query whose farthest key is moved. ReRoPE moves distances past 8, its leaky form past 4. Self-Extend
    # with groups of 8 counts 9 … 15 as 8. Chunks of 10 that may reach 12 count 13 as 12.
    [("ReRoPE", 9), ("ReRoPE, log-n", 9), ("leaky ReRoPE, log-n", 5), ("self-extend", 9), ("dual chunk", 13)],
)
def test_a_row_that_moves_far_tokens_leaves_near_ones_alone(label: str, same_until: int):
    model = model_of("rope", 16)
    other = model.using(build(WITHOUT_TRAINING["rope"][label], SHAPE, 16, 64))
    with torch.no_grad():
        apart = (other(random_tokens(16, 2)) - model(random_tokens(16, 2))).abs().amax((0, 2))
    assert_same(apart[:same_until], torch.zeros(same_until))
    assert float(apart[same_until]) > 1e-9


def test_rerope_with_a_window_of_the_whole_text_is_rope():
    model = model_of("rope", 16)
    with torch.no_grad():
        for text in ("Rope(dim) + Rerope(trained)", "Rope(dim) + LeakyRerope(trained, 16) + LogN(trained)"):
            assert_same(model.using(build(text, SHAPE, 16, 64))(random_tokens(16)), model(random_tokens(16)))


def test_the_trivial_baselines_stand_first():
    for rows in WITHOUT_TRAINING.values():
        assert list(rows)[:2] == ["window", SINKS]
    seen = [ones(build(WITHOUT_TRAINING["rope"][label], SHAPE, 16, 64))[0][-1] for label in ("window", SINKS)]
    assert seen == [mp.causal & mp.window(16), mp.causal & (mp.window(12) | mp.sinks(4))]


def test_every_stretch_and_place_has_a_row():
    """LongRope's factors are searched for model by model, and Proportional is trained with."""
    wanted = {each.name for each in mp.methods() if {"frequencies", "slopes", "place"} & set(each.verbs)}
    said = {base: " ".join(rows.values()) for base, rows in EVERY.items()}
    missing = {name for name in wanted if not any(f"{name}(" in text for text in said.values())}
    assert missing == {"KeepSinks", "LongRope", "Proportional"}
    assert not any(set(AND_THE_REST[base]) & set(WITHOUT_TRAINING[base]) for base in EVERY)


@pytest.mark.parametrize("label", ["NTK", "YaRN", "Llama 3", "by parts", "interpolation, fixed", "NTK, mixed"])
def test_a_fixed_stretch_reaches_the_longest_length(label: str):
    """The slowest pair turns by 64 tokens as far as RoPE's own does by 16."""
    before, after = (ones(build(text, SHAPE, 16, 64))[0][0] for text in ("rope", EVERY["rope"][label]))
    angles: list[float] = []
    for rope, place in ((before, 16), (after, 64)):
        cos, sin = rope.cos_sin(torch.tensor([place]), 16, dtype=torch.float64)
        angles.append(float(torch.atan2(sin, cos)[0, -1]))
    assert angles[1] == pytest.approx(angles[0])


def test_ours_and_the_users_rows_stand_together_after_the_trivial_ones():
    own = "Rope(dim) + Rerope(4)"
    both = rows_on("rope", free=True, every=True, own=[own])
    assert list(both) == [*EVERY["rope"], own]
    assert list(rows_on("rope", free=True, every=False, own=[])) == list(WITHOUT_TRAINING["rope"])
    assert list(rows_on("rope", free=False, every=False, own=[own])) == ["window", SINKS, own]
    assert rows_on("kerple", free=True, every=True, own=[]) == {}
    assert rows_on("Alibi(heads, 2.0)", free=True, every=False, own=["Nope()"])["window"] == (
        "Alibi(heads, 2.0) + (causal & window(trained))"
    )
    assert rows_on("[Nope()] * (layers - 1) + [Rope(dim)]", free=True, every=False, own=["Nope()"])["window"] == (
        "[Nope() + (causal & window(trained))] * (layers - 1) + [Rope(dim) + (causal & window(trained))]"
    )


def test_a_row_is_called_what_its_user_calls_it():
    rows = rows_on("rope", free=False, every=False, own=["near, flat = Rope(dim, theta=1e5) + Rerope(4)", "Nope()"])
    assert list(rows.items())[2:] == [("near, flat", "Rope(dim, theta=1e5) + Rerope(4)"), ("Nope()", "Nope()")]
    assert titled("[Rope(dim, theta=1e5)] * layers")[0] == "[Rope(dim, theta=1e5)] * layers"
    same = rows_on("rope", free=False, every=False, own=["a = Nope()", "a = Nope()"])
    assert list(same) == ["window", SINKS, "a"]


def test_a_name_may_have_brackets_and_loses_blanks():
    assert titled(" (my)  [odd]\tname = Rope(dim, theta=1e5)") == ("(my) [odd] name", "Rope(dim, theta=1e5)")
    assert titled("[Rope(dim, theta=1e5)] * (layers - 1)") == ("[Rope(dim, theta=1e5)] * (layers - 1)",) * 2


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (["window = Nope()"], "of ours is called 'window'"),
        (["Streaming = Nope()"], "of ours is called 'Streaming'"),
        (["As trained = Nope()"], "of ours is called 'As trained'"),
        (["a = Nope()", "A = Rope(dim)"], "two rows are called 'A'"),
        (["a  b = Nope()", "a b = Rope(dim)"], "two rows are called 'a b'"),
        (["= Nope()"], "a name stands before one ="),
        (["a ="], "a name stands before one ="),
        (["a = b = Nope()"], "a name stands before one ="),
        (["a == Nope()"], "a name stands before one ="),
        (["a := Nope()"], "no colon at its end"),
        (["a {1} = Nope()"], "no braces"),
        (["a\x1bc = Nope()"], "that can be seen"),
        (["\u200b = Nope()"], "that can be seen"),
        (["a" * 61 + " = Nope()"], "up to 60 letters"),
    ],
)
@pytest.mark.parametrize("free", [True, False])
def test_a_name_that_cannot_be_a_rows_is_refused(own: list[str], why: str, free: bool):
    with pytest.raises(ValueError, match=why):
        rows_on("rope", free=free, every=False, own=own)


# Layers that differ


@pytest.mark.parametrize(("layers", "trained"), [(2, 8), (3, 64), (6, 512), (12, 1024), (4, 3)])
def test_hwfa_is_the_published_schedule(layers: int, trained: int):
    ours = build("hwfa", Shape(32, layers, 2), trained, 4 * trained)
    published = mp.hwfa(layers, 16, trained)
    assert len(ours) == layers
    assert all(one.same_as(other) for one, other in zip(ours, published, strict=True))


def test_a_list_has_a_scheme_for_each_layer_with_weights_of_its_own():
    made = build("[Rope(dim) + window(4)] + [Kerple(heads)] * (layers - 2) + [Nope()]", Shape(32, 4, 2), 16, 64)
    assert [type(scheme.parts[0]).__name__ for scheme in made] == ["Rope", "Kerple", "Kerple", "Nope"]
    assert [mp.causal in scheme.parts for scheme in made] == [False, True, True, True]
    weights = [next(scheme.parts[0].parameters()) for scheme in (made[1], made[2])]
    assert weights[0] is not weights[1]
    same = build("2 * [Rope(dim)] + [Nope(), Nope()]", Shape(32, 4, 2), 16, 64)
    assert same[0] is same[1]


def test_what_layers_share_and_what_embeds_is_there_once():
    made = build("[Learned(longest, width) + T5Bias(heads)] * (layers - 1) + [Nope()]", Shape(32, 3, 2), 16, 64)
    assert made[0].parts[0] is made[1].parts[0]
    assert (made[0].parts[1] is made[1].parts[1]) is answers(made[0].parts[1], "over_layers")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[Rope(dim)] * layers + [Nope()]", "lists layers for a model of 4, and this one has 3; write one for each"),
        ("[Rope(dim)]", "lists layers for a model of 1, and this one has 3"),
        ("[[Rope(dim)], [Rope(dim)], [Nope()]]", "has a list in a list; a layer is one scheme"),
        ("[[Rope(dim), Nope()], Nope(), Nope()]", "has a list in a list"),
        ("Rope(dim), Nope(), Nope()", "has commas; write layers in square brackets, [A, B]"),
        ("[Rope(dim)] * (layers / 2) + [Nope()]", "a list is repeated a whole number of times, not 1.5; write"),
        ("[Rope(dim)] * (layers - 5) + [Nope()]", "a list is repeated a whole number of times, not -2; write"),
        ("[Rope(dim)] * layers - 1 + [Nope()]", "a list of layers cannot be subtracted; write [A] * (layers - 1)"),
        ("[kerple-nope] * 3", "a name with a dash stands alone, inside an expression write what it stands for"),
        ("[Rope(dim) + window(2 ** i) for i in range(layers)]", "loops and conditions are not read; write a scheme"),
        ("[Rope(dim)] * (layers - 1) + [Nope() & causal]", "& joins what is seen, such as causal & window(64), not No"),
        ("[Rope(dim)", "put all of it in single quotes, so that the shell leaves it whole"),
        ("[Rope(dim)] * (layers - 1) + Nope()", "layers are added to layers"),
        ("hwfa + LogN(trained)", "layers are added to layers"),
        ("[Rope(dim)] * 9 ** 9", "a list has at most 4,096 layers"),
        ("[Rope(dim)] * 4096 + [Nope()]", "a list has at most 4,096 layers"),
        ("[Rope(dim)] * 0.5", "a list is repeated a whole number of times, not 0.5"),
        ("[Rope(dim)] * 2 + [Learned(longest, width)]", "what embeds acts once; write it in the first layer alone"),
    ],
)
def test_lists_that_are_no_layers_are_refused(text: str, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        build(text, Shape(32, 3, 2), 16, 64)


def test_a_row_may_change_one_layer():
    model = model_of("hwfa", 16)
    near = "[Rope(dim) + (causal & window(max(1, (3 * trained // 4 - 1) // max(1, layers - 1) + 1)))] * (layers - 1)"
    tokens = torch.randint(0, 9, (1, 40), generator=torch.Generator().manual_seed(3))
    same = model.using(build(f"{near} + [Nope() + LogN(trained, clip=False)]", SHAPE, 16, 64).double())
    assert_same(same(tokens), model(tokens))
    blunt = model.using(build(f"{near} + [Nope()]", SHAPE, 16, 64).double())
    assert not torch.allclose(blunt(tokens), model(tokens))


@pytest.mark.parametrize("name", ["t5", "kerple", "fire", "shaw", "learned", "transformer-xl", "cope"])
def test_what_a_scheme_learned_goes_along_with_its_rows(name: str):
    """Log-n with at most one times the trained length changes nothing, so the row must read as the model does."""
    model = model_of(name, 16)
    row = model.using(build(f"{TRAINED[name]} + LogN(trained)", SHAPE, 16, 64).double())
    fresh = Model(SHAPE, build(name, SHAPE, 16, 64)).double()
    with torch.no_grad():
        expected = model(random_tokens(16))
        assert_same(row(random_tokens(16)), expected)
        assert float((model.using(fresh.schedule)(random_tokens(16)) - expected).abs().max()) < 1e-12
    for old, new in zip(model.schedule.parameters(), row.schedule.parameters(), strict=True):
        assert old is not new


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rope", "T5Bias(heads)"),
        ("t5", "T5Bias(heads, buckets=8)"),
        ("kerple", "LogN(trained) + Kerple(heads)"),
    ],
)
def test_a_row_that_would_need_training_is_refused(name: str, text: str):
    with pytest.raises(ValueError, match=r"its layer 0 is Scheme.*, and the checkpoint's layer 0 has not learned the"):
        model_of(name, 16).using(build(text, SHAPE, 16, 64))


def test_a_row_that_would_need_training_says_in_which_layer():
    shape = Shape(32, 3, 2)
    model = Model(shape, build("kerple-nope", shape, 16, 64))
    with pytest.raises(
        ValueError, match=r"its layer 2 is Scheme\(Kerple.* checkpoint's layer 2 has not learned the p "
    ):
        model.using(build('[Nope(), Nope(), Kerple(heads, "power")]', shape, 16, 64))


def test_weights_of_one_method_are_not_taken_for_anothers():
    shape = Shape(16, 1, 4)
    one, other = (build(text, shape, 16, 64) for text in ("T5Bias(heads, buckets=32)", "Cope(dim, 32)"))
    assert [each.shape for each in one.parameters()] == [each.shape for each in other.parameters()]
    with pytest.raises(ValueError, match="layer 0 has not learned the table of that"):
        Model(shape, one).using(other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Learned(trained, width)", "index 63 is past the table"),
        ("Multiplied(Learned(trained, width))", "index 63 is past the table"),
        ("xpos", "overflows past"),
    ],
)
def test_what_cannot_read_so_far_is_found_out_by_two_tokens(text: str, message: str):
    longest = 64 if text != "xpos" else 1 << 16
    schedule = build(text, SHAPE, 16, longest)
    try_out(schedule, SHAPE, 16)
    with pytest.raises(ValueError, match=message):
        try_out(schedule, SHAPE, longest)


@pytest.mark.slow
@pytest.mark.parametrize("size", [size for size in SIZES if size != "large"])
def test_every_name_reaches_as_far_as_every_size_judges(size: str):
    chosen = SIZES[size]
    for name in NAMES:
        schedule = build(name, chosen.shape, chosen.recipe.length, chosen.longest)
        if name == "floater":
            # To walk there takes a minute.
            assert ones(schedule)[0][0].longest == chosen.longest
        else:
            try_out(schedule, chosen.shape, chosen.longest)


# What an expression cannot do


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "__import__('os').system('true')",
        "open('/etc/hostname')",
        "print(1)",
        "dim.__class__",
        "Rope(dim).__class__",
        "Rope.__init__",
        "(lambda: dim)()",
        "[x for x in (1, 2)]",
        "(x := 3)",
        "f'{dim}'",
        "Rope(dim)(3)",
        "{'a': 1}",
        "(1, 2)[0]",
        "dim if dim else heads",
        "build('rope')",
        "Scheme(Rope(dim))",
        "nn",
    ],
)
def test_nothing_but_methods_can_be_called(text: str):
    with pytest.raises(ValueError, match=r"the scheme .* is not known|loops and conditions are not read"):
        build(text, SHAPE, 16, 64)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("rop", "rope"), ("alibbi", "alibi"), ("Keprle(heads)", "Kerple"), ("sinusoid", "sinusoidal"), ("hwf", "hwfa")],
)
def test_an_unknown_name_gets_the_nearest(asked: str, meant: str):
    with pytest.raises(ValueError, match=rf"is not known; did you mean (.* or )?{meant}( or .*)?\?$"):
        build(asked, SHAPE, 16, 64)


@pytest.mark.parametrize(
    ("text", "method"),
    [("ReRoPE", "Rerope"), ("rope + logn", "LogN"), ("Rope(dim) + window", "window"), ("YaRN", "Yarn")],
)
def test_a_method_that_is_not_called_is_told_how(text: str, method: str):
    with pytest.raises(ValueError, match=rf"is not known; it takes arguments: {method}\(…\)$"):
        build(text, SHAPE, 16, 64)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match=r"'zzz' is not known; by name there are nope, learned, .*softmax1-rope, hwfa"):
        build("zzz", SHAPE, 16, 64)


@pytest.mark.parametrize("text", ["Rope(dim", "", "Rope dim", "x = 3", "\0"])
def test_what_is_no_expression_is_refused(text: str):
    with pytest.raises(ValueError, match="is no expression: "):
        build(text, SHAPE, 16, 64)


@pytest.mark.parametrize(
    "text",
    ["3", "'rope'", "Rope(dim) + 3", "Rope(dim) * 2", "Rope()", "Rope(dim, thta=3)", "Rope(**dim)",
     "Rope(dim // 0)", "Rope(dim % 0)", "Rope(0)", "Randomized(64)", "causal & 3"],
)  # fmt: skip
def test_what_is_no_scheme_is_refused_before_it_is_used(text: str):
    with pytest.raises((ValueError, TypeError)):
        build(text, SHAPE, 16, 64)


@pytest.mark.parametrize(("trained", "reach"), [(16, 32), (64, 32), (128, 64), (256, 128), (512, 128), (4096, 128)])
def test_the_last_bucket_of_t5_begins_within_the_trained_length_and_is_the_papers_from_256_on(trained: int, reach: int):
    assert build("t5", SHAPE, trained, 16 * trained).same_as(
        build(f"T5Bias(heads, reach={reach})", SHAPE, trained, 16 * trained)
    )


def test_steep_alibi_falls_as_much_over_its_trained_length_as_alibi_over_512():
    first = torch.tensor([0])
    plain = mp.Scheme(mp.Alibi(2)).bias(torch.tensor([512]), first)
    steep = mp.Scheme(mp.Alibi(2, stretch=mp.AlibiInterpolate(64 / 512))).bias(torch.tensor([64]), first)
    assert_same(plain, steep)
    shape = Shape(16, 1, 2)
    wanted = mp.Scheme(mp.Alibi(2, stretch=mp.AlibiInterpolate(64 / 512)), mp.causal)
    assert build("alibi-steep", shape, 64, 1024)[0].same_as(wanted)
