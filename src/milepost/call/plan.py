"""Calls that look alike: after a few of them what they do is written down, and later ones only play it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from milepost.numerics.kept import recording
from milepost.numerics.tape import Tape

DEVICES = ("cuda",)
"""Where Python is slower than the device, so that it pays."""
SEEN = 2
"""Calls of a kind that are run as they come, before one is written down: what they keep is then made."""
TRIED, PAYS = 16, 8
"""To write a call down costs about as much as playing spares in so many; that is looked at after so many tries."""
STRIKES = 3
"""Times that a kind of call may turn out not to be playable, before that is believed."""
Result = tuple[Tensor, Tensor | None]
Compute = Callable[..., Result]
Kind = tuple[tuple[int, ...], bool]
"""How a gradient lies: its steps, and whether it starts at sixteen bytes."""
_in_graphs: set[Any] = set()
"""Plans that a CUDA graph was recorded of: the graph reads their constants for as long as it lives."""


def can_play(x: Tensor) -> bool:
    """Whether a call on this device, made just now, may be written down and played."""
    return (
        x.device.type in DEVICES
        and not torch.compiler.is_compiling()
        and not is_in_torch_dispatch_mode()
        and (x.device.type != "cuda" or x.device.index == torch.cuda.current_device())
        # Checkpoints count what a forward pass saves, and want the same number when it is run again.
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # pyright: ignore
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore
        and not torch.is_anomaly_enabled()
    )


def surroundings(x: Tensor) -> Hashable:
    """What decides how operations run, besides the tensors they are given."""
    backends = torch.backends.cuda
    return (
        torch._C._cuda_getCurrentRawStream(x.device.index) if x.device.type == "cuda" else 0,  # pyright: ignore
        torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(), backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled(), backends.cudnn_sdp_enabled(),
    )  # fmt: skip


def laid_out(tensors: Sequence[Tensor]) -> Hashable:
    """How tensors lie in memory: kernels are compiled for it."""
    return tuple([(each.stride(), each.data_ptr() % 16) for each in tensors])


class Worth:
    """Whether writing calls down pays for a scheme: where keys grow by one with every step, few are ever played."""

    def __init__(self) -> None:
        self.written = self.played = 0

    def __bool__(self) -> bool:
        return self.written < TRIED or self.played >= PAYS * self.written


class Plan:
    """One kind of call. The first ones run as they come, one is written down, and the others play that."""

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        self.seen = self.strikes = 0
        self.refused = ""
        """Why a call could not be written down, the last time."""
        self.forward: Callable[..., Sequence[Any]] | None = None
        self.backward: Callable[..., Sequence[Any]] | None = None
        self.grads: Sequence[Kind | None] = ()
        """How the gradients lay that the backward pass was written down with."""
        self.once = False
        """Whether its gradients have none: fused kernels were launched, and one output."""
        self.written: weakref.ref[_Written] | None = None
        """The call that is being written down, until its backward pass is over."""

    def run(self, compute: Compute, given: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> Result:
        """compute(*given), which reads weights besides."""
        self.seen += 1
        if self.seen <= SEEN or self.strikes >= STRIKES or (self.forward is None and not self.worth):
            return compute(*given)
        inputs = given + weights
        if recording(inputs[0].device):
            if self.forward is None:
                return compute(*given)
            _in_graphs.add(self)
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            if self.forward is None and self._writing():
                # Another layer's call is being written down, and its backward pass is yet to come.
                return compute(*given)
            return self._with_gradients(compute, given, inputs)
        if self.forward is not None:
            self.worth.played += 1
            out, lse = self.forward(*inputs)
            return out, lse
        self.worth.written += 1
        with Tape(*inputs) as tape:
            result = compute(*given)
        self.keep(tape, tape.finished(result))
        return result

    def _with_gradients(self, compute: Compute, given: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Result:
        if self.forward is not None:
            self.worth.played += 1
            if self.once:
                return _PlayedOnce.apply(self, *inputs)  # pyright: ignore
            return _Played.apply(self, compute, len(given), None, *inputs)  # pyright: ignore
        self.worth.written += 1
        written = _Written(compute, inputs, len(given))
        if written.tape.refused:
            # A weight that nobody gave, perhaps: its gradient needs the user's own graph.
            self.strikes, self.refused = self.strikes + 1, written.tape.refused
            return compute(*given)
        self.written = weakref.ref(written)
        return _Played.apply(self, compute, len(given), written, *inputs)  # pyright: ignore

    def _writing(self) -> bool:
        """Whether a call waits for its backward pass; one that was dropped without it counts."""
        if self.written is not None and self.written() is None:
            self.strikes, self.written = self.strikes + 1, None
        return self.written is not None

    def keep(self, tape: Tape, forward: Callable[..., Sequence[Any]], backward: Any = None, grads: Any = ()) -> None:
        """Keep what plays, unless the tape says that it cannot be."""
        if tape.refused:
            self.strikes, self.refused = self.strikes + 1, tape.refused
        else:
            self.forward, self.backward, self.grads = forward, backward, grads


class _Played(torch.autograd.Function):
    """A call with gradients. One that is written down runs a graph of its own, whose backward pass is, too."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, compute: Compute, given: int, written: _Written | None, *inputs: Tensor
    ) -> Result:
        ctx.plan, ctx.compute, ctx.given, ctx.written = plan, compute, given, written
        ctx.set_materialize_grads(False)
        if written is not None or plan.forward is None:
            assert written is not None
            ctx.save_for_backward(*inputs)
            return written.answers
        ctx.play, ctx.grads, ctx.same_bits = plan.backward, plan.grads, torch.are_deterministic_algorithms_enabled()
        out, lse, *saved = plan.forward(*inputs)
        ctx.save_for_backward(*inputs, *saved)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[4:]
        nobody: tuple[None, ...] = (None,) * 4
        if all(each is None for each in grads):
            return *nobody, *(None for _ in needs)
        inputs, saved = ctx.saved_tensors[: len(needs)], ctx.saved_tensors[len(needs) :]
        if torch.is_grad_enabled():
            # A gradient of the gradient is asked for, which must lead back to the inputs themselves.
            result = ctx.compute(*inputs[: ctx.given])
            return *nobody, *_gradients(result, inputs, grads, create_graph=True)
        if ctx.written is not None:
            return *nobody, *ctx.written.backward(ctx.plan, grads)
        same_bits = torch.are_deterministic_algorithms_enabled()
        if [each is None for each in grads] == [each is None for each in ctx.grads] and same_bits == ctx.same_bits:
            return *nobody, *ctx.play(*_laid(grads, ctx.grads), *saved)
        # Not those that were written down: this call is run again, and the next is written.
        ctx.plan.forward, ctx.plan.strikes = None, ctx.plan.strikes + 1
        again = _Written(ctx.compute, inputs, ctx.given)
        return *nobody, *_gradients(again.result, again.inputs, grads)


