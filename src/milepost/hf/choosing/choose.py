"""The way to take a model further that a text shows to be best: candidates of its plan are measured by one rule."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from milepost.hf.choosing.doubts import doubts
from milepost.hf.choosing.forecast import seconds_of
from milepost.hf.choosing.kept import Kept
from milepost.hf.choosing.rule import MARGIN, RULE, Standing, chosen, ranked, standing
from milepost.hf.choosing.trial import Result, Sizes, Trial, read_off, sizes_for, trials_for
from milepost.hf.config.source import first_line
from milepost.hf.measuring.judged import AT_ONCE, STOCK, AsItWas, Row, Under, evaluating, judge, reach, refuse_unknown
from milepost.hf.measuring.measure import Told, bar
from milepost.hf.measuring.measured_page import Measured
from milepost.hf.measuring.scores import Recall, score, table
from milepost.hf.measuring.trials import doubling, need_tokens, tokens_of
from milepost.hf.model.extension import as_it_was, extended, restore
from milepost.hf.model.models import demand_causal, demand_model, device_of, same_config
from milepost.hf.planning.candidates import Candidate, joined
from milepost.hf.planning.plan import Plan, plan
from milepost.refusal import need
from milepost.seams import demand
from milepost.seams.verbs import answers

ROUNDS = 3
"""Quick: every row reads a third of the endings, then the better two another third, then the better one the last."""
KEPT = (None, 2, 1)
"""How many rows go on in each round; None is all."""
TOGETHER = 8
"""Endings of a quick choice that are read at once, where AT_ONCE tokens hold as many."""
SEEN = 0.01
"""Nats a token from which on a row is said to recall."""
THOROUGH = 16
"""Endings of a thorough choice."""


@dataclass(frozen=True)
class Chosen:
    """The candidate that the rule chooses, or None, and what all rows came to.

    window: the row that the others stand beside. standings: by row, at the target. inside: what rows cost within the
    trained length, nats a token more than the model as it is. left_out: candidates that this model cannot be given,
    and why. stock: whether the rule chooses the model as it is. doubts: what speaks against the text.
    """

    best: Candidate | None
    measured: Measured
    target: int
    left_out: dict[str, str]
    planned: Plan
    window: str
    standings: tuple[Standing, ...]
    inside: Mapping[str, Standing]
    thorough: bool
    sizes: Sizes
    stock: bool = False
    doubts: tuple[str, ...] = ()
    said: float = 0.0
    took: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def nearest(self) -> Standing | None:
        """Return the row that recalls best of those that were measured to the end, whatever it costs."""
        tried = [each for each in self.standings if each.row != STOCK]
        most = max((each.texts for each in tried), default=0)
        return max((each for each in tried if each.texts == most), key=lambda each: each.recalled, default=None)

    def to_json(self) -> str:
        """Return everything: what was chosen and why, how all rows stand, and what was measured, block by block."""
        plain = json.loads(self.measured.to_json())
        own = {
            "chosen": STOCK if self.stock else None if self.best is None else self.best.name,
            "verdict": self.verdict(), "rule": RULE, "parts": [] if self.best is None else self.best.to_dict()["parts"],
            "target": self.target, "window": self.window, "thorough": self.thorough, "sizes": asdict(self.sizes),
            "standings": [_stands(each) for each in self.standings],
            "inside": {row: _stands(each) for row, each in self.inside.items()},
            "left_out": self.left_out, "doubts": list(self.doubts), "facts": dict(self.facts),
            "times": {"said": self.said, "took": self.took},
        }  # fmt: skip
        return json.dumps(own | plain, ensure_ascii=False, indent=2, allow_nan=False)

    def verdict(self) -> str:
        """Say what was chosen and why, in a sentence."""
        if self.stock:
            return (
                f"nothing needs to be changed: at {self.target:,} tokens the model as it is reads as well as a window "
                f"with sinks and recalls best"
            )
        if self.best is not None:
            own = next(each for each in self.standings if each.row == self.best.name)
            return f"chosen at {self.target:,}: {self.best.name}, {_comes_to(own)}"
        if self.nearest is None:
            return f"none: no candidate was measured at {self.target:,}"
        left = [each for each in self.standings if each.verdict == "undecided" and each.texts == self.nearest.texts]
        more = "; not decided by so few endings: thorough=True, or --thorough, reads more" if left else ""
        # A row that was given up early may have a narrow interval by chance; it is no row that the rule chooses from.
        early = [each.row for each in self.standings if each.verdict == "within" and each.texts < self.nearest.texts]
        if early and not left:
            more = "; thorough=True, or --thorough, gives up none"
        which = f"no row that read all endings ({joined(early)} did not)" if early else "no row"
        return (
            f"none: at {self.target:,} {which} is shown to read within {MARGIN} nats of the window with sinks{more}. "
            f"Of those that went furthest {self.nearest.row} recalls best, {_comes_to(self.nearest)}"
        )

    def __str__(self) -> str:
        lines = [*(f"doubt: {each}" for each in self.doubts), *([""] if self.doubts else []), *self._table(), ""]
        lines += [f"rule: {RULE}", self.verdict()]
        if self.best is not None and self.best.name in self.inside:
            more = self.inside[self.best.name].more
            lines.append(f"within the trained length it costs {more} nats a token more than the model as it is")
        lines += self.measured.left_out()
        lines += [f"not tried: {name}, {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        heads = ["endings", "nats", "more than the window", "recall", "keys", "reads as well"]
        rows = [*self.standings]
        cells = [
            [
                str(each.texts),
                f"{each.nats:.3f}",
                str(each.more),
                f"{each.recalled:+.2f}",
                _of(each.found),
                SAYS[each.verdict],
            ]
            for each in rows
        ]
        title = (
            f"at {self.target:,} tokens; window: the last {self.sizes.trained:,} with {self.sizes.sinks} sinks. Nats a "
            f"token; recall: nats saved on passages out of the window's sight; 90 % intervals, each end one-sided at "
            f"95 %"
        )
        return [title, *table("", heads, [each.row for each in rows], cells).splitlines()[1:]]


def _stands(own: Standing) -> dict[str, Any]:
    """Return a standing as JSON can hold it; what is no number is null."""

    def number(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: number(each) for key, each in value.items()}  # pyright: ignore
        if isinstance(value, (list, tuple)):
            return [number(each) for each in value]  # pyright: ignore
        return value if not isinstance(value, float) or math.isfinite(value) else None

    return number(asdict(own) | {"verdict": own.verdict, "recalled": own.recalled})


SAYS = {"within": "yes", "above": "no", "undecided": "not decided"}
"""The verdicts in words."""


def _of(found: tuple[int, int]) -> str:
    return f"{found[0]} of {found[1]}" if found[1] else "–"


def _comes_to(own: Standing) -> str:
    saved = ""
    if own.recall:
        what = f"saves {own.recalled:.2f} nats a token on" if own.recalled >= SEEN else "recalls nothing of"
        saved = f", and {what} passages out of the window's sight"
    return f"{own.more} nats a token beside the window{saved}"


def choose(
    model: Any,
    text: object,
    tokenizer: object = None,
    *,
    to: int,
    names: Sequence[str] | None = None,
    last: int | None = None,
    windows: int | None = None,
    progress: bool = True,
    thorough: bool = False,
    kept: Kept | None = None,
    facts: Mapping[str, str] | None = None,
) -> Chosen:
    """Measure candidates of `plan(model, to)` on a text, and choose by one rule; `best` is None where none passes.

    The rule: of the rows that see every token and whose loss is at most 0.02 nats above that of a window with sinks
    (by a one-sided 95 % interval, over the same endings), the one that recalls best. Each forward pass reads one text
    of `to` tokens, or as many as 16,384 tokens hold, and shows loss, recall at four depths, and a pass key.

    Quick, the default, takes at most eight such passes: the model as it is and the candidates of `plan(…).measure`
    read the first third of the endings, the better two the second, the better one the last. thorough: all candidates
    read all endings, at the doubles of the trained length as well. names: the candidates to try instead. windows: how
    many endings, by default 3 (more where texts are short), or 16. last: how many tokens of each are judged.

    A model that is extended already is measured from what it was at first, and is as it was afterwards.
    """
    need("choose", "hf", ("scipy", "rich"))
    demand_causal("choose: this is", demand_model("choose", model))
    for name, value in {"last": last, "windows": windows}.items():
        if value is not None:
            demand.whole(choose, name, value)
    kept = Kept() if kept is None else kept
    with evaluating([model]), as_it_was(model), same_config(model):
        planned = plan(model.config, to)
        given = names if names is not None else None if thorough else planned.measure
        wanted = planned.candidates if given is None else [planned[name] for name in given]
        ids = tokens_of(text, tokenizer)
        refuse_unknown(ids, {STOCK: model})
        sizes = sizes_for(planned.trained, to, last)
        count = _count(ids, sizes, windows, thorough)
        able, left_out = _able(model, wanted)
        if not able:
            raise ValueError(
                f"choose(to={to}): none of {joined(each.name for each in wanted)} sees every key and can be given to "
                f"this model: {'; '.join(left_out.values())}"
            )
        doubted, first = doubts(model, ids, tokenizer, text)
        if count < ROUNDS:
            doubted.append(
                f"the text is short: {len(ids):,} tokens give {count} ending{'s' * (count > 1)} at {to:,}, from which "
                f"little can be said"
            )
        tests = trials_for(ids, tokenizer, sizes, count, first)
        work = Work(model, sizes, tests, able, left_out, kept, thorough, planned)
        with bar("extend", work.steps, progress) as advance:
            for each in doubted:
                advance(f"doubt: {each}", 0)
            work.run(advance)
        return work.found(doubted, facts or {})


def _count(ids: Tensor, sizes: Sizes, windows: int | None, thorough: bool) -> int:
    """Return how many endings are judged: as many as the text gives, where no number was asked for."""
    need_tokens(
        ids, sizes.target + 1 + ((windows or 1) - 1) * sizes.last, f"{windows or 1} endings at {sizes.target:,} tokens"
    )
    if windows is not None:
        return windows
    fits = 1 + max(0, len(ids) - sizes.target - 1) // sizes.last
    wanted = THOROUGH if thorough else ROUNDS * max(1, min(TOGETHER, AT_ONCE // sizes.target))
    return max(1, min(wanted, fits))


def _able(model: Any, wanted: Sequence[Candidate]) -> tuple[dict[str, Candidate], dict[str, str]]:
    """Return the candidates that see every key and can be given to the model, and why others cannot."""
    able: dict[str, Candidate] = {}
    left_out: dict[str, str] = {}
    for candidate in wanted:
        if any(answers(part, "see") for part in candidate.parts):
            left_out[candidate.name] = "it does not see every key: what leaves its window is forgotten"
            continue
        try:
            extended(model, candidate.parts)
        except (ValueError, TypeError) as error:
            left_out[candidate.name] = first_line(error)
        else:
            able[candidate.name] = candidate
        finally:
            restore(model)
    return able, left_out


Pass = tuple[str, int, range]
"""A row, how many tokens it is given, and the trials it reads."""


class Work:
    """The passes of a choice, one after the other; what is kept already is not made again."""

    def __init__(
        self, model: Any, sizes: Sizes, tests: Sequence[Trial], able: dict[str, Candidate], left_out: dict[str, str],
        kept: Kept, thorough: bool, planned: Plan,
    ) -> None:  # fmt: skip
        self.model, self.sizes, self.tests, self.kept, self.thorough = model, sizes, tests, kept, thorough
        self.able, self.left_out, self.planned = able, left_out, planned
        self.rows: dict[str, Any] = {STOCK: AsItWas(model)}
        self.rows |= {name: Under(model, each.parts) for name, each in able.items()}
        n = len(tests)
        self.window = f"window {sizes.trained - sizes.sinks:,} and {sizes.sinks} sinks"
        self.lengths = (
            [*doubling(sizes.trained, sizes.target - 1), sizes.target] if thorough else [sizes.trained, sizes.target]
        )
        self.rounds = [range(n * k // ROUNDS, n * (k + 1) // ROUNDS) for k in range(ROUNDS)]
        self.rounds = [each for each in self.rounds if len(each)] if n < ROUNDS else self.rounds
        self.reach = reach(self.rows[STOCK])
        self.reads = [name for name in self.rows if name != STOCK or self.reach is None or self.reach >= sizes.target]
        self.seconds: dict[tuple[str, int], float] = {}
        self.told = time.monotonic()

    @property
    def steps(self) -> int:
        """Return how many measurements there are in all."""
        return sum(len(each[2]) for each in self.expected())

    def expected(self) -> Iterator[Pass]:
        """Yield every pass; who goes on is not known before, so rows that cost as the first candidate stand in."""
        for row, length, texts in self._first():
            yield row, length, texts
        if not self.thorough:
            stand_in = next(iter(self.able))
            for number, texts in enumerate(self.rounds[1:], 1):
                for _ in range(min(KEPT[number] or 1, len(self.reads))):
                    yield stand_in, self.sizes.target, texts
            yield stand_in, self.sizes.trained, range(len(self.tests))

    def _first(self) -> Iterator[Pass]:
        """Yield the passes that are made in any case: the window, and every row that reads what comes first."""
        everything = range(len(self.tests))
        yield STOCK, self.sizes.trained, everything
        texts = everything if self.thorough else self.rounds[0]
        for length in self.lengths[1:] if self.thorough else [self.sizes.target]:
            for row in self.rows:
                if row != STOCK or self.reach is None or self.reach >= length:
                    yield row, length, texts
        if self.thorough:
            for row in self.able:
                yield row, self.sizes.trained, everything

    def run(self, advance: Told) -> None:
        """Say how long it will take, then make every pass."""
        self._forecast(advance)
        for each in self._first():
            self._pass(*each, advance)
        if self.thorough:
            return
        going = self.reads
        for number, texts in enumerate(self.rounds[1:], 1):
            # By what was read until then: a run that is resumed knows what came later already.
            going = [each.row for each in ranked(self.standings(going, texts.start))][: KEPT[number]]
            for row in going:
                self._pass(row, self.sizes.target, texts, advance)
        # The price within the trained length, of the one that went furthest.
        for row in going[:1]:
            if row != STOCK:
                self._pass(row, self.sizes.trained, range(len(self.tests)), advance)

    def standings(self, rows: Sequence[str], until: int | None = None) -> list[Standing]:
        """Return how rows stand at the target, by the first texts or by all."""
        window = self._results(STOCK, self.sizes.trained)
        return [standing(row, self._results(row, self.sizes.target, until), window) for row in rows]

    def _results(self, row: str, length: int, until: int | None = None) -> dict[int, Result]:
        found = {n: self.kept.get(row, length, n) for n in range(len(self.tests) if until is None else until)}
        return {n: each for n, each in found.items() if each is not None}

    def _row(self, row: str, length: int) -> Row:
        """Return a row that is given so many of the last tokens, and the first few, or all of them."""
        if length == self.sizes.target:
            return Row(row, self.rows[row])
        return Row(row, self.rows[row], window=length, sinks=self.sizes.sinks)

    def _pass(self, row: str, length: int, texts: range, advance: Told) -> None:
        """Read some trials under a row, as many at once as fit, and keep what it came to."""
        left = [n for n in texts if self.kept.get(row, length, n) is None]
        if len(left) < len(texts):
            advance(
                f"{self._called(row, length)}: {len(texts) - len(left)} kept from before",
                len(texts) - len(left),
                self.left(),
            )
        together = max(1, AT_ONCE // length)
        for start in range(0, len(left), together):
            batch = left[start : start + together]
            tests = [self.tests[n] for n in batch]
            last = max(each.judged(self.sizes) for each in tests)
            begun = time.monotonic()
            found = judge(self._row(row, length), torch.cat([each.ids for each in tests]), last)
            took = time.monotonic() - begun
            for line, n in enumerate(batch):
                result = read_off(found.nats[line], found.right[line], self.tests[n], self.sizes)
                self.kept.put(row, length, n, Result(result.blocks, result.copies, result.found, took / len(batch)))
            nats = [each for n in batch for each in self.kept.known[row, length, n].blocks]
            advance(f"{self._called(row, length)}: {sum(nats) / len(nats):.3f} nats a token", len(batch), self.left())

    def _called(self, row: str, length: int) -> str:
        if row == STOCK and length == self.sizes.trained:
            return self.window
        return f"{row} at {length:,}"

    # Time

    def _forecast(self, advance: Told) -> None:
        """Time a piece of every kind of pass, and say how long all of them will take."""
        known = self.kept.noted("forecast")
        if known is None:
            begun = time.monotonic()
            by_kind: dict[str, float] = {}
            for row, length, _ in self.expected():
                called = f"{row}|{length}"
                if called in by_kind:
                    continue
                advance(f"timing {self._called(row, length)}", 0)
                # On a CPU texts cost as much together as one by one.
                apart = device_of(self.model).type == "cpu"
                together = 1 if apart else max(1, min(AT_ONCE // length, len(self.tests)))
                ids = torch.cat([each.ids for each in self.tests[:together]])
                last = max(each.judged(self.sizes) for each in self.tests)
                by_kind[called] = seconds_of(self._row(row, length), ids, last) / together
            said = sum(by_kind[f"{row}|{length}"] * len(texts) for row, length, texts in self.expected())
            known = {"each": by_kind, "said": said, "timing": time.monotonic() - begun}
            self.kept.note("forecast", known)
        each = cast("dict[str, float]", known["each"])
        self.seconds = {(name.rpartition("|")[0], int(name.rpartition("|")[2])): value for name, value in each.items()}
        left = self.left()
        done = f", {len(self.kept):,} of {self.steps:,} measurements kept from before" if len(self.kept) else ""
        advance(f"will take about {in_words(left)}{done}", 0)

    def left(self) -> float:
        """Return how many seconds are left, by what passes like those that are left took, or will."""
        done: dict[tuple[str, int], list[float]] = {}
        for (row, length, _), result in self.kept.known.items():
            done.setdefault((row, length), []).append(result.seconds)
        total = 0.0
        for row, length, texts in self.expected():
            took = done.get((row, length), [])
            each = sum(took) / len(took) if took else self.seconds.get((row, length), 0.0)
            total += each * len(texts)
        return max(0.0, total - sum(sum(each) for each in done.values()))

    # What comes of it

    def found(self, doubted: Sequence[str], facts: Mapping[str, str]) -> Chosen:
        """Return what was chosen, with everything that was measured."""
        standings = sorted(
            self.standings(self.reads), key=lambda each: (each.verdict == "above", -each.texts, each.more.mean)
        )
        most = max(each.texts for each in standings)
        best = chosen([each for each in standings if each.texts == most])
        window = self._results(STOCK, self.sizes.trained)
        inside = {row: standing(row, self._results(row, self.sizes.trained), window) for row in self.able}
        known = self.kept.noted("forecast") or {}
        # From its floats, so that what was resumed adds up in the same order.
        took = sum(self.kept.known[key].seconds for key in sorted(self.kept.known))
        return Chosen(
            None if best is None or best.row == STOCK else self.able[best.row],
            self._measured(), self.sizes.target, self.left_out, self.planned, self.window, tuple(standings),
            {row: each for row, each in inside.items() if each.texts}, self.thorough, self.sizes,
            best is not None and best.row == STOCK, tuple(doubted), known.get("said", 0.0), took, facts,
        )  # fmt: skip

    def _measured(self) -> Measured:
        """Return the same as `measure` has it: by row and length, values over blocks in the order of the texts."""
        rows = (*self.rows, self.window)
        found = Measured(rows, (self.window,), self.sizes.trained, self.sizes.last, len(self.tests))
        for row in self.rows:
            found.nats[row], found.entropy[row] = {}, {}
            for length in self.lengths:
                results = self._results(row, length)
                if results:
                    found.nats[row][length] = score(torch.tensor([each for n in results for each in results[n].blocks]))
        window = self._results(STOCK, self.sizes.trained)
        blocks = score(torch.tensor([each for n in window for each in window[n].blocks]))
        found.nats[self.window] = dict.fromkeys(self.lengths, blocks)
        found.entropy[self.window] = {}
        for row, results in {
            **{row: self._results(row, self.sizes.target) for row in self.reads},
            self.window: window,
        }.items():
            for depth, distance in enumerate(self.sizes.distances):
                second, fresh = (
                    score(torch.tensor([each[n].copies[depth] for n in results])) for each in (results, window)
                )
                found.recall.setdefault(row, {})[distance] = Recall(second, fresh)
        if self.reach is not None and self.reach < self.sizes.target:
            found.ends[STOCK] = self.reach
        return found


def in_words(seconds: float) -> str:
    """Return a time as people say it."""
    from milepost.lab.command.progress import duration

    return duration(seconds)
