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
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
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
from milepost.hf.model.proof import EQUAL, demand_proof
from milepost.hf.model.t5 import has_buckets
from milepost.hf.model.tables import table_of
from tests.sweeps.types_checked import COMPILED, checks

WAYS = ("rotary", "attend")
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
    checked: dict[str, str] = field(default_factory=dict[str, str])
    """What came of each check, where the type is served; see `tests/sweeps/types_checked.py`."""

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
    begun = time.process_time()
    if model_type in NOT_READ | NOT_YET:
        return Found(model_type, {"": (NOT_READ | NOT_YET)[model_type]}, 0.0)
    try:
        model = built(model_type)
    except Exception as error:
        return Found(model_type, {"": f"no model of it could be built: {type(error).__name__}: {error}"}, 0.0)
    assert changed_by(model) is None
    if table_of(model) is not None:
        return Found(model_type, {"": "its learned table is grown"}, 0.0)
    if has_buckets(model):
        return Found(model_type, {"": "its buckets are stretched"}, 0.0)
    try:
        layers = layers_of(model)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return Found(model_type, {"": f"{kind}{error}"}, 0.0)
    if layers.places:
        return Found(model_type, {"": "its attention modules are replaced by ours"}, 0.0)
    ways: dict[str, str] = {}
    for way in WAYS:
        try:
            demand_way(layers, way)
            demand_proof(layers, way, by_itself)
            ways[way] = ""
        except ValueError as error:
            ways[way] = str(error)
    seconds = time.process_time() - begun
    served = [way for way, why in ways.items() if not why]
    checked = checks(layers, served, model_type in COMPILED) if served and check else {}
    return Found(model_type, ways, seconds, checked)


def page_of(found: Sequence[Found]) -> str:
    """Write the page."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    both = [each for each in found if len(each.served) == len(WAYS)]
    one = [each for each in found if len(each.served) == 1]
    replaced = [each for each in found if "replaced by ours" in each.why]
    tables = [each for each in found if "is grown" in each.why or "are stretched" in each.why]
    others = [each for each in found if each not in (*both, *one, *replaced, *tables)]
    proven = [*both, *one]
    slow = sorted((each.seconds / len(WAYS), each.model_type) for each in proven)[::-1][:3]
    asked = [each for each in proven if each.checked and "no causal model" not in each.checked["logits"]]
    lines = [
        "# Which model types are served",
        "",
        f"Commit {commit.stdout.strip()}, {datetime.now(timezone.utc):%Y-%m-%d}, torch {torch.__version__}, "
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
        f"The slowest proofs took {', '.join(f'{seconds:.1f} s ({name})' for seconds, name in slow)} of one core.",
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
    fails = [(each, check, said) for each in asked for check, said in each.checked.items() if not passed(said)]
    most = {check: max(number(each.checked[check]) for each in asked) for check in ("logits", "padded", "packed")}
    compiled = [each.model_type for each in asked if "compiled" in each.checked]
    return [
        "## A small causal model of each",
        "",
        f"{len(asked)} served types, each with a causal model of its twin's config: logits under its own scheme",
        "through every way that is served, against stock's, of the largest (at once, padded on the left, packed",
        "by positions); what it generates from two prompts, one padded; three methods, a text by a cache against the",
        "text at once; all as before, bit for bit, after `restore`. The methods are ReRoPE, YaRN and log-n with a",
        "window and kept sinks; YaRN, linear interpolation and NTK where only cosines are changed; log-n and windows",
        f"where there are no positions. Types: {', '.join(each.model_type for each in asked)}.",
        f"Compiled besides (`torch.compile`, backend aot_eager): {', '.join(compiled)}.",
        "",
        "| | worst of all |",
        "|---|---:|",
        *(f"| {check} | {off:.1g} |" for check, off in most.items()),
        f"| compiled | {max((number(each.checked.get('compiled', '0')) for each in asked), default=0.0):.1g} |",
        f"| the same tokens generated | {sum(each.checked['generated'] == 'yes' for each in asked)} of {len(asked)} |",
        f"| restored bit for bit | {sum(each.checked['restored'] == 'yes' for each in asked)} of {len(asked)} |",
        "",
        "| what is not as it should be | check | what came |",
        "|---|---|---|",
        *(f"| {each.model_type} | {check} | {said} |" for each, check, said in fails),
        "",
    ]


def number(said: str) -> float:
    """Read how far off something was."""
    return float(said)


def passed(said: str) -> bool:
    """Whether a check came out: yes, or every number within 1e-5."""
    parts = [each.rpartition(": ")[2] for each in said.split("; ")]
    return all(each == "yes" or (each[:1].isdigit() and float(each) <= EQUAL) for each in parts)


def named(found: Found) -> str:
    """A type, bold where nobody listed it."""
    return found.model_type if found.model_type in KNOWN | REPLACED else f"**{found.model_type}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", help="some of them, with commas")
    parser.add_argument("--checked", help="of which of them a small causal model is run; all where it is left out")
    parser.add_argument("--out", type=Path, help="where the page goes")
    parser.add_argument("--results", type=Path, help="where each type's result goes as it comes, a line of JSON each")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    types = asked.types.split(",") if asked.types else sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    done: dict[str, Found] = {}
    if asked.results is not None and asked.results.exists():
        done = {
            each.model_type: each
            for line in asked.results.read_text().splitlines()
            if (each := Found(**json.loads(line)))
        }
    found: list[Found] = []
    for each in types:
        found.append(done.get(each) or tried(each, asked.checked is None or each in asked.checked.split(",")))
        if asked.results is not None and each not in done:
            with asked.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found[-1])) + "\n")
        print(f"{each}: {', '.join(found[-1].served) or 'not served'}; {found[-1].why} {found[-1].checked}", flush=True)
    if asked.out is not None:
        asked.out.write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
