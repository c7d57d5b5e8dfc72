# pyright: basic, reportMissingImports=false
"""Every committed configuration of the kernels compiled, without a GPU: `python -m milepost.bench.chips`.

The kernels are launched on small tensors in main memory as if these were on a GPU, and each launch is compiled for
several chips in place of being run. What Triton's interpreter lets pass and its compiler does not, registers that spill
and shared memory that a chip does not have are found here, before anybody waits for a GPU.
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

from milepost.bench.chips_of_memory import MEMORY
from milepost.bench.kernels import FACETS, facets

SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block can have, by compute capability."""
MEASURED = 90
"""The chip whose configurations were chosen by measurement; there nothing may spill."""
QUICK = {"64 table, packed": (90,), "64 gates": (90,), "rotary": (80,)}
"""The cases that the tests compile: most kernels once."""
LAUNCHING = ["buckets", "decode", "eights", "fields", "flash", "gated", "merged", "rotary", "shifts", "twice"]
"""The modules that launch kernels where a tensor is."""
FIRST = ["milepost.bench.kernels", "triton.backends.compiler", "milepost.backends.triton.flash"]
"""What is imported once, before a process is copied for each case."""


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

    @property
    def wrong(self) -> str:
        """What is wrong with it, or nothing."""
        if self.failed:
            return self.failed
        if self.shared > SHARED[self.chip]:
            return f"{self.shared} bytes of shared memory, and the chip has {SHARED[self.chip]}"
        if self.spilled and self.chip == MEASURED:
            return f"{self.spilled} bytes of registers spill"
        return ""


def cases() -> dict[str, Callable[[], None]]:
    """What is compiled: each pass forward and backward, by width and facet; decoding; rotation."""
    made: dict[str, Callable[[], None]] = {
        f"{width} {name}": lambda width=width, name=name: _attention(width, name)
        for width in (64, 128, 256)
        for name in (*FACETS, "table, packed", "numbers", "numbers, packed")
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
    return made | MEMORY


def _inputs(width: int, tokens: int = 512, heads: int = 2) -> list[Any]:
    return [torch.randn(1, heads, tokens, width, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def _attention(width: int, name: str) -> None:
    from milepost.backends.triton.flash import flash
    from milepost.backends.triton.numbering import order_within

    q, k, v = _inputs(width)
    facet, packed, _ = name.partition(", packed")
    names = ("table 256" if facet == "table" else facet, *(["documents"] if packed else []))
    options = {key: value for each in names for key, value in facets(each, 2, 512, "cpu").items()}
    if "documents" in options:
        order_within(options["documents"])
    out, _ = flash(q, k, v, **options)
    out.backward(torch.ones_like(out))


def _reach(width: int) -> None:
    """Slopes that leave far keys no weight."""
    from milepost.backends.triton import flash

    flash.REACH_FROM = 0
    _attention(width, "slopes")


def _vectors(width: int, name: str) -> None:
    """Vectors by distance on keys and queries: near keys of a causal text, an encoder in squares, documents."""
    from milepost.backends.triton.eights import by_eights, layout_of
    from milepost.backends.triton.flash import flash

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
            by_eights(x, rows, layout_of(by_row, 512, 512, count, first, 0, encoder))
            for x, by_row in ((q, True), (k, False))
        ]
    by_row, by_key = made
    by_key = None if name == "vectors of queries" else by_key
    out, _ = flash(q, k, v, by_row=by_row, by_key=by_key, first=first, **options)
    out.backward(torch.ones_like(out))


def _gates(width: int, packed: bool) -> None:
    from milepost.backends.triton.gated import gated

    entries = torch.randn(1, 2, 512, 64, dtype=torch.bfloat16, requires_grad=True)
    options = {name: each for name, each in facets("documents", 2, 512, "cpu").items() if name != "ahead"}
    q, k, v = _inputs(width)
    out, _ = gated(q, k, v, entries, **(options if packed else {}))
    out.backward(torch.ones_like(out))


def _two_fields(width: int, contrast: bool) -> None:
    """Near and far keys in one kernel."""
    from milepost.backends.triton.fields import Fields, _in_one

    (q, k, v), (far_q, far_k, _) = _inputs(width), _inputs(width)
    strength = torch.ones(1, 512) if contrast else None
    out, _ = _in_one(q, k, v, far_q, far_k, Fields(200, 0.125, strength=strength))
    out.backward(torch.ones_like(out))


def _decoding(width: int) -> None:
    from milepost.backends.triton.decode import Field, Turns, decode, decode_fields

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


def compile_case(job: tuple[str, tuple[int, ...]]) -> list[Compiled]:
    """One case, in a process of its own: nothing of this process can launch a kernel afterwards."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from milepost.backends.triton import flash, launch

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
        binary = kernel.warmup(*args, grid=grid, **named)
        registers, spilled = _resources(binary.asm["cubin"])
        found.append(Compiled(case, kernel.__name__, chip.number, registers, spilled, binary.metadata.shared))
        return ()

    launch._launch, launch._stream, launch.Again = compile_only, lambda _: 0, _Nothing
    for number in chips:
        # What was compiled for another chip is not this one's.
        launch._alike.clear()
        chip.number, chip.target = number, GPUTarget("cuda", number, 32)
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
    """Registers of a thread, and bytes of them that spill, as the vendor's tool reads them from the binary."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return read_resources(said)


def read_resources(said: str) -> tuple[int, int]:
    """Registers and spilled bytes, from what the tool says: a stack and local memory are where registers spill to."""
    (words,) = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", said)
    registers, stack, local = map(int, words)
    return registers, stack + local


def main(words: list[str] | None = None) -> int:
    """Compile, print a line for each kernel, and say how many are wrong."""
    parser = argparse.ArgumentParser(prog="python -m milepost.bench.chips", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two cases, as the tests do")
    parser.add_argument("--chips", type=int, nargs="+", default=sorted(SHARED), choices=sorted(SHARED))
    parser.add_argument("--case", action="append", help="one case by its name; may be said several times")
    asked = parser.parse_args(words)
    jobs = list(QUICK.items()) if asked.quick else [(each, tuple(asked.chips)) for each in asked.case or cases()]
    os.environ.pop("TRITON_INTERPRET", None)
    wrong = 0
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(FIRST)
    with context.Pool(min(len(jobs), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(compile_case, jobs):
            for each in found:
                numbers = f"{each.registers:4} registers {each.shared / 1024:6.1f} KiB shared"
                print(f"sm_{each.chip:<4}{each.case:26}{each.kernel:16}{numbers}  {each.wrong}", flush=True)
                wrong += bool(each.wrong)
    print(f"{wrong} wrong" if wrong else "all compile, and nothing spills that may not")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
