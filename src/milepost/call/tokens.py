"""The tokens of a call: their true order and where they stand, known without a look at the device where possible."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from milepost.memory.nested import replaced

if TYPE_CHECKING:
    from milepost.seams.parts import Parts


FEW = 16
"""Queries up to which they are a step of a text that grows: keys are then many, and split over programs on a GPU."""
Numbers: TypeAlias = "Tensor | range"
"""Indices [b s], or the range that every row counts through; positions [b s] or [b s axes]."""


# Indices and positions out of a cache


class TokenNumbers(Tensor):
    """Indices or positions out of a `Cache`, read-only: the cache and its keys rely on them.

    An operation gets a copy, so its result is a plain tensor. An operation in place raises.
    """

    plain: Tensor
    """The same numbers, in the memory of the cache."""
    first: int | None
    """The first index, where every row counts up by one from there."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        copies: list[tuple[Tensor, int]] = []

        def copied(numbers: TokenNumbers) -> Tensor:
            # Inference tensors count no versions.
            with torch.inference_mode(False):
                copy = numbers.plain.clone(memory_format=torch.contiguous_format)
            copies.append((copy, copy._version))
            return copy

        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        answer = func(*replaced(args, cls, copied), **replaced(kwargs, cls, copied))
        if _in_place(name) or any(copy._version != before for copy, before in copies):
            raise ValueError(
                f"{name}: the indices and positions of a Cache are read-only, because its keys rely on them; compute "
                f"new ones, such as cache.index + 100, or write to a copy: cache.index.clone()"
            )
        return answer

    def __hash__(self) -> int:
        return id(self)


def _in_place(name: str) -> bool:
    """True for the names of operations that write to a tensor, such as `add_`, or to an attribute of it."""
    return name == "__set__" or (name.endswith("_") and not name.endswith("__"))


def token_numbers(numbers: Tensor, first: int | None = None) -> TokenNumbers:
    """Return numbers of a cache that cannot be written to."""
    # torch.compile asks how they lie in memory, and must hear what the copies do.
    marked = numbers.clone(memory_format=torch.contiguous_format).as_subclass(TokenNumbers)
    marked.plain, marked.first = numbers, first
    return marked


def counted(first: int, count: int, rows: int, device: torch.device) -> Tensor:
    """Return the indices first … first + count − 1 for every row."""
    return torch.arange(first, first + count, device=device).expand(rows, count)


# Keys out of a cache


class CachedKeys(Tensor):
    """Keys [b g s d] out of a `Cache`, with what the cache knows of them: which tokens they are, and what turned them.

    `attend` reads that, so nothing has to be passed on. An operation either passes it on rightly or raises: copies,
    conversions, and the selection of rows, heads and tokens do the former, and everything else the latter. `plain` is
    the tensor itself, for code that keeps track of tokens by itself. What `torch.utils.dlpack.to_dlpack` hands on knows
    nothing either: it reads memory and asks nobody.
    """

    plain: Tensor
    """The same keys as an ordinary tensor, in the memory of the cache. What the cache knows of them is lost."""
    token_index: Numbers
    """[b s], or a range of step 1."""
    token_position: Tensor | None
    """[b s] or [b s axes]; None where keys stand at their indices."""
    turned_by: Parts | None
    token_counted: bool | None
    """Whether their indices are what the cache counted by itself, which documents count anew; None for some of them."""
    # Through it other libraries read a tensor's memory without a call into torch.
    __dlpack_c_exchange_api__ = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        follow = _FOLLOWED.get(func)
        if follow is not None:
            return follow(func, args, kwargs)
        if _in_place(name) or name.endswith("data_ptr"):
            raise _lost(name)
        # What computes arrives in __torch_dispatch__, which refuses; what only describes does not.
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore
            answer = func(*args, **kwargs)
        if not _describes(answer):
            raise _lost(name)
        return answer

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _lost(func.overloadpacket.__name__)

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedKeys:
        return self.clone()  # pyright: ignore

    def __reduce_ex__(self, protocol: Any) -> Any:
        known = self.token_index, self.token_position, self.turned_by, self.token_counted
        return cached_keys, (self.plain.clone(), *known)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        turned = "raw" if self.turned_by is None else f"turned by {self.turned_by!r}"
        return f"CachedKeys({self.plain!r}, index={self.token_index!r}, position={self.token_position!r}, {turned})"


