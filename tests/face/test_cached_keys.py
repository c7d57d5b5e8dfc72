"""Keys out of a cache: every operation of torch keeps track of their tokens and their rotation, or raises."""

from __future__ import annotations

import copy
import io
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import get_overridable_functions

import milepost as mp
from milepost import causal, window
from milepost.call.tokens import CachedKeys
from tests.oracles import assert_same, inputs, plain, turned

S, FIRST = 6, 5
"""Keys that trimming leaves, and the index of the first of them."""
ROPE = mp.Scheme(mp.Rope(8), causal)
LOST = "know which tokens they are and whether they are turned"
Operation = Callable[[Tensor], Tensor]


def trimmed(turn: bool, given: str = "counting") -> tuple[mp.Cache, Tensor, Tensor, Tensor]:
    """A cache of eleven tokens that holds the last six; besides the raw keys, their values and their positions."""
    _, k, v = inputs(b=2, g=2, t=FIRST + S)
    index = torch.arange(FIRST + S).repeat(2, 1)
    if given == "rows":
        index[1] += 7
    at = index.double() * 1.5 + torch.tensor([[0.0], [2.0]]) if given == "positions" else index
    cache = mp.Cache(ROPE if turn else None)
    cache.append(k, v, None if given == "counting" else index, at if given == "positions" else None)
    cache.trim(mp.Scheme(causal & window(S + 1)))
    assert cache.index.tolist() == index[:, FIRST:].tolist()
    return cache, k[:, :, FIRST:], v[:, :, FIRST:], at[:, FIRST:].double()


