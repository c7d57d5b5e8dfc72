# pyright: basic, reportMissingImports=false
"""Every committed configuration of the kernels compiled, without a GPU: `python -m tests.sweeps.chips`.

The kernels are launched on small tensors in main memory as if these were on a GPU, and each launch is compiled for
several chips instead of run. This finds what Triton's interpreter accepts and its compiler does not, registers that
spill, and shared memory that a chip does not have. `make sweep-chips` compiles all; the tests, a few.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""Bytes of shared memory that a block can have, by compute capability."""
MEASURED, MEASURED_BY = 90, "3.6."
"""The chip and the Triton whose configurations were chosen by measurement; there nothing may spill."""
QUICK = {"64 table, packed": (90,), "64 gates": (90,), "rotary": (80,)}
"""The cases that the tests compile: most kernels once."""
LAUNCHING = [
    "attention.flash", "attention.t5_buckets", "cope.operators", "decoding.decode", "joining.merged",
    "near_far.both_turns", "near_far.fields", "relative.diagonal_layout", "relative.shifts", "rotary.rotate",
]  # fmt: skip
"""The modules that launch kernels where a tensor is."""
FIRST = ["triton.backends.compiler", "milepost.backends.triton.attention.flash"]
"""What is imported once, before a process is copied for each case."""
FACETS = ("plain", "slopes", "table 256", "table 2t", "window", "cap", "documents")


@dataclass(frozen=True)
class Compiled:
    """One kernel for one chip."""

    case: str
    kernel: str
    chip: int
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    failed: str = ""
    triton: str = MEASURED_BY

    @property
    def wrong(self) -> str:
        """Return what is wrong with it, or nothing."""
        if self.failed:
            return self.failed
        if self.shared > SHARED[self.chip]:
            return f"{self.shared} bytes of shared memory, and the chip has {SHARED[self.chip]}"
        # Tiles of float32 were not measured.
        measured = self.chip == MEASURED and self.triton.startswith(MEASURED_BY) and "float32" not in self.case
        if self.spilled and measured:
            return f"{self.spilled} bytes of registers spill"
        return ""


def cases() -> dict[str, Callable[[], None]]:
    """Return what is compiled: each pass forward and backward, by width and facet; decoding; rotation."""
    made: dict[str, Callable[[], None]] = {
        f"{width} {name}": lambda width=width, name=name: _attention(width, name)
        for width in (64, 128, 256)
        for name in (*FACETS, "table, packed", "numbers", "numbers, packed", "float32")
    }
    made |= {
        f"{width} {name}": lambda width=width, name=name: _vectors(width, name)
        for width in (64, 128)
        for name in ("vectors", "vectors of queries", "vectors of an encoder")
    }
    made["64 vectors, packed"] = lambda: _vectors(64, "vectors, packed")
    made |= {
        f"{width} gates{more}": lambda width=width, more=more: _gates(width, bool(more))
        for width in (64, 128, 256)
        for more in ("", ", packed")
    }
    made |= {f"64 two fields{more}": lambda more=more: _two_fields(64, bool(more)) for more in ("", ", contrast")}
    made |= {f"{width} slopes, reach": lambda width=width: _reach(width) for width in (64, 128, 256)}
    made |= {f"decoding of {width}": lambda width=width: _decoding(width) for width in (64, 128)}
    return made | {
        "rotary": _rotary, "shifts": _shifts, "buckets": _buckets, "turns": _turns, "merge": _merge, "shares": _shares,
    }  # fmt: skip