def cached_keys(
    keys: Tensor, index: Numbers, position: Tensor | None, turned_by: Parts | None, counted: bool | None = False
) -> CachedKeys:
    """Return keys with what a cache knows of them."""
    marked = keys.as_subclass(CachedKeys)
    marked.plain, marked.token_index, marked.token_position, marked.turned_by = keys, index, position, turned_by
    marked.token_counted = counted
    return marked


def _lost(name: str) -> ValueError:
    return ValueError(
        f"{name}: keys out of a Cache know which tokens they are and whether they are turned, and {name} would lose "
        f"that. Select with keys[rows], keys[:, :, first:last], index_select, narrow, split, chunk, repeat_interleave "
        f"or expand, join with cat, or take the ordinary tensor: keys.plain"
    )


def _describes(answer: Any) -> bool:
    """True if the result of an operation holds none of the keys' numbers."""
    if isinstance(answer, (tuple, list)):
        return all(map(_describes, answer))  # pyright: ignore
    return answer is None or isinstance(answer, (bool, int, str, torch.dtype, torch.device, torch.layout))


def _bare(value: Any) -> Any:
    return replaced(value, CachedKeys, lambda keys: keys.plain)


def _own(args: Sequence[Any], name: str) -> CachedKeys:
    """Return the keys that an operation acts on; those that come in as another argument are lost."""
    if not args or not isinstance(args[0], CachedKeys):
        raise _lost(name)
    return args[0]


def _read(func: Any, args: Any, kwargs: Any) -> Any:
    """Compare keys, or sum them up in one number."""
    answer = None if "out" in kwargs else func(*_bare(args), **_bare(kwargs))
    if isinstance(answer, bool) or (isinstance(answer, Tensor) and (answer.dtype == torch.bool or not answer.dim())):
        return answer
    raise _lost(func.__name__)


def _copy(func: Any, args: Any, kwargs: Any) -> CachedKeys:
    """Copy all keys, perhaps to another dtype or device."""
    keys = _own(args, func.__name__)
    answer = func(*_bare(args), **_bare(kwargs))
    if not answer.is_floating_point():
        raise _lost(f"{func.__name__}({answer.dtype})")
    return _marked(
        keys, answer, lambda numbers: numbers.to(answer.device), [0] if answer.device != keys.plain.device else []
    )


def _expand(func: Any, args: Any, kwargs: Any) -> CachedKeys:
    keys = _own(args, func.__name__)
    answer = func(*_bare(args), **_bare(kwargs))
    was = keys.plain.shape
    if answer.dim() != 4 or answer.shape[3] != was[3]:
        raise _lost(func.__name__)
    b, _, s, _ = answer.shape
    axes = [axis for axis in (0, 2) if answer.shape[axis] != was[axis]]
    return _marked(keys, answer, lambda numbers: numbers.expand(b, 1, s, -1), axes)


def _along(func: Any, args: Any, kwargs: Any) -> Any:
    """Select along one axis."""
    name = func.__name__
    keys, (place, default) = _own(args, name), _AXES[name]
    axis = kwargs.get("dim", args[place] if len(args) > place else default)
    if axis is None or not kwargs.keys() <= _KNOWN:
        raise _lost(name)
    axis = range(4)[operator.index(axis)]
    found = _selected(name, keys, lambda x, _: func(x, *args[1:], **kwargs), [axis])
    # In a graph that is traced nobody knows where memory lies.
    if axis == 2 and name in _VIEWS and isinstance(keys.token_index, range) and not torch.compiler.is_compiling():
        for each in (found,) if isinstance(found, CachedKeys) else found:
            assert isinstance(each.token_index, Tensor)
            # It lies in memory as far behind the first index as it counts.
            start = keys.token_index.start + int(each.token_index.storage_offset())
            each.token_index = range(start, start + each.plain.shape[2])
    return found


