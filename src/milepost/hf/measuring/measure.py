"""How far a model holds, on the user's own text: perplexity by length, recall, needles, sinks and entropy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn

from milepost import Schedule
from milepost.configs import read
from milepost.configs.rope_types import trained_length
from milepost.hf.config.source import config_of
from milepost.hf.measuring.attention_mass import attention_mass
from milepost.hf.measuring.judged import Row, evaluating, judge, named, refuse_unknown, rows_of
from milepost.hf.measuring.measured_page import Measured
from milepost.hf.measuring.scores import Recall, score
from milepost.hf.measuring.trials import (
    copies,
    doubling,
    ending_tokens,
    endings,
    haystack,
    need_tokens,
    needles,
    tokens_of,
)
from milepost.hf.model.extension import as_it_was
from milepost.refusal import need
from milepost.seams import demand

Told = Callable[..., None]
"""Called with what was just done, in how many steps where that is not one, and the seconds left where known."""
OFTEN = 5.0
"""Seconds between two lines in a pipe, at the least."""
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHORT = 1024
"""The longest text whose attention is looked at: a matrix of weights is formed for every layer."""


def measure(
    models: object,
    text: object,
    tokenizer: object = None,
    *,
    lengths: Sequence[int] | None = None,
    trained: int | None = None,
    last: int = 64,
    windows: int = 64,
    window: int | None = None,
    sinks: int = 4,
    distances: Sequence[int] | None = None,
    passage: int = 64,
    shuffled: bool = False,
    needle: Sequence[int] | None = None,
    depths: Sequence[float] = DEPTHS,
    trials: int = 8,
    first: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Measured:
    """Measure a causal model on a text, beside the trivial ways to read a long text with it.

    models: a model of transformers, a function from token ids [b t] to logits [b t vocabulary], or a dict of names and
    these. Beside a model that was extended, "stock" is the same one without its extension. The model called "stock", or
    else the first, is also given only the last `window` tokens (by default the trained length), with and without the
    first `sinks`: what anybody could do. window=0 leaves these rows out.

    text: token ids, or a string with a tokenizer (of transformers, or a function from a string to ids). first: a token
    to begin every window with, such as a model's bos.

    lengths: at which the last `last` tokens before `windows` fixed ends are judged, the same tokens at every length; by
    default the trained length and its doubles, up to eight times, as far as the text goes. distances: between two
    copies of a passage; by default half of each length; () for none. shuffled: draw the passage token by token. needle:
    the lengths of texts with a pass key; by default those of `lengths`; () for none. All but the perplexity is the mean
    of `trials` texts, drawn at random. Intervals are the lab's: for windows in the order of the text they allow for
    neighbours that are alike (`milepost.lab.statistics.intervals`).
    """
    need("measure", "hf", ("scipy", "rich"))
    for name, value in {"last": last, "windows": windows, "passage": passage, "trials": trials}.items():
        demand.whole(measure, name, value)
    ids = tokens_of(text, tokenizer)
    given = named(models)
    refuse_unknown(ids, given)
    trained = trained or _trained(given.values())
    rows = rows_of(given, trained if window is None else window, sinks)
    lengths = sorted(set(_lengths(ids, trained, windows, last) if lengths is None else _whole("lengths", lengths)))
    distances = [length // 2 for length in lengths] if distances is None else _whole("distances", distances)
    needle = lengths if needle is None else _whole("needle", needle)
    for depth in depths:
        if not 0 <= depth <= 1:
            raise ValueError(f"measure(depths={depth}): a depth is a share of the text, from 0, its beginning, to 1")
    _refuse_short(ids, rows, lengths, distances, needle, windows, last, passage)
    found = Measured(
        tuple(row.name for row in rows), tuple(row.name for row in rows if row.trivial), trained, last, windows
    )
    ending = partial(endings, ids, longest=max(lengths), last=last, first=first)
    copied = partial(copies, ids, furthest=max(distances, default=0), size=passage, trials=trials, seed=seed,
                     shuffled=shuffled, first=first)  # fmt: skip
    hidden = needles(ids, tokenizer, trials, seed) if needle else []
    steps = len(rows) * (len(lengths) + len(distances) + len(needle) * len(depths) + 1)
    with evaluating(given.values()), bar("measure", steps, progress) as advance:
        for row in rows:
            nats, entropy = found.nats.setdefault(row.name, {}), found.entropy.setdefault(row.name, {})
            for length in lengths:
                texts = ending(length, windows=windows)
                if _past(found, row, texts):
                    advance(f"{row.name}: left out at {length:,}")
                    continue
                judged = judge(row, texts, last)
                nats[length], entropy[length] = score(judged.nats.mean(1)), score(judged.entropy.mean(1))
                advance(f"{row.name}: perplexity {nats[length].perplexity:.4g} at {length:,}")
            for distance in distances:
                texts = copied(distance)
                if _past(found, row, texts):
                    advance(f"{row.name}: left out over {distance:,}")
                    continue
                both = (judge(row, texts, passage), judge(row, texts[:, : 2 * passage], passage))
                copy = Recall(*(score(each.nats.mean(1), drawn=True) for each in both))
                found.recall.setdefault(row.name, {})[distance] = copy
                advance(f"{row.name}: recall over {distance:,}")
            for length, depth in product(needle, depths):
                hay = torch.cat([haystack(ids, each, length, depth, seed + n, first) for n, each in enumerate(hidden)])
                if _past(found, row, hay):
                    advance(f"{row.name}: left out at {length:,}")
                    continue
                right = judge(row, hay, max(len(each.answer) for each in hidden)).right
                told = [bool(line[-len(each.answer) :].all()) for line, each in zip(right, hidden, strict=True)]
                found.needle.setdefault(row.name, {}).setdefault(length, {})[depth] = sum(told) / trials
                advance(f"{row.name}: needle at {depth:.0%} of {length:,}")
            short = ending(min(lengths[0], SHORT), windows=min(2, windows))
            found.mass[row.name] = (
                f"this model reads {row.longest:,} tokens and no more"
                if _past(found, row, short)
                else attention_mass(row, short[:, :-1], max(1, sinks))
            )
            advance(f"{row.name}: attention")
    return found


def _past(found: Measured, row: Row, ids: Tensor) -> bool:
    """Return True if texts are longer than the model of a row can read, and keep that for the report."""
    if row.longest is None or row.reads(ids):
        return False
    found.ends[row.name] = row.longest
    return True


def _whole(name: str, given: object) -> list[int]:
    """Lengths or distances, each a whole number."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise TypeError(f"measure({name}={given!r}): {name} are whole numbers in a list, such as [2048, 4096]")
    found = list(cast("Iterable[int]", given))
    for each in found:
        demand.whole(measure, name, each)
    return found


