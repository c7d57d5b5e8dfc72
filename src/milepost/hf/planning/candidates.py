"""What each method would set to take a model further: one candidate a method, with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch

import milepost as mp
from milepost.configs.reader import Reader
from milepost.hf.config.rope_parameters import base_of, expressed, frequencies, magnitude, numbers
from milepost.seams.arguments import spell

AT_ANY = torch.ones(1)
"""A length for what does not depend on it."""


@dataclass(frozen=True)
class Candidate:
    """One way to take a model further, and what it sets.

    parts are what `extend(model, *parts)` takes. frequencies are those of each pair, or slopes those of each head, in a
    text of the target's length. config is what to write into the model's config for plain transformers, and vllm what
    to write for vLLM; None where they have no word for it.
    """

    name: str
    parts: tuple[Any, ...]
    sets: dict[str, float]
    frequencies: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    config: dict[str, Any] | None = None
    vllm: dict[str, Any] | None = None
    note: str = ""

    @property
    def rope_parameters(self) -> dict[str, Any] | None:
        """The rope settings as today's transformers reads them."""
        return None if self.config is None else self.config["rope_parameters"]

    @property
    def call(self) -> str:
        """The parts as they would be written."""
        return ", ".join(spell(part) for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return asdict(replace(self, parts=())) | {"parts": [spell(part, whole=True) for part in self.parts]}


def joined(names: Iterable[str]) -> str:
    """Return names in a row; those with commas in them are quoted."""
    return ", ".join(f'"{each}"' if "," in each else each for each in names)


# RoPE

Turn = mp.Rope | mp.AxialRope | mp.Partial


def rope_of(turn: Turn) -> mp.Rope:
    """Return the RoPE inside a rotation of some channels; of one on several axes too, whose frequencies are RoPE's."""
    return cast("mp.Rope", turn.method if isinstance(turn, mp.Partial) else turn)


def with_stretch(turn: Turn, stretch: Any) -> Turn:
    """Return the rotation with another stretch."""
    rope = replace(rope_of(turn), stretch=stretch)
    return replace(turn, method=rope) if isinstance(turn, mp.Partial) else rope


def stretches(reader: Reader, turn: Turn, kinds: Sequence[str], trained: int, target: int) -> list[Candidate]:
    """Return every stretch of a plain rotation that reaches the target, in the types of layers that are stretched."""
    s, rope = target / trained, rope_of(turn)
    n = rope.head_dim // 2
    longer = frequencies(replace(rope, stretch=mp.ByParts(s, trained)), target)
    by = numbers(frequencies(rope, target) / longer)
    named: dict[str, tuple[Any, str]] = {
        "interpolation, fixed": (mp.Interpolate(s), "wants fine-tuning: near tokens crowd together"),
        "NTK": (mp.Ntk(s), "raise the factor if the end of the text fails: pairs between are slowed by less"),
        "NTK, mixed": (mp.NtkMixed(s), ""),
        "dynamic NTK": (mp.DynamicNtk(trained), "texts within the trained length stay as they are"),
        "by parts": (mp.ByParts(s, trained), "YaRN without its temperature"),
        "YaRN": (mp.Yarn(s, trained), "slow pairs squeezed, fast ones kept, scores sharpened"),
        "dynamic YaRN": (mp.DynamicYarn(trained), "texts within the trained length stay as they are"),
        "Llama 3": (mp.Llama3(s, trained), "made for fine-tuning at length, as Llama 3.1 was"),
        "LongRoPE": (
            mp.LongRope((1.0,) * n, by, trained, factor=s),
            "no factors are searched here: these are YaRN's, for texts past the trained length alone",
        ),
    }  # fmt: skip
    # NTK keeps the first pair and slows the last one, so there must be two.
    fits = (n > 1 or not isinstance(each, (mp.Ntk, mp.DynamicNtk)) for each, _ in named.values())
    return [stretched(reader, name, with_stretch(turn, each), kinds, trained, target, note)
            for (name, (each, note)), fit in zip(named.items(), fits, strict=True) if fit]  # fmt: skip


def grown(
    reader: Reader, turn: Turn, kinds: Sequence[str], reached: int, target: int, temperature: mp.DeepseekScale | None
) -> list[Candidate]:
    """Return the same stretch, further, for a model that is stretched already; DeepSeek's temperature grows with it."""
    old: Any = rope_of(turn).stretch
    by = target / reached
    original = getattr(old, "trained", reached)
    if isinstance(old, mp.LongRope):
        long = tuple(each * by for each in old.long)
        stretch: Any = replace(old, long=long, factor=old.factor * by)
    elif isinstance(old, mp.Yarn):
        # A magnitude that is written out, though it is the usual one, grows with the factor.
        usual = old.scaled is not None and abs(old.scaled - replace(old, scaled=None).magnitude(AT_ANY)) < 1e-6
        stretch = replace(old, factor=old.factor * by, scaled=None if usual else old.scaled)
    elif isinstance(old, (mp.Interpolate, mp.Llama3, mp.Ntk)):
        stretch = replace(old, factor=old.factor * by)
    elif isinstance(old, mp.DynamicNtk):
        stretch = old
    else:
        return []
    note = f"the model was tuned with {spell(old)}; this is the same, {by:g} times as far"
    warmer = None if temperature is None else replace(temperature, factor=temperature.factor * by)
    return [stretched(reader, "the same, further", with_stretch(turn, stretch), kinds, original, target, note, warmer)]


def stretched(
    reader: Reader,
    name: str,
    turn: Turn,
    kinds: Sequence[str],
    trained: int,
    target: int,
    note: str,
    warmer: mp.DeepseekScale | None = None,
) -> Candidate:
    """Return a candidate that changes cos and sin alone, and with them DeepSeek's temperature."""
    rope = rope_of(turn)
    said = expressed(reader, dict.fromkeys(kinds, turn), trained, target, warmer)
    sets = {"magnitude": magnitude(rope, target)}
    factor = getattr(rope.stretch, "factor", None)
    if factor is not None:
        sets["factor"] = float(factor)
    if isinstance(rope.stretch, (mp.Ntk, mp.DynamicNtk)):
        sets["base"] = base_of(rope, target)
    parts = (rope.stretch,) if warmer is None else (rope.stretch, warmer)
    notes = [each for each in (note, said.note) if each]
    return Candidate(
        name, parts, sets, numbers(frequencies(rope, target)), config=said.transformers, vllm=said.vllm,
        note="; ".join(notes),
    )  # fmt: skip


def places(rope: mp.Rope | None, trained: int, target: int, causal: bool) -> Iterator[Candidate]:
    """The methods that move far keys, which no config of transformers or vLLM can say."""
    f = () if rope is None else numbers(frequencies(rope, target))
    w, count = max(2, trained // 4), "index" if causal else "length"
    half, wide = max(2, trained // 2), max(2, 3 * trained // 4)
    group = min(max(2, -(-(target - half) // max(1, trained - half))), half)
    slow = max(16, -(-(target - w) // max(1, trained - w)))
    own: dict[str, tuple[Any, str]] = {
        "ReRoPE, pivot": (
            mp.Pivot(mp.Rerope(w), trained, count=count), "sees every key; far ones must outweigh near ones",
        ),
        "ReRoPE, log-n": ((mp.Rerope(w), mp.LogN(trained, count=count)), "sees every key"),
        "self-extend": (mp.SelfExtend(group, half // group * group), "far keys share positions in groups"),
    }  # fmt: skip
    if causal:
        near = mp.Rerope(half, at=max(1, trained // 8))
        own |= {
            "ReRoPE, diluted pivot": (
                mp.Dilute(mp.Pivot(mp.Rerope(half), trained, strength=0.25), trained, strength=0.5),
                "sees every key; more far ones weigh little more",
            ),
            "ReRoPE, sinks kept": (
                mp.Dilute(mp.Pivot(mp.KeepSinks(mp.Rerope(wide, at=w)), trained, strength=0.5), trained, strength=0.25),
                "sees every key; far ones must outweigh near ones and sinks",
            ),
            "ReRoPE, diluted": (mp.Dilute(near, trained, strength=2.0), "sees every key; far ones weigh little"),
            "leaky ReRoPE, log-n": ((mp.LeakyRerope(w, slow), mp.LogN(trained)), "keeps the order of far keys"),
            "dual chunk": (mp.DualChunk(wide, max(1, trained // 8)), "positions start over in chunks"),
            "streaming": (mp.Stream(4, max(1, trained - 4)), "endless text at constant cost; forgets the rest"),
        }  # fmt: skip
    for name, (parts, note) in own.items():
        given = cast("tuple[Any, ...]", parts) if isinstance(parts, tuple) else (parts,)
        yield Candidate(name, given, {}, f, note=note)


def log_n(trained: int, causal: bool, note: str) -> Candidate:
    """A sharper softmax for longer texts, and no other change."""
    return Candidate("log-n", (mp.LogN(trained, count="index" if causal else "length"),), {}, note=note)


# ALiBi


def slopes(alibi: mp.Alibi, trained: int, target: int) -> list[Candidate]:
    """The stretches of ALiBi."""
    s = target / trained
    # Falcon adds its bias before the scores are divided by √d: its slopes are flattened already.
    before = alibi.stretch.factor if isinstance(alibi.stretch, mp.AlibiInterpolate) else 1.0
    own: dict[str, tuple[Any, str]] = {
        "NTK": (mp.AlibiNtk(s), "the steepest head keeps its slope, so near tokens stay distinct"),
        "dynamic NTK": (mp.AlibiDynamicNtk(trained), "texts within the trained length stay as they are"),
        "interpolation, fixed": (mp.AlibiInterpolate(s), "every head looks further; near tokens crowd together"),
    }
    found: list[Candidate] = []
    for name, (stretch, note) in own.items():
        flat = replace(alibi, stretch=stretch).slopes(torch.tensor(float(target), dtype=torch.float64)).behind / before
        sets = {"factor": s, "steepest": float(flat.max()), "flattest": float(flat.min())}
        found.append(Candidate(name, (stretch,), sets, slopes=numbers(flat), note=note))
    return found


# Tables of rows


def rows(table: mp.Learned, target: int) -> list[Candidate]:
    """A learned table grown: n rows serve n² positions."""
    n = table.length
    if target > n * n:
        raise ValueError(
            f"plan(to={target}): a table of {n:,} rows grown hierarchically serves {n * n:,} positions; ask for no more"
        )
    note = (
        f"the first {n:,} positions keep their rows exactly; fine-tune for the rest (Su's RoBERTa had 38 % of masked "
        f"tokens right at 1,536 untrained, and its 55 % again after some 3,000 steps)"
    )
    sets = {"rows": float(n), "alpha": 0.4, "positions": float(n * n)}
    return [Candidate("hierarchical", (mp.Hierarchical((n, table.model_dim)),), sets, note=note)]
