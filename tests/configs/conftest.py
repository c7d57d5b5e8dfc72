"""Which tests of configs need a later transformers than the oldest that is allowed."""

from __future__ import annotations

import pytest
import transformers

LATER = {
    "test_names.py": ("utils:RopeParameters",),
    "test_forms.py": ("[embeddinggemma-300m]", "[Olmo-3-7B]"),
    "test_published_layers.py": (
        "test_softmax_scales[DeepSeek-V2]", "test_softmax_scales[DeepSeek-V2-Lite]", "test_masks[Llama-4-Scout]",
        "test_masks[Llama-4-Maverick]",
    ),
    "test_published_more.py": (
        "test_the_layers_of_a_hybrid_that_attend[Kimi-Linear-48B-A3B]", "[DeepSeek-V3.2]",
    ),
    "test_published_rotations.py": ("[Olmo-3-7B]", "[Qwen2-VL-7B]"),
}  # fmt: skip
"""What transformers 5.10 lacks (types, keys) or computes otherwise (Olmo 3's bases, DeepSeek-V2's scale), by file and
the end of a test's name. `extend` compares each model with its config there, and refuses those that differ."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    major, minor = (int(each) for each in transformers.__version__.split(".")[:2])
    if (major, minor) >= (5, 22):
        return
    for item in items:
        if item.path.parent.name == "configs" and any(map(item.name.endswith, ends_of(item))):
            item.add_marker(
                pytest.mark.skip(reason=f"transformers {transformers.__version__} has it not, or otherwise")
            )


def ends_of(item: pytest.Item) -> tuple[str, ...]:
    """The ends of the names of tests in a file that are skipped."""
    return tuple(f"{each}]" if not each.endswith("]") else each for each in LATER.get(item.path.name, ()))
