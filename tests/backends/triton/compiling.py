# pyright: basic
"""Compiles kernels as they would be launched, for GPUs that need not be there.

    python -m tests.backends.triton.compiling --capability 90

Prints, one JSON a line, what each kernel takes: registers, bytes of stack (what does not fit into registers), shared
memory, and how many tiles of single numbers it reads or writes across. Needs Triton's compiler, so it runs in a process
of its own: the tests run its interpreter.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from milepost.backends.triton import configs, flash
from milepost.backends.triton.configs import Config

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
SHAPES = {64: (1, 4, 2048, 64), 128: (1, 4, 2048, 128), 256: (1, 4, 1024, 256)}
REACH = 512
FACETS: dict[str, dict[str, Any]] = {
    "by row": {"rows": True, "behind": REACH},
    "by key": {"keys": True, "behind": REACH},
    "by both": {"rows": True, "keys": True, "behind": REACH},
    "by both, causal": {"rows": True, "keys": True},
    "by both, encoder": {"rows": True, "keys": True, "ahead": flash.UNLIMITED},
    "by both, squares": {"rows": True, "keys": True, "ahead": flash.UNLIMITED, "squares": True},
    "by both, documents": {"rows": True, "keys": True, "documents": True},
    "plain": {},
}


def launches(width: int, how: dict[str, Any]) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The kernels of a forward and a backward pass with what they would be launched with, on tensors without memory."""
    found: dict[str, Any] = {}

    def noted(kernel: Any, grid: Any, *args: Any, **named: Any) -> None:
        found[kernel.__name__] = kernel, args, named

    flash.launch, flash.INTERPRETED = noted, True
    b, h, t, d = SHAPES[width]
    q, k, v, out, grad, dq, dk, dv = (torch.empty(b, h, t, d, dtype=torch.bfloat16, device="meta") for _ in range(8))
    lse, lse2, delta = (torch.empty(b, h, t, device="meta") for _ in range(3))
    ahead = how.get("ahead", 0)
    n = REACH if ahead == 0 else 2 * REACH
    shape = (b, h, t // 128, 128, t + 128) if how.get("squares") else (b, h, t, n)
    by_row, by_key = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta") if how.get(each) else None for each in ("rows", "keys")
    )
    tokens: tuple[Tensor, ...] = ()
    if how.get("documents"):
        tokens = tuple(torch.empty(1, t, dtype=torch.int64, device="meta") for _ in range(4))
    call = flash.Call(
        q, k, v, None, None, None, None, d**-0.5, 0, how.get("behind", flash.UNLIMITED), ahead, 0,
        0 if ahead == 0 else -REACH, 0.0, False, tokens, (by_row, by_key),
    )  # fmt: skip
    if tokens:
        call.bounds = lambda *_, **__: (torch.empty(1, 64, 8, dtype=torch.int32, device="meta"), 0)
    flash.launch_forward(call, out, lse)
    flash.launch_keys(call, grad, lse2, delta, dk, dv, by_key)
    flash.launch_rows(call, grad, lse2, delta, dq, False, False, by_row)
    return found


def compiled(kernel: Any, args: tuple[Any, ...], named: dict[str, Any], capability: int) -> dict[str, int]:
    """Compile one kernel, and read what it takes off its binary."""
    options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
    named["FAST"] = True
    given = dict(zip(kernel.arg_names, args, strict=False)) | named
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for number, (name, param) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        each = given[name]
        plain = isinstance(each, int) and not isinstance(each, bool) and not param.is_constexpr
        if param.is_constexpr or each is None or (plain and each == 1 and not param.do_not_specialize):
            signature[name], constants[name] = "constexpr", each
            continue
        if isinstance(each, TensorDescriptor):
            signature[name] = f"tensordesc<{NAMES[each.base.dtype]}{list(each.block_shape)}>"
            continue
        signature[name] = f"*{NAMES[each.dtype]}" if isinstance(each, Tensor) else "i32" if plain else "fp32"
        if isinstance(each, Tensor) or (plain and each % 16 == 0 and not param.do_not_specialize):
            attributes[number,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {**usage(made.asm["cubin"]), "shared": made.metadata.shared, "across": across(made.asm["ttgir"])}


def across(text: str) -> int:
    """How many loads and stores of single numbers have a warp's threads side by side in a tile, not one below another.

    Numbers by distance lie in memory down a tile; read across it, every thread would touch another line.
    """
    layouts = re.findall(r"(#\w+) = #ttg.blocked<{sizePerThread = \[1, 1\], threadsPerWarp = \[1, 32\]", text)
    uses = re.findall(r"tt\.(?:load|store) .*x!tt\.ptr<\w+>, (#\w+)>", text)
    return sum(each in layouts for each in uses)


def usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()  # pyright: ignore
    return {"registers": int(registers), "stack": int(stack)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--capability", type=int, nargs="+", default=[90])
    parser.add_argument("--facet", nargs="+", default=list(FACETS))
    parser.add_argument("--width", type=int, nargs="+", default=list(SHAPES))
    parser.add_argument("--kernel", nargs="+", default=["forward", "keys", "rows"])
    parser.add_argument("--tile", help="rows,keys,warps,stages in place of what is chosen")
    parser.add_argument("--flags", default="tma", help="tma, upright, lead, joined by commas")
    asked = parser.parse_args()
    each: Callable[[str], bool] = asked.flags.split(",").__contains__
    tiles = {}
    if asked.tile:
        tile = Config(*map(int, asked.tile.split(",")), each("tma"), each("upright"), each("lead"))
        tiles = dict.fromkeys(asked.kernel, tile)
    names = {"forward": "forward", "keys": "backward_keys", "rows": "backward_rows"}
    for capability in asked.capability:
        for width in asked.width:
            for facet in asked.facet:
                with configs.override(**tiles):
                    found = launches(width, FACETS[facet])
                for kernel in asked.kernel:
                    took = compiled(*found[names[kernel]], capability)
                    print(json.dumps({"sm": capability, "width": width, "facet": facet, "kernel": kernel, **took}))


if __name__ == "__main__":
    main()