class _PlayedOnce(torch.autograd.Function):
    """A call of fused kernels: nothing is kept but what their backward pass reads, and it cannot be run again."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *inputs: Tensor) -> Result:
        assert plan.forward is not None
        ctx.play, ctx.grads = plan.backward, plan.grads
        out, lse, *saved = plan.forward(*inputs)
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore
        if grads[0] is None:
            return None, *(None for _ in ctx.needs_input_grad[1:])
        return None, *ctx.play(*_laid(grads, ctx.grads), *ctx.saved_tensors)


class _Written:
    """A call being written down: its own graph on tensors cut off from the user's, and the tape of its operations."""

    def __init__(self, compute: Compute, inputs: tuple[Tensor, ...], given: int) -> None:
        # Weights are read by the scheme itself; what is handed over can be cut off.
        cut = [each.detach().requires_grad_() if each.requires_grad else each for each in inputs[:given]]
        self.inputs = (*cut, *inputs[given:])
        with torch.enable_grad(), Tape(*self.inputs) as self.tape:
            self.result = compute(*cut)

    @property
    def answers(self) -> Result:
        """The results, cut off from this graph."""
        out, lse = self.result
        return out.detach(), None if lse is None else lse.detach()

    def backward(self, plan: Plan, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the inputs, and the plan with all of it kept."""
        # That of a sum, say, is one number everywhere: with memory of its own it stands for all that come.
        grads = [each if each is None or 0 not in each.stride() else each.contiguous() for each in grads]
        with Tape(*(each for each in grads if each is not None), after=self.tape) as tape:
            found = _gradients(self.result, self.inputs, grads)
        if plan.forward is None:
            backward = tape.finished(found)
            forward = self.tape.finished(self.result, also=tuple(tape.saved.values()))
            self.tape.refused = self.tape.refused or tape.refused
            plan.once = self.tape.fused and self.result[1] is None
            kinds = [None if each is None else (each.stride(), each.data_ptr() % 16 == 0) for each in grads]
            plan.keep(self.tape, forward, backward, kinds)
            plan.written = None
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


def _laid(grads: Sequence[Tensor | None], kinds: Sequence[Kind | None]) -> list[Tensor]:
    """Those that are given, as they lay when the backward pass was written down."""
    return [
        grad if grad.stride() == kind[0] and (not kind[1] or grad.data_ptr() % 16 == 0)
        else torch.empty_strided(grad.shape, kind[0], dtype=grad.dtype, device=grad.device).copy_(grad)
        for grad, kind in zip(grads, kinds, strict=True) if grad is not None and kind is not None
    ]  # fmt: skip
