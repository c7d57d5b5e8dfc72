"""Remembered calls of `attend` against float64, while everything that can change does.

Each call picks a scheme that was called before, changes something about it or about torch's state, calls it, and
compares the output and the gradients with the paper's formula in float64, written out below. A stale result is off by
far more than rounding. `make sweep-memory` makes 2,000 calls.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import milepost as mp

HEADS, WIDTH = 4, 64
BOUNDS = {torch.bfloat16: 3e-2, torch.float16: 6e-3, torch.float32: 2e-3}
"""Largest error as a share of the largest number: stale tables are off by a tenth and more."""


class Divide:
    """A stretch of a user's own that can be written to."""

    def __init__(self, by: float) -> None:
        self.by = by

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f / self.by

    def magnitude(self, length: Tensor) -> float:
        return 1.0


class Slowed(mp.Rope):
    """A subclass with a number that its equality does not see."""

    def angles(self, position: Tensor, length: Any = None) -> Tensor:
        return super().angles(position, length) / vars(self).get("by", 1.0)


class Last:
    """A mask of a user's own that can be written to."""

    relative = is_causal = True

    def __init__(self, n: int) -> None:
        self.n = n

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < self.n)


class Steep(nn.Module):
    """A bias of a user's own: a number, and a weight."""

    relative = True

    def __init__(self) -> None:
        super().__init__()
        self.steep = 0.1
        self.weight = nn.Parameter(torch.tensor(0.5))

    def bend(self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor) -> Tensor:
        return score - self.steep * self.weight * (p - r).abs()


# The formulas, in float64.


def distance(t: int, device: Any) -> Tensor:
    i = torch.arange(t, device=device, dtype=torch.float64)
    return i[:, None] - i[None]


