"""The fifteen tasks of the Chomsky-hierarchy set, as used for randomized positions (Ruoss, 2023, arXiv:2305.16843)."""

from __future__ import annotations

from milepost.lab.tasks import context_free, context_sensitive, regular
from milepost.lab.tasks.task import Encoded

LEVELS: dict[str, dict[str, Encoded]] = {
    "regular": {
        "even-pairs": regular.EvenPairs(),
        "modular-arithmetic": regular.ModularArithmetic(),
        "parity-check": regular.ParityCheck(),
        "cycle-navigation": regular.CycleNavigation(),
    },
    "deterministic context-free": {
        "stack-manipulation": context_free.StackManipulation(),
        "reverse-string": context_free.ReverseString(),
        "modular-arithmetic-brackets": context_free.ModularArithmeticBrackets(),
        "solve-equation": context_free.SolveEquation(),
    },
    "context-sensitive": {
        "duplicate-string": context_sensitive.DuplicateString(),
        "missing-duplicate": context_sensitive.MissingDuplicate(),
        "odds-first": context_sensitive.OddsFirst(),
        "binary-addition": context_sensitive.BinaryAddition(),
        "binary-multiplication": context_sensitive.BinaryMultiplication(),
        "compute-sqrt": context_sensitive.ComputeSqrt(),
        "bucket-sort": context_sensitive.BucketSort(),
    },
}
"""The tasks by the least machine that can do them."""

HIERARCHY: dict[str, Encoded] = {name: task for level in LEVELS.values() for name, task in level.items()}