def by_formula(q: Tensor, k: Tensor, v: Tensor, at: Tensor, p: Tensor) -> Tensor:
    """RoPE of queries at p [b t] over raw keys at [b s], all of which are seen."""
    here, there = turned(q, p[:, None]), turned(k, at[:, None])
    group = q.shape[1] // k.shape[1]
    return plain(q, k, v, lambda b, h, i, j: (here[b, h, i] @ there[b, h // group, j].conj()).real / math.sqrt(8))


def assert_marked(keys: Any, operation: Operation, k: Tensor, at: Tensor, within: float = 1e-12) -> None:
    """Attention over what an operation made of cached keys is that over what it makes of raw keys and of positions."""
    assert type(keys) is CachedKeys
    raw, labels = operation(k), operation(at[:, None, :, None].expand(k.shape))
    assert (labels == labels[:, :1, :, :1]).all(), "heads of one row would be of different tokens"
    v = torch.randn(raw.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q = torch.randn(raw.shape[0], 4, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p = torch.full((raw.shape[0], 1), 60.5, dtype=torch.float64)
    if keys.token_position is None:
        p = p.floor()
        ours = mp.attend(q, keys, v, ROPE, index=p.long())
    else:
        ours = mp.attend(q, keys, v, ROPE, index=torch.full((1,), 60), position=p)
    assert_same(ours, by_formula(q, raw, v, labels[:, 0, :, 0], p), within)


BEAMS = torch.tensor([1, 1, 0])
FOLLOWED: dict[str, Operation] = {
    "keys[beams]": lambda k: k[BEAMS],
    "keys[list]": lambda k: k[[1, 0]],
    "keys[mask]": lambda k: k[torch.tensor([False, True])],
    "keys[rows]": lambda k: k[1:],
    "keys[tokens]": lambda k: k[:, :, 2:5],
    "keys[every other]": lambda k: k[:, :, ::2],
    "keys[some tokens]": lambda k: k[..., torch.tensor([0, 3, 5]), :],
    "keys[rows, head, tokens]": lambda k: k[1:, [1], -4:],
    "index_select": lambda k: k.index_select(0, BEAMS),
    "index_select of tokens": lambda k: torch.index_select(k, 2, torch.tensor([4, 1])),
    "index_select of heads": lambda k: k.index_select(dim=1, index=torch.tensor([1])),
    "repeat_interleave": lambda k: k.repeat_interleave(3, 0),
    "repeat_interleave, each its own": lambda k: torch.repeat_interleave(k, torch.tensor([1, 2]), dim=0),
    "repeat_interleave of heads": lambda k: k.repeat_interleave(2, dim=1),
    "chunk": lambda k: k.chunk(2, 2)[1],
    "split": lambda k: torch.split(k, [1, 5], -2)[1],
    "split of rows": lambda k: k.split(1)[1],
    "tensor_split": lambda k: k.tensor_split(3, dim=2)[2],
    "narrow": lambda k: k.narrow(2, 1, 4),
    "expand": lambda k: k[1:].expand(3, -1, -1, -1),
    "expand_as": lambda k: k[1:].expand_as(torch.empty(3, 2, S, 8)),
    "cat of tokens": lambda k: torch.cat((k[:, :, :2], k[:, :, 4:]), 2),
    "cat of rows": lambda k: torch.cat([k[1:], k]),
    "contiguous": lambda k: k[:, :, 1:].contiguous(),
    "clone": torch.clone,
    "detach": lambda k: k.detach(),
    "to": lambda k: k.to(torch.float64, copy=True),
    "there and back": lambda k: k.flip(0) if type(k) is Tensor else k[[1, 0]].cpu().double(),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda k: pickle.loads(pickle.dumps(k)),
}


@pytest.mark.parametrize("given", ["counting", "rows", "positions"])
@pytest.mark.parametrize("turn", [True, False], ids=["turned", "raw"])
def test_what_selects_or_copies_keys_knows_their_tokens(turn: bool, given: str):
    cache, k, _, at = trimmed(turn, given)
    for operation in FOLLOWED.values():
        assert_marked(operation(cache.keys), operation, k, at)


@pytest.mark.parametrize("turn", [True, False], ids=["turned", "raw"])
def test_a_saved_file_knows_its_tokens(turn: bool):
    cache, k, _, at = trimmed(turn)
    file = io.BytesIO()
    torch.save(cache.keys, file)
    file.seek(0)
    assert_marked(torch.load(file, weights_only=False), lambda k: k, k, at)


def scaled_copy(k: Tensor) -> Tensor:
    buffer = torch.zeros(2, 2, 9, 8, dtype=torch.float64)
    buffer[:, :, :S] = k
    return buffer[:, :, :S]


REFUSED: dict[str, Operation] = {
    "* 1": lambda k: k * 1,
    "1 *": lambda k: 1 * k,
    "+=": lambda k: k.__iadd__(0),
    "@": lambda k: k @ torch.eye(8, dtype=torch.float64),
    "unbind, stack": lambda k: torch.stack(k.unbind(0)),
    "a loop": lambda k: torch.stack(list(k)),
    "keys[0][None]": lambda k: k[0][None],
    "keys[None]": lambda k: k[None],
    "flatten": lambda k: k.flatten(0, 1).unflatten(0, (2, 2)),
    "reshape": lambda k: k.reshape(4, 1, S, 8),
    "view_as": lambda k: k.view_as(k),
    "as_strided": lambda k: k.as_strided((2, 2, S, 8), (2 * S * 8, S * 8, 8, 1)),
    "swapaxes": lambda k: k.swapaxes(0, 1),
    "movedim": lambda k: k.movedim(1, 0),
    "mT": lambda k: k.mT.mT,
    "gather": lambda k: k.gather(2, torch.zeros(2, 2, 3, 8, dtype=torch.long)),
    "select": lambda k: k.select(0, 1)[None],
    "pad": lambda k: F.pad(k, (0, 0, 2, 0)),
    "masked_fill": lambda k: k.masked_fill(torch.zeros(S, 1, dtype=torch.bool), 0.0),
    "where": lambda k: torch.where(torch.ones(S, 1, dtype=torch.bool), k, 0.0),
    "roll": lambda k: k.roll(1, 2),
    "flip": lambda k: k.flip(2),
    "tile": lambda k: k.tile(2, 1, 1, 1),
    "data": lambda k: k.data,
    "real": lambda k: k.real,
    "int": lambda k: k.to(torch.int32),
    "view as int": lambda k: k.view(torch.int64),
    "a buffer written": scaled_copy,
    "copy_": lambda k: torch.zeros(2, 2, S, 8, dtype=torch.float64).copy_(k),
    "cat with new": lambda k: torch.cat((k, torch.zeros(2, 2, 1, 8, dtype=torch.float64)), 2),
    "cat of heads": lambda k: torch.cat((k, k), 1),
    "out=": lambda k: torch.index_select(k, 0, BEAMS, out=torch.empty(3, 2, S, 8, dtype=torch.float64)),
    "expand of channels": lambda k: k[..., :1].expand(-1, -1, -1, 8),
    "expand to more axes": lambda k: k.expand(3, -1, -1, -1, -1),
    "sum of heads": lambda k: k.sum(1, keepdim=True),
    "tensor": lambda k: torch.tensor(k),
    "new_tensor": lambda k: torch.zeros(1).new_tensor(k),
    "Parameter": lambda k: torch.nn.Parameter(k),
    "numpy": lambda k: torch.from_numpy(k.numpy()),
    "tolist": lambda k: torch.tensor(k.tolist()),
    "dlpack": lambda k: torch.utils.dlpack.from_dlpack(k),
    "storage": lambda k: torch.zeros(1).set_(k.untyped_storage()),
    "as_subclass": lambda k: k.as_subclass(Tensor),
    "requires_grad_": lambda k: k.requires_grad_(),
    "vmap": lambda k: torch.func.vmap(lambda row: row * 1)(k),
    "functional gradient": lambda k: torch.func.grad(lambda k: k.square().sum())(k),
    "aten": lambda k: torch.ops.aten.alias(k),
    "sdpa": lambda k: F.scaled_dot_product_attention(torch.zeros(2, 2, 1, 8).double(), k, k),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_forget_tokens_raises(name: str):
    for turn in (True, False):
        for given in ("counting", "rows"):
            cache, *_ = trimmed(turn, given)
            before = cache.keys.plain.clone()
            with pytest.raises((ValueError, RuntimeError, TypeError), match=r"keys out of a Cache|subclass"):
                REFUSED[name](cache.keys)
            assert torch.equal(cache.keys.plain, before)


def test_channels_of_turned_keys_are_not_cut():
    for cut in (lambda k: k[..., :4], lambda k: k.narrow(3, 0, 4), lambda k: k.chunk(2, -1)):
        with pytest.raises(ValueError, match="along channels"):
            cut(trimmed(True)[0].keys)
        part = cut(trimmed(False)[0].keys)
        assert (part[0] if isinstance(part, tuple) else part).token_index == range(FIRST, FIRST + S)


def test_numbers_that_are_no_keys_are_read():
    cache, k, _, _ = trimmed(False)
    keys = cache.keys
    assert (keys.shape, keys.dtype, keys.dim(), len(keys), keys.is_contiguous()) == (k.shape, k.dtype, 4, 2, True)
    assert torch.equal(keys, k)
    assert torch.allclose(keys, k)
    assert (keys == k).all()
    assert float(keys.max()) == float(k.max())
    assert bool(keys.isfinite().all())
    assert "index=range(5, 11)" in repr(keys)
    assert "turned by Scheme(Rope(head_dim=8" in f"{trimmed(True)[0].keys}"
    assert type(keys.plain) is Tensor


@pytest.mark.parametrize("name", [
    "bfloat16", "clone", "contiguous", "cpu", "detach", "double", "float", "half", "resolve_conj", "resolve_neg",
])  # fmt: skip
def test_each_copy_knows_its_tokens(name: str):
    cache, *_ = trimmed(True)
    copied = getattr(cache.keys, name)()
    assert type(copied) is CachedKeys
    assert copied.token_index == range(FIRST, FIRST + S)
    assert copied.turned_by is ROPE
    assert torch.equal(copied.plain, getattr(cache.keys.plain, name)())


@pytest.mark.parametrize("join", [torch.cat, torch.concat, torch.concatenate])
def test_each_name_of_cat_joins_tokens(join: Callable[..., Tensor]):
    cache, *_ = trimmed(True)
    joined = join((cache.keys[:, :, :2], cache.keys[:, :, 2:]), 2)
    assert type(joined) is CachedKeys
    assert joined.token_index == range(FIRST, FIRST + S)


@pytest.mark.parametrize("cut", [
    lambda k: k.tensor_split(2, 2)[1], lambda k: k.chunk(2, 2)[1], lambda k: k.split(3, 2)[1],
    lambda k: k.narrow(2, 3, 3),
], ids=["tensor_split", "chunk", "split", "narrow"])  # fmt: skip
def test_tokens_that_lie_side_by_side_still_count_up(cut: Operation):
    keys: Any = cut(trimmed(True)[0].keys)
    assert keys.token_index == range(FIRST + 3, FIRST + S)


def test_rows_repeated_to_a_known_number_know_their_tokens():
    cache, *_ = trimmed(True, "rows")
    keys: Any = cache.keys.repeat_interleave(torch.tensor([1, 2]), dim=0, output_size=3)
    assert keys.token_index.tolist() == [cache.index.tolist()[row] for row in (0, 1, 1)]


@pytest.mark.parametrize("name", ["eq", "ge", "gt", "le", "lt", "ne", "isclose", "equal", "allclose"])
def test_each_comparison_reads_keys(name: str):
    cache, k, _, _ = trimmed(False)
    found, expected = getattr(torch, name)(cache.keys, k), getattr(torch, name)(k, k)
    assert type(found) is type(expected)
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))
    if isinstance(found, Tensor) and name != "isclose":
        signs = {"eq": operator.eq, "ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
        assert torch.equal(signs.get(name, operator.ne)(cache.keys, k), expected)


@pytest.mark.parametrize("name", ["isfinite", "isinf", "isnan", "all", "any", "max", "mean", "min", "sum"])
def test_each_question_reads_keys(name: str):
    cache, k, _, _ = trimmed(False)
    found = getattr(torch, name)(cache.keys)
    assert type(found) is Tensor
    assert torch.allclose(found.double(), getattr(torch, name)(k).double())


@pytest.mark.slow
def test_a_compiled_step_slices_keys_rightly_or_raises():
    torch._dynamo.reset()
    cache, k, v, at = trimmed(True)
    q = inputs(t=1)[0]

    def step(change: Operation) -> Tensor:
        run = torch.compile(lambda q, k, v: mp.attend(q, change(k), change(v), ROPE), backend="eager")
        return run(q, cache.keys, cache.values)

    want = by_formula(q, k[:, :, 2:], v[:, :, 2:], at[:, 2:], at[:, -1:])
    assert_same(step(lambda k: k[:, :, 2:]), want)
    with pytest.raises(ValueError, match=LOST):
        step(lambda k: k * 1)


# Every function of torch


PYTHON = {"__annotations__", "__class__", "__dict__", "__getstate__", "__reduce_ex__"}
"""What Python reads the attributes with; pickling has a test of its own."""


def every_function() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What can be called with a tensor: its methods and properties, and the functions of torch that are overridable."""
    functions: dict[Any, str] = {}
    for name in dir(Tensor):
        # Private ones, and those of Python that give the attributes themselves.
        if name in PYTHON or (name[0] == "_" and name[1] != "_"):
            continue
        if callable(getattr(Tensor, name)):
            functions.setdefault(getattr(Tensor, name), f"Tensor.{name}")
        else:
            functions[operator.attrgetter(name)] = f"Tensor.{name}"
    for name in ("as_tensor", "asarray", "from_dlpack", "tensor", "Tensor"):
        functions[getattr(torch, name)] = f"torch.{name}"
    for home, some in get_overridable_functions().items():
        for function in some:
            if not str(function).startswith("<method-wrapper") and function.__name__ not in PYTHON:
                functions.setdefault(function, f"{getattr(home, '__name__', home)}.{function.__name__}")
    return ((name, function) for function, name in functions.items())


def ways(k: Tensor) -> list[Callable[[Callable[..., Any], Tensor], Any]]:
    """How a function may be called with keys, among other arguments."""
    rows, mask = torch.tensor([1, 0]), torch.ones(k.shape, dtype=torch.bool)
    after: list[tuple[Any, ...]] = [
        (), (1,), (2,), (2, 2), (0, rows), (2, rows), (2, 1, 2), (k,), (k, k), (mask, 0.0), (tuple(k.shape),),
        ([0, 1, 2, 3],), (2, torch.zeros(k.shape, dtype=torch.long)),
    ]  # fmt: skip
    some: list[Any] = [lambda function, x, args=args: function(x, *args) for args in after]
    some += [lambda function, x, args=args: function([x, x], *args) for args in ((), (2,))]
    return [*some, lambda function, x: function(k, x)]


def flat(answer: Any) -> list[Any]:
    """All that a function gave, but for what only describes a tensor."""
    if isinstance(answer, (list, tuple)):
        return [leaf for each in answer for leaf in flat(each)]
    describes = (bool, int, str, type(None), torch.dtype, torch.device, torch.layout, type(NotImplemented))
    return [] if isinstance(answer, describes) else [answer]


@pytest.mark.filterwarnings("ignore")
def test_no_function_of_torch_forgets_what_keys_are():
    cache, k, _, at = trimmed(True)
    keys, before = cache.keys, cache.keys.plain.clone()
    works: set[str] = set()
    kept: set[str] = set()
    for name, function in every_function():
        for way in ways(k.clone()):
            try:
                way(function, k.clone())
            except Exception:
                # Not so that it could be meant.
                continue
            works.add(name)
            try:
                answer = flat(way(function, keys))
            except Exception:
                answer = []
            assert torch.equal(keys.plain, before), f"{name} writes to the cache"
            for number, each in enumerate(answer):
                if type(each) is CachedKeys:
                    kept.add(name)
                    if each.numel():
                        within = {torch.bfloat16: 0.1, torch.float16: 0.01, torch.float32: 1e-5}.get(each.dtype, 1e-12)
                        picked = lambda x, n=number: flat(way(function, x))[n].double()  # noqa: B023, E731
                        assert_marked(each.double(), picked, k, at, within)
                else:
                    assert type(each) is Tensor, f"{name} gives {type(each)}"
                    assert each.dtype == torch.bool or each.dim() == 0, f"{name} gives {each.dtype} {each.shape}"
    assert len(works) > 900, "functions were called as they are meant"
    assert {"Tensor.index_select", "torch.split", "torch.cat", "Tensor.to"} <= kept
