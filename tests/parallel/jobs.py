"""What a rank is asked: the same attention on its share of the text, compared with one process on the whole."""

from __future__ import annotations

import copy
import random
import runpy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import milepost as mp
from milepost import parallel
from milepost.parallel import Layout, shard
from tests.across.test_compositions import BENDS, PLACES, RELATIONS, REST, SEEN, TURNS, accepted
from tests.cases import CASES
from tests.layers import DV, WIDTH, D, H, Make, embedded, fresh, project, tokens
from tests.oracles import inputs

LENGTHS = [5, 1, 9, 7]
"""The documents of a packed text; the last tokens are padding."""
PACKED = torch.repeat_interleave(torch.tensor([3, 1, 4, -1]), torch.tensor(LENGTHS))
T = len(PACKED)
PADDED = torch.stack([torch.arange(T) >= 4, torch.arange(T) < T - 6]).long() - 1
SHAPES: dict[str, dict[str, Any]] = {
    "packed": {"documents": PACKED},
    "packed, by document": {"documents": PACKED, "layout": lambda t, n: Layout.of_documents(LENGTHS, n)},
    "packed, by work": {
        "documents": PACKED,
        "layout": lambda t, n: Layout.by_work(parallel.pairs(mp.Scheme(mp.causal), T, PACKED), n, block=2),
    },
    "documents interleaved": {"documents": torch.arange(T) % 3},
    "padding": {"documents": PADDED},
    "one token": {"t": 1},
    "fewer tokens than ranks": {"t": 3},
    "a length that nothing divides": {"t": 23},
    "one key head": {"g": 1},
    "all key heads": {"g": 4},
    "one key head at a time": {"key_heads": 1},
    "a longer text": {"length": 40},
    "a longer text for each row": {"length": torch.tensor([40, 31])},
    "documents of a length": {"documents": PACKED, "length": 12},
    "positions": {"position": torch.stack([torch.arange(T) * 2, torch.arange(T) + 3])},
    "an index": {"index": torch.randperm(T, generator=torch.Generator().manual_seed(1))},
    "a long text": {"t": 61},
}
"""Shapes of texts that a cut can get wrong."""
GATHERED = ("one key head at a time",)
"""Those that are a way to gather."""
SHAPED = (
    "Rope", "Alibi", "T5Bias", "Fire", "Rerope", "Pivot", "KeepSinks", "Cope", "Shaw", "TransformerXL",
    "LogN by length", "DynamicNtk", "Xpos", "SinkLogit", "SplitAlibi", "Stream", "window and sinks", "chunks",
    "DualChunk",
)  # fmt: skip
LAYOUTS: dict[str, Callable[[int, int], Layout]] = {"contiguous": Layout.contiguous, "head-tail": Layout.head_tail}
WITHIN = 1e-10
OF = ("the output", "the gradient of q", "of k", "of v")


class Outcome(NamedTuple):
    """The message of a refusal, or how far outputs and gradients are from those of one process."""

    refusal: str = ""
    apart: float = 0.0


def shaped(mesh: DeviceMesh, name: str, how: str, shape: str) -> Outcome:
    """One method over a text of one of the awkward shapes."""
    return method(mesh, name, how, **{"layout": "head-tail", **SHAPES[shape]})


