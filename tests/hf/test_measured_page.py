"""The page of a measurement: names of models are shown and not obeyed."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from milepost.hf import measure
from milepost.hf.measuring.measured_page import Measured, page
from milepost.hf.measuring.scores import Recall, score
from tests.hf.test_measure import QUICK, VOCABULARY, copier, llama
from tests.pages import HOSTILE, shown_as_text

pytest.importorskip("transformers")
pytest.importorskip("scipy")


def called(word: str) -> Measured:
    """Two models, of which one shows its attention; the first is also given a window."""
    ids = torch.randint(0, VOCABULARY, (600,), generator=torch.Generator().manual_seed(1))
    return measure({word: llama(), f"{word}!": copier}, ids, lengths=[32, 64], **QUICK)


@pytest.mark.parametrize("word", HOSTILE)
def test_the_name_of_a_model_is_text_wherever_it_stands(word: str):
    text = page(called(word))
    assert shown_as_text(text, page(called("x" * len(word))), word) > 20
    for title in ("How far each holds", "By length", "Needles", "Where attention goes"):
        assert f"<h2>{title}</h2>" in text


def test_what_anybody_could_do_is_not_compressed():
    """The window forgets by 4 bits, and one row fails by 20: the picture bends between the two."""
    found = Measured(("good", "bad", "window 8"), ("window 8",), 8, 4, 3)
    for row, bits in {"good": 1.1, "bad": 21.0, "window 8": 5.0}.items():
        at_first, far = (score(torch.full((3,), each * math.log(2))) for each in (1.0, bits))
        found.nats[row], found.entropy[row] = {8: at_first, 16: at_first}, {8: at_first, 16: at_first}
        found.recall[row] = {4: Recall(at_first, at_first), 16: Recall(far, at_first)}
    bends = [float(each) for each in re.findall(r"compressed above ([\d.]+)", page(found))]
    assert len(bends) == 1
    # In nats, as everything on the page.
    assert 5.0 * math.log(2) <= bends[0] < 10.0 * math.log(2)


def test_a_page_without_its_library_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = called("mine")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"^to_html needs jinja2, which is not installed: pip install"):
        found.to_html(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
