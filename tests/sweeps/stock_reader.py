"""Reads folders with stock transformers, in a process that cannot import milepost; prints a JSON line for each.

    python tests/sweeps/stock_reader.py FOLDER …

Each folder has a model, and in expected.pt the tokens and the logits that it must give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.modules["milepost"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@torch.no_grad()
def answer(folder: str) -> dict[str, object]:
    """Return how far the logits are from those that are expected, or the error."""
    ids, expected = torch.load(Path(folder) / "expected.pt", weights_only=True)
    try:
        # Some releases of transformers run Gemma 2 by a function that leaves its cap out.
        how = {"attn_implementation": "eager"} if "gemma2" in (Path(folder) / "config.json").read_text() else {}
        model = AutoModelForCausalLM.from_pretrained(folder, **how).eval()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"worst": float((model(ids).logits - expected).abs().max())}


if __name__ == "__main__":
    for each in sys.argv[1:] or sys.stdin.read().split():
        print(json.dumps({"folder": each, **answer(each)}), flush=True)
