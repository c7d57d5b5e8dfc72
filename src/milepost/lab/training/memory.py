"""A GPU that is too small: find out what would fit, and say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from milepost.lab.training.recipe import Recipe


def advice(recipe: Recipe, fits: Callable[[Recipe], bool]) -> str:
    """Return what to ask for instead, after a step ran out of memory: the fewest parts of a batch that fit.

    A batch worked through in parts gives the same gradients, so nothing but time is lost.
    """
    for parts in range(recipe.accumulate + 1, recipe.batch + 1):
        if recipe.batch % parts == 0 and fits(replace(recipe, accumulate=parts)):
            return f"--set accumulate={parts} fits, and gives the same numbers"
    return f"not even one text of {recipe.length} bytes fits; try a smaller --size, or a shorter --set length=…"


def out_of_memory(recipe: Recipe, fits: Callable[[Recipe], bool], error: BaseException) -> RuntimeError:
    """Return the error to raise in place of torch's own."""
    torch.cuda.empty_cache()
    return RuntimeError(
        f"the GPU ran out of memory with batches of {recipe.batch} × {recipe.length} bytes in {recipe.accumulate} "
        f"{'part' if recipe.accumulate == 1 else 'parts'}: {advice(recipe, fits)} ({str(error).split('.')[0]})"
    )


def out_while_judging(longest: int, error: BaseException) -> RuntimeError:
    """Return the same, where the model is trained and its checkpoint kept."""
    return RuntimeError(
        f"the GPU ran out of memory while judging, at up to {longest:,} bytes; what was trained and judged is kept: "
        f"rerun with fewer --jobs, so that each has more, or judge less far, --set longest=… "
        f"({str(error).split('.')[0]})"
    )
