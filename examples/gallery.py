"""Draw every analysis of `milepost.explore`: python examples/gallery.py docs/explore"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import milepost as mp
from milepost import explore
from milepost.explore import Analysis

ROPE = mp.Rope(128)
STRETCHES = {
    "RoPE": ROPE,
    "interpolated by 8": mp.Rope(128, stretch=mp.Interpolate(8)),
    "NTK by 8": mp.Rope(128, stretch=mp.Ntk(8)),
    "YaRN by 8": mp.Rope(128, stretch=mp.Yarn(8, trained=4096)),
}


LEAKY = mp.Scheme(mp.Rope(64), mp.LeakyRerope(512, 16), mp.causal)
INV_LEAKY = {
    "InvLeaky": mp.Scheme(mp.Rope(64), mp.LeakyRerope(256, 1 / 16), mp.causal),
    "plain RoPE": mp.Scheme(mp.Rope(64), mp.causal),
}
"""Distances are stretched in training, so that plain RoPE meets no new ones at eight times the length."""


def inv_leaky() -> Analysis:
    """InvLeaky beside the RoPE that its model runs with, which is its lesson."""
    found = explore.distance_map(INV_LEAKY, length=1024)
    most = float(np.nanmax(found["InvLeaky, last token"]))
    return replace(
        found,
        title="InvLeaky is trained with far distances stretched, so that plain RoPE meets no larger ones when run "
        "longer",
        says=f"{found.says} Plain RoPE meets no larger one up to {math.floor(most) + 1:,} tokens.",
        settings=f"{found.settings}, as in training; plain RoPE, as it runs afterwards, comes to {most:,.0f} only in "
        f"{math.floor(most) + 1:,} tokens",
    )


def hwfa() -> Analysis:
    """HWFA by its name, which a schedule does not know."""
    found = explore.distance_map(mp.hwfa(12, 64, 512), length=1024, trained=512)
    return replace(found, title=f"HWFA: {found.title[0].lower()}{found.title[1:]}")


def xl() -> mp.TransformerXL:
    """A Transformer-XL whose weights are drawn with a seed."""
    torch.manual_seed(0)
    return mp.TransformerXL(64, 4, 16)


PICTURES: dict[str, Callable[[], Analysis]] = {
    "angles_seen": lambda: explore.angles_seen(ROPE, trained=4096, length=32_768),
    "angles_seen_ntk": lambda: explore.angles_seen(ROPE, trained=4096, length=32_768, stretched=STRETCHES["NTK by 8"]),
    "wavelengths": lambda: explore.wavelengths(STRETCHES, trained=4096, length=32_768),
    "odometer": lambda: explore.odometer(mp.Rope(8)),
    "sinusoidal_map": lambda: explore.sinusoidal_map(mp.Sinusoidal(100)),
    "dot_products": lambda: explore.dot_products(mp.Sinusoidal(128)),
    "decay_bound": lambda: explore.decay_bound(ROPE),
    "score_bands": lambda: explore.score_bands(ROPE),
    "score_bound": lambda: explore.score_bound(ROPE),
    "attention_entropy": explore.attention_entropy,
    "alibi_view": lambda: explore.alibi_view(mp.Alibi(8)),
    "bias_curves": explore.bias_curves,
    "bucket_map": lambda: explore.bucket_map(mp.T5Bias(8)),
    "bucket_map_deberta": lambda: explore.bucket_map(mp.Deberta(768, 12, 64, reach=512, buckets=256)),
    "shift_map": lambda: explore.shift_map(xl()),
    "distance_map": explore.distance_map,
    "distance_map_leaky": lambda: explore.distance_map({"Leaky ReRoPE": LEAKY}, length=4096, trained=1024),
    "distance_map_invleaky": inv_leaky,
    "distance_map_hwfa": hwfa,
    "kept_terms": explore.kept_terms,
    "cope_counts": lambda: explore.cope_counts(opens={".": 1.0, "reads": 0.5}),
    "patch_scores": explore.patch_scores,
    "stream_cache": explore.stream_cache,
    "padding_leak_map": explore.padding_leak_map,
    "negative_denominators": explore.negative_denominators,
    "phase_errors": explore.phase_errors,
}
"""What is drawn of each."""
HEAD = (
    "`pip install '.[explore]'` in a checkout brings what pictures need, `'.[plot]'` PNG. Each function returns",
    "named arrays with units; in a notebook the result draws itself:",
    "",
    "```python",
    "import milepost as mp",
    "from milepost import explore",
    "",
    "mine = mp.Scheme(mp.Rope(64), mp.SelfExtend(8, 512), mp.causal)",
    "found = explore.distance_map(mine, length=4096, trained=1024)",
    'found.save("mine.svg")  # or .png, .csv, .json; found["SelfExtend(8, 512)"] is an array',
    "```",
    "",
    "Of a real model: `milepost look MODEL --text FILE`, `explore.look` and `explore.unseen_angles`;",
    "[what they show](../look.md). `python examples/gallery.py docs/explore` writes this page.",
    "",
)


def main(folder: Path) -> None:
    """Write a picture of each, and a page that says what each shows."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What the analyses show", "", *HEAD]
    last = ""
    for name, draw in PICTURES.items():
        found = draw()
        found.save(folder / f"{name}.svg")
        lines += [f"## `explore.{found.name}`", ""] if found.name != last else []
        lines += [f"{found.title}. {found.says}", "", f"![{found.title}]({name}.svg)", ""]
        last = found.name
        print(f"{name}: {found.says}")
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))
