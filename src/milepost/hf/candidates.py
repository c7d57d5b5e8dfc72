"""What each method would set to take a model further: one candidate a method, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch

from milepost.configs.reader import Reader
from milepost.hf.rope_settings import base_of, expressed, frequencies, magnitude, numbers
from milepost.methods.alibi import Alibi
from milepost.methods.alibi_dynamic_ntk import AlibiDynamicNtk
from milepost.methods.alibi_interpolate import AlibiInterpolate
from milepost.methods.alibi_ntk import AlibiNtk
from milepost.methods.by_parts import ByParts
from milepost.methods.dilute import Dilute
from milepost.methods.dual_chunk import DualChunk
from milepost.methods.dynamic_ntk import DynamicNtk
from milepost.methods.dynamic_yarn import DynamicYarn
from milepost.methods.hierarchical import Hierarchical
from milepost.methods.interpolate import Interpolate
from milepost.methods.keep_sinks import KeepSinks
from milepost.methods.leaky_rerope import LeakyRerope
from milepost.methods.learned import Learned
from milepost.methods.llama3 import Llama3
from milepost.methods.log_n import LogN
from milepost.methods.long_rope import LongRope
from milepost.methods.ntk import Ntk
from milepost.methods.ntk_mixed import NtkMixed
from milepost.methods.pivot import Pivot
from milepost.methods.rerope import Rerope
from milepost.methods.rope import Rope
from milepost.methods.self_extend import SelfExtend
from milepost.methods.stream import Stream
from milepost.methods.yarn import Yarn
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


# RoPE


def stretches(reader: Reader, rope: Rope, of: int, trained: int, target: int) -> list[Candidate]:
    """Every stretch of a plain rotation that reaches the target."""
    s = target / trained
    n = rope.dim // 2
    parts = ByParts(s, trained)
    longer = frequencies(replace(rope, stretch=parts), target)
    by = numbers(frequencies(rope, target) / longer)
    named: dict[str, tuple[Any, str]] = {
        "interpolation, fixed": (Interpolate(s), "wants fine-tuning: near tokens crowd together"),
        "NTK": (Ntk(s), "raise the factor if the end of the text fails: pairs between are slowed by less"),
        "NTK, mixed": (NtkMixed(s), ""),
        "dynamic NTK": (DynamicNtk(trained), "texts within the trained length stay as they are"),
        "by parts": (ByParts(s, trained), "YaRN without its temperature"),
        "YaRN": (Yarn(s, trained), "slow pairs squeezed, fast ones kept, scores sharpened"),
        "dynamic YaRN": (DynamicYarn(trained), "texts within the trained length stay as they are"),
        "Llama 3": (Llama3(s, trained), "made for fine-tuning at length, as Llama 3.1 was"),
        "LongRoPE": (
            LongRope((1.0,) * n, by, trained, s),
            "no factors are searched here: these are YaRN's, for texts past the trained length alone",
        ),
    }  # fmt: skip
    return [stretched(reader, name, replace(rope, stretch=each), of, trained, target, note)
            for name, (each, note) in named.items()]  # fmt: skip


def grown(reader: Reader, rope: Rope, of: int, reached: int, target: int) -> list[Candidate]:
    """A model that is stretched already: the same stretch, further."""
    old: Any = rope.stretch
    by = target / reached
    original = getattr(old, "trained", reached)
    if isinstance(old, LongRope):
        long = tuple(each * by for each in old.long)
        stretch: Any = replace(old, long=long, factor=old.factor * by)
    elif isinstance(old, Yarn):
        # A magnitude that is written out, though it is the usual one, grows with the factor.
        usual = old.scaled is not None and abs(old.scaled - replace(old, scaled=None).magnitude(AT_ANY)) < 1e-6
        stretch = replace(old, factor=old.factor * by, scaled=None if usual else old.scaled)
    elif isinstance(old, (Interpolate, Llama3, Ntk)):
        stretch = replace(old, factor=old.factor * by)
    elif isinstance(old, DynamicNtk):
        stretch = old
    else:
        return []
    note = f"the model was tuned with {spell(old)}; this is the same, {by:g} times as far"
    return [stretched(reader, "the same, further", replace(rope, stretch=stretch), of, original, target, note)]


def stretched(
    reader: Reader, name: str, rope: Rope, of: int, trained: int, target: int, note: str
) -> Candidate:  # fmt: skip
    """A candidate that changes cos and sin alone."""
    said = expressed(reader, rope, of, trained, target)
    f = frequencies(rope, target)
    sets = {"magnitude": magnitude(rope, target)}
    factor = getattr(rope.stretch, "factor", None)
    if factor is not None:
        sets["factor"] = float(factor)
    if isinstance(rope.stretch, (Ntk, DynamicNtk)):
        sets["base"] = base_of(rope, target)
    notes = [each for each in (note, said.note) if each]
    return Candidate(
        name, (rope.stretch,), sets, numbers(f), config=said.transformers, vllm=said.vllm, note="; ".join(notes)
    )


def places(rope: Rope | None, trained: int, target: int, causal: bool) -> Iterator[Candidate]:
    """The methods that move far keys, which no config of transformers or vLLM can say."""
    f = () if rope is None else numbers(frequencies(rope, target))
    w, count = max(2, trained // 4), "index" if causal else "length"
    half, wide = max(2, trained // 2), max(2, 3 * trained // 4)
    group = min(max(2, -(-(target - half) // max(1, trained - half))), half)
    slow = max(16, -(-(target - w) // max(1, trained - w)))
    own: dict[str, tuple[Any, str]] = {
        "ReRoPE, pivot": (Pivot(Rerope(w), trained, count=count), "sees every key; far ones must outweigh near ones"),
        "ReRoPE, log-n": ((Rerope(w), LogN(trained, count=count)), "sees every key"),
        "self-extend": (SelfExtend(group, half // group * group), "far keys share positions in groups"),
    }  # fmt: skip
    if causal:
        near = Rerope(half, at=max(1, trained // 8))
        own |= {
            "ReRoPE, diluted pivot": (
                Dilute(Pivot(Rerope(half), trained, 0.25), trained, 0.5),
                "sees every key; more far ones weigh little more",
            ),
            "ReRoPE, sinks kept": (
                Dilute(Pivot(KeepSinks(Rerope(wide, w)), trained, 0.5), trained, 0.25),
                "sees every key; far ones must outweigh near ones and sinks",
            ),
            "ReRoPE, diluted": (Dilute(near, trained, 2.0), "sees every key; far ones weigh little"),
            "leaky ReRoPE, log-n": ((LeakyRerope(w, slow), LogN(trained)), "keeps the order of far keys"),
            "dual chunk": (DualChunk(max(2, 3 * trained // 4), max(1, trained // 8)), "positions start over in chunks"),
            "streaming": (Stream(4, max(1, trained - 4)), "endless text at constant cost; forgets the rest"),
        }  # fmt: skip
    for name, (parts, note) in own.items():
        given = cast("tuple[Any, ...]", parts) if isinstance(parts, tuple) else (parts,)
        yield Candidate(name, given, {}, f, note=note)


def log_n(trained: int, causal: bool, note: str) -> Candidate:
    """A sharper softmax for longer texts, and no other change."""
    return Candidate("log-n", (LogN(trained, count="index" if causal else "length"),), {}, note=note)


# ALiBi


def slopes(alibi: Alibi, trained: int, target: int) -> list[Candidate]:
    """The stretches of ALiBi."""
    s = target / trained
    # Falcon adds its bias before the scores are divided by √d: its slopes are flattened already.
    before = alibi.stretch.factor if isinstance(alibi.stretch, AlibiInterpolate) else 1.0
    own: dict[str, tuple[Any, str]] = {
        "NTK": (AlibiNtk(s), "the steepest head keeps its slope, so near tokens stay distinct"),
        "dynamic NTK": (AlibiDynamicNtk(trained), "texts within the trained length stay as they are"),
        "interpolation, fixed": (AlibiInterpolate(s), "every head looks further; near tokens crowd together"),
    }
    found: list[Candidate] = []
    for name, (stretch, note) in own.items():
        flat = replace(alibi, stretch=stretch).slopes(torch.tensor(float(target), dtype=torch.float64)).behind / before
        sets = {"factor": s, "steepest": float(flat.max()), "flattest": float(flat.min())}
        found.append(Candidate(name, (stretch,), sets, slopes=numbers(flat), note=note))
    return found


# Tables of rows


def rows(table: Learned, target: int) -> list[Candidate]:
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
    return [Candidate("hierarchical", (Hierarchical((n, table.dim)),), sets, note=note)]
