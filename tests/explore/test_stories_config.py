"""The story that reads a config: what it draws, what it refuses, and that it reads nothing but the text."""

from __future__ import annotations

import builtins
import copy
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milepost as mp
from milepost.configs import source
from milepost.explore.controls import NotPossibleError
from milepost.explore.scene import Lines, Scene, Table, plain
from milepost.explore.stories.config import OLMO3 as OLMO3_TEXT
from milepost.explore.stories.config import STORY
from tests.configs.published import ROTARY
from tests.configs.published_others import OTHERS
from tests.explore.test_stories import ran

OLMO3 = json.loads(OLMO3_TEXT)
SEED = int(os.environ["MILEPOST_SEED"])
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def scene_of(config: Any) -> Scene:
    return STORY.scene({"config": config if isinstance(config, str) else json.dumps(config)})


def test_the_config_that_stands_there_is_olmo3s_and_one_layer_in_four_sees_everything():
    assert {key: ROTARY["Olmo-3-7B"].get(key) for key in OLMO3} == OLMO3
    scene = STORY.scene({})
    table, keys = scene.figures[:2]
    assert isinstance(table, Table)
    assert isinstance(keys, Lines)
    assert list(keys.lines[0].values) == ([4096] * 3 + [65_536]) * 8
    assert [row[1] for row in table.rows] == [24, 8]
    assert table.rows[0][2:5:2] == ("Rope(128, theta=500000)", "causal & window(4096)")
    assert str(table.rows[1][3]).startswith("Yarn(8, 8192")
    # The right answer, a quarter of the layers, is what is computed.
    whole = sum(each == 65_536 for each in keys.lines[0].values)
    shares = {"All of them": 1.0, "One in two": 0.5, "One in four": 0.25, "None": 0.0}
    assert shares[STORY.guess.answers[STORY.guess.right].en] == whole / 32
    assert "8 see the whole of 65,536 tokens" in scene.says.en
    assert "trained at 8,192" in scene.says.en
    names = ran(scene.code)
    assert list(names["reach"].values()) == list(keys.lines[0].values)
    assert names["schemes"][3].same_as(mp.Scheme.of(OLMO3, layer=3))


def test_the_clocks_are_those_of_the_stretch():
    table, _, dials = scene_of(LLAMA).figures
    assert isinstance(table, Table)
    assert "Llama3(8" in str(table.rows[0][3])
    turns = 8192 * 500_000.0 ** (-np.arange(64) / 64) / math.tau
    np.testing.assert_allclose([each["seen"] for each in plain(dials)["dials"]], np.minimum(turns, 1), rtol=1e-5)
    slowest = plain(dials)["dials"][-1]
    # An eighth of the rate, over sixteen times the tokens.
    assert slowest["reached"] == pytest.approx(2 * slowest["seen"], rel=1e-5)


def test_linear_layers_are_left_out_and_named_by_their_number():
    config = {
        "model_type": "qwen3_next", "num_hidden_layers": 8, "head_dim": 64, "num_attention_heads": 4,
        "hidden_size": 256, "max_position_embeddings": 4096, "rope_theta": 1e7,
    }  # fmt: skip
    scene = scene_of(config)
    keys = scene.figures[1]
    assert isinstance(keys, Lines)
    assert [layer for layer, each in enumerate(keys.lines[0].values) if math.isfinite(each)] == [3, 7]
    assert "2 of which attend" in scene.says.en


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not json", "not JSON: Expecting value at line 1, column 1"),
        ('"/etc/passwd"', "paste the whole object"),
        ("[1]", "paste the whole object"),
        ("{}", "no model_type"),
        ('{"model_type": "lama"}', "'lama' is not known"),
        ('{"model_type": ["llama"]}', "must be a string"),
        ('{"model_type": "llama"}', "not found; looked for"),
        (json.dumps(LLAMA | {"num_hidden_layers": 10**9}), "at most 256"),
        (json.dumps(LLAMA | {"head_dim": 10**9}), "more than 1,024 channels"),
        (json.dumps(LLAMA | {"rope_scaling": {"rope_type": "yarnn", "factor": 2}}), "yarnn"),
        (json.dumps(LLAMA | {"milepost": {"schedule": {}}}), "stores an extension"),
        ("[" * 15_000, "nested too deeply"),
    ],
)
def test_what_is_no_config_is_refused_by_name(text: str, why: str):
    with pytest.raises(NotPossibleError) as caught:
        scene_of(text)
    assert caught.value.control == "config"
    assert why in caught.value.why.en
    assert any("\u4e00" <= letter <= "\u9fff" for letter in caught.value.why.zh)


def test_no_file_is_read_and_no_code_of_a_config_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    STORY.scene({})
    trap = tmp_path / "config.json"
    trap.write_text(json.dumps(LLAMA))

    def touched(*given: Any, **named: Any) -> Any:
        raise AssertionError(f"something was read: {given}")

    monkeypatch.setattr(source, "from_disk", touched)
    monkeypatch.setattr(builtins, "open", touched)
    monkeypatch.setattr(builtins, "__import__", only_known(builtins.__import__))
    remote = {"auto_map": {"AutoConfig": "evil.Config"}, "_name_or_path": str(trap), "architectures": ["evil.Model"]}
    assert scene_of(LLAMA | remote).says == scene_of(LLAMA).says
    for wrong in (str(trap), json.dumps(str(trap)), json.dumps(LLAMA | {"text_config": str(trap)})):
        with pytest.raises(NotPossibleError):
            scene_of(wrong)


def only_known(load: Any) -> Any:
    def loads(name: str, *given: Any, **named: Any) -> Any:
        assert "evil" not in name
        return load(name, *given, **named)

    return loads


def test_a_table_of_a_config_is_not_filled_however_large_it_is():
    config = {"model_type": "gpt2", "n_embd": 4096, "n_head": 32, "n_layer": 2, "n_positions": 10**9}
    assert "gpt2: 2 layers" in scene_of(config).says.en


PUBLISHED = {f"{n} {name}": each for n, many in enumerate((ROTARY, OTHERS)) for name, each in many.items()}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_drawn(name: str):
    config = PUBLISHED[name]
    scene = scene_of(config)
    keys, table = scene.figures[1], scene.figures[0]
    assert isinstance(keys, Lines)
    assert isinstance(table, Table)
    assert np.nanmin(keys.lines[0].values) > 0
    assert sum(float(row[1]) for row in table.rows) == np.isfinite(keys.lines[0].values).sum()  # pyright: ignore


def broken(config: Any, draw: random.Random) -> Any:
    """A config with one of its values changed to something else."""
    made = copy.deepcopy(config)
    inside = [made, *(each for each in made.values() if isinstance(each, dict) and each)]
    where = draw.choice(inside)
    wrong = [None, 0, -1, 1.5, 10**30, "x", [], {}, True, math.inf, math.nan, [[]], {"a": 1}, "1e999"]
    where[draw.choice(sorted(where))] = draw.choice(wrong)
    return made


def test_broken_configs_are_read_or_refused_by_name():
    draw = random.Random(SEED)
    refused = 0
    for _ in range(150):
        config = broken(draw.choice([OLMO3, LLAMA, ROTARY["gemma-3-4b"], ROTARY["DeepSeek-V3"]]), draw)
        try:
            assert scene_of(config).figures
        except NotPossibleError as error:
            refused += 1
            assert error.control == "config", config
    assert refused