def turned(x: Tensor, at: Tensor) -> Tensor:
    """Rotate pairs (n, n + d/2) of x [b h t d] by the angles at [t d/2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * at.cos() - b * at.sin(), b * at.cos() + a * at.sin()), -1)


def angles(t: int, device: Any, by: float = 1.0) -> Tensor:
    f = 10000.0 ** (-2 * torch.arange(WIDTH // 2, device=device, dtype=torch.float64) / WIDTH)
    return torch.arange(t, device=device, dtype=torch.float64)[:, None] * f / by


def rope(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    part: Any = scheme.parts[0]
    by = part.stretch.by if isinstance(part.stretch, Divide) else vars(part).get("by", 1.0)
    at = angles(q.shape[2], q.device, by)
    return turned(q, at) @ turned(k, at).mT / WIDTH**0.5


def interpolated(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    at = angles(q.shape[2], q.device, 4.0)
    return turned(q, at) @ turned(k, at).mT / WIDTH**0.5


def rerope(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    at = angles(q.shape[2], q.device)
    near = turned(q, at) @ turned(k, at).mT
    far = turned(q, angles(2, q.device)[1:] * 40) @ k.mT
    return torch.where(distance(q.shape[2], q.device) < 40, near, far) / WIDTH**0.5


def plain(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / WIDTH**0.5


def alibi(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    slopes = 2.0 ** (-8 * torch.arange(1, HEADS + 1, device=q.device, dtype=torch.float64) / HEADS)
    return plain(scheme, q, k) - slopes[:, None, None] * distance(q.shape[2], q.device).abs()


def capped(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    return 5.0 * (alibi(scheme, q, k) / 5.0).tanh()


def t5(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    far = distance(q.shape[2], q.device).clamp(min=0)
    large = (16 + ((far.float().clamp(min=1) / 16).log() / math.log(128 / 16) * 16).long()).clamp(max=31)
    bucket = torch.where(far < 16, far.long(), large)
    return plain(scheme, q, k) + weight_of(scheme, "table")[bucket].permute(2, 0, 1)


def kerple(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    part: Any = scheme.parts[0]
    far = distance(q.shape[2], q.device).abs()
    return plain(scheme, q, k) + part.by_distance(far.flatten()).double().view(HEADS, *far.shape)


def steep(scheme: mp.Scheme, q: Tensor, k: Tensor) -> Tensor:
    part: Any = scheme.parts[0]
    return plain(scheme, q, k) - part.steep * part.weight.double() * distance(q.shape[2], q.device).abs()


def weight_of(scheme: mp.Scheme, name: str) -> Tensor:
    return dict(scheme.parts[0].named_parameters())[name].double()  # pyright: ignore


@dataclass
class Case:
    name: str
    make: Callable[[], mp.Scheme]
    scores: Callable[[mp.Scheme, Tensor, Tensor], Tensor]
    window: Callable[[mp.Scheme], float] = lambda scheme: math.inf
    backend: str | None = None
    """Named for what FlexAttention would run, which compiles for seconds at every change; `flex` tries that once."""


CASES = [
    Case("RoPE", lambda: mp.Scheme(mp.Rope(WIDTH), mp.causal), rope),
    Case("RoPE, a user's stretch", lambda: mp.Scheme(mp.Rope(WIDTH, stretch=Divide(2.0)), mp.causal), rope),  # pyright: ignore
    Case("a subclass of RoPE", lambda: mp.Scheme(Slowed(WIDTH), mp.causal), rope),
    Case("interpolation", lambda: mp.Scheme(mp.Rope(WIDTH, stretch=mp.Interpolate(4.0)), mp.causal), interpolated),
    Case("ReRoPE", lambda: mp.Scheme(mp.Rope(WIDTH), mp.Rerope(40), mp.causal), rerope),
    Case("window", lambda: mp.Scheme(mp.causal & mp.window(50)), plain, lambda scheme: 50),
    Case("a user's mask", lambda: mp.Scheme(Last(60)), plain, lambda scheme: scheme.parts[0].n, "chunked"),  # pyright: ignore
    Case("ALiBi", lambda: mp.Scheme(mp.Alibi(HEADS), mp.causal), alibi),
    Case("ALiBi, capped", lambda: mp.Scheme(mp.Alibi(HEADS), mp.SoftCap(5.0), mp.causal), capped),
    Case("T5", lambda: mp.Scheme(mp.T5Bias(HEADS), mp.causal), t5),
    Case("KERPLE", lambda: mp.Scheme(mp.Kerple(HEADS), mp.causal), kerple),
    Case("a user's bias", lambda: mp.Scheme(Steep(), mp.causal), steep, backend="chunked"),
]


class Fuzz:
    """One run: schemes that live on, and a count of what was done to them."""

    def __init__(self, seed: int, device: str) -> None:
        self.pick, self.device = random.Random(seed), device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.schemes = [(case, case.make().to(device)) for case in CASES for _ in range(2)]
        self.done: Counter[str] = Counter()
        self.worst: Counter[str] = Counter()
        self.graphs: list[tuple[Any, ...]] = []

    def noise(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def change(self, case: Case, scheme: mp.Scheme) -> mp.Scheme:
        """Change something about a scheme."""
        part: Any = scheme.parts[0]
        ways = ["nothing", "nothing", "new scheme"]
        learned = list(part.parameters()) if isinstance(part, nn.Module) else []
        if learned:
            ways += [".data", "in place", "replaced", "load_state_dict", "optimizer", "requires_grad"]
            ways += ["step in a graph"] if self.device == "cuda" else []
        if isinstance(part, (Last, Steep, Slowed)) or isinstance(getattr(part, "stretch", None), Divide):
            ways += ["attribute"] * 4
        way = self.pick.choice(ways)
        self.done[way] += 1
        fresh = [0.3 * self.noise(*each.shape).abs() + 0.1 for each in learned]
        with torch.no_grad():
            if way == "new scheme":
                scheme = case.make().to(self.device)
            elif way == ".data":
                for each, new in zip(learned, fresh, strict=True):
                    each.data = new
            elif way == "in place":
                for each, new in zip(learned, fresh, strict=True):
                    each.copy_(new)
            elif way == "replaced":
                for (name, _), new in zip(list(part.named_parameters()), fresh, strict=True):
                    setattr(part, name, nn.Parameter(new))
            elif way == "load_state_dict":
                names = [name for name, _ in part.named_parameters()]
                part.load_state_dict(dict(zip(names, fresh, strict=True)), assign=self.pick.random() < 0.5)
            elif way == "requires_grad":
                for each in learned:
                    each.requires_grad_(self.pick.random() < 0.7)
            elif way == "attribute":
                self.attribute(part)
        if way == "optimizer":
            self.step(learned, fresh)
        elif way == "step in a graph":
            # Warm, as torch asks for, then captured, then replayed.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step(learned, fresh)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step(learned, fresh)
            graph.replay()
        return scheme

    def attribute(self, part: Any) -> None:
        if isinstance(part, Last):
            part.n = self.pick.choice((3, 17, 90, 400))
        elif isinstance(part, Steep):
            part.steep = self.pick.choice((0.0, 0.3, 1.0))
        elif isinstance(part, Slowed):
            vars(part)["by"] = self.pick.choice((1.0, 3.0, 9.0))
        else:
            part.stretch.by = self.pick.choice((1.0, 3.0, 9.0))

    @staticmethod
    def step(learned: list[Tensor], fresh: list[Tensor]) -> None:
        with torch.no_grad():
            for each, new in zip(learned, fresh, strict=True):
                each.sub_(new, alpha=0.2)

    @contextlib.contextmanager
    def mode(self) -> Any:
        """Switch a mode of torch."""
        ways = ["plain"] * 3
        ways += ["no_grad", "inference", "autocast", "deterministic", "default dtype", "device"]
        ways += ["stream", "precision"] if self.device == "cuda" else []
        way = self.pick.choice(ways)
        self.done[way] += 1
        with contextlib.ExitStack() as stack:
            if way == "no_grad":
                stack.enter_context(torch.no_grad())
            elif way == "inference":
                stack.enter_context(torch.inference_mode())
            elif way == "autocast":
                stack.enter_context(torch.autocast(self.device, torch.bfloat16))
            elif way == "device":
                stack.enter_context(torch.device(self.device))
            elif way == "stream":
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                stack.callback(torch.cuda.synchronize)
                stack.enter_context(torch.cuda.stream(side))
            elif way == "deterministic":
                torch.use_deterministic_algorithms(True, warn_only=True)
                stack.callback(torch.use_deterministic_algorithms, False)
            elif way == "default dtype":
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
            elif way == "precision":
                stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                torch.set_float32_matmul_precision(self.pick.choice(("highest", "high")))
            yield way

    def call(self) -> str | None:
        """One call; return what is wrong with it, or None."""
        number = self.pick.randrange(len(self.schemes))
        case, scheme = self.schemes[number]
        scheme = self.change(case, scheme)
        self.schemes[number] = case, scheme
        # Multiples of 16, and not of a tile: other lengths are compiled anew, for each dtype and case.
        t = self.pick.choice((64, 128, 208, 2304 if case.name == "ALiBi, capped" else 512))
        dtype = self.pick.choice(list(BOUNDS) if self.device == "cuda" else [torch.float32])
        layout = self.pick.random() < 0.2
        q, k, v = (self.laid(t, dtype, layout) for _ in range(3))
        learns = self.pick.random() < 0.5
        for each in (q, k, v):
            each.requires_grad_(learns)
        how = self.pick.choice(["eager", "eager", "eager", "jvp", "graph" if self.device == "cuda" else "eager"])
        self.done[how] += 1
        if how == "jvp":
            return self.forward_mode(case, scheme, q.detach(), k.detach(), v.detach())
        if how == "graph":
            return self.captured(case, scheme, q.detach(), k.detach(), v.detach())
        with self.mode() as mode:
            out = mp.attend(q, k, v, scheme, backend=case.backend)
        got = [out]
        weights = [each for each in scheme.parameters() if each.requires_grad]
        ends = self.noise(*out.shape)
        if out.requires_grad and learns:
            got += torch.autograd.grad(out, (q, k, v, *weights), ends.to(out.dtype), allow_unused=True)
        exact = [each.detach().double().requires_grad_(learns) for each in (q, k, v)]
        want = [self.exact(case, scheme, *exact)]
        if len(got) > 1:
            want += torch.autograd.grad(want[0], (*exact, *weights), ends.double(), allow_unused=True)
        return self.compared(case, dtype, got, want, mode)

    def flex(self) -> str | None:
        """A mask of a user's own with the backend unset: its blocks are those of the number that it has now."""
        case = next(each for each in CASES if each.name == "a user's mask")
        scheme = case.make()
        q, k, v = (self.laid(1024, torch.float32, False) for _ in range(3))
        for scheme.parts[0].n in (64, 600):  # pyright: ignore
            got = [mp.attend(q, k, v, scheme)]
            found = self.compared(
                case, q.dtype, got, [self.exact(case, scheme, q.double(), k.double(), v.double())], "flex"
            )
            if found is not None:
                return found
        return None

    def laid(self, t: int, dtype: torch.dtype, layout: bool) -> Tensor:
        x = (
            self.noise(2, t, HEADS, WIDTH, dtype=dtype).transpose(1, 2)
            if layout
            else self.noise(2, HEADS, t, WIDTH, dtype=dtype)
        )
        return x.detach()

    def exact(self, case: Case, scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = distance(q.shape[2], q.device)
        hidden = (far < 0) | (far >= case.window(scheme))
        return case.scores(scheme, q, k).masked_fill(hidden, -math.inf).softmax(-1) @ v

    def forward_mode(self, case: Case, scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        tangent = self.noise(*q.shape, dtype=q.dtype)
        out, dual = torch.func.jvp(lambda q: mp.attend(q, k, v, scheme, backend=case.backend), (q,), (tangent,))
        want = torch.func.jvp(
            lambda q: self.exact(case, scheme, q, k.double(), v.double()), (q.double(),), (tangent.double(),)
        )
        return self.compared(case, q.dtype, [out, dual], list(want), "jvp")

    def captured(self, case: Case, scheme: mp.Scheme, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Captured in a graph, replayed on other tensors; weights that are written to afterwards are read."""
        if case.name in ("RoPE, a user's stretch", "a subclass of RoPE", "a user's mask", "a user's bias"):
            # FlexAttention compiles, or tables are made on the CPU: torch refuses to capture that.
            return None
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    mp.attend(q, k, v, scheme)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = mp.attend(q, k, v, scheme)
            q.copy_(self.noise(*q.shape, dtype=q.dtype))
            for each in scheme.parameters():
                each.add_(0.05)
            graph.replay()
            want = self.exact(case, scheme, q.double(), k.double(), v.double())
        return self.compared(case, q.dtype, [out], [want], "graph")

    def compared(self, case: Case, dtype: torch.dtype, got: list[Any], want: list[Any], mode: str) -> str | None:
        names = ["out", *"qkv", "weight", "weight", "weight"]
        for name, ours, theirs in zip(names, got, want, strict=False):
            if ours is None or theirs is None:
                if ours is not theirs:
                    return f"{case.name} {dtype} {mode}: gradient of {name} is missing"
                continue
            ours, theirs = ours.detach(), theirs.detach()
            error = float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-3))
            self.worst[f"{dtype}"] = max(self.worst[f"{dtype}"], error)  # pyright: ignore
            if not error < BOUNDS[dtype] * (4 if name == "weight" else 1):
                return f"{case.name} {dtype} t={ours.shape[-2:]} {mode}: {name} off by {error:.3g}"
        return None


def main() -> int:
    """Run, print what was done and what was wrong, and return how many calls were wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweeps.memory", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    fuzz = Fuzz(asked.seed, asked.device)
    # FlexAttention compiles for seconds at every change: once is enough.
    wrong = [f"FlexAttention: {found}" for found in [fuzz.flex() if asked.seed == 0 else None] if found is not None]
    print(*wrong, sep="\n", flush=True)
    for number in range(asked.calls):
        try:
            found = fuzz.call()
        except Exception as error:
            found = f"raised {type(error).__name__}: {str(error)[:300]}"
        if found is not None:
            wrong.append(f"call {number}: {found}")
            print(wrong[-1], flush=True)
        if number % 10 == 9:
            print(f"{number + 1} calls, {len(wrong)} wrong", flush=True)
    print(", ".join(f"{name} {count}" for name, count in fuzz.done.most_common()))
    print("largest errors:", {name: f"{error:.2g}" for name, error in fuzz.worst.items()})
    print(f"{asked.calls} calls on {asked.device}, seed {asked.seed}: {len(wrong)} wrong", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
