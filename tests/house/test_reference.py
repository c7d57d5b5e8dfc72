"""The specification stands alone: short enough to read at a sitting, and no code of the backends that it judges."""

from __future__ import annotations

import ast

from milepost.seams.facets import FACETS
from tests.house.test_imports import SOURCE, imports_of, modules_of

REFERENCE = SOURCE / "backends" / "reference.py"
MAY_IMPORT = {"milepost.call.call", "milepost.seams.verbs", "milepost.backends.dropout"}
"""The call, the verbs, and the hash that says which weights are dropped: that one is the specification of dropout."""
LINES = 160


def shared_with_others(text: str) -> list[str]:
    """What a specification may not use: modules of milepost beyond the three, private names of theirs, and facets."""
    tree = ast.parse(text)
    known = set(modules_of(SOURCE, "milepost"))
    found = imports_of("milepost.backends.reference", tree, known) - MAY_IMPORT
    names = {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in names if name.startswith("_")}
    return sorted(found | private | (names & set(FACETS)))


def test_the_specification_is_short():
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    assert 50 < len(lines) <= LINES


def test_the_specification_shares_no_code_with_what_it_judges():
    assert shared_with_others(REFERENCE.read_text(encoding="utf-8")) == []


def test_a_specification_that_shared_code_would_be_caught():
    text = REFERENCE.read_text(encoding="utf-8")
    for line, caught in {
        "from milepost.backends.views import seen": "milepost.backends.views",
        "from milepost.backends import scores": "milepost.backends.scores",
        "def late():\n    from milepost.backends.blocks import rows_of": "milepost.backends.blocks",
        "from milepost.seams import facets": "milepost.seams.facets",
        "from milepost.call.merge import merge": "milepost.call.merge",
        "from .fused import run": "milepost.backends.fused",
        "import milepost as mp": "milepost",
        "from milepost.backends.dropout import _mix": "_mix",
        "fast = part.by_distance(9)": "by_distance",
        "plain = call.scheme.parts[0].cos_sin": "cos_sin",
    }.items():
        assert shared_with_others(f"{text}\n{line}\n") == [caught], line