def method(mesh: DeviceMesh, name: str, how: str, layout: Any, t: int = T, g: int = 2, **options: Any) -> Outcome:
    """One method of the catalogue over a text of t tokens."""
    scheme = fresh(CASES[name])
    q, k, v = (each.detach() for each in project(embedded(scheme, tokens(t))))
    if g != k.shape[1]:
        k, v = (each.repeat_interleave(g // 2, 1) if g > 2 else each[:, :g] for each in (k, v))
    return compared(mesh, (q, k, v), scheme.attention, LAYOUTS.get(layout, layout)(t, mesh.size()), how, **options)


class Louder:
    """A class of a user's, which reads the head and says nothing of it."""

    relative = True

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score * (head + 1)


def pivot(inner: Any = None) -> mp.Pivot:
    """Return a Pivot that matters in a text of T tokens."""
    return mp.Pivot(mp.Rerope(4) if inner is None else inner, trained=5)


MORE: dict[str, Make] = {
    "Pivot, SinkLogit": lambda: mp.Scheme(mp.Rope(D), pivot(), mp.SinkLogit(H), mp.causal),
    "Pivot, TransformerXL": lambda: mp.Scheme(mp.Rope(D), pivot(), mp.TransformerXL(10, H, D), mp.causal),
    "Pivot, no rotation": lambda: mp.Scheme(pivot(), mp.causal),
    "Pivot, window": lambda: mp.Scheme(mp.Rope(D), pivot(), mp.causal & (mp.window(9) | mp.sinks(2))),
    "Pivot, log-n": lambda: mp.Scheme(mp.Rope(D), pivot(), mp.LogN(3), mp.causal),
    "Pivot by length": lambda: mp.Scheme(mp.Rope(D), mp.Pivot(mp.Rerope(4), trained=5, count="length"), mp.everything),
    "Pivot, Dilute": lambda: mp.Scheme(mp.Rope(D), pivot(mp.Dilute(mp.KeepSinks(mp.Rerope(4)), trained=8)), mp.causal),
    "Pivot, Alibi": lambda: mp.Scheme(mp.Rope(D), pivot(), mp.Alibi(H), mp.causal),
    "SoftmaxOne, window, sinks": lambda: mp.Scheme(mp.SoftmaxOne(H), mp.causal & (mp.window(3) | mp.sinks(2))),
    "a user's class": lambda: mp.Scheme(mp.Rope(D), Louder(), mp.causal),
    "seen by all": lambda: mp.Scheme(mp.Rope(D)),
    "ahead": lambda: mp.Scheme(mp.T5Bias(H, bidirectional=True), mp.window(5, ahead=3)),
}
"""Schemes that meet a corner of one of the ways."""


def more(mesh: DeviceMesh, name: str, how: str) -> Outcome:
    """One of these."""
    return compared(mesh, inputs(t=41), fresh(MORE[name]), Layout.contiguous(41, mesh.size()), how)


def composed(mesh: DeviceMesh, number: int, how: str, layout: str) -> Outcome:
    """One of the compositions, drawn by its number."""
    scheme = fresh(composition(number))
    q, k, v = (each.detach() for each in project(embedded(scheme, tokens(T))))
    return compared(mesh, (q, k, v), scheme.attention, LAYOUTS[layout](T, mesh.size()), how)


def composition(number: int) -> Make:
    """Return a maker of a scheme with parts from many seams."""
    drawn = random.Random(number)
    while True:
        makes = [drawn.choice(TURNS), *drawn.sample(BENDS, drawn.randrange(3))]
        makes += [drawn.choice(each) for each in (RELATIONS, PLACES) if drawn.random() < 0.4]
        makes += drawn.sample(REST, drawn.randrange(3))
        seen = drawn.choice(SEEN)
        if accepted(lambda makes=makes, seen=seen: mp.Scheme(*(make() for make in makes), seen)):
            return lambda: mp.Scheme(*(make() for make in makes), seen)


def gated(mesh: DeviceMesh, how: str) -> Outcome:
    """CoPE with keys of its own for the gates, made from layer inputs, which are fetched too."""
    torch.manual_seed(0)
    scheme = fresh(lambda: mp.Scheme(mp.Cope(D, 6, gates="own", model_dim=WIDTH, key_heads=2), mp.causal))
    x, layout = tokens(T), Layout.head_tail(T, mesh.size())
    leaf, own = x.clone().requires_grad_(), shard(x, layout, mesh, dim=1).detach().requires_grad_()
    want = mp.attend(*project(leaf), scheme, x=leaf, backend="reference")
    try:
        out = parallel.attend(*project(own), scheme, mesh=mesh, layout=layout, how=how, x=own)  # pyright: ignore
    except ValueError as refused:
        return Outcome(str(refused))
    want.square().sum().backward()
    out.square().sum().backward()
    assert float((out - shard(want, layout, mesh, dim=2)).abs().max()) < WITHIN
    assert leaf.grad is not None
    assert own.grad is not None
    assert float((own.grad - shard(leaf.grad, layout, mesh, dim=1)).abs().max()) < WITHIN
    return Outcome()


def unsharded(mesh: DeviceMesh) -> None:
    """What is cut is put together again, and its gradient cut alike."""
    for layout in (
        Layout.contiguous(7, mesh.size()),
        Layout.head_tail(23, mesh.size()),
        Layout.head_tail(3, mesh.size()),
    ):
        whole = torch.randn(2, layout.length, 3, generator=torch.Generator().manual_seed(0))
        own = shard(whole, layout, mesh, dim=1).requires_grad_()
        assert own.shape[1] == layout.tokens(mesh.get_local_rank())
        found = parallel.unshard(own, layout, mesh, dim=1)
        assert torch.equal(found, whole)
        (found * whole).sum().backward()
        assert own.grad is not None
        assert torch.allclose(own.grad, mesh.size() * own)


UNEQUAL: dict[str, Callable[[int], dict[str, Any]]] = {
    "the scheme": lambda rank: {"scheme": mp.Scheme(mp.Alibi(H), mp.window(3 + rank))},
    "how": lambda rank: {"how": ("gather", "ring")[rank % 2]},
    "a shape": lambda rank: {"b": 1 + rank},
    "a dtype": lambda rank: {"dtype": (torch.float64, torch.float32)[rank % 2]},
    "the layout": lambda rank: {"layout": (Layout.head_tail, Layout.contiguous)[rank % 2](32, 2)},
    "position": lambda rank: {"position": mp.Randomized(90).sample(32, generator=torch.Generator().manual_seed(rank))},
    "length": lambda rank: {"length": 40 + rank},
    "documents": lambda rank: {"documents": torch.zeros(32, dtype=torch.int64)} if rank else {},
    "a weight of the scheme": lambda rank: {"scheme": seeded(lambda: mp.Scheme(mp.T5Bias(H), mp.causal), rank)},
    "what needs a gradient": lambda rank: {"learns": rank == 0},
}
"""What two ranks may ask differently, by the name that the error has."""


def seeded(make: Make, seed: int) -> mp.Scheme:
    """Return a scheme whose weights are drawn by a seed."""
    torch.manual_seed(seed)
    return make().double()


def unequal(mesh: DeviceMesh, name: str) -> str:
    """Return the refusal of ranks that ask different things."""
    asked = {
        "scheme": mp.Scheme(mp.Alibi(H), mp.causal),
        "layout": Layout.head_tail(32, 2),
        "b": 2,
        "dtype": torch.float64,
    }
    asked |= {"learns": True} | UNEQUAL[name](mesh.get_local_rank())
    b, dtype = asked.pop("b"), asked.pop("dtype")
    given = [shard(each.to(dtype)[:b], asked["layout"], mesh, dim=2) for each in project(tokens(32))]
    given[0].requires_grad_(asked.pop("learns"))
    return refusal(mesh, given, **asked)


def unequal_tokens(mesh: DeviceMesh) -> str:
    """One rank has a token too few."""
    layout = Layout.contiguous(32, mesh.size())
    given = [shard(each, layout, mesh, dim=2) for each in project(tokens(32))]
    if mesh.get_local_rank() == 1:
        given = [each[:, :, 1:] for each in given]
    return refusal(mesh, given, mp.Scheme(mp.causal), layout)


def refusal(mesh: DeviceMesh, given: Any, scheme: mp.Scheme, layout: Layout, **asked: Any) -> str:
    """Return the message of a call that is refused."""
    try:
        parallel.attend(*given, scheme, mesh=mesh, layout=layout, **asked)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return ""


def heads_apart(mesh: DeviceMesh) -> str:
    """Three heads on two ranks."""
    layout = Layout.contiguous(8, 2)
    given = [torch.randn(1, 3, 4, D)] * 3
    return refusal(mesh, given, mp.Scheme(mp.causal), layout, how="heads")


NONSENSE = (
    "parallel.attend(how='rings'): how is one of gather, ring, heads",
    "parallel.attend(dropout=0.1): dropout is not supported",
    "queries and keys are the same tokens; give index, not key_index",
    "no option is called 'positions'; did you mean position?",
    "documents is [4]; give it for all 8 tokens of the text, on every rank",
    "parallel.attend(how='ring', key_heads=1): key heads are fetched by \"gather\" alone",
    "the layout is for 4 ranks, and the mesh has 2",
    "length is [1, 8]; give a number, or one for each row of the batch",
    "parallel.attend(length=7): the layout has 8 tokens",
    "head by head, and which of the key heads go with some of the heads is not known; leave key_heads out",
    "index must be a tensor, given list",
)


def nonsense(mesh: DeviceMesh) -> list[str]:
    """Return the refusals of calls that make no sense."""
    layout, given, scheme = Layout.contiguous(8, 2), [torch.randn(1, H, 4, D)] * 3, mp.Scheme(mp.causal)
    asked: list[dict[str, Any]] = [
        {"how": "rings"}, {"dropout": 0.1}, {"key_index": range(8)}, {"positions": None},
        {"documents": torch.zeros(4, dtype=torch.int64)}, {"how": "ring", "key_heads": 1},
        {"layout": Layout.contiguous(8, 4)}, {"length": torch.full((1, 8), 8)},
        {"length": 7}, {"scheme": CASES["FloaterLayer"](), "key_heads": 1}, {"index": [*range(8)]},
    ]  # fmt: skip
    return [refusal(mesh, given, **{"scheme": scheme, "layout": layout} | each) for each in asked]


class Counted(TorchDispatchMode):
    """Count the bytes that this rank sends to others."""

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        self.ranks, self.rank, self.sent = ranks, rank, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d":
            out, given = args[0], args[1]
            if "allgather" in name:
                self.sent += given.nbytes * (self.ranks - 1)
            elif "reduce_scatter" in name:
                self.sent += out.nbytes * (self.ranks - 1)
            elif "alltoall" in name:
                splits = args[4]
                self.sent += (sum(splits) - splits[self.rank]) * (given.nbytes // max(1, len(given)))
            elif name == "send":
                self.sent += sum(each.nbytes for each in out)
            else:
                assert name.startswith("recv"), name
        return func(*args, **(kwargs or {}))


def bytes_sent(
    mesh: DeviceMesh,
    t: int,
    how: str,
    layout: str,
    seen: Any = mp.causal,
    g: int = 4,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[int, int]:
    """Return what this rank sends in a forward pass, and in its backward pass."""
    spans = LAYOUTS[layout](t, mesh.size())
    shapes = ((1, H, t, D), (1, g, t, D), (1, g, t, DV))
    own = [shard(torch.randn(shape, dtype=dtype), spans, mesh, dim=2).requires_grad_() for shape in shapes]
    with Counted(mesh.size(), mesh.get_local_rank()) as mode:
        out = parallel.attend(
            *own,
            mp.Scheme(mp.Rope(D), seen),
            mesh=mesh,
            layout=spans,
            how=how,
            check=False,  # pyright: ignore
        )
        forward = mode.sent
        out.sum().backward()
    return forward, mode.sent - forward


class Model(nn.Module):
    """A layer with a scheme that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.scheme = mp.Scheme(mp.Rope(D), mp.T5Bias(H, buckets=8, reach=9), mp.SinkLogit(H), mp.causal)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, **sharded: Any) -> Tensor:
        q, k, v = (each.unflatten(-1, (H, D)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        found = parallel.attend(q, k, v, self.scheme, **sharded) if sharded else mp.attend(q, k, v, self.scheme)
        return self.out(found.transpose(1, 2).flatten(2))


def trained(mesh: DeviceMesh, wrapped: str, how: str) -> None:
    """Two rows of data, each a text on two ranks, under DDP or FSDP2: the gradients are those of one process."""
    world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(1)
    alone = Model().double()
    layout, x = Layout.head_tail(T, 2), tokens(T)
    loss = torch.stack([alone(row[None]).square().sum() / T for row in x]).mean()
    loss.backward()
    want = {name: weight.grad for name, weight in alone.named_parameters()}
    model: Any = copy.deepcopy(alone)
    model.zero_grad()
    if wrapped == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=world["dp", "cp"]._flatten())
    row = x[world["dp"].get_local_rank()][None]
    out = model(shard(row, layout, world["cp"], dim=1), mesh=world["cp"], layout=layout, how=how)
    # DDP and FSDP divide by all ranks, and those of one text add up.
    (out.square().sum() / T * world["cp"].size()).backward()
    for name, weight in model.named_parameters():
        grad = weight.grad.full_tensor() if wrapped == "FSDP2" else weight.grad
        theirs = want[name.removeprefix("module.")]
        assert theirs is not None
        assert float((grad - theirs).abs().max()) < WITHIN, name


def example(mesh: DeviceMesh) -> float:
    """Run the script that the docs show."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "context_parallel.py"))
    return script["main"](mesh, tokens=41)


def in_tensor_parallel(mesh: DeviceMesh) -> float:
    """Run the other one."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tensor_parallel.py"))
    return script["main"](mesh)


def halves(mesh: DeviceMesh, how: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return the error of this rank's output and gradients in half precision, and that of one process, in float64."""
    scheme, layout = mp.Scheme(mp.Rope(D), mp.T5Bias(H), mp.SinkLogit(H), mp.causal), Layout.head_tail(257, mesh.size())
    exact = [each.requires_grad_() for each in inputs(t=257)]

    def run(attend: Any, given: Any, scheme: mp.Scheme, **asked: Any) -> list[Tensor]:
        out = attend(*given, scheme, **asked)
        return [out, *torch.autograd.grad(out.double().square().sum(), given)]

    want = run(mp.attend, exact, copy.deepcopy(scheme).double(), backend="reference")
    given = [each.detach().to(dtype).requires_grad_() for each in exact]
    alone = run(mp.attend, given, scheme)
    own = [shard(each, layout, mesh, dim=2).detach().requires_grad_() for each in given]
    found = run(parallel.attend, own, scheme, mesh=mesh, layout=layout, how=how)
    share = partial(shard, layout=layout, mesh=mesh, dim=2)

    def error(these: list[Tensor]) -> float:
        return max(float((each - share(one)).norm() / one.norm()) for each, one in zip(these, want, strict=True))

    return error(found), error([share(each) for each in alone])


def memory(mesh: DeviceMesh, how: str, key_heads: int | None) -> tuple[float, float, float]:
    """Return the most bytes that one process holds, and this rank, and those of a group of keys and values."""
    t, h, d = 512, 16, 32
    layout, scheme = Layout.head_tail(t, mesh.size()), mp.Scheme(mp.Rope(d), mp.causal)

    def run(t: int, attend: Any, **asked: Any) -> float:
        with MemTracker() as tracker:
            given = [torch.randn(1, h, t, d, requires_grad=True) for _ in range(3)]
            attend(*given, scheme, backend="sdpa", **asked).sum().backward()
        return sum(float(each["Total"]) for each in tracker.get_tracker_snapshot("peak").values())

    own = run(
        layout.tokens(mesh.get_local_rank()), parallel.attend, mesh=mesh, layout=layout, how=how, key_heads=key_heads
    )
    return run(t, mp.attend), own, t * (key_heads or h) * 2 * d * 4


def sleep(mesh: DeviceMesh) -> None:
    """Answer nobody."""
    time.sleep(600)


def compared(
    mesh: DeviceMesh, given: tuple[Tensor, Tensor, Tensor], scheme: mp.Scheme, layout: Layout, how: str,
    key_heads: int | None = None, **options: Any,
) -> Outcome:  # fmt: skip
    """Compare outputs and gradients with those of one process."""
    leaves = [each.clone().requires_grad_() for each in given]
    both = {f"key_{name}": options[name] for name in ("index", "position") if name in options}
    want = mp.attend(*leaves, scheme, backend="reference", **options, **both)
    asked = torch.randn(want.shape, generator=torch.Generator().manual_seed(3), dtype=want.dtype)
    weights = list(scheme.parameters())
    grads = torch.autograd.grad((want * asked).sum(), [*leaves, *weights], allow_unused=True)
    own = [shard(each, layout, mesh, dim=2).detach().requires_grad_() for each in given]
    try:
        out = parallel.attend(*own, scheme, mesh=mesh, layout=layout, how=how, key_heads=key_heads, **options)  # pyright: ignore
    except ValueError as refused:
        return Outcome(str(refused))
    for weight in weights:
        weight.grad = None
    (out * shard(asked, layout, mesh, dim=2)).sum().backward()
    parallel.sum_gradients(weights, mesh)
    found = [out, *(each.grad for each in own), *(each.grad for each in weights)]
    oracle = [*(shard(each, layout, mesh, dim=2) for each in (want, *grads[:3])), *grads[3:]]
    worst = 0.0
    for number, (ours, theirs) in enumerate(zip(found, oracle, strict=True)):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        assert ours.shape == theirs.shape, (number, ours.shape, theirs.shape)
        if ours.numel():
            # Long sums of large terms are rounded in proportion to their size.
            apart = float((ours - theirs).detach().abs().max()) / max(1.0, float(theirs.detach().abs().max()))
            assert apart <= WITHIN, f"{(*OF, 'a weight')[min(number, 4)]}: apart by {apart:.1e}"
            worst = max(worst, apart)
    return Outcome("", worst)
