"""The lab's Transformer against its formula, token by token in float64, and what it shares."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.lab.schemes.named import build
from milepost.lab.training.model import Model, Shape
from tests.oracles import assert_same, turned

ROPE = mp.Scheme(mp.Rope(8), mp.causal)


def model_of(scheme: mp.Scheme | mp.Schedule, layers: int = 2, seed: int = 0, **own: object) -> Model:
    """A model in float64 whose weights, gains included, are all drawn anew and large enough to matter."""
    torch.manual_seed(seed)
    sizes: dict = {"width": 32, "heads": 4, "key_heads": 2, "hidden": 24, "vocabulary": 50} | own
    model = Model(Shape(layers=layers, **sizes), scheme).double()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3, mean=1.0 if weight.dim() == 1 else 0.0)
    return model


def tokens_of(t: int = 9, b: int = 2) -> Tensor:
    return torch.randint(0, 50, (b, t), generator=torch.Generator().manual_seed(1))


# The formula


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / math.sqrt(float((x * x).mean()) + 1e-6) * gain


def attention_by_hand(x: list[Tensor], w: dict[str, Tensor], shape: Shape) -> list[Tensor]:
    """Causal attention with RoPE, one query, one head and one key at a time."""
    h, g, d = shape.heads, shape.groups, shape.dim
    parts = [(w["attention.into.weight"] @ each).view(h + 2 * g, d) for each in x]
    out = []
    for i in range(len(x)):
        rows = []
        for head in range(h):
            shared = head // (h // g)
            q = parts[i][head]
            keys = [parts[j][h + shared] for j in range(i + 1)]
            if shape.normed:
                q = norm(q, w["attention.queries.weight"])
                keys = [norm(k, w["attention.keys.weight"]) for k in keys]
            far = turned(q, torch.tensor(i))
            dots = [(far * turned(k, torch.tensor(j)).conj()).real.sum() / math.sqrt(d) for j, k in enumerate(keys)]
            shares = torch.stack(dots).softmax(0)
            rows.append(sum(share * parts[j][h + g + shared] for j, share in enumerate(shares)))
        out.append(w["attention.out.weight"] @ torch.cat(rows))
    return out


def logits_by_hand(model: Model, tokens: Tensor) -> Tensor:
    """[t vocabulary] for tokens [t]."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    table = weights["tokens.weight"]
    x = [table[token] for token in tokens]
    for number in range(model.shape.layers):
        start = f"layers.{number}."
        w = {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}
        met = attention_by_hand([norm(each, w["first.weight"]) for each in x], w, model.shape)
        x = [each + other for each, other in zip(x, met, strict=True)]
        for t, each in enumerate(x):
            gate, value = (w["up.weight"] @ norm(each, w["second.weight"])).chunk(2)
            x[t] = each + w["down.weight"] @ (gate / (1 + torch.exp(-gate)) * value)
    output = weights.get("head.weight", table)
    return torch.stack([output @ norm(each, weights["norm.weight"]) for each in x])


@pytest.mark.parametrize(
    "own", [{}, {"key_heads": None}, {"key_heads": 1}, {"normed": False}, {"hidden": None}, {"tied": False}]
)
def test_logits_are_those_of_the_formula(own: dict):
    model, tokens = model_of(ROPE, **own), tokens_of()
    with torch.no_grad():
        ours = model(tokens)
    assert_same(ours, torch.stack([logits_by_hand(model, each) for each in tokens]))


def test_a_head_of_keys_serves_consecutive_queries():
    grouped = model_of(ROPE, layers=1, normed=False)
    alone = Model(Shape(32, 1, 4, hidden=24, vocabulary=50, normed=False), ROPE).double()
    state = dict(grouped.state_dict())
    q, k, v = state["layers.0.attention.into.weight"].view(8, 8, 32).split((4, 2, 2))
    twice = [each.repeat_interleave(2, 0) for each in (k, v)]
    alone.load_state_dict(state | {"layers.0.attention.into.weight": torch.cat([q, *twice]).flatten(0, 1)})
    assert_same(alone(tokens_of()), grouped(tokens_of()))


def test_what_joins_the_stream_starts_smaller_the_deeper_the_model():
    torch.manual_seed(0)
    model = Model(Shape(64, 8, 4), ROPE)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            # The spread of n normal numbers errs by 1/√(2n) of itself; five times that never happens.
            wanted = 0.02 / 4 if name.endswith(("out.weight", "down.weight")) else 0.02
            assert float(weight.detach().std()) == pytest.approx(wanted, rel=5 / math.sqrt(2 * weight.numel())), name


