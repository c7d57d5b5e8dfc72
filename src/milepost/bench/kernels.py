# pyright: basic, reportMissingImports=false
"""The kernels on a GPU, beside plain causal attention and a copy: `python -m milepost.bench.kernels`.

First every configuration is compiled, several at a time in processes of their own, and compared with float64; then it
is timed. One that fails prints why, and the rest goes on. The last table gives ratios to the limit: for attention,
plain causal SDPA without positions; for rotation, a copy; for decoding, the time to read the keys and values.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from milepost.bench.kernels_of_memory import SEED, Work, decoding, inputs, limits, rotation, short, timed

SHAPES = {"A": (4, 16, 4096, 64), "B": (1, 16, 16384, 128)}
FACETS = ("plain", "slopes", "table 256", "table 2t", "window", "cap", "documents")


def facets(name: str, h: int, t: int, device: str = "cuda") -> dict[str, Any]:
    """The options of `flash` that a facet's name stands for; all are causal."""
    options: dict[str, Any] = {"ahead": 0}
    made = torch.Generator(device).manual_seed(SEED)
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


def exact(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """The same attention, dense, in the dtype of q."""
    t, s = q.shape[2], k.shape[2]
    i, j = torch.arange(t, device=q.device)[:, None], torch.arange(s, device=q.device)[None]
    x = q @ k.mT * q.shape[-1] ** -0.5
    if "slopes" in options:
        x = x - options["slopes"].to(x.dtype)[:, None, None] * (i - j).abs()
    if "table" in options:
        n, first = options["table"].shape[1], options["first"]
        x = x + options["table"].to(x.dtype)[:, (i - j).clamp(first, first + n - 1) - first]
    if "cap" in options:
        x = options["cap"] * torch.tanh(x / options["cap"])
    visible = j <= i
    if "documents" in options:
        visible = visible & (options["documents"][0, :, None] == options["documents"][0])
    if "behind" in options:
        visible = visible & ((i - j < options["behind"]) | (j < options["sinks"]))
    return torch.softmax(x.masked_fill(~visible, -math.inf), -1) @ v


def tried(kernel: str, width: int, name: str) -> list[Any]:
    """The configurations to try: the one that is chosen first, then the candidates."""
    from milepost.backends.triton import configs

    table = name.startswith("table")
    chosen = configs.choose(kernel, width, 2, table)
    others = [each for each in configs.CANDIDATES[kernel, width] if each != chosen]
    return [chosen, *(others if name in ("plain", "slopes", "table 256", "table 2t") else others[:2])]


def kernels_of(name: str) -> tuple[str, ...]:
    """The kernels that a facet's forward and backward passes run."""
    return ("forward", "keys", "rows", "walk") if name.startswith("table") else ("forward", "keys", "rows")


def launches(kernel: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, options: dict[str, Any]) -> Work:
    """One kernel of the pass, ready to launch."""
    from milepost.backends.triton import flash

    slopes = options.get("slopes")
    call = flash.Call(
        q, k, v, slopes, slopes, options.get("table"), None, q.shape[-1] ** -0.5, 0,
        options.get("behind", flash.UNLIMITED), 0, options.get("sinks", 0), options.get("first", 0),
        options.get("cap", 0.0), False,
        tuple(options.get(each) for each in ("documents", "key_documents", "index", "key_index")),
    )  # fmt: skip
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    if kernel == "forward":
        return lambda: flash.launch_forward(call, out, lse)
    with torch.no_grad():
        flash.launch_forward(call, out, lse)
        lse2, delta = flash.launch_prepare(grad, None, out, lse)
    if kernel == "keys":
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        return lambda: flash.launch_keys(call, grad, lse2, delta, dk, dv)
    if kernel == "rows":
        dq = torch.empty_like(q)
        return lambda: flash.launch_rows(call, grad, lse2, delta, dq, slopes is not None, "table" in options)
    return lambda: flash.launch_walk(call, grad, lse2, delta)


def warm(job: tuple[str, str, str, Any]) -> str:
    """In a process of its own: compile one kernel by running it on few heads, and compare with float64.

    With no configuration: every kernel of the facet, as chosen.
    """
    shape, name, kernel, config = job
    chosen = {} if config is None else {kernel: config}
    from milepost.backends.triton import configs
    from milepost.backends.triton.flash import flash

    d = SHAPES[shape][3]
    h, t = 2, 1024
    q, k, v, grad = inputs(2, h, t, d)
    options = facets(name, h, t)
    with configs.override(**chosen):
        leaves = [each.requires_grad_() for each in (q, k, v)]
        leaves += [options[each] for each in ("slopes", "table") if each in options]
        out, _ = flash(q, k, v, **options)
        got = [out]
        if kernel != "forward":
            got += torch.autograd.grad(out, leaves, grad)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    named = dict(options)
    named.update(zip([each for each in ("slopes", "table") if each in options], wide[3:], strict=True))
    want_out = exact(wide[0], wide[1], wide[2], named)
    want = [want_out, *torch.autograd.grad(want_out, wide, grad.double())]
    error = max(
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(got, want, strict=False)
    )
    if not error < 1e-2:
        raise ValueError(f"off by {error:.1e} of the norm")
    return f"{error:.1e}"


def compile_all(jobs: list[tuple[str, str, str, Any]], workers: int) -> set[tuple[str, str, str, Any]]:
    """Compile and check every configuration; those that are right."""
    started = time.time()
    fine: set[tuple[str, str, str, Any]] = set()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(warm, job): job for job in jobs}
        for done in as_completed(waiting):
            shape, name, kernel, config = waiting[done]
            try:
                done.result()
                fine.add(waiting[done])
            except Exception as error:
                print(f"  failed: {shape} {name} {kernel} {config}: {short(error)}", flush=True)
    print(f"{len(fine)} of {len(jobs)} configurations are right; compiled in {time.time() - started:.0f} s", flush=True)
    return fine


