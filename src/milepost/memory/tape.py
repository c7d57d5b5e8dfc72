# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Operations written down as they run, and played again on other tensors that look the same.

A call of attention is a few dozen operations on a GPU, and Python takes longer to decide on them than the GPU to run
them. What is decided follows from how the tensors look (shapes, steps, dtypes), not from the numbers in them. A tape
keeps the operations, and playing it decides nothing.

    with Tape(q, k) as tape:
        out = f(q, k)
    play = tape.finished(out)
    play(q2, k2)            # [f(q2, k2)]

Tensors that are neither given nor made on the way are constants: tables that are kept, say. They are read again, not
copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from milepost.memory.internals import dispatch_mode, dispatch_modes
from milepost.memory.nested import inside, replaced
from milepost.memory.playing import Run, Slot, Step, playing

if TYPE_CHECKING:
    from typing_extensions import Self

MAKES_ROOM = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
"""Operations whose answer holds no numbers yet."""
HELD, TIMES = 1 << 28, 8
"""Bytes that a tape may hold at the most, or so many times what it was given, if that is more. Until it is finished it
holds all that is made on the way; attention in blocks makes a hundred times more than there is at any moment."""


one_at_a_time = threading.Lock()
"""Held while a tape runs: there is one at a time, for its own thread and the backward passes that it starts."""