def _trained(models: Iterable[object]) -> int:
    """The trained length of the first model that says so."""
    for model in models:
        if isinstance(model, nn.Module) and getattr(model, "config", None) is not None:
            try:
                # A learned table of a scheme is drawn, and only its length is asked for.
                with as_it_was(model), torch.random.fork_rng(devices=[]):
                    config = config_of(model, "measure")
                    length = trained_length(read(config, "measure"), next(iter(Schedule.of(config))).parts)
            except ValueError:
                # A model of a type that is not read here can be measured all the same.
                continue
            if length:
                return length
    raise ValueError("measure: no model here says at which length it was trained; pass trained=2048")


def _lengths(ids: Tensor, trained: int, windows: int, last: int) -> list[int]:
    """The trained length and its doubles, up to eight times, as far as the text goes."""
    found = [each for each in doubling(trained, 8 * trained) if ending_tokens(each, windows, last) <= len(ids)]
    return found or [trained]


def _refuse_short(
    ids: Tensor, rows: Sequence[Row], lengths: Sequence[int], distances: Sequence[int], needle: Sequence[int],
    windows: int, last: int, passage: int,
) -> None:  # fmt: skip
    """Refuse, before anything runs, what the text cannot give."""
    if not lengths:
        raise ValueError("measure(lengths=()): at least one length is judged")
    for length in lengths:
        demand.whole(measure, "lengths", length, least=last)
    longest = max(lengths)
    need_tokens(ids, ending_tokens(longest, windows, last), f"{windows} windows at {longest:,} tokens")
    if distances:
        furthest = max(distances)
        need_tokens(ids, furthest + passage, f"recall over {furthest:,} tokens")
    if needle:
        need_tokens(ids, max(needle), f"a needle in {max(needle):,} tokens")
    most, shorter = (max(last, passage), " and a shorter passage") if distances else (last, "")
    for length in lengths:
        if not any(row.longest is None or min(length, row.window or length) <= row.longest for row in rows):
            ends = ", ".join(f"{row.name!r} {row.longest:,}" for row in rows)
            raise ValueError(
                f"measure(lengths={lengths}): no model here reads {length:,} tokens, past which their tables have no "
                f"positions ({ends}); give shorter lengths, or a model that was extended"
            )
    small = next((row for row in rows if row.trivial and row.window - row.sinks < most), None)
    if small is not None:
        raise ValueError(
            f"measure(window={small.window}): the window must hold the {most} tokens that are judged; pass "
            f"last={max(1, small.window // 2)}{shorter}, or a larger window"
        )


@contextmanager
def bar(what: str, steps: int, shown: bool) -> Generator[Told]:
    """Show progress on stderr: a bar in a terminal, a line every few seconds in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from milepost.lab.command.progress import duration

    console = Console(file=sys.stderr)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
               TextColumn("{task.description}", markup=False))  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=steps, left="")
        begun = last = time.monotonic()
        count, first = 0, True

        def advance(done: str, by: int = 1, left: float | None = None) -> None:
            nonlocal count, last, first
            now, count = time.monotonic(), count + by
            if left is None and by and 0 < count < steps:
                left = (now - begun) / count * (steps - count)
            words = "" if left is None else f"about {duration(left)} left"
            progress.update(task, advance=by, description=done, left=words)
            # What is no step is news, and shown in any case, as are the first step and the last.
            if not shown or (console.is_terminal and by) or (by and not first and count < steps and now - last < OFTEN):
                return
            first, last = first and not by, now
            line = f"{what}: {count} of {steps}, {done}{f', {words}' if words else ''}" if by else f"{what}: {done}"
            console.print(line, highlight=False, soft_wrap=True, markup=False)

        yield advance
