"""`--model milepost` of lm-evaluation-harness: our models called alone, text by text; without extend `--model hf`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import milepost as mp
from milepost.hf import extend, load, save
from milepost.hf.evaluation.answering import answers
from tests.hf.folders import LETTERS, tokenizer, write

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'milepost[eval]'")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM

from milepost.hf.evaluation.adapter import Milepost

pytestmark = [
    pytest.mark.slow,
    # lm-eval's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
WAYS = ["ReRoPE, sinks kept", "Rerope(16)", "Yarn(4, trained=64)", "DynamicNtk(64)", "Rerope(16) + LogN(trained)"]
NEW = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiny") / "model")


def text(n: int, seed: int) -> str:
    drawn = torch.randint(0, len(LETTERS), (n,), generator=torch.Generator().manual_seed(seed))
    # No blank at the end, which lm-eval would count to what follows.
    return "".join(LETTERS[each] for each in drawn[:-1]) + "a"


CONTEXTS = [text(n, seed) for seed, n in enumerate((5, 150, 90, 31, 200, 64, 12))]
"""Inside and past the 64 trained tokens, in batches of 3."""


def asked(kind: str, *given: Any) -> Any:
    return Instance(request_type=kind, doc={}, arguments=given, idx=0)


def scored(adapter: Any) -> list[tuple[float, bool]]:
    requests = [asked("loglikelihood", each, text(7, 50 + n)) for n, each in enumerate(CONTEXTS)]
    return adapter.loglikelihood(requests, disable_tqdm=True)


def continued(adapter: Any) -> list[str]:
    how = {"until": ["\n\n"], "max_gen_toks": NEW, "do_sample": False}
    return adapter.generate_until([asked("generate_until", each, dict(how)) for each in CONTEXTS], disable_tqdm=True)


def ids(words: str) -> Tensor:
    return torch.tensor([tokenizer().encode(words)])


@torch.no_grad()
def scored_alone(model: Any) -> list[float]:
    found: list[float] = []
    for n, context in enumerate(CONTEXTS):
        both, wanted = ids(context + text(7, 50 + n)), ids(text(7, 50 + n))
        logs = model(both[:, :-1], use_cache=False).logits[0, -7:].log_softmax(-1)
        found.append(float(logs.gather(1, wanted[0, :, None]).sum()))
    return found


@torch.no_grad()
def continued_alone(model: Any) -> list[str]:
    """Greedy, one text, no padding, and no cache: every token is computed anew."""
    found: list[str] = []
    for context in CONTEXTS:
        given = ids(context)
        for _ in range(NEW):
            token = model(given, use_cache=False).logits[0, -1].argmax()
            given = torch.cat((given, token.view(1, 1)), 1)
            if int(token) == tokenizer().eos_token_id:
                break
        words = tokenizer().decode(given[0, len(tokenizer().encode(context)) :], skip_special_tokens=True)
        found.append(words.split("\n\n")[0])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_the_model_called_alone(way: str, folder: Path):
    adapter = Milepost(pretrained=str(folder), extend=way, to=256, batch_size=3, device="cpu")
    alone = extend(AutoModelForCausalLM.from_pretrained(folder), way, to=256)
    assert [each for each, _ in scored(adapter)] == pytest.approx(scored_alone(alone), abs=2e-4)
    # A cache under dynamic NTK is exact in each layer and not over layers, as in transformers (docs/checkpoints.md).
    if "Dynamic" not in way:
        assert continued(adapter) == continued_alone(alone)
    assert continued(adapter) == answers(alone, tokenizer(), CONTEXTS, NEW, until=["\n\n"], batch=3)


def test_without_extend_it_is_hf(folder: Path):
    options = {"pretrained": str(folder), "batch_size": 3, "device": "cpu"}
    ours, stock = Milepost(**options), HFLM(**options)
    assert (ours.max_length, stock.max_length) == (64, 64)
    assert scored(ours) == scored(stock)
    assert continued(ours) == continued(stock)


def test_a_saved_folder_is_read_as_what_it_is_and_no_text_is_cut(folder: Path, tmp_path: Path):
    model = extend(AutoModelForCausalLM.from_pretrained(folder), mp.Pivot(mp.Rerope(16), 64))
    save(model, tmp_path / "saved")
    tokenizer().save_pretrained(tmp_path / "saved")
    adapter = Milepost(pretrained=str(tmp_path / "saved"), batch_size=3, device="cpu")
    assert adapter.max_length > 10**6
    assert [each for each, _ in scored(adapter)] == pytest.approx(
        scored_alone(load(tmp_path / "saved").eval()), abs=2e-4
    )
    assert "Pivot(Rerope(16" in adapter.get_model_info()["milepost_schedule"]
    with pytest.raises(ValueError, match=r"extend='Rerope\(8\)': .*saved is extended already"):
        Milepost(pretrained=str(tmp_path / "saved"), extend="Rerope(8)", device="cpu")


def test_the_longest_text_is_what_is_given_or_promised(folder: Path):
    def longest(**given: Any) -> int:
        return Milepost(pretrained=str(folder), device="cpu", **given).max_length

    assert longest(extend="Yarn(4, trained=64)") == 256
    assert longest(extend="self-extend", to=200) == 200
    assert longest(extend="Rerope(16)", max_length=100) == 100
    endless = Milepost(pretrained=str(folder), extend="Rerope(16)", batch_size="auto", device="cpu")
    with pytest.raises(ValueError, match=r"batch_size=auto: .*this extension has none; give max_length=…"):
        continued(endless)


def test_what_makes_no_sense_is_refused(folder: Path):
    with pytest.raises(TypeError, match=r"extend=256: give a row or an expression as text"):
        Milepost(pretrained=str(folder), extend=256, device="cpu")
    with pytest.raises(ValueError, match=r"to=256: the length to reach is for extend=…"):
        Milepost(pretrained=str(folder), to=256, device="cpu")


def test_the_command_runs_a_ruler_task(folder: Path, tmp_path: Path):
    given = [
        *("--model_args", f"pretrained={folder},extend='ReRoPE, sinks kept'", "--tasks", "niah_single_1"),
        *("--device", "cpu", "--limit", "2", "--metadata", '{"max_seq_lengths":[1024]}', "--batch_size", "2"),
    ]
    # lm-eval looks for a file of nltk's that this task does not read, and else for a network.
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    offline = {"HF_HUB_OFFLINE": "1", "NLTK_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "milepost", "eval", *given],
        capture_output=True, text=True, env=os.environ | offline, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "milepost ({'pretrained':" in done.stdout
    assert "'extend': 'ReRoPE, sinks kept'" in done.stdout
    assert "niah_single_1" in done.stdout
