"""What was asked for on the command line, as the values that a sweep is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milepost.lab.training.recipe import SIZES, Size
from milepost.refusal import did_you_mean

if TYPE_CHECKING:
    from milepost.lab.judging.scoring import Judging
    from milepost.lab.schemes.own import Source
    from milepost.lab.sweep.sweep import Engine
    from milepost.lab.text.corpus import Corpus


def size_of(name: str, settings: Mapping[str, Any], device: str) -> Size:
    """Return the size of that name, with what was set of it."""

    def only(*names: str) -> dict[str, Any]:
        return {each: settings[each] for each in names if each in settings}

    chosen = SIZES[name]
    training = only("length", "steps", "batch", "rate", "accumulate")
    training["compiled"] = settings.get("compile", device.startswith("cuda"))
    if device == "cpu":
        # On a CPU bfloat16 saves nothing and costs much.
        training["precision"] = "float32"
    recipe = replace(chosen.recipe, **training)
    ratio = chosen.longest // chosen.recipe.length
    return replace(
        chosen,
        shape=replace(chosen.shape, **only("width", "layers", "heads", "key_heads")),
        recipe=replace(recipe, warmup=min(recipe.warmup, max(1, recipe.steps // 10))),
        longest=settings.get("longest", recipe.length * ratio),
    )


def judging_of(chosen: Size, judged: int | None, recall: str | None) -> Judging:
    """Return how models of a size are judged."""
    from milepost.lab.judging.scoring import Judging

    length, longest = chosen.recipe.length, chosen.longest
    total = chosen.judged if judged is None else judged
    few = max(8, total // (2 * longest))
    # So short that two copies, and something between them, lie within the trained length.
    copied = min(128, max(1, length // 4))
    if recall is None:
        # Distances within the trained length, then others that double, past it and up to the longest.
        spread = [length // 2, *(3 * length // 4 << n for n in range(longest.bit_length()))]
        distances = sorted({each for each in spread if copied <= each <= longest - copied})
    else:
        distances = _numbers("--recall", recall)
        if max(distances) > longest - copied:
            raise ValueError(
                f"--recall {max(distances)}: the second copy would end past the longest length, {longest}; lower it, "
                f"or raise --set longest=…"
            )
    ends, copies = min(64, 2 * few), min(32, few)
    if judged is None:
        ends, copies = chosen.ends or ends, chosen.copies or copies
    return Judging(longest, total=total, ends=ends, recall=tuple(distances), copies=copies, copied=copied)


def tasks_of(text: str | None) -> tuple[str, ...]:
    """Return the names of tasks with commas between them."""
    names = () if text is None else tuple(each.strip() for each in text.split(","))
    if not all(names):
        raise ValueError(f"--tasks {text!r}: an empty name; give some with commas between them, such as copy,needle")
    return names


def row_of(text: str) -> tuple[str, str]:
    """Return a row of the user's own: the scheme it is judged on, and its expression."""
    name, colon, expression = (each.strip() for each in text.partition(":"))
    if not (name and colon and expression):
        raise ValueError(
            f"--row {text!r}: name the scheme it is judged on, then a colon: 'rope: Rope(dim) + Rerope(32)'"
        )
    return name, expression


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: give whole numbers with commas between them, such as 256,3072") from None


def corpus_of(text: Path | None, dataset: str | None, made: list[Path], third: bool = False) -> Corpus:
    """Return what is read; with a `third` part where settings are chosen by it."""
    from milepost.lab.text import corpus

    if text is not None:
        return corpus.of_path(text, made, third)
    return corpus.of_own() if dataset is None else corpus.of_dataset(dataset, third)


ENGINES = ("local", "ray", "torchrun")


def check_choices(size: str, engine: str, jobs: int, gpus: float | None, checkpoints: str | None) -> None:
    """Refuse a size or an engine that there is none of, and options that the engine does not take."""
    for option, name, known in (("--size", size, SIZES), ("--engine", engine, ENGINES)):
        if name not in known:
            raise ValueError(f"{option} {name}: there are {', '.join(known)}{did_you_mean(name, known)}")
    if jobs > 1 and engine != "local":
        raise ValueError(f"--jobs {jobs}: only the local engine takes it; leave it out")
    for option, value in (("--gpus-per-cell", gpus), ("--checkpoints", checkpoints)):
        if value is not None and engine != "ray":
            raise ValueError(f"{option} {value}: only --engine ray takes it; leave it out")
    if gpus is not None and not 0 < gpus <= 1:
        raise ValueError(f"--gpus-per-cell {gpus:g}: a model has one GPU, or a share of one such as 0.25")


def engine_of(
    name: str, out: Path, device: str, jobs: int, gpus: float | None = None, checkpoints: str | None = None
) -> Engine:
    """Return the engine of that name."""
    import torch

    from milepost.lab.engines.jobs import Jobs
    from milepost.lab.engines.torchrun import Torchrun
    from milepost.lab.sweep.sweep import Local

    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: give at least 1")
    if name != "ray" and device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch sees no GPU here; give cpu")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"--out {out}: the folder cannot be made ({error.strerror}); give another") from None
    if name == "local":
        return Local(out, device) if jobs == 1 else Jobs(out, device, jobs)
    if name == "ray":
        from milepost.lab.engines.ray_engine import Ray

        return Ray(out, device, gpus=1.0 if gpus is None else gpus, checkpoints=checkpoints)
    return Torchrun(out, device)


def with_files(
    schemes: Sequence[str], rows: Sequence[str], files: Sequence[Path]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[Source, ...]]:
    """Schemes and rows without the files that their methods are from, and those files, read."""
    from milepost.lab.schemes import own

    paths = [str(path) for path in files]

    def without(text: str) -> str:
        plain, found = own.apart(text)
        paths.extend(found)
        return plain

    named = tuple(map(without, schemes))
    changed = tuple(row_of(without(text)) for text in rows)
    return named, changed, tuple(dict.fromkeys(own.read(path) for path in dict.fromkeys(paths)))
