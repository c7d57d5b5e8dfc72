"""What the catalogue says is so: the list is whole, every example runs, and every sentence about composing holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import milepost as mp
from milepost.backends import BACKENDS
from milepost.catalogue import words
from milepost.catalogue.examples import CALLS, EXAMPLES, WIDEST
from milepost.catalogue.find import find
from milepost.catalogue.sheet import sheets
from tests.cases import exported_methods

SHEETS = {sheet.name: sheet for sheet in sheets()}
METHODS = [name for name, sheet in SHEETS.items() if sheet.group not in ("Visible", "Functions")]
PARTS = [name for name in METHODS if not {"frequencies", "slopes", "sample"} & set(SHEETS[name].verbs)]

# The list


def test_the_list_is_the_methods_folder():
    assert sorted(METHODS) == sorted(exported_methods())


def test_the_list_is_what_is_exported():
    exported = set(mp.__all__)
    apart = {"Bound", "CannotRun", "Learner", "Regime", "Relation", "Table"}
    assert set(SHEETS) == exported - apart
    assert len(SHEETS) == len(sheets())


COVERED = {
    "1.1 learned absolute": ("Learned",),
    "1.2 hierarchical decomposition": ("Hierarchical",),
    "1.3 sinusoidal": ("Sinusoidal",),
    "1.4 recursive": ("Recurrent",),
    "1.5 FLOATER": ("Floater", "FloaterLayer"),
    "1.6 multiplicative": ("Multiplied",),
    "2.1 Shaw, NEZHA": ("Shaw", "Nezha"),
    "2.2 Transformer-XL, XLNet": ("TransformerXL",),
    "2.3 T5 bias": ("T5Bias", "Scale"),
    "2.4 DeBERTa, and its mask decoder": ("Deberta", "MaskDecoder"),
    "3.1 zero-padding leak": ("padding_leak",),
    "3.2 complex order": ("ComplexOrder", "complex_attend"),
    "3.3 Su's fused encoding": ("FusedRope",),
    "3.4 RoPE, learned, linear, in two parts": ("Rope", "LearnedRope", "linear_attend", "TwoPartRope"),
    "3.5 ALiBi, its bidirectional forms": ("Alibi", "SplitAlibi", "LearnedAlibi", "OffsetAlibi"),
    "3.5 ALiBi, its stretches": ("AlibiInterpolate", "AlibiNtk", "AlibiDynamicNtk"),
    "3.6 CoPE": ("Cope",),
    "3.7 NoPE": ("Nope",),
    "4.1 linear interpolation; 4.16 LongChat": ("Interpolate",),
    "4.2 NTK-aware, fixed, mixed": ("Ntk", "NtkMixed"),
    "4.3 dynamic linear": ("DynamicLinear",),
    "4.4 dynamic NTK": ("DynamicNtk",),
    "4.5 NTK-by-parts, YaRN, dynamic YaRN, DeepSeek's pair": ("ByParts", "Yarn", "DynamicYarn", "DeepseekScale"),
    "4.6 ReRoPE, leaky and inverse": ("Rerope", "LeakyRerope"),
    "4.7 log-n": ("LogN",),
    "4.8 HWFA": ("hwfa", "hwfa2"),
    "4.9 sliding window": ("window", "causal"),
    "4.10 StreamingLLM, learnable sink, SoftMax₁": ("Stream", "SinkLogit", "SoftmaxOne", "sinks"),
    "4.11 randomized positions": ("Randomized",),
    "4.12 scaling laws": ("critical_dimension", "critical_base", "reach_of"),
    "4.15 ALiBi fine-tuned long": ("Alibi",),
    "5 xPos": ("Xpos",),
    "5 KERPLE": ("Kerple",),
    "5 Sandwich": ("Sandwich",),
    "5 FIRE": ("Fire",),
    "5 LongRoPE": ("LongRope",),
    "5 Llama 3.1": ("Llama3",),
    "5 Self-Extend": ("SelfExtend",),
    "5 dual chunk attention": ("DualChunk",),
    "5 PoSE": ("Pose",),
    "5 partial RoPE": ("Partial",),
    "5 p-RoPE": ("Proportional",),
    "5 axial and M-RoPE": ("AxialRope",),
    "5 iRoPE (Llama 4)": ("llama4", "Llama4Scale", "chunks"),
    "5 soft caps": ("SoftCap",),
    "5 QK norm after the turn": ("QkNorm",),
    "milepost's own": ("Dilute", "KeepSinks", "Pivot"),
}


@pytest.mark.parametrize("entry", COVERED)
def test_the_catalogue_of_the_field_is_covered(entry: str):
    assert set(COVERED[entry]) <= set(SHEETS)


def test_every_method_belongs_to_an_entry():
    assert set(METHODS) == {name for names in COVERED.values() for name in names if name in METHODS}


@pytest.mark.parametrize(
    ("known_as", "name"),
    [
        ("ALiBi", "Alibi"), ("StreamingLLM", "Stream"), ("p-RoPE", "Proportional"), ("xPos", "Xpos"),
        ("Transformer-XL", "TransformerXL"), ("PoSE", "Pose"), ("NoPE", "Nope"), ("SoftMax₁", "SoftmaxOne"),
    ],
)  # fmt: skip
def test_a_method_is_found_by_what_papers_call_it(known_as: str, name: str):
    assert find(known_as, SHEETS.values()).name == name


# The examples


@pytest.mark.parametrize("name", SHEETS)
def test_every_example_runs(name: str):
    assert SHEETS[name].example, f"write an example for {name} in catalogue/examples.py"
    assert f"mp.{name}" in SHEETS[name].example
    assert max(map(len, SHEETS[name].example.splitlines())) <= WIDEST
    known: dict[str, Any] = {}
    exec(SHEETS[name].example, known)
    if "out" in known:
        assert known["out"].shape[:3] in ((1, 8, 100), (1, 8, 1))
        assert known["out"].isfinite().all()


def test_no_example_is_left_of_what_is_gone():
    assert set(EXAMPLES) | set(CALLS) == set(SHEETS)


# What is said of a method


def made(name: str) -> Any:
    """The part of the example that is the method."""
    parts = [eval(part, {"mp": mp}) for part in EXAMPLES[name]]
    parts += [part.method for part in parts if hasattr(part, "method")]
    return next(part for part in parts if isinstance(part, getattr(mp, name)))


def builds(*parts: object) -> bool:
    """Whether a scheme of these parts can be made."""
    try:
        mp.Scheme(*parts)
    except ValueError:
        return False
    return True


def says(name: str, words: str) -> bool:
    return any(words in sentence for sentence in SHEETS[name].composes)


@pytest.mark.parametrize("name", PARTS)
def test_what_is_said_about_composing_is_what_a_scheme_does(name: str):
    part, places = made(name), "place" in SHEETS[name].verbs
    assert says(name, "Needs a visible part that hides the keys ahead") == (not builds(part))
    assert says(name, "Sets the softmax scale") == (not builds(part, mp.Scale(1.0), mp.causal))
    assert says(name, "Made for a number of query heads") == (not builds(part, mp.SinkLogit(heads=3), mp.causal))
    assert says(name, "One part remaps positions") == places
    assert says(name, "One rotation a scheme") == (not places and not builds(part, mp.Rope(64), mp.causal))
    combines = builds(part, mp.Rerope(8), mp.causal)
    if not places and SHEETS[name].relative is not None:
        assert says(name, "does not combine with places") == (not combines)
    assert combines or not says(name, "it combines with Rerope(window)")


@pytest.mark.parametrize("name", [name for name in METHODS if "sample" not in SHEETS[name].verbs])
def test_the_backends_and_their_reasons_are_those_of_explain(name: str):
    alone = [made(name), mp.causal] if name in PARTS else [eval(part, {"mp": mp}) for part in EXAMPLES[name]]
    if "place" in SHEETS[name].verbs and name in PARTS:
        # Moved positions need a part that reads them.
        alone.append(mp.Rope(64))
    q = torch.zeros(1, 8, 4, 64)
    with torch.no_grad():
        explained = mp.explain(q, q, q, mp.Scheme(*alone).attention)
    able = list(explained.able)
    # Kernels that need a device are listed wherever one asks.
    assert [each for each in SHEETS[name].backends if each != "triton"] == [each for each in able if each != "triton"]
    for backend, why in SHEETS[name].refusals.items():
        assert explained.reasons[backend].endswith(why.removesuffix(" (depends on its arguments)"))
    assert {*SHEETS[name].backends, *SHEETS[name].refusals} == set(BACKENDS)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_learned_is_told_by_name(name: str):
    method = getattr(mp, name)
    assert SHEETS[name].learns == issubclass(method, nn.Module)
    if issubclass(method, nn.Module):
        weights = dict(made(name).named_parameters())
        assert SHEETS[name].learned == {key: list(weight.shape) for key, weight in weights.items()}
        assert weights
    elif name != "Multiplied":
        assert SHEETS[name].learned == {}


def test_a_method_that_holds_a_learner_tells_its_weights():
    assert SHEETS["Multiplied"].learned == {"method.table": [128, 512]}
    assert words.learned(SHEETS["Multiplied"]) == "method.table"


def test_looking_at_the_catalogue_draws_no_random_numbers():
    before = torch.random.get_rng_state()
    sheets()
    assert torch.equal(torch.random.get_rng_state(), before)
