"""What layers do beside turning by fixed angles and adding slopes or buckets, in the words of their schemes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milepost.methods.alibi import Alibi
from milepost.methods.deepseek_scale import DeepseekScale
from milepost.methods.t5_bias import T5Bias
from milepost.scheme import Scheme
from milepost.seams.arguments import spell
from milepost.seams.verbs import answers

MEASURED = (Alibi, DeepseekScale, T5Bias)
"""Parts that are compared by their numbers: slopes, the softmax scale and buckets."""
VERBS = ("place", "relate", "sharpen", "bend", "bend_rows", "rest")


@dataclass(frozen=True)
class Beside:
    """What layers do, each in words.

    seen is what is visible, "" where a scheme does not say; parts what else acts on positions or scores, None where a
    method stands alone; follows what depends on the length of the text, so that there is no one curve of frequencies.
    """

    seen: str
    parts: str | None
    follows: str


def beside_of(schemes: Iterable[Scheme]) -> Beside:
    """What some layers do; those that do the same are said once."""
    kept = list(schemes)
    return Beside(*("; ".join(dict.fromkeys(words(each) for each in kept)) for words in (_seen, _parts, _follows)))


def beside_alone(method: object) -> Beside:
    """What a method by itself says."""
    return Beside("", None, _follows(Scheme(method)))


def _seen(scheme: Scheme) -> str:
    return " & ".join(sorted({repr(part) for part in scheme.answering("see")}))


def _parts(scheme: Scheme) -> str:
    others = [
        part
        for part in scheme.parts
        if not isinstance(part, MEASURED) and any(answers(part, verb) for verb in VERBS) and not answers(part, "turn")
    ]
    return ", ".join(sorted(spell(part) for part in others))


def _follows(scheme: Scheme) -> str:
    turns = [part for part in scheme.parts if answers(part, "turn") or isinstance(part, Alibi)]
    return ", ".join(spell(part) for part in turns if getattr(part, "by_length", False))