def _get(func: Any, args: Any, kwargs: Any) -> CachedKeys:
    """Select by slices, and along one axis by a list or a tensor."""
    keys, whole = _own(args, "keys[…]"), slice(None)
    picks: list[Any] = [*args[1]] if isinstance(args[1], tuple) else [args[1]]
    dots = [n for n, pick in enumerate(picks) if pick is ...]
    left_out = [whole] * (4 - len(picks) + len(dots))
    start = dots[0] if dots else len(picks)
    picks[start : start + len(dots)] = left_out
    lists = [pick for pick in picks if not isinstance(pick, slice)]
    if len(picks) != 4 or len(lists) > 1 or not all(map(_is_list, lists)):
        raise _lost("keys[…] that adds, drops or mixes axes")
    axes = [axis for axis, pick in enumerate(picks) if not (isinstance(pick, slice) and pick == whole)]

    def select(x: Tensor, are_numbers: bool) -> Tensor:
        return x[tuple([whole if are_numbers and axis in (1, 3) else pick for axis, pick in enumerate(picks)])]

    found = _selected("keys[…]", keys, select, axes)
    if isinstance(keys.token_index, range) and isinstance(picks[2], slice) and picks[2].step in (None, 1):
        found.token_index = keys.token_index[picks[2]]
    return found


def _is_list(pick: Any) -> bool:
    """True for a list or a tensor of one axis, which selects along that axis."""
    if isinstance(pick, Tensor):
        return pick.dim() == 1 and not isinstance(pick, CachedKeys)
    return isinstance(pick, list) and all(isinstance(each, int) for each in pick)  # pyright: ignore