class Tape(TorchDispatchMode):
    """Writes down what torch does while it is entered, in this thread and in the backward passes it starts.

    given: the tensors that differ from one playing to the next. after: an earlier tape whose tensors this one may read,
    as a backward pass reads those of its forward pass.
    """

    def __init__(self, *given: Tensor, after: Tape | None = None) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.refused = ""
        """Why this cannot be played, where it cannot."""
        self._listens = True
        self.after, self.given = after, len(given)
        self.saved: dict[int, int] = {}
        """By slot of this tape: the slot of the earlier one that it is read from."""
        self._slots: dict[Hashable, int] = {}
        self._tensors: list[Tensor] = []
        self._constants: set[int] = set()
        self._written: set[int] = set()
        """Memory that an operation wrote into, or a kernel may have."""
        self._own, self._elsewhere = set[int](), set[int]()
        """Memory of what was given and made, and that of constants, in which views of them lie."""
        self.bytes: int = sum(each.untyped_storage().nbytes() for each in given) + (0 if after is None else after.bytes)
        """Bytes of what was given, here and before."""
        self._room = max(HELD, TIMES * self.bytes)
        """How many it may hold still."""
        for each in given:
            self._own.add(_memory(each))
            # The same tensor given twice stands for two that may differ.
            if _looks(each) in self._slots:
                self.refused = "one tensor was given twice"
            if after is not None and _memory(each) in after._own:
                self.refused = "what the earlier tape made was given again"
            self._new(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.refused or not self._listens:
            return func(*args, **kwargs)
        given = [*inside((args, kwargs), Tensor)]
        if any(each.layout is not torch.strided for each in given):
            self.refused = f"{func} reads a tensor that is not strided"
            return func(*args, **kwargs)
        looked = [_looks(each) for each in given] if func._schema.is_mutable else []
        found = func(*args, **kwargs)
        if looked and looked != [_looks(each) for each in given]:
            self.refused = f"{func} changes how a tensor lies"
        elif any(each.layout is not torch.strided for each in inside(found, Tensor)):
            self.refused = f"{func} answers a tensor that is not strided"
        else:
            self._note(func, args, kwargs, found)
        if self._room < 0:
            self._let_go()
        return found

    def __enter__(self) -> Self:
        # What autocast has at hand of a weight was made before, and would be taken for a constant.
        self._at_hand = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_autocast_cache_enabled(self._at_hand)
        super().__exit__(*error)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        if _looks_at_numbers(func, args):
            self.refused = f"{func} looks at numbers"
            return
        reads: list[int] = []
        args, kwargs = self._held(args, reads), self._held(kwargs, reads)
        single = not isinstance(found, (tuple, list))
        answers: list[Any] = [found] if single else [*found]
        if any(isinstance(each, (bool, float, complex, list, tuple)) for each in answers):
            self.refused = f"{func} answers more than tensors"
            return
        if any(isinstance(each, Tensor) and not self._belongs(each, reads) for each in answers):
            self.refused = f"{func} answers what was given elsewhere, or on another device"
            return
        pure = not func._schema.is_mutable
        if not pure:
            self._written |= {_memory(self._tensors[n]) for n in reads}
        if pure and all(not isinstance(each, Tensor) or _looks(each) in self._slots for each in answers):
            # A view that is what it views.
            return
        room = func._schema.name in MAKES_ROOM
        makes = tuple(self._made(each) if isinstance(each, Tensor) else None for each in answers)
        self.steps.append(Step(func, args, kwargs, tuple(reads), makes, single, pure, room))

    def _let_go(self) -> None:
        """Hold nothing any more."""
        self.refused = "it would hold too much memory"
        self.steps, self._tensors = [], []
        self._slots.clear()
        self._constants.clear()
        self.saved.clear()

    def _belongs(self, answer: Tensor, reads: list[int]) -> bool:
        """Whether an answer is one of this tape's own: not a tensor that was given and happens to lie in the same
        place, and not a copy on another device, where Python can read numbers unheard.
        """
        number = self._slots.get(_looks(answer))
        if number is not None and number < self.given and number not in reads:
            return False
        return not self._tensors or answer.device.type == self._tensors[0].device.type

    @contextmanager
    def aside(self) -> Generator[None]:
        """Write nothing down meanwhile."""
        self._listens = False
        try:
            yield
        finally:
            self._listens = True

    def launched(self, run: Run, args: Sequence[Any]) -> None:
        """Write down a kernel that torch does not see: `run(*args)` launches it.

        It may write to any tensor among args. A pair of a tensor and a function stands for what this makes of it.
        """
        if self.refused:
            return
        reads: list[int] = []
        slots: list[Any] = []
        for each in args:
            x, read = cast("tuple[Tensor, Run]", each) if isinstance(each, tuple) else (each, None)
            if isinstance(x, Tensor):
                reads.append(self._find(x))
                self._written.add(_memory(x))
                slots.append(Slot(reads[-1], read))
            else:
                slots.append(x)
        self.steps.append(Step(run, tuple(slots), {}, tuple(reads), (), False, False))

    def _held(self, value: Any, reads: list[int]) -> Any:
        """Arguments with slots in place of tensors."""

        def hold(x: Tensor) -> Slot:
            reads.append(self._find(x))
            return Slot(reads[-1])

        return replaced(value, Tensor, hold)

    def _find(self, x: Tensor) -> int:
        """The slot of a tensor that an operation reads."""
        number = self._slots.get(_looks(x))
        if number is not None:
            return number
        earlier = None if self.after is None else self.after._slots.get(_looks(x))
        number = self._new(x)
        if earlier is not None and self.after is not None and earlier not in self.after._constants:
            self.saved[number] = earlier
        else:
            if x.numel() and (_memory(x) in self._own or (self.after is not None and _memory(x) in self.after._own)):
                self.refused = "a view was made where torch does not say so"
            if x.requires_grad and torch.is_grad_enabled():
                self.refused = "a tensor with a gradient was not given"
            self._constants.add(number)
            self._elsewhere.add(_memory(x))
        return number

    def _made(self, x: Tensor) -> int:
        if _memory(x) not in self._own and _memory(x) not in self._elsewhere:
            self._own.add(_memory(x))
            self._room -= x.untyped_storage().nbytes()
        number = self._slots.get(_looks(x))
        return self._new(x) if number is None else number

    def _new(self, x: Tensor) -> int:
        # Kept while the tape runs, so that no other tensor comes to lie in the same memory.
        self._tensors.append(x)
        self._slots[_looks(x)] = len(self._tensors) - 1
        return len(self._tensors) - 1

    @property
    def fused(self) -> bool:
        """Whether a kernel was launched, of ours or of torch's fused attention: its gradients have no gradients."""
        return any("_scaled_dot_product_" in str(step.run) or not hasattr(step.run, "_schema") for step in self.steps)

    def finished(self, answers: Sequence[Tensor | None], also: Sequence[int] = ()) -> Callable[..., list[Any]]:
        """A function of tensors like those given, and of those saved, that answers as was answered here.

        also: numbers of more slots, answered after the others.
        """
        if any(each is not None and _looks(each) not in self._slots for each in answers):
            self.refused = self.refused or "an answer came from elsewhere"
        wanted = [None if each is None else self._slots.get(_looks(each)) for each in answers] + list(also)
        asked = {each for each in wanted if each is not None}
        constants = self._folded(asked)
        steps = self._needed(asked)
        later = asked | constants
        for step in reversed(steps):
            used = {*step.reads, *(each for each in step.makes if each is not None)}
            step.done = sorted(used - later)
            later |= used
        return playing(steps, self._tensors, constants, [*range(self.given), *self.saved], wanted)

    def _folded(self, wanted: set[int]) -> set[int]:
        """The constants, and what is made from no tensor at all and is never written to: need not be made again.

        What follows from a constant is made again: a buffer, say, can be written to between two calls. Room for no
        numbers, which a kernel has in place of what it is not asked for, is one for all.
        """
        constants, still_made = set(self._constants), set[int]()
        # What is answered is the caller's, who may write to it; so is what an answered view looks at.
        theirs = {_memory(self._tensors[n]) for n in wanted if self._tensors[n].numel()}
        kept: list[Step] = []
        for step in self.steps:
            makes = [each for each in step.makes if each is not None]
            seeded = torch.Tag.nondeterministic_seeded in getattr(step.run, "tags", ())
            still = not any(_memory(self._tensors[n]) in self._written for n in makes)
            nothing = step.room and all(not self._tensors[n].numel() for n in makes)
            alike = step.pure and not step.room and not seeded and still and still_made.issuperset(step.reads)
            kept_apart = wanted.isdisjoint(makes) and theirs.isdisjoint(_memory(self._tensors[n]) for n in makes)
            if (nothing or alike) and kept_apart:
                still_made.update(makes)
            else:
                kept.append(step)
        self.steps = kept
        return constants | still_made

    def _needed(self, wanted: set[int]) -> list[Step]:
        """The steps that write somewhere, or whose answers are read."""
        found: list[Step] = []
        read = set(wanted)
        for step in reversed(self.steps):
            if not step.pure or read.intersection(each for each in step.makes if each is not None):
                read.update(step.reads)
                found.append(step)
        return found[::-1]


def running_tape() -> Tape | None:
    """Return the tape that is written to just now, where no other mode sees what torch does."""
    if torch.compiler.is_compiling() or dispatch_modes() != 1:
        return None
    mode = dispatch_mode()
    return mode if isinstance(mode, Tape) and mode._listens else None


def aside() -> AbstractContextManager[None]:
    """Return a context in which no tape is written to."""
    tape = running_tape()
    return nullcontext() if tape is None else tape.aside()


def _looks(x: Tensor) -> Hashable:
    """Two tensors that look the same and lie in the same memory are one."""
    return x.data_ptr(), x.device, x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg()


def _looks_at_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether what an operation answers, or its shape, goes by numbers in a tensor, so that Python may have, too."""
    if func is torch.ops.aten.index.Tensor:
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
