"""Every causal model type of transformers: served or not, through which of the two ways, and why not.

    python -m tests.sweeps.types [--types llama,phi3] [--out docs/sweeps/types.md] [--results types.jsonl]

Types that `extend` knows are asked for the same proof as all others: a small twin, extended by its own scheme, against
stock transformers. A type whose default config cannot be built is tried with ordinary sizes. Then a small causal model
of each served type is run: its logits, what it generates, compiled, under three methods, and restored; see
`tests/sweeps/types_checked.py`. `make sweep-types` writes a page; `tests/hf/test_proof.py` runs a sample. With
--results a run that was stopped goes on with the types that are missing there.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING

from milepost.configs.model_types import NOT_READ
from milepost.hf.model.extension import by_itself, changed_by, demand_way
from milepost.hf.model.models import KNOWN, NOT_YET, REPLACED, layers_of
from milepost.hf.model.proof import demand_proof
from milepost.hf.model.t5 import has_buckets
from milepost.hf.model.tables import table_of
from tests.sweeps.types_checked import BACKEND, causal, compiled, grow, of_layers, of_table, said_of, with_table, within

WAYS = ("rotary", "attend")
CHECKS = ("logits", "padded", "packed", "generated", "compiled", "methods", "restored")
SEED = 35
"""By which types are drawn where not all are asked."""
REPLACED_ONES, GROWN_ONES, STRETCHED_ONES = CHANGED = (
    "its attention modules are replaced by ours", "its learned table is grown", "its buckets are stretched",
)  # fmt: skip
"""What is said of types that are served without this proof."""
ORDINARY = {
    "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
    "vocab_size": 512, "intermediate_size": 512, "pad_token_id": 0, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip
"""For types whose default config gives no model that can be asked."""
OF_THEIR_OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "topk_group": 1, "n_group": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16, "position_embedding_type": "rope"},
    "minimax_m3_vl_text": {"rotary_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4, "num_dense_layers": 1},
}


@dataclass(frozen=True)
class Found:
    """What came out for one type."""

    model_type: str
    ways: dict[str, str]
    """The error of each way, empty where it is proven; of a type that is not asked, one error under ""."""
    seconds: float
    """What the slower of its proofs took of one core."""
    checked: dict[str, str] = field(default_factory=dict[str, str])
    """What came of each check, where the type is served; see `tests/sweeps/types_checked.py`."""
    transformers: str = transformers.__version__
    every: int = 1
    """Of how many types one was drawn."""

    @property
    def is_served(self) -> bool:
        """Whether it is proven, replaced, grown or stretched."""
        return bool(self.served) or any(self.why == said for said in CHANGED)

    @property
    def served(self) -> list[str]:
        return [way for way, why in self.ways.items() if way and not why]

    @property
    def why(self) -> str:
        """What is said where some way is not served, in one line."""
        said = dict.fromkeys(short(each) for each in self.ways.values() if each)
        return "; ".join(said)


def short(error: str) -> str:
    """What an error says, without the words that all of them have."""
    line = error.split("\n", 1)[0]
    for between in ("through 'attend': ", "through 'rotary': ", "cannot be extended: ", "extend: "):
        line = line.split(between, 1)[-1]
    line = line.removesuffix(" Nothing was changed").split(". Models that have one are")[0].split(". To read it")[0]
    return (line[:237] + " …" if len(line) > 240 else line).replace("|", "/")


def built(model_type: str) -> Any:
    """A model of a type, without weights, as its config is by default, or of ordinary sizes."""
    kind: Any = CONFIG_MAPPING[model_type]
    own = OF_THEIR_OWN.get(model_type, {})
    known = vars(kind(**own))
    ordinary = {name: each for name, each in ORDINARY.items() if name in known}
    first: Exception | None = None
    for given in ({}, ordinary) if not own else (own, ordinary | own):
        try:
            model = of(kind(**given))
            layers_of(model)
        except Exception as error:
            first = first or error
        else:
            return model
    if isinstance(first, ValueError):
        return of(kind())
    assert first is not None
    raise first


def of(config: Any) -> Any:
    """A model of a config, of its text where it has several, and what there is to change in it."""
    text = config.get_text_config()
    with torch.device("meta"):
        # Emu 3's text is there as a causal model alone.
        return (AutoModel if type(text) in MODEL_MAPPING else AutoModelForCausalLM).from_config(text)


def tried(model_type: str, check: bool = True) -> Found:
    """Ask for the proof of one type along both ways. check: whether a small causal model of it is run besides."""
    if model_type in NOT_READ | NOT_YET:
        return Found(model_type, {"": (NOT_READ | NOT_YET)[model_type]}, 0.0)
    try:
        model = built(model_type)
    except Exception as error:
        return Found(model_type, {"": f"no model of it could be built: {type(error).__name__}: {error}"}, 0.0)
    assert changed_by(model) is None
    if table_of(model) is not None:
        checked = of_table(model.config.model_type) if check else {}
        return Found(model_type, {"": GROWN_ONES}, 0.0, checked)
    if has_buckets(model):
        return Found(model_type, {"": STRETCHED_ONES}, 0.0)
    try:
        layers = layers_of(model)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return Found(model_type, {"": f"{kind}{error}"}, 0.0)
    if layers.places:
        checked = of_layers(layers, ["attend"]) if check else {}
        return Found(model_type, {"": REPLACED_ONES}, 0.0, checked)
    ways: dict[str, str] = {}
    slowest = 0.0
    for way in WAYS:
        begun = time.process_time()
        try:
            demand_way(layers, way)
            demand_proof(layers, way, by_itself)
            ways[way] = ""
        except ValueError as error:
            ways[way] = str(error)
        slowest = max(slowest, time.process_time() - begun)
    served = [way for way, why in ways.items() if not why]
    return Found(model_type, ways, slowest, of_layers(layers, served) if served and check else {})


def compiled_of(found: Found) -> str:
    """Return how far a small causal model of a served type is from stock, extended and compiled."""
    try:
        model = built(found.model_type)
        if table_of(model) is not None:
            return compiled(with_table(model.config.model_type), partial(grow, "hierarchical"))
        way = found.served[-1] if found.served else "attend"
        return compiled(causal(layers_of(model)), partial(by_itself, through=way))
    except Exception as error:
        return said_of(error, "fails")


def versions_page(found: Mapping[str, Mapping[str, Found]]) -> str:
    """Write the page that compares versions of transformers, by what was found with each."""
    every = {version: next(iter(each.values())).every for version, each in found.items()}
    types = sorted({name for each in found.values() for name in each})
    rows: list[str] = []
    for name in types:
        have = {version: each[name] for version, each in found.items() if name in each}
        if len({(each.is_served, *each.served) for each in have.values()}) > 1:
            said = [in_words(have[version]) if version in have else "" for version in found]
            rows.append(f"| {name} | {' | '.join(said)} |")
    counts = {version: sum(one.is_served for one in each.values()) for version, each in found.items()}
    return "\n".join([
        "# Which model types are served, by the version of transformers",
        "",
        f"Commit {commit()}, {datetime.now(timezone.utc):%Y-%m-%d}, torch {torch.__version__}, on a CPU. The same",
        "proof as in [types.md](types.md): the oldest transformers that is allowed, the one of `constraints.txt`, and",
        f"the newest that installed. Where one of n types was asked, they were drawn by seed {SEED}.",
        "",
        "| transformers | types asked | served | refused by name |",
        "|---|---:|---:|---:|",
        *(
            f"| {version} | {len(each)}{f', one of {every[version]}' if every[version] > 1 else ''} "
            f"| {counts[version]} | {len(each) - counts[version]} |"
            for version, each in found.items()
        ),
        "",
        "A version is asked of the types that it has.",
        "",
        *([f"| differs | {' | '.join(found)} |", f"|---|{'---|' * len(found)}", *rows] if rows else ["None differs."]),
    ]) + "\n"  # fmt: skip


def in_words(found: Found) -> str:
    """How a type is served, and why not otherwise."""
    way = " and ".join(found.served) or ("served" if found.is_served else "refused")
    return f"{way}: {found.why}" if found.why else way


def commit() -> str:
    """The commit that is run."""
    ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def page_of(found: Sequence[Found]) -> str:
    """Write the page."""
    both = [each for each in found if len(each.served) == len(WAYS)]
    one = [each for each in found if len(each.served) == 1]
    replaced = [each for each in found if each.why == REPLACED_ONES]
    tables = [each for each in found if each.why in (GROWN_ONES, STRETCHED_ONES)]
    others = [each for each in found if not each.is_served]
    proven = [*both, *one]
    slow = sorted((each.seconds, each.model_type) for each in proven)[::-1][:3]
    asked = sorted((each for each in (*proven, *replaced, *tables) if each.checked), key=lambda each: each.model_type)
    lines = [
        "# Which model types are served",
        "",
        f"Commit {commit()}, {datetime.now(timezone.utc):%Y-%m-%d}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}; `make sweep-types`, on a CPU.",
        "",
        f"{len(found)} of the {len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)} causal types of transformers. A small random",
        "twin of each class and config is run as stock and as `extend` changes it, under its own scheme: whole,",
        "padded, packed, far from the start, by a cache. Both agree to 1e-5 of the largest output, and the twin",
        "notices a missing rotation, other positions (where it has any) and a missing mask by 1e-2. Types that were",
        "listed before there was a proof are asked for the same one. A type is tried with its default config, or with",
        "ordinary sizes where that gives no model; a model with another config is proven again when it is extended.",
        "",
        "| | types |",
        "|---|---:|",
        f"| **served** | **{len(proven) + len(replaced) + len(tables)}** |",
        f"| proven through both ways (cosines alone, or attention) | {len(both)} |",
        f"| proven through one | {len(one)} |",
        f"| attention modules replaced by ours, tested type by type | {len(replaced)} |",
        f"| learned tables grown, buckets stretched | {len(tables)} |",
        f"| not served, refused by name | {len(others)} |",
        "",
        f"The slowest proofs took {', '.join(f'{seconds:.1f} s ({name})' for seconds, name in slow)} of CPU time, on a",
        "machine of two cores that ran other work.",
        "",
        f"**Both ways**: {', '.join(named(each) for each in both)}.",
        "",
        f"**Replaced**: {', '.join(each.model_type for each in replaced)}. "
        f"**Tables and buckets**: {', '.join(each.model_type for each in tables)}.",
        "",
        "Bold types are served by proof alone; the others were listed.",
        "",
        "| through one | which | why not the other |",
        "|---|---|---|",
        *(f"| {named(each)} | {each.served[0]} | {each.why} |" for each in one),
        "",
        *checked_lines(asked),
        "| not served | why |",
        "|---|---|",
        *(f"| {each.model_type} | {each.why} |" for each in others),
    ]
    return "\n".join(lines) + "\n"


def checked_lines(asked: Sequence[Found]) -> list[str]:
    """Return the part of the page about small causal models."""
    if not asked:
        return []
    rows = [[each.checked.get(check, "not run") for check in CHECKS] for each in asked]
    fails = [(each, check, said) for each in asked for check, said in each.checked.items() for said in failed(said)]
    count = [sum(passed(row[n], 3 if check == "methods" else 1) for row in rows) for n, check in enumerate(CHECKS)]
    return [
        "## A small causal model of each",
        "",
        f"{len(asked)} served types: a causal model of each, with the config of its twin (learned tables: two small",
        "layers) and random weights by which it notices positions and amplifies rounding to float32 least: by others",
        "Gemma 4's logits move by 1e-4 when its weights are rounded. Against stock: the largest difference of logits,",
        "as a part of the largest logit, under its own scheme, through every way that is served. At once; padded on",
        "the left; packed by positions; generated by a cache from two prompts, one of them padded; compiled",
        f"(`torch.compile`, backend {BACKEND}, through attention where that is served). Methods: a text by a cache",
        "against the text at once, under three of ReRoPE, YaRN, log-n with a window and kept sinks, Self-Extend, NTK;",
        "YaRN, linear interpolation and NTK where cosines alone are changed; log-n and windows where nothing rotates;",
        "three growths of a learned table. Restored: weights, config and logits are as before, bit for bit.",
        "",
        f"| | {' | '.join(CHECKS)} |",
        f"|---|{'---:|' * len(CHECKS)}",
        f"| **within 1e-5, or yes** | {' | '.join(f'**{each}**' for each in count)} |",
        *(f"| {each.model_type} | {' | '.join(map(in_short, row))} |" for each, row in zip(asked, rows, strict=True)),
        "",
        *([] if not fails else ["| refused, or off | check | what came |", "|---|---|---|"]),
        *(f"| {each.model_type} | {check} | {said} |" for each, check, said in fails),
        "",
    ]


def parts_of(said: str) -> list[str]:
    """Return the results in what came of a check."""
    return [part.rpartition(": ")[2] if part.rpartition(": ")[2][:1].isdigit() else part for part in said.split("; ")]


def failed(said: str) -> list[str]:
    """Return which of the results of a check are not yes, nor within 1e-5."""
    return [] if said == "not run" else [each for each in parts_of(said) if each != "yes" and not within(each)]


def passed(said: str, least: int) -> bool:
    """Whether at least so many results of a check are yes or within 1e-5, and none is off; others may be refused."""
    parts, odd = parts_of(said), failed(said)
    return said != "not run" and len(parts) - len(odd) >= least and all("refused" in each for each in odd)


def in_short(said: str) -> str:
    """A result as a row has it: the largest difference, or that it is not so."""
    parts = parts_of(said)
    numbers = [each for each in parts if each[:1].isdigit()]
    if numbers:
        return max(numbers, key=lambda each: float(each.split(" ")[0]))
    return parts[0].split(", ")[0].split(": ")[-1]


def named(found: Found) -> str:
    """A type, bold where nobody listed it."""
    return found.model_type if found.model_type in KNOWN | REPLACED else f"**{found.model_type}**"


def results_in(path: Path) -> dict[str, Found]:
    """Read results, the last one of each type."""
    lines = (Found(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {each.model_type: each for each in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", help="some of them, with commas")
    parser.add_argument("--proof", action="store_true", help="proofs alone: no small causal model is run")
    parser.add_argument("--compile", type=float, default=30.0, help="minutes in which small models are compiled")
    parser.add_argument("--versions", type=Path, nargs="+", help="results of several versions, to compare on a page")
    parser.add_argument("--every", type=int, default=1, help="every n-th type, drawn by a seed")
    parser.add_argument("--out", type=Path, help="where the page goes")
    parser.add_argument("--results", type=Path, help="where each type's result goes as it comes, a line of JSON each")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if asked.versions:
        pages = [results_in(each) for each in asked.versions]
        versions = {next(iter(each.values())).transformers: each for each in pages}
        asked.out.write_text(versions_page(versions), encoding="utf-8")
        return
    types = asked.types.split(",") if asked.types else sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    types = sorted(random.Random(SEED).sample(types, len(types) // asked.every))
    found: dict[str, Found] = {}
    if asked.results is not None and asked.results.exists():
        found = {name: each for name, each in results_in(asked.results).items() if name in types}

    def keep(each: Found) -> None:
        found[each.model_type] = each
        if asked.results is not None:
            with asked.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(each)) + "\n")
        ways = ", ".join(each.served) or "not served"
        print(f"{each.model_type}: {ways}; {each.why} {each.seconds:.1f} s {each.checked}", flush=True)

    for each in types:
        if each not in found:
            keep(replace(tried(each, not asked.proof), every=asked.every))
    begun = time.monotonic()
    for each in random.Random(SEED).sample(types, len(types)):
        checked = found[each].checked
        if checked and "compiled" not in checked and time.monotonic() - begun < 60 * asked.compile:
            keep(replace(found[each], checked=checked | {"compiled": compiled_of(found[each])}))
    if asked.out is not None:
        asked.out.write_text(page_of([found[each] for each in types]), encoding="utf-8")


if __name__ == "__main__":
    main()