def _cat(func: Any, args: Any, kwargs: Any) -> CachedKeys:
    """Join keys along rows or tokens."""
    keys, dim = (lambda tensors, dim=0: (list(tensors), dim))(*args, **kwargs)
    if not all(isinstance(each, CachedKeys) for each in keys):
        raise ValueError(
            "cat: keys out of a Cache know which tokens they are and whether they are turned, and other keys do not; "
            "give the new ones to the cache: cache.append(k, v), or join ordinary tensors: keys.plain"
        )
    one, axis = keys[0], range(4)[operator.index(dim)]
    placed = {None if each.token_position is None else each.token_position.shape[2:] for each in keys}
    if axis not in (0, 2) or len(placed) > 1 or any(each.turned_by is not one.turned_by for each in keys):
        raise _lost("cat along heads or channels, or of keys that were turned otherwise")
    index = _joined([each.token_index for each in keys], axis)
    index = torch.cat([_index_of(each) for each in keys], axis // 2) if index is None else index
    position = None if one.token_position is None else torch.cat([each.token_position for each in keys], axis // 2)
    counts = {each.token_counted for each in keys if each.plain.shape[2]} or {one.token_counted}
    return cached_keys(
        torch.cat([each.plain for each in keys], axis),
        index,
        position,
        one.turned_by,
        counts.pop() if len(counts) == 1 else None,
    )


def _joined(each: Sequence[Numbers], axis: int) -> range | None:
    """Return what joined keys count through, if they go on counting where those before them end."""
    found = each[0]
    for index in each[1:]:
        if not isinstance(found, range) or not isinstance(index, range):
            return None
        # Dynamo of torch 2.9 does not compare ranges.
        if index.start != (found.stop if axis == 2 else found.start):
            return None
        found = range(found.start, index.stop)
    return found if isinstance(found, range) else None


def _index_of(keys: CachedKeys) -> Tensor:
    """Return the indices of keys as a tensor [b s]."""
    index = keys.token_index
    return (
        counted(index.start, len(index), keys.plain.shape[0], keys.plain.device) if isinstance(index, range) else index
    )


def _selected(name: str, keys: CachedKeys, select: Callable[[Tensor, bool], Any], axes: Sequence[int]) -> Any:
    """Select keys along some axes, and their tokens alike. select is given keys, or numbers of tokens [b 1 s n]."""
    if 3 in axes and keys.turned_by is not None:
        raise _lost(f"{name} along channels")
    return _marked(keys, select(keys.plain, False), lambda numbers: select(numbers, True), axes)


def _marked(keys: CachedKeys, answer: Any, move: Callable[[Tensor], Any], axes: Sequence[int]) -> Any:
    """Return an answer, of one tensor or several, as keys. move does to their tokens' numbers [b 1 s n] what was done.

    axes: those along which keys moved.
    """
    answers = [answer] if isinstance(answer, Tensor) else list(answer)

    def moved(numbers: Tensor) -> list[Tensor]:
        found = move(numbers[:, None, :, None] if numbers.dim() == 2 else numbers[:, None])
        found = [found] if isinstance(found, Tensor) else found
        return [each[:, 0, :, 0] if numbers.dim() == 2 else each[:, 0] for each in found]

    index, position = keys.token_index, keys.token_position
    move_index = 2 in axes or (0 in axes and isinstance(index, Tensor))
    indices = moved(_index_of(keys)) if move_index else [index] * len(answers)
    positions = [position] * len(answers) if position is None or not {0, 2} & {*axes} else moved(position)
    found = list[Tensor]()
    # A comprehension here is more than dynamo of torch 2.9 can follow.
    for each in zip(answers, indices, positions, strict=True):
        found.append(cached_keys(*each, keys.turned_by, keys.token_counted))
    return found[0] if isinstance(answer, Tensor) else tuple(found)


_AXES = {
    "chunk": (2, 0), "index_select": (1, None), "narrow": (1, None), "repeat_interleave": (2, None), "split": (2, 0),
    "tensor_split": (2, 0),
}  # fmt: skip
"""Where each has its axis among its arguments, and which it is if left out."""
_VIEWS = ("chunk", "narrow", "split", "tensor_split")
"""Those that take tokens that lie side by side, and copy nothing."""
_KNOWN = {"dim", "index", "start", "length", "chunks", "split_size", "split_size_or_sections", "repeats", "output_size"}
_COPIES = (
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "resolve_conj",
    "resolve_neg", "to",
)  # fmt: skip
_READS = (
    "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "all", "allclose", "any", "eq", "equal", "ge", "gt",
    "isclose", "isfinite", "isinf", "isnan", "le", "lt", "max", "mean", "min", "ne", "sum",
)  # fmt: skip
_FOLLOWED: dict[Any, Callable[[Any, Any, Any], Any]] = {
    getattr(home, name): follow
    for follow, names in (
        (_along, tuple(_AXES)), (_cat, ("cat", "concat", "concatenate")), (_copy, _COPIES),
        (_expand, ("expand", "expand_as")), (_get, ("__getitem__",)), (_read, _READS),
    )
    for name in names for home in (torch, Tensor) if hasattr(home, name)
}  # fmt: skip
"""The operations after which it is known which tokens keys are. All others raise."""


class Tokens:
    """The queries or the keys of one call.

    first: the index of the first one where they count up by one in every row, else None. at_index: whether they stand
    at their indices, but for a shift that all tokens of the call share. Tensors are made when asked for: many calls
    never need them.
    """

    def __init__(
        self, count: int, device: torch.device, first: int | None, index: Tensor | Callable[[], Tensor] | None
    ) -> None:
        self.count, self.device, self.first = count, device, first
        self.at_index = True
        self._index = index
        self._position: Tensor | None = None

    @property
    def index(self) -> Tensor:
        """[b|1 n], the true order."""
        if self._index is None:
            assert self.first is not None
            self._index = torch.arange(self.first, self.first + self.count, device=self.device)[None]
        elif not isinstance(self._index, Tensor):
            self._index = self._index()
        return self._index

    @property
    def position(self) -> Tensor:
        """[b|1 n] or [b|1 n axes], where they stand."""
        return self.index if self._position is None else self._position

    def stand_at(self, position: Tensor, shifted: bool = False) -> None:
        """Say where they stand; shifted where every token of the call moves alike."""
        self._position, self.at_index = position, shifted

    def reorder(self, index: Tensor, position: Tensor | None) -> None:
        """Put them in another order; position is None where they stand at their indices."""
        self.first, self._index, self._position = None, index, position
