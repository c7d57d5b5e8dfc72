"""Whole models with our kernels and without them: the lab's own in training and reading, and an extended checkpoint."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from milepost import KeepSinks, Pivot, Rerope, SelfExtend, Yarn
from milepost.backends.rotary import by_table as rotated
from milepost.backends.triton import backend as triton
from milepost.bench.harness.clock import Work
from milepost.bench.harness.contest import Column, Contest, Entry, Works
from milepost.bench.harness.settings import Settings
from milepost.lab.cells.cell import Cell, make
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes.naming import proper
from milepost.lab.training.model import Model, Shape
from milepost.lab.training.recipe import SIZES
from milepost.lab.training.train import Trainer, precision

STEP, READ, TOKEN = "a step of training", "reading", "one token"
SCHEMES = ("rope", "alibi", "t5", "kerple-power", "hwfa", "kerple-nope")
WITHOUT = "{}, without our kernels"
COMPILED = 64
"""How many models may be compiled from one function in a process; torch's limit is 8."""


def models(settings: Settings) -> list[Contest]:
    """Return the lab's model, and one that was extended."""
    return [_lab(settings), _extended(settings)]


# Without our kernels: as it was before there were any, with whichever of torch's own ways is the quickest.


def _left_out(device: torch.device) -> str | None:
    return "left out, to be compared with"


def _not_ready(device: torch.device) -> bool:
    return False


@contextlib.contextmanager
def without_ours() -> Generator[None]:
    """Run schemes that are called here for the first time without our kernels."""
    ours = triton._no_device, rotated._ready  # pyright: ignore[reportPrivateUsage]
    triton._no_device, rotated._ready = _left_out, _not_ready  # pyright: ignore
    try:
        yield
    finally:
        triton._no_device, rotated._ready = ours  # pyright: ignore


def _both_ways(name: str, ready: Callable[[], dict[str, Work]]) -> list[Entry]:
    """Return a contender with our kernels, and without them."""

    def without() -> Works:
        with without_ours():
            works = ready()
        return Works({label: _within(work) for label, work in works.items()}, backend="torch")

    return [Entry(name, "milepost", lambda: Works(ready())), Entry(WITHOUT.format(name), "milepost", without)]


def _within(work: Work) -> Work:
    def run() -> object:
        with without_ours():
            return work()

    return run


# The lab


def _lab(settings: Settings) -> Contest:
    sizes, base, device = settings.sizes.lab, SIZES["base"], torch.device(settings.device)
    shape: Shape = replace(base.shape, width=sizes.width, layers=sizes.layers, heads=sizes.heads)
    recipe = replace(
        base.recipe, batch=sizes.batch, length=sizes.length, compiled=settings.device == "cuda",
        precision="bfloat16" if settings.dtype == torch.bfloat16 else "float32",
    )  # fmt: skip

    def entries() -> list[Entry]:
        torch._dynamo.config.recompile_limit = COMPILED  # pyright: ignore
        maker = torch.Generator(device).manual_seed(0)
        tokens, text = (
            torch.randint(0, 256, size, device=device, generator=maker)
            for size in ((sizes.batch, sizes.length + 1), (1, sizes.longest))
        )

        def ready(name: str) -> dict[str, Work]:
            cell = Cell(name, 0, shape, recipe, Judging(sizes.longest, protocols=()), "benchmark")
            trainer = Trainer(make(cell), recipe, lambda step: (tokens[:, :-1], tokens[:, 1:]), device)
            reader = make(cell).to(device).eval()
            assert isinstance(reader, Model)
            reader.uncompiled()

            def read() -> Tensor:
                with torch.no_grad(), precision(recipe, device):
                    return reader.states(text)

            return {STEP: trainer.advance, READ: read}

        return [each for name in SCHEMES for each in _both_ways(proper(name), lambda name=name: ready(name))]

    title = (
        f"the lab's model, {sizes.layers} layers {sizes.width} wide, {settings.words}: a step on {sizes.batch} × "
        f"{sizes.length} bytes, and {sizes.longest:,} bytes read"
    )
    columns = Column(STEP, STEP, "burst"), Column(READ, READ, "burst")
    return Contest("models", title, columns, entries, proper("rope"))


# A checkpoint


def _extended(settings: Settings) -> Contest:
    sizes, device = settings.sizes.llama, torch.device(settings.device)
    trained = sizes.context // 4
    rows: dict[str, tuple[Any, ...]] = {
        "YaRN": (Yarn(4, trained=trained),),
        "ReRoPE": (Rerope(trained // 2),),
        "Self-Extend": (SelfExtend(8, trained // 8),),
        "ReRoPE with Pivot": (Pivot(Rerope(trained // 2), trained),),
        "ReRoPE with Pivot, sinks kept": (Pivot(KeepSinks(Rerope(trained // 2)), trained),),
    }
    stock = "stock transformers"

    def entries() -> list[Entry]:
        import transformers

        from milepost.hf import extend

        llama: Any = transformers
        torch.manual_seed(0)
        config = llama.LlamaConfig(
            vocab_size=sizes.words, hidden_size=sizes.width, intermediate_size=8 * sizes.width // 3,
            num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.key_heads,
            max_position_embeddings=trained, tie_word_embeddings=True, attn_implementation="sdpa",
        )  # fmt: skip
        own: Any = llama.LlamaForCausalLM(config).to(device=device, dtype=settings.dtype).eval()
        text = torch.randint(0, sizes.words, (1, sizes.context), device=device)

        def ready(parts: tuple[Any, ...]) -> dict[str, Work]:
            model: Any = extend(copy.deepcopy(own), *parts) if parts else own
            cache = llama.DynamicCache(config=config)

            def read() -> object:
                with torch.no_grad():
                    return model.model(text)

            def token() -> object:
                with torch.no_grad():
                    if cache.get_seq_length() == 0:
                        model.model(text, past_key_values=cache)
                    found = model(text[:, -1:], past_key_values=cache)
                    # The same number of keys every time: torch plans anew for another.
                    cache.crop(-1)
                    return found

            return {READ: read, TOKEN: token}

        limit = Entry(stock, "limit", lambda: Works(ready(()), backend="torch"))
        pairs = (_both_ways(name, lambda parts=parts: ready(parts)) for name, parts in rows.items())
        return [limit, *(each for pair in pairs for each in pair)]

    title = (
        f"a checkpoint of SmolLM2-135M's shape, {sizes.layers} layers {sizes.width} wide, {settings.words}: "
        f"{sizes.context:,} tokens read, and one more"
    )
    columns = Column(READ, READ, "burst"), Column(TOKEN, TOKEN, "burst")
    return Contest("models", title, columns, entries, stock)