def test_a_model_starts_by_the_width_of_what_goes_in():
    torch.manual_seed(0)
    model = Model(Shape(64, 8, 4, hidden=256, start="inputs"), ROPE)
    assert float(model.tokens.weight.detach().std()) == pytest.approx(0.1, rel=0.05)
    for name, weight in model.layers.named_parameters():
        if weight.dim() > 1:
            wanted = weight.shape[1] ** -0.5 / (4 if name.endswith(("out.weight", "down.weight")) else 1)
            assert float(weight.detach().std()) == pytest.approx(wanted, rel=0.05), name


def test_a_model_starts_as_torch_starts_matrices():
    torch.manual_seed(0)
    model = Model(Shape(64, 8, 4, hidden=256, start="torch", tied=False), ROPE)
    assert float(model.tokens.weight.detach().std()) == pytest.approx(0.07, rel=0.05)
    for name, weight in (*model.layers.named_parameters(), *model.head.named_parameters()):
        if weight.dim() > 1:
            assert float(weight.detach().std()) == pytest.approx((3 * weight.shape[1]) ** -0.5, rel=0.05), name


@pytest.mark.parametrize(("start", "wanted"), [("small", 0.02), ("inputs", 1 / 8)])
def test_an_output_of_its_own_starts_as_matrices_do(start: str, wanted: float):
    torch.manual_seed(0)
    model = Model(Shape(64, 2, 4, start=start, tied=False), ROPE)
    assert float(model.head.weight.detach().std()) == pytest.approx(wanted, rel=0.05)


def test_an_output_of_its_own_goes_along_to_another_scheme():
    model = model_of(ROPE, tied=False)
    assert model.using(ROPE).head is model.head
    assert_same(model.using(ROPE)(tokens_of()), model(tokens_of()))


def test_shapes_of_before_are_read():
    assert Shape.of({"width": 64, "heads": 2, "scaled": True}) == Shape(64, heads=2, start="inputs")
    assert Shape.of({"width": 64, "heads": 2, "scaled": False}) == Shape(64, heads=2)
    assert Shape.of(asdict(Shape(64, heads=2, start="torch"))) == Shape(64, heads=2, start="torch")


# Generating


@pytest.mark.parametrize(
    ("scheme", "layers"),
    [
        (mp.Scheme(mp.Nope(), mp.causal), 2),
        (ROPE, 2),
        (mp.Scheme(mp.Sinusoidal(32), mp.causal), 2),
        (mp.Scheme(mp.Alibi(4), mp.causal), 2),
        (mp.Scheme(mp.T5Bias(4, buckets=8, reach=10), mp.causal), 2),
        (mp.Scheme(mp.Rope(8), mp.Stream(2, 4)), 2),
        # One layer: deeper ones hold keys made when the text was shorter, whichever way a length is read.
        (mp.Scheme(mp.Rope(8, stretch=mp.DynamicNtk(8)), mp.causal), 1),
        (mp.Scheme(mp.Rope(8, stretch=mp.DynamicYarn(8)), mp.causal), 1),
    ],
    ids=["nope", "rope", "sinusoidal", "alibi", "t5", "stream", "dynamic-ntk", "dynamic-yarn"],
)
def test_generating_with_a_cache_is_argmax_over_full_passes(scheme: mp.Scheme, layers: int):
    model, tokens, seen = model_of(scheme, layers), tokens_of(6), []

    def choose(logits: Tensor) -> Tensor:
        seen.append(logits)
        return logits.argmax(-1)

    made = model.generate(tokens, 9, choose)
    assert torch.equal(made, model.generate(tokens, 9))
    with torch.no_grad():
        for logits in seen:
            full = model(tokens)[:, -1]
            assert_same(logits, full)
            tokens = torch.cat([tokens, full.argmax(-1)[:, None]], 1)
    assert torch.equal(made, tokens)


def test_generating_nothing_gives_the_tokens_back():
    assert torch.equal(model_of(ROPE).generate(tokens_of(), 0), tokens_of())


# Decoders, encoders, positions


@pytest.mark.parametrize(("part", "sees"), [(mp.causal, False), (mp.everything, True), (None, True)])
def test_only_an_encoder_sees_the_future(part: mp.Scheme | None, sees: bool):
    model = model_of(mp.Scheme(mp.Rope(8)) if part is None else mp.Scheme(mp.Rope(8), part))
    tokens = tokens_of()
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 50
    with torch.no_grad():
        apart = (model(tokens) - model(other)).abs().amax((0, 2))
    assert float(apart[-1]) > 1e-3
    assert bool((apart[:-1] > 1e-6).all()) if sees else float(apart[:-1].max()) == 0