def attention(results: list[dict[str, Any]], quick: bool) -> None:
    """Attention: each kernel's configurations, then whole passes with the best of them."""
    names = ("plain", "table 256") if quick else FACETS
    widths = {shape: SHAPES[shape][3] for shape in SHAPES}
    jobs = [
        (shape, name, kernel, config)
        for shape, name in itertools.product(SHAPES, names)
        if name != "table 2t"
        for kernel in kernels_of(name)
        for config in tried(kernel, widths[shape], name)
    ]
    workers = max(2, min(14, (os.cpu_count() or 4) - 2))
    # What is chosen comes first: the others' passes run on it, and find it compiled.
    compile_all([(shape, name, "all", None) for shape in SHAPES for name in names if name != "table 2t"], workers)
    fine = compile_all(jobs, workers)
    for shape, (b, h, t, d) in SHAPES.items():
        q, k, v, grad = inputs(b, h, t, d)
        limit = limits(q, k, v, grad)
        print(f"\n{shape}: b{b} h{h} t{t} d{d}, plain causal SDPA {limit[0]:.3f} / {limit[1]:.3f} ms", flush=True)
        results.append({"shape": shape, "what": "SDPA", "forward": limit[0], "both": limit[1]})
        for name in names:
            options = facets(name, h, t)
            compiled_as = "table 256" if name == "table 2t" else name
            best: dict[str, Any] = {}
            for kernel in kernels_of(name):
                ready = [c for c in tried(kernel, d, name) if (shape, compiled_as, kernel, c) in fine]
                times = kernel_times(kernel, ready, q, k, v, grad, options)
                if times:
                    best[kernel] = min(times, key=times.__getitem__)
                results += [
                    {"shape": shape, "what": name, "kernel": kernel, "config": str(config), "ms": ms}
                    for config, ms in times.items()
                ]
                row = ", ".join(f"{config}: {ms:.3f}" for config, ms in sorted(times.items(), key=lambda x: x[1]))
                print(f"  {name:<10}{kernel:<9}{row}", flush=True)
            try:
                forward, both = whole(q, k, v, grad, options, best)
            except Exception as error:
                print(f"  failed: {name}: {short(error)}")
                continue
            results.append({"shape": shape, "what": name, "forward": forward, "both": both, "limit": limit})
            print(f"  {name:<10}{forward:.3f} / {both:.3f} ms", flush=True)


def kernel_times(kernel: str, configs_: list[Any], *tensors: Any) -> dict[Any, float]:
    """Milliseconds of one kernel under each configuration."""
    from milepost.backends.triton import configs

    def under(config: Any, work: Work) -> Work:
        def run() -> object:
            with configs.override(**{kernel: config}):
                return work()

        return run

    work = launches(kernel, *tensors)
    return timed({config: under(config, work) for config in configs_})


def whole(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, options: dict[str, Any], best: dict[str, Any]
) -> tuple[float, float]:
    """Forward, and forward and backward, as a user calls them, with the best configurations."""
    from milepost.backends.triton import configs
    from milepost.backends.triton.flash import flash

    leaves = [each.detach().requires_grad_() for each in (q, k, v)]
    leaves += [options[each] for each in ("slopes", "table") if each in options]

    def forward() -> object:
        with configs.override(**best), torch.no_grad():
            return flash(q, k, v, **options)

    def both() -> object:
        with configs.override(**best):
            return torch.autograd.grad(flash(*leaves[:3], **options)[0], leaves, grad)

    times = timed({"forward": forward, "both": both}, rep=50)
    return times["forward"], times["both"]


def main() -> int:
    """Run what was asked, print the tables, write the numbers."""
    parser = argparse.ArgumentParser(description="The kernels on a GPU, beside plain attention and a copy.")
    parser.add_argument("--quick", action="store_true", help="attention only without positions and with one table")
    parser.add_argument("--only", choices=["attention", "rotation", "decoding"], help="only this")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA GPU; there is none here", file=sys.stderr)
        return 2
    import triton

    started = time.time()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    results: list[dict[str, Any]] = []
    parts: dict[str, Work] = {
        "attention": lambda: attention(results, args.quick),
        "rotation": lambda: rotation(results),
        "decoding": lambda: decoding(results),
    }
    for name, part in parts.items():
        if args.only in (None, name):
            try:
                part()
            except Exception as error:
                print(f"{name} failed: {short(error)}")
    print("\nTimes plain causal SDPA, forward and forward+backward:")
    for row in results:
        if "limit" in row and "forward" in row:
            forward, both = row["forward"] / row["limit"][0], row["both"] / row["limit"][1]
            print(f"  {row['shape']} {row['what']:<10} {forward:5.2f} {both:5.2f}")
    folder = Path(os.environ.get("OUT", "out"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{time.time() - started:.0f} s in all; numbers in {folder / 'kernels.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