def facets(name: str, h: int, t: int, device: str = "cuda") -> dict[str, Any]:
    """Return the options of `flash` for a facet; all are causal."""
    options: dict[str, Any] = {"ahead": 0}
    made = torch.Generator(device).manual_seed(7)
    if name == "slopes":
        options["slopes"] = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device=device)
    if name.startswith("table"):
        n = 256 if name == "table 256" else 2 * t
        options["table"] = torch.randn(h, n, device=device, generator=made)
        options["first"] = 0 if name == "table 256" else 1 - t
    if name == "numbers":
        options["table"], options["derivative"] = torch.randn(2, h, t, device=device, generator=made)
        options["numbers"] = torch.ones(2, h, device=device)
    if name == "window":
        options.update(behind=min(1024, t // 2), sinks=4)
    if name == "cap":
        options.update(cap=30.0)
    if name == "documents":
        documents = (torch.arange(t, device=device) * 16 // t)[None]
        index = torch.arange(t, device=device)[None] % (t // 16)
        options.update(documents=documents, key_documents=documents, index=index, key_index=index)
    for each in ("numbers",) if name == "numbers" else ("slopes", "table"):
        if each in options:
            options[each].requires_grad_()
    return options


def _inputs(width: int, tokens: int = 512, heads: int = 2, dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    return [torch.randn(1, heads, tokens, width, dtype=dtype, requires_grad=True) for _ in range(3)]


def _attention(width: int, name: str) -> None:
    from milepost.backends.triton.attention import flash
    from milepost.backends.triton.packed.documents import order_within

    q, k, v = _inputs(width, dtype=torch.float32 if name == "float32" else torch.bfloat16)
    facet, packed, _ = name.partition(", packed")
    names = ("table 256" if facet == "table" else facet, *(["documents"] if packed else []))
    options = {key: value for each in names for key, value in facets(each, 2, 512, "cpu").items()}
    if "documents" in options:
        order_within(options["documents"])
    out, _ = flash.flash(q, k, v, **options)
    out.backward(torch.ones_like(out))
    # The forward pass over more keys has tiles of its own.
    few, flash.NARROW = flash.NARROW, 0
    with torch.no_grad():
        flash.flash(q, k, v, **options)
    flash.NARROW = few


def _reach(width: int) -> None:
    """Slopes that leave far keys no weight."""
    from milepost.backends.triton.attention import flash

    flash.REACH_FROM = 0
    _attention(width, "slopes")


def _vectors(width: int, name: str) -> None:
    """Vectors by distance on keys and queries: near keys of a causal text, an encoder in squares, documents."""
    from milepost.backends.triton.attention.flash import flash
    from milepost.backends.triton.relative.diagonal_layout import diagonal_products, layout_of

    q, k, v = _inputs(width)
    if "packed" in name:
        made = [torch.randn(1, 2, 512, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
        first, options = 0, facets("documents", 2, 512, "cpu")
    else:
        encoder = "encoder" in name
        first, count = (-511, 1024) if encoder else (0, 128)
        options: dict[str, Any] = {} if encoder else {"ahead": 0, "behind": 128}
        rows = torch.randn(2, count, width, dtype=torch.bfloat16, requires_grad=True)
        made = [
            diagonal_products(x, rows, layout_of(by_row, 512, 512, count, first, 0, encoder))
            for x, by_row in ((q, True), (k, False))
        ]
    by_row, by_key = made
    by_key = None if name == "vectors of queries" else by_key
    out, _ = flash(q, k, v, by_row=by_row, by_key=by_key, first=first, **options)
    out.backward(torch.ones_like(out))


def _gates(width: int, packed: bool) -> None:
    from milepost.backends.triton.cope.operators import gated

    entries = torch.randn(1, 2, 512, 64, dtype=torch.bfloat16, requires_grad=True)
    options = {name: each for name, each in facets("documents", 2, 512, "cpu").items() if name != "ahead"}
    q, k, v = _inputs(width)
    out, _ = gated(q, k, v, entries, **(options if packed else {}))
    out.backward(torch.ones_like(out))


def _two_fields(width: int, contrast: bool) -> None:
    """Near and far keys in one kernel."""
    from milepost.backends.triton.near_far.fields import Fields, fields

    (q, k, v), (far_q, far_k, _) = _inputs(width), _inputs(width)
    strength = torch.ones(1, 512) if contrast else None
    out, _ = fields(q, k, v, Fields(200, 0.125, strength=strength), far_q, far_k)
    out.backward(torch.ones_like(out))


def _decoding(width: int) -> None:
    from milepost.backends.triton.decoding.decode import Field, Turns, decode, decode_fields

    q, k, v = _inputs(width, 8192)
    q, cos = q[:, :, :1], torch.ones(1, 8192, width // 2)
    one = cos[:, :1]
    with torch.no_grad():
        each: dict[str, Any]
        for each in (
            {},
            {"key_cos": cos, "key_sin": cos},
            {"query_cos": one, "query_sin": one},
            {"slopes": torch.ones(2)},
        ):
            decode(q, k, v, **each)
        near, far = Field(Turns(one, one, cos, cos), 512, 0), Field(Turns(one, one), 8192, -512)
        # Little, and much.
        for some in (k, k.expand(16, -1, -1, -1)):
            b = some.shape[0]
            decode_fields(q.expand(b, -1, -1, -1), some, v.expand(b, -1, -1, -1), near, far, scale=1.0, offset=8191)
        by_row = torch.ones(1, 1)
        kept = {"strength": by_row, "gain": by_row, "sinks": 4, "spared": far.turns}
        decode_fields(q, k, v, near, far, scale=1.0, offset=8191, **kept)


# Kernels that only read and write.


def _of(width: int, heads: int = 2) -> Tensor:
    return torch.randn(1, heads, 512, width, dtype=torch.bfloat16, requires_grad=True)


def _rotary() -> None:
    from milepost.backends.triton.rotary.rotate import rotate_qk, rotate_qk_at, turns_of

    cos, position = torch.ones(1, 512, 64), torch.arange(512)[None]
    for neighbours in (False, True):
        q, k = _of(128), _of(128)
        for a, b in (
            rotate_qk(q, k, cos, cos, neighbours=neighbours),
            rotate_qk_at(q, k, turns_of(torch.ones(64)), position, neighbours=neighbours),
        ):
            (a.sum() + b.sum()).backward()


def _shifts() -> None:
    from milepost.backends.triton.relative.shifts import shifted

    for width in (64, 80, 128):
        shifted(_of(width), torch.randn(2, 1, width, requires_grad=True)).sum().backward()


def _buckets() -> None:
    from milepost.backends.triton.attention.t5_buckets import picked

    for heads in (6, 16):
        picked(torch.randn(32, heads, requires_grad=True), torch.arange(129) % 32).sum().backward()


def _turns() -> None:
    """Both turns at once, and back."""
    from milepost.backends.triton.near_far.both_turns import _turned, _turned_back

    for width, neighbours, turns in ((64, False, True), (128, True, True), (128, False, False)):
        x, cos = _of(width).detach(), torch.ones(1, 512, width // 2)
        others = (cos, cos) if turns else None
        near, far = _turned(x, (cos, cos), others, neighbours)
        _turned_back(near, far[:, :, 100:], 100, (cos, cos), others, neighbours)


def _merge() -> None:
    from milepost.backends.triton.joining.merged import merged

    for width in (64, 128, 256):
        for parts in (2, 3):
            given = [each for _ in range(parts) for each in (_of(width), torch.zeros(1, 2, 512, requires_grad=True))]
            for strength in (None, torch.ones(1, 512)):
                out, lse = merged(*given, strength=strength)
                (out.sum() + lse.sum()).backward()


def _shares() -> None:
    """Answers joined, and gradients added."""
    from milepost.backends.triton.joining.sums import JOINED, MOST, added, joined

    for width, neighbours in ((64, False), (128, True), (128, False)):
        x, cos, lse = _of(width).detach(), torch.ones(1, 512, width // 2), torch.zeros(1, 2, 512)
        for parts in range(1, JOINED + 1):
            for strength in (None, torch.ones(1, 512))[: 1 if parts == 1 else 2]:
                joined(torch.empty_like(x), lse.clone(), [(x, lse)] * parts, strength)
        for parts in range(1, MOST + 1):
            added(torch.empty_like(x), [(x, (cos, cos))] * parts, None, neighbours)
            added(torch.empty_like(x), [(x, None)] * parts, (cos, cos), neighbours)
            added(torch.empty_like(x, dtype=torch.float32), [(x, None)] * parts)


def compile_case(job: tuple[str, tuple[int, ...]]) -> list[Compiled]:
    """Compile a case, in a process of its own: afterwards this process cannot launch a kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from milepost.backends.triton.attention import flash
    from milepost.backends.triton.runtime import configs, launch
    from milepost.backends.triton.runtime.launcher import OPTIONS
    from milepost.memory.table import MEMORY

    case, chips = job
    chip = _Chip()
    driver.set_active(chip)  # pyright: ignore
    torch.Tensor.is_cuda = True  # pyright: ignore
    for name in LAUNCHING:
        each = importlib.import_module(f"milepost.backends.triton.{name}")
        each.device_of = lambda _: contextlib.nullcontext()  # pyright: ignore
    fits_tma = flash._fits_tma
    found: list[Compiled] = []

    def compile_only(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        binary = kernel.warmup(*args, grid=grid, **named, **OPTIONS)
        registers, spilled = _resources(binary.asm["cubin"])
        shared, version = binary.metadata.shared, triton.__version__
        found.append(Compiled(case, kernel.__name__, chip.number, registers, spilled, shared, triton=version))
        return ()

    launch._launch, launch.stream_of, launch.Again = compile_only, lambda _: 0, _Nothing
    for number in chips:
        # What was compiled for another chip is not this one's.
        MEMORY.forget()
        chip.number, chip.target = number, GPUTarget("cuda", number, 32)
        configs.has_little = lambda _: chip.number >= 120
        flash._fits_tma = fits_tma if number >= 90 else lambda *_: False
        try:
            cases()[case]()
        except Exception as error:
            found.append(Compiled(case, "", number, failed=f"{type(error).__name__}: {str(error)[-300:]}"))
    return list(dict.fromkeys(found))


class _Nothing:
    """A launch that does nothing when it is made again."""

    def __call__(self, *_: Any) -> None:
        pass

    def on(self, _: Any) -> _Nothing:
        return self

    @property
    def device(self) -> int:
        return 0


class _Chip:
    """A driver that knows what a chip is called, and has none."""

    number = 0
    target: Any = None

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes that spill, by the vendor's tool."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        output = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return read_resources(output)


def read_resources(output: str) -> tuple[int, int]:
    """Return registers and spilled bytes from the tool's output: registers spill to the stack and to local memory."""
    (words,) = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", output)
    registers, stack, local = map(int, words)
    return registers, stack + local


def main(words: list[str] | None = None) -> int:
    """Compile, print a line for each kernel, and return 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweeps.chips", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two cases, as the tests do")
    parser.add_argument("--chips", type=int, nargs="+", default=sorted(SHARED), choices=sorted(SHARED))
    parser.add_argument("--case", action="append", help="one case by its name; may be repeated")
    asked = parser.parse_args(words)
    jobs = list(QUICK.items()) if asked.quick else [(each, tuple(asked.chips)) for each in asked.case or cases()]
    os.environ.pop("TRITON_INTERPRET", None)
    wrong = 0
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(FIRST)
    with context.Pool(min(len(jobs), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(compile_case, jobs):
            for each in found:
                numbers = f"{each.registers:4} registers {each.spilled:5} spilled {each.shared / 1024:6.1f} KiB shared"
                print(f"sm_{each.chip:<4}{each.case:26}{each.kernel:16}{numbers}  {each.wrong}", flush=True)
                wrong += bool(each.wrong)
    print(f"{wrong} wrong" if wrong else "all compile, fit their chips, and spill only where they may")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
