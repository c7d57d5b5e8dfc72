"""A kind of call: those with one fingerprint. Two run as they come, one is written to a tape, later ones play it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from milepost.memory.internals import dispatch_mode, transformed
from milepost.memory.surroundings import without_autocast
from milepost.memory.tape import Tape, one_at_a_time

SEEN = 2
"""Calls of a kind that are run as they come, before one is written down: what they keep is then made."""
TRIED, PAYS = 16, 8
"""To write a call down costs about as much as playing saves in PAYS calls; that is checked after TRIED of them."""
STRIKES = 3
"""Times that a kind of call may turn out not to be playable, before that is believed."""
Result = tuple[Tensor, Tensor | None]
Compute = Callable[..., Any]
Read = Callable[[], tuple[Tensor, ...]]
Lay = tuple[tuple[int, ...], bool]
"""How a gradient lies: its strides, and whether it starts at sixteen bytes."""


class Worth:
    """Whether writing calls down pays for a scheme: where keys grow by one with every step, few are ever played."""

    def __init__(self) -> None:
        self.written = self.played = 0

    def __bool__(self) -> bool:
        return self.written < TRIED or self.played >= PAYS * self.written


class _Kept(NamedTuple):
    """What plays a kind of call."""

    forward: Callable[..., Sequence[Any]]
    backward: Callable[..., Sequence[Any]] | None = None
    grads: Sequence[Lay | None] = ()
    """How the gradients lay that the backward pass was written down with."""
    once: bool = False
    """Whether its gradients have none: fused kernels were launched, and there is one output."""


class Kind:
    """Calls with one fingerprint: what was decided for them, and what plays them.

    chosen: the decision, whatever it is, which calls of this kind need not make again.
    """

    def __init__(self, chosen: Any = None, worth: Worth | None = None) -> None:
        self.chosen, self.worth = chosen, Worth() if worth is None else worth
        self.seen = self.strikes = 0
        self.refused = ""
        """Why a call could not be written down, the last time."""
        self.kept: _Kept | None = None
        self.written: weakref.ref[_Written] | None = None
        """The call that is being written down, until its backward pass is over."""

    def run(self, compute: Compute, given: tuple[Tensor, ...]) -> Any:
        """Return compute(*given), where nothing learns: a sequence of tensors."""
        if self.kept is not None:
            self.worth.played += 1
            return tuple(self.kept.forward(*given))
        if not self._writes() or not one_at_a_time.acquire(blocking=False):
            return compute(*given)
        try:
            self.worth.written += 1
            with Tape(*given) as tape:
                result = compute(*given)
            self.keep(tape, _Kept(tape.finished(result)))
            return result
        finally:
            one_at_a_time.release()

    def run_learning(
        self, compute: Compute, given: tuple[Tensor, ...], weights: tuple[Tensor, ...], read: Read
    ) -> Result:
        """Return compute(*given), which reads weights besides, as one node of autograd; read() returns the weights."""
        inputs, kept = given + weights, self.kept
        if kept is not None:
            self.worth.played += 1
            if kept.once:
                return _PlayedOnce.apply(kept, *inputs)  # pyright: ignore
            return _Played.apply(self, kept, compute, len(given), None, read, *inputs)  # pyright: ignore
        if not self._writes() or self._writing() or not one_at_a_time.acquire(blocking=False):
            # Another layer's call is being written down, and its backward pass is yet to come.
            return compute(*given)
        try:
            return self._write(compute, given, inputs, read)
        finally:
            one_at_a_time.release()

    def _writes(self) -> bool:
        """Count one more call, and return whether it is worth writing down."""
        self.seen += 1
        # A kernel finds the tape that it is launched under through torch.
        heard = dispatch_mode() is None
        return self.seen > SEEN and self.strikes < STRIKES and heard and bool(self.worth)

    def _write(self, compute: Compute, given: tuple[Tensor, ...], inputs: tuple[Tensor, ...], read: Read) -> Result:
        """Run a call and write it down."""
        self.worth.written += 1
        written = _Written(compute, inputs, len(given))
        if written.tape.refused:
            # A weight that nobody gave, perhaps: its gradient needs the user's own graph.
            self.keep(written.tape, None)
            return compute(*given)
        self.written = weakref.ref(written)
        return _Played.apply(self, None, compute, len(given), written, read, *inputs)  # pyright: ignore

    def _writing(self) -> bool:
        """Whether a call waits for its backward pass; one that was dropped without it counts."""
        if self.written is not None and self.written() is None:
            self.strikes, self.written = self.strikes + 1, None
        return self.written is not None

    def keep(self, tape: Tape, kept: _Kept | None) -> None:
        """Keep what plays, unless the tape says that it cannot be."""
        if tape.refused:
            self.strikes, self.refused = self.strikes + 1, tape.refused
        else:
            self.kept = kept


class _Played(torch.autograd.Function):
    """A call with gradients. One that is written down runs a graph of its own, whose backward pass is, too."""

    @staticmethod
    def forward(
        ctx: Any, kind: Kind, kept: _Kept | None, compute: Compute, given: int, written: _Written | None, read: Read,
        *inputs: Tensor,
    ) -> Result:  # fmt: skip
        ctx.kind, ctx.kept, ctx.compute, ctx.given, ctx.written, ctx.read = kind, kept, compute, given, written, read
        ctx.same_bits = torch.are_deterministic_algorithms_enabled()
        ctx.set_materialize_grads(False)
        if kept is None:
            assert written is not None
            ctx.save_for_backward(*inputs)
            return written.answers
        out, lse, *saved = kept.forward(*inputs)
        ctx.save_for_backward(*inputs, *saved)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[6:]
        nobody: tuple[None, ...] = (None,) * 6
        if all(each is None for each in grads):
            return *nobody, *(None for _ in needs)
        inputs, saved = ctx.saved_tensors[: len(needs)], ctx.saved_tensors[len(needs) :]
        with without_autocast(inputs[0].device):
            if torch.is_grad_enabled() or transformed():
                # A gradient of the gradient is asked for, which must lead back to the inputs themselves.
                with torch.enable_grad():
                    result = _again(ctx, inputs)
                    return *nobody, *_gradients(result, inputs, grads, create_graph=torch.is_grad_enabled())
            if ctx.written is not None:
                return *nobody, *ctx.written.backward(ctx.kind, grads)
            same = ctx.same_bits == torch.are_deterministic_algorithms_enabled()
            if same and [each is None for each in grads] == [each is None for each in ctx.kept.grads]:
                return *nobody, *ctx.kept.backward(*_laid(grads, ctx.kept.grads), *saved)
            # Not those that were written down: this call is run again, and the next is written.
            ctx.kind.kept, ctx.kind.strikes = None, ctx.kind.strikes + 1
            with torch.enable_grad():
                cut = _cut(inputs, ctx.given)
                return *nobody, *_gradients(_again(ctx, cut), cut, grads)


def _again(ctx: Any, inputs: tuple[Tensor, ...]) -> Result:
    """The call once more, if its scheme still has the weights it had."""
    now = ctx.read()
    if any(one is not two for one, two in zip(inputs[ctx.given :], now, strict=True)):
        raise RuntimeError(
            "attend: the scheme has other weights now than in the forward pass (functional_call?), and this backward "
            "pass has to run it again; run both with the same weights, or give the forward pass backend='reference'"
        )
    return ctx.compute(*inputs[: ctx.given])


def _cut(inputs: tuple[Tensor, ...], given: int) -> tuple[Tensor, ...]:
    """Inputs cut off from the user's graph; weights are read by the scheme itself, and stay."""
    cut = [each.detach().requires_grad_() if each.requires_grad else each for each in inputs[:given]]
    return (*cut, *inputs[given:])