def test_positions_can_be_given_and_reach_both_the_embeddings_and_the_layers():
    at = torch.tensor([0, 2, 3, 7, 8, 11, 20, 21, 30])
    plain = torch.arange(9)
    for scheme in (ROPE, mp.Scheme(mp.Sinusoidal(32), mp.causal)):
        model = model_of(scheme)
        with torch.no_grad():
            usual = model(tokens_of())
            assert_same(model(tokens_of(), position=plain), usual)
            assert float((model(tokens_of(), position=at) - usual).abs().max()) > 1e-3
    with torch.no_grad():
        rope = model_of(ROPE)
        assert_same(rope(tokens_of(), position=at + 5), rope(tokens_of(), position=at))


# One set of weights


def test_another_schedule_shares_the_weights_and_leaves_the_first_model_alone():
    model, tokens = model_of(ROPE), tokens_of()
    with torch.no_grad():
        before = model(tokens)
        other = model.using(mp.Scheme(mp.Alibi(4), mp.causal))
        assert float((other(tokens) - before).abs().max()) > 1e-3
        assert torch.equal(model(tokens), before)
        assert torch.equal(other.using(ROPE)(tokens), before)
        assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
        model.tokens.weight.mul_(2)
        assert torch.equal(other.using(ROPE)(tokens), model(tokens))
    assert other.training == model.training
    assert not model.eval().using(ROPE).training


def test_backends_that_need_no_compiling_give_the_same_logits():
    for name in ("rope", "t5", "cope", "deberta", "Rope(dim) + Stream(2, 4)", "Rope(dim) + Rerope(4)"):
        model = model_of(build(name, Shape(32, 2, 4, 2), 8, 16))
        with torch.no_grad():
            before = model(tokens_of())
            assert_same(model.uncompiled()(tokens_of()), before)
        assert set(model.backends) <= {"sdpa", "chunked"}, name
        assert model.using(ROPE).backends == [None, None]


def test_a_schedule_of_another_depth_is_refused():
    schedule = mp.Schedule([ROPE] * 3)
    with pytest.raises(ValueError, match="Model: 2 layers, but the schedule has 3"):
        model_of(schedule)
    with pytest.raises(ValueError, match="Model: 2 layers, but the schedule has 3"):
        model_of(ROPE).using(schedule)


def test_shared_weights_are_counted_once():
    plain = 50 * 32 + 2 * ((4 + 2 + 2) * 8 * 32 + 32 * 32 + 2 * 8 + 3 * 24 * 32 + 2 * 32) + 32
    assert model_of(ROPE).count() == plain
    table = mp.T5Bias(4, buckets=8)
    assert model_of(mp.Scheme(table, mp.causal)).count() == plain + 8 * 4
    both = mp.Schedule([mp.Scheme(table, mp.causal), mp.Scheme(mp.Rope(8), table, mp.causal)])
    assert model_of(both).count() == plain + 8 * 4
    own = mp.Schedule([mp.Scheme(mp.T5Bias(4, buckets=8), mp.causal) for _ in range(2)])
    assert model_of(own).count() == plain + 2 * 8 * 4


class OnGpu(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True  # pyright: ignore


def test_a_product_with_ones_and_zeros_is_a_lookup():
    model, tokens = model_of(ROPE), tokens_of()
    usual = model._embedded(tokens)
    (wanted,) = torch.autograd.grad(usual.square().sum(), model.tokens.weight)
    model.tokens.weight = nn.Parameter(model.tokens.weight.detach().as_subclass(OnGpu))
    model.tokens.forward = pytest.fail
    ours = model._embedded(tokens)
    (given,) = torch.autograd.grad(ours.square().sum(), model.tokens.weight)
    assert torch.equal(ours.as_subclass(Tensor), usual)
    assert_same(given.as_subclass(Tensor), wanted)


# Shapes


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"width": 30}, r"Shape\(width=30, heads=4\): heads must divide the width"),
        ({"key_heads": 3}, r"Shape\(heads=4, key_heads=3\): key_heads must divide heads"),
        ({"key_heads": 0}, r"Shape\(key_heads=0\)"),
        ({"key_heads": -2}, r"Shape\(key_heads=-2\)"),
        ({"hidden": 0}, r"Shape\(hidden=0\)"),
        ({"layers": 0}, r"Shape\(layers=0\): layers must be at least 1"),
        ({"heads": 0}, r"Shape\(heads=0\): heads must be at least 1"),
        ({"tied": 0}, r"Shape\(tied=0\)"),
        ({"start": "large"}, r"Shape\(start='large'\)"),
        ({"vocabulary": -1}, r"Shape\(vocabulary=-1\): vocabulary must be at least 1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(own: dict, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        Shape(**{"width": 32, "layers": 2, "heads": 4} | own)


def test_a_shape_of_the_wrong_type_is_refused():
    with pytest.raises(TypeError, match=r"Shape\(width=2.5\): width must be an integer, not float"):
        Shape(width=2.5)  # pyright: ignore
