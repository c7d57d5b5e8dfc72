"""`milepost eval`. Only the command line loads this module, once it knows that typer is there."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer

from milepost.refusal import need, refuse

HERE = "eval"


def evaluate(context: typer.Context) -> None:
    """Run lm-evaluation-harness on a model, extended or not.

    Takes the arguments of lm_eval, with --model milepost: --model_args pretrained=MODEL,extend=Rerope(256) --tasks …
    Model arguments are those of --model hf, and extend=… (a row or an expression), to=… (the length to reach). A row
    with a comma has quotes of its own: --model_args "pretrained=MODEL,extend='ReRoPE, sinks kept'".
    """
    try:
        need(HERE, "eval")
        adapter = importlib.import_module("milepost.hf.evaluation.adapter")
        lm_eval: Any = importlib.import_module("lm_eval.__main__")
    except ImportError as error:
        refuse(str(error))
    given = list(context.args)
    if not any(each in ("--model", "-M") or each.startswith("--model=") for each in given):
        given = ["--model", adapter.NAME, *given]
    sys.argv = ["milepost eval", "run", *given]
    try:
        lm_eval.cli_evaluate()
    except (ValueError, TypeError, OSError) as error:
        refuse(f"eval: {error}")
