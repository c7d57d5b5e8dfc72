"""The rotation alone: q and k rotated and differentiated, as a share of a copy's speed, and peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from milepost import Rope, rotate
from milepost.bench.harness.agreement import FLOORS, compared
from milepost.bench.harness.contest import BOTH, FORWARD, Column, Contest, Entry, Works
from milepost.bench.harness.report import Agreement
from milepost.bench.harness.settings import Grouped, Settings, grouped
from milepost.bench.suites import bounds

COPY = "copy of q and k"
EAGER = Column("eager", FORWARD, "burst"), Column(f"eager, {BOTH}", BOTH, "burst")
GRAPH = Column("graph", FORWARD, "graph"), Column(f"graph, {BOTH}", BOTH, "graph")
Pair = tuple[Tensor, Tensor]
Turn = Callable[[Tensor, Tensor], Pair]
FIRST = 100
"""The position of the first token."""


def rotary(settings: Settings) -> list[Contest]:
    """Return long rows, and one token of many rows."""
    long = [_contest(settings, "rotary", shape, (*EAGER, *GRAPH)) for shape in settings.sizes.rotary]
    for contest in long:
        contest.bound = lambda name, column, limit: bounds.ROTARY.get(column) if name.startswith("milepost") else None
    step = _contest(settings, "rotary", settings.sizes.rotary_step, (EAGER[0], GRAPH[0]))
    step.bound = lambda name, column, limit: (
        limit / bounds.ROTARY_STEP if column == "graph" and name.startswith("milepost") else None
    )
    return [*long, step]


def on_cpu(settings: Settings) -> list[Contest]:
    """Return the rotation on the CPU, in eager mode and compiled."""
    return [_contest(settings, "cpu", settings.sizes.cpu_rotary, EAGER)]


def _contest(settings: Settings, group: str, shape: Grouped, columns: tuple[Column, ...]) -> Contest:
    def entries() -> list[Entry]:
        given = _Given(settings, shape)
        found = [Entry(COPY, "limit", lambda: _copied(given))]
        ours: dict[str, Callable[[], Turn]] = {
            "milepost, cos and sin given": given.by_waves,
            "milepost, from positions": given.by_positions,
        }
        if settings.device == "cpu":
            # Fresh memory, which the system gives page by page, takes longer than what is written to it.
            found.append(Entry("clone of q and k", "torch", lambda: _cloned(given)))
            ours["milepost, compiled"] = lambda: torch.compile(given.by_waves(), fullgraph=True)
        found += [Entry(name, "milepost", given.works(make)) for name, make in ours.items()]
        return found + [Entry(name, who, given.works(make)) for name, (who, make) in given.peers().items()]

    title = f"{'RoPE on q and k' if group == 'cpu' else 'q and k'}, {grouped(*shape)}, {settings.words}"
    return Contest(group, title, columns, entries, COPY, ratio="share")


class _Given:
    """q and k as a model has them, tokens before heads in memory, and the cosines and sines of all contenders."""

    def __init__(self, settings: Settings, shape: Grouped) -> None:
        b, h, g, t, d = shape
        maker = torch.Generator(settings.device).manual_seed(0)

        def made(heads: int) -> Tensor:
            x = torch.randn(b, t, heads, d, device=settings.device, generator=maker).to(settings.dtype)
            return x.transpose(1, 2)

        self.q, self.k = (made(heads).requires_grad_() for heads in (h, g))
        self.grads = made(h), made(g)
        self.rope = Rope(d)
        self.position = torch.arange(FIRST, FIRST + t, device=settings.device)
        self.waves = self.rope.cos_sin(self.position)

    def by_waves(self) -> Turn:
        """Return our kernel where there is one."""
        cos, sin = self.waves
        if not self.q.is_cuda:
            return lambda q, k: (rotate(q, cos, sin), rotate(k, cos, sin))
        from milepost.backends.triton.rotary.rotate import rotate_qk

        cos, sin = cos[None], sin[None]
        return lambda q, k: rotate_qk(q, k, cos, sin)

    def by_positions(self) -> Turn:
        """Return the same without a table: our kernel where there is one, or `Rope` itself."""
        if not self.q.is_cuda:
            return lambda q, k: (self.rope.turn(q, self.position), self.rope.turn(k, self.position))
        from milepost.backends.triton.rotary.rotate import rotate_qk_at, turns_of

        turns, position = turns_of(self.rope.angles(torch.ones((), device=self.q.device))), self.position[None]
        return lambda q, k: rotate_qk_at(q, k, turns, position)

    def peers(self) -> dict[str, tuple[str, Callable[[], Turn]]]:
        """Return whose they are, and how they are made; one that is not installed has that reason in its row."""
        found: dict[str, tuple[str, Callable[[], Turn]]] = {
            "transformers, eager": ("transformers", self._transformers),
            "transformers, compiled": ("transformers", lambda: torch.compile(self._transformers(), dynamic=False)),
        }
        if self.q.is_cuda:
            found["Liger, in place"] = ("Liger", self._liger)
            found["flash-attn's Triton rotary"] = ("flash-attn", self._flash_attn)
        return found

    def _wide(self) -> Pair:
        """Return cosines and sines as transformers has them: repeated, in the dtype of q, [1 t d]."""
        cos, sin = (torch.cat((each, each), -1)[None].to(self.q.dtype) for each in self.waves)
        return cos, sin

    def _transformers(self) -> Turn:
        apply: Any = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        cos, sin = self._wide()
        return lambda q, k: apply(q, k, cos, sin)

    def _liger(self) -> Turn:
        function: Any = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction
        cos, sin = self._wide()
        return lambda q, k: function.apply(q, k, cos, sin)

    def _flash_attn(self) -> Turn:
        apply: Any = importlib.import_module("flash_attn.layers.rotary").apply_rotary_emb
        cos, sin = (each.to(self.q.dtype) for each in self.waves)

        def turn(q: Tensor, k: Tensor) -> Pair:
            return apply(q.transpose(1, 2), cos, sin).transpose(1, 2), apply(k.transpose(1, 2), cos, sin).transpose(
                1, 2
            )

        return turn

    def works(self, make: Callable[[], Turn]) -> Callable[[], Works]:
        """Return a contender from its rotation."""

        def ready() -> Works:
            turn = make()
            # Some write over what they are given.
            q, k = (each.detach().clone() for each in (self.q, self.k))

            def forward() -> object:
                with torch.no_grad():
                    return turn(q, k)

            def both() -> object:
                return torch.autograd.grad(turn(self.q, self.k), (self.q, self.k), self.grads)

            return Works({FORWARD: forward, BOTH: both}, lambda: self.agreement(turn))

        return ready

    def agreement(self, turn: Turn) -> Agreement:
        """Compare with a rotation in float64; plain torch is the same in the dtype of q, with exact angles."""
        q, k = (each.detach().clone().requires_grad_() for each in (self.q, self.k))
        with torch.no_grad():
            out = [each[:1].clone() for each in turn(q.detach().clone(), k.detach().clone())]
        # Copies, because some rotate gradients in place, too.
        grads = torch.autograd.grad(turn(q * 1, k * 1), (q, k), [each.clone() for each in self.grads])
        cos, sin = self.rope.cos_sin(self.position, dtype=torch.float64)
        given = [*(each.detach() for each in (self.q, self.k)), *self.grads]
        signs = (1, 1, -1, -1)
        exact = [rotate(x[:1].double(), cos, s * sin) for x, s in zip(given, signs, strict=True)]
        plain = [rotate(x[:1], *self.waves) for x in given[:2]]
        plain += [rotate(x[:1], self.waves[0], -self.waves[1]) for x in given[2:]]
        ours = [*out, *(each[:1] for each in grads)]
        return compared(ours, exact, plain, FLOORS[self.q.dtype])


def _copied(given: _Given) -> Works:
    """Return one copy; there and back with gradients."""
    pairs = [(torch.empty_like(each), each) for each in (given.q.detach(), given.k.detach(), *given.grads)]

    def copy(count: int) -> Callable[[], object]:
        return lambda: [to.copy_(x) for to, x in pairs[:count]]

    return Works({FORWARD: copy(2), BOTH: copy(4)})


def _cloned(given: _Given) -> Works:
    """Return the same into memory of its own, as a rotated tensor has."""
    read = (given.q.detach(), given.k.detach(), *given.grads)

    def clone(count: int) -> Callable[[], object]:
        return lambda: [each.clone() for each in read[:count]]

    return Works({FORWARD: clone(2), BOTH: clone(4)})
