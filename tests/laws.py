"""What every method obeys. A law takes a maker of schemes and asserts; nothing here knows a method by name.

A scheme is run as a layer: embeddings in, attention out, so that methods of the input obey the same laws as the rest.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import milepost as mp
from milepost.backends import BACKENDS
from tests.agreement import Asked, calls, compare, small_blocks
from tests.facets import facets_mean_what_verbs_do
from tests.layers import DV, WIDTH, B, D, H, Make, T, embedded, fresh, layer, project, tokens
from tests.oracles import assert_same

FAR = 10**7


def keeps_shape_and_dtype(make: Make) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        out = layer(fresh(make).to(dtype), tokens(t=5).to(dtype))
        assert out.shape == (B, H, 5, DV)
        assert out.dtype == dtype
        assert out.isfinite().all()


def decodes_as_one_pass(make: Make) -> None:
    """Token by token with a cache; where the length matters, against the last row of a fresh pass of that length."""
    scheme, x = fresh(make), tokens()
    whole = layer(scheme, x)
    raw, turned = mp.Cache(), mp.Cache(scheme.attention)
    with torch.no_grad():
        for t in range(T):
            q, k, v = project(embedded(scheme, x[:, t : t + 1], torch.tensor([t])))
            want = layer(scheme, x[:, : t + 1])[:, :, -1:] if scheme.by_length else whole[:, :, t : t + 1]
            for cache in (raw, turned):
                cache.append(k, v)
                row = mp.attend(q, cache.keys, cache.values, scheme.attention, key_index=cache.index)
                assert_same(row, want)


def packs_documents(make: Make) -> None:
    """Two texts in one row equal the two apart; with given indices and with counted ones."""
    scheme, x = fresh(make), tokens()
    cut = 5
    documents = torch.tensor([3] * cut + [1] * (T - cut))
    index = torch.cat([torch.arange(cut), torch.arange(T - cut)])
    apart = torch.cat([layer(scheme, x[:, :cut]), layer(scheme, x[:, cut:])], 2)
    assert_same(layer(scheme, x, index, documents=documents), apart)
    assert_same(layer(scheme, x, index, documents=documents, index=index, key_index=index), apart)


def ignores_padding(make: Make) -> None:
    """Rows padded on the left or on the right equal the rows alone; padding itself comes out as zeros."""
    scheme, x = fresh(make), tokens()
    short = T - 4
    for left in (True, False):
        pad = torch.zeros(B, T, dtype=torch.bool)
        pad[1, :4] = left
        pad[1, short:] |= not left
        index = (~pad).cumsum(-1).sub(1).clamp(min=0)
        out = layer(scheme, x, index, documents=torch.where(pad, -1, 0))
        alone = x[1:, 4:] if left else x[1:, :short]
        assert_same(out[1:, :, 4:] if left else out[1:, :, :short], layer(scheme, alone))
        assert_same(out[:1], layer(scheme, x[:1]))
        assert (out[1][:, pad[1]] == 0).all()


def hides_the_future(make: Make) -> None:
    """Other later tokens change nothing before them; nor do more of them, unless the length matters."""
    scheme, x = fresh(make), tokens()
    changed = torch.cat([x[:, :8], tokens(seed=5)[:, 8:]], 1)
    assert_same(layer(scheme, changed)[:, :, :8], layer(scheme, x)[:, :, :8])
    if not scheme.by_length:
        assert_same(layer(scheme, x[:, :8]), layer(scheme, x)[:, :, :8])


def stands_still_where_relative(make: Make) -> None:
    """Shifting all positions changes nothing where the scheme says so."""
    assert moved(fresh(make)) < 1e-11


def moved(scheme: mp.Scheme) -> float:
    """The largest change when every token stands five positions further on."""
    x, at = tokens(), torch.arange(T)
    here = layer(scheme, x, at, position=at, key_position=at)
    there = layer(scheme, x, at + 5, position=at + 5, key_position=at + 5)
    return float((there - here).detach().abs().max())


def reaches_far_positions(make: Make) -> None:
    """At ten million, bfloat16 inputs give what float64 gives, but for the rounding of the output.

    Where only distances count, float64 is asked at the start of the text, where no angle can have lost its way.
    """
    scheme = fresh(make)
    if not far_reaching(scheme):
        return
    at = torch.arange(T) + FAR
    q, k, v = (each.bfloat16() for each in project(embedded(scheme, tokens(b=1), at)))
    near = at - FAR if scheme.relative else at
    exact = mp.attend(
        *(each.double() for each in (q, k, v)), scheme.attention, position=near, key_position=near, backend="reference"
    )
    low = copy.deepcopy(scheme).float().attention
    out = mp.attend(q, k, v, low, position=at, key_position=at, backend="reference")
    apart, largest = (out.double() - exact).detach().abs().max(), exact.detach().abs().max()
    assert float(apart) <= 2**-8 * float(largest) + 1e-4


def far_reaching(scheme: mp.Scheme) -> bool:
    """Whether the scheme is defined at any position: a table of absolute positions has an end, and says so by name."""
    try:
        embedded(scheme, torch.zeros(1, 1, WIDTH), torch.tensor([FAR]))
        scheme.turn(torch.zeros(1, H, 1, D), torch.tensor([FAR]))
    except ValueError as error:
        assert str(FAR) in str(error)
        return False
    return True


def survives_saving(make: Make) -> None:
    """Through JSON and a state_dict, bit for bit."""
    scheme, x = fresh(make), tokens()
    again = mp.Scheme.from_dict(json.loads(json.dumps(scheme.to_dict()))).double()
    assert again.same_as(scheme)
    assert list(again.state_dict()) == list(scheme.state_dict())
    again.load_state_dict(scheme.state_dict())
    assert torch.equal(layer(again, x), layer(scheme, x))


def answers_the_same_twice(make: Make) -> None:
    """A call leaves nothing behind, not even one at another length, dtype or device of mind."""
    scheme, x = fresh(make), tokens()
    before = copy.deepcopy(scheme.state_dict())
    first = layer(scheme, x)
    layer(scheme, tokens(t=3 * T))
    layer(copy.copy(scheme), tokens(t=4))
    assert torch.equal(layer(scheme, x), first)
    assert all(torch.equal(before[name], weight) for name, weight in scheme.state_dict().items())


def agrees_on_every_backend(make: Make) -> None:
    """Outputs, log-sum-exps and gradients of every backend that does not refuse equal the reference's."""
    scheme = fresh(make)
    for options in calls():
        asked = Asked(scheme, options)
        want = asked.answers("reference")
        for name in BACKENDS:
            with small_blocks():
                compare(asked, name, want)