class _PlayedOnce(torch.autograd.Function):
    """A call of fused kernels: nothing is kept but what their backward pass reads, and it cannot be run again."""

    @staticmethod
    def forward(ctx: Any, kept: _Kept, *inputs: Tensor) -> Result:
        ctx.kept = kept
        out, lse, *saved = kept.forward(*inputs)
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore
        if grads[0] is None:
            return None, *(None for _ in ctx.needs_input_grad[1:])
        with without_autocast(grads[0].device):
            return None, *ctx.kept.backward(*_laid(grads, ctx.kept.grads), *ctx.saved_tensors)


class _Written:
    """A call being written down: its own graph on tensors cut off from the user's, and the tape of its operations."""

    def __init__(self, compute: Compute, inputs: tuple[Tensor, ...], given: int) -> None:
        self.inputs = _cut(inputs, given)
        with torch.enable_grad(), Tape(*self.inputs) as self.tape:
            out, lse = compute(*self.inputs[:given])
            # A node of autograd may not answer a view, if somebody then writes to it.
            out = out.clone() if out._is_view() and not self.tape.fused else out
            self.result = out, lse.clone() if lse is not None and lse._is_view() else lse

    @property
    def answers(self) -> Result:
        """The results, cut off from this graph."""
        out, lse = self.result
        return out.detach(), None if lse is None else lse.detach()

    def backward(self, kind: Kind, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the inputs, and the kind with all of it kept."""
        listening = any(each._backward_hooks for each in self.inputs)
        if kind.kept is not None or listening or not one_at_a_time.acquire(blocking=False):
            return _gradients(self.result, self.inputs, grads)
        try:
            # That of a sum, say, is one number everywhere: with memory of its own it stands for all that come.
            grads = [each if each is None or 0 not in each.stride() else each.contiguous() for each in grads]
            with Tape(*(each for each in grads if each is not None), after=self.tape) as tape:
                found = _gradients(self.result, self.inputs, grads)
            backward = tape.finished(found)
            forward = self.tape.finished(self.result, also=tuple(tape.saved.values()))
            self.tape.refused = self.tape.refused or tape.refused
            lays = [None if each is None else (each.stride(), each.data_ptr() % 16 == 0) for each in grads]
            once = self.tape.fused and self.result[1] is None
            kind.keep(self.tape, _Kept(forward, backward, lays, once))
        finally:
            one_at_a_time.release()
        # What the tape kept alive need not live as long as the user keeps his loss.
        kind.written, self.tape = None, Tape()
        return found


def _gradients(
    result: Result, inputs: tuple[Tensor, ...], grads: Sequence[Tensor | None], create_graph: bool = False
) -> list[Tensor | None]:
    """The gradients of all inputs; the graph stays, in case it is asked again."""
    given = [(out, grad) for out, grad in zip(result, grads, strict=True) if grad is not None and out is not None]
    wanted = [each for each in inputs if each.requires_grad]
    outs, ends = zip(*given, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, ends, True, create_graph, allow_unused=True))
    return [next(found) if each.requires_grad else None for each in inputs]


def _laid(grads: Sequence[Tensor | None], lays: Sequence[Lay | None]) -> list[Tensor]:
    """Those that are given, as they lay when the backward pass was written down."""
    return [
        grad if grad.stride() == lay[0] and (not lay[1] or grad.data_ptr() % 16 == 0) and not grad.is_neg()
        else torch.empty_strided(grad.shape, lay[0], dtype=grad.dtype, device=grad.device).copy_(grad)
        for grad, lay in zip(grads, lays, strict=True) if grad is not None and lay is not None
    ]  # fmt: skip