def differentiates(make: Make) -> None:
    """The gradient of the reference is the slope of its output, along a random direction of all inputs and weights."""
    scheme, x = fresh(make), tokens(t=7).requires_grad_()
    leaves = [x, *scheme.parameters()]
    generator = torch.Generator().manual_seed(1)
    ways = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for leaf in leaves]

    def value() -> Tensor:
        return layer(scheme, x, backend="reference").square().sum()

    grads = torch.autograd.grad(value(), leaves, allow_unused=True)
    step = 1e-6
    for leaf, way, grad in zip(leaves, ways, grads, strict=True):
        with torch.no_grad():
            leaf.add_(way, alpha=step)
            ahead = float(value())
            leaf.add_(way, alpha=-2 * step)
            slope = (ahead - float(value())) / (2 * step)
            leaf.add_(way, alpha=step)
        along = 0.0 if grad is None else float((grad * way).sum())
        assert abs(slope - along) < 1e-5 * (1 + abs(along)), (slope, along)


def drops_the_same_weights(make: Make) -> None:
    """Dropout depends on the seed alone: every backend that says so drops the same weights, and no mean moves."""
    scheme, x = fresh(make), tokens(t=9)
    with torch.no_grad(), small_blocks():
        whole = layer(scheme, x)
        torch.manual_seed(3)
        want = layer(scheme, x, dropout=0.4, backend="reference")
        assert not torch.equal(want, whole)
        for backend in ("chunked", "flex"):
            torch.manual_seed(3)
            try:
                assert_same(layer(scheme, x, dropout=0.4, backend=backend), want)
            except mp.CannotRun:
                continue


def means_what_it_says(make: Make) -> None:
    """Whatever facets the parts answer, they agree with the verbs."""
    for part in fresh(make).parts:
        facets_mean_what_verbs_do(part)


def traces_whole(make: Make) -> None:
    """No graph break, and the traced output and gradients equal eager's."""
    assert graphs_over(fresh(make), range(9, 10)) == 1


def traces_once_for_every_length(make: Make) -> None:
    """One graph, traced whole, serves ten lengths: nothing of it is true of one length only."""
    assert graphs_over(fresh(make), range(8, 38, 3), any_length=True) == 1


def graphs_over(scheme: mp.Scheme, lengths: range, compiler: str = "eager", any_length: bool = False) -> int:
    """How many graphs it takes to trace the layer at these lengths; every answer is compared with eager's.

    any_length: the compiler is told that the length will change, and need not find out with a graph for the first.
    """
    graphs: list[Any] = []

    def count(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler)(graph, example_inputs)

    torch._dynamo.reset()
    traced = torch.compile(lambda x: layer(scheme, x), fullgraph=True, backend=count)
    # What torch remembers of shapes without numbers takes longer to write down than to work out again.
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=not any_length):
        _traced_as_eager(scheme, traced, lengths, any_length)
    return len(graphs)


def _traced_as_eager(scheme: mp.Scheme, traced: Callable[[Tensor], Tensor], lengths: range, any_length: bool) -> None:
    """At each length, outputs and gradients."""
    for t in lengths:
        x = tokens(t=t).requires_grad_()
        if any_length:
            torch._dynamo.maybe_mark_dynamic(x, 1)
        leaves = [x, *scheme.parameters()]
        ours, eager = traced(x), layer(scheme, x)
        assert_same(ours, eager)
        grads = (torch.autograd.grad(each.square().sum(), leaves, allow_unused=True) for each in (ours, eager))
        for one, other in zip(*grads, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert_same(one, other, within=1e-11)


LAWS = {
    law.__name__: law
    for law in (
        keeps_shape_and_dtype,
        decodes_as_one_pass,
        packs_documents,
        ignores_padding,
        hides_the_future,
        stands_still_where_relative,
        reaches_far_positions,
        survives_saving,
        answers_the_same_twice,
        agrees_on_every_backend,
        differentiates,
        drops_the_same_weights,
        means_what_it_says,
        traces_whole,
    )
}
"""Laws for any scheme."""


def applies(law: str, make: Make) -> bool:
    """True if a law says anything of a scheme."""
    return law != "stands_still_where_relative" or make().relative


METHOD_LAWS = LAWS | {"traces_whole": traces_once_for_every_length}
"""For single methods tracing must do more."""
