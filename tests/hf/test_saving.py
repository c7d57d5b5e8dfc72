"""What is saved: a folder that stock transformers reads as the same model, or refuses by naming milepost."""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BloomForCausalLM,
    LlamaForCausalLM,
    PreTrainedModel,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

import milepost as mp
from milepost.configs.falcon_slopes import FalconSlopes
from milepost.hf import extend, load, plan, restore, save
from milepost.hf.model.extension import extension_of
from tests.hf.test_buckets import tiny as bucketed
from tests.hf.tiny import SMALL, tiny, tokens
from tests.sweeps.saved import OTHERS, TYPES, methods, model_of, outcomes

CLOSE = 1e-5
T5 = {"vocab_size": 48, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
LONG = tokens(2, 96)
"""Texts past the trained length of 64."""
STRETCHES = {
    "linear": mp.Interpolate(4.0),
    "dynamic": mp.DynamicNtk(64, factor=2.0),
    "yarn": mp.Yarn(4, trained=64),
    "llama3": mp.Llama3(4.0, 64),
    "longrope": mp.LongRope((1.0,) * 4, (1.0, 1.5, 2.0, 4.0), trained=64, factor=4.0),
    "default": mp.Ntk(4.0),
}


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def difference(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


def written_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


# Without milepost

FIXED = [
    ("phi3", "Yarn"), ("phi3", "NtkMixed"), ("phi3", "DynamicNtk"), ("phi3", "LogN"),
    ("gemma3_text", "Yarn, not truncated"), ("olmo3", "Yarn, not truncated"), ("llama", "ByParts"),
    ("bloom", "AlibiNtk"), ("gptj", "Yarn"), ("llama", "Rerope"),
]  # fmt: skip
"""Once read as the old model, off by 0.2 to 1, or not saved; the last three and two of phi3 are refused now."""


@pytest.mark.slow
def test_stock_transformers_gives_the_same_logits_or_names_milepost():
    """`make sweep-saved` tries all model types under all methods; here are some, the others by chance."""
    seed = int(os.environ["MILEPOST_SEED"])
    names = list(methods(model_of("llama")))
    drawn = [(kind, name) for kind in TYPES for name in names if (kind, name) not in FIXED]
    found = outcomes(sorted({*FIXED, *random.Random(seed).sample(drawn, 6)}))
    wrong = [str(each) for each in found if each.kind == "wrong"]
    assert not wrong, f"MILEPOST_SEED={seed}: {wrong}"
    refused = {(each.model_type, each.method) for each in found if each.kind == "names milepost"}
    assert refused & {*FIXED} == {("phi3", "DynamicNtk"), ("phi3", "LogN"), *FIXED[-3:]}


def test_the_sweep_has_every_method():
    inside = {name for given in methods(model_of("llama")).values() for part in given for name in classes(part)}
    assert {each.name for each in mp.methods()} - inside == OTHERS


def classes(part: object) -> set[str]:
    """What a part is made of."""
    parts = part.parts if isinstance(part, mp.Scheme) else [getattr(part, name, None) for name in ("method", "stretch")]
    return {type(part).__name__}.union(*(classes(each) for each in parts if each is not None))


def test_one_module_writes_rope_parameters():
    """One owner: no other file makes a dict with a rope type in it, or sets one, but that of the marks."""
    source = Path(mp.__file__).parent
    trees = {str(file.relative_to(source)): ast.parse(file.read_text()) for file in source.rglob("*.py")}
    assert {name for name, tree in trees.items() if writes(tree, ast.Constant)} == {"hf/config/rope_parameters.py"}
    assert {name for name, tree in trees.items() if writes(tree, ast.Name)} == {"configs/stored.py"}


def writes(tree: ast.AST, kind: type[ast.expr]) -> bool:
    """Whether a file makes rope settings: {"rope_type": …}, dict(rope_type=…) or settings["rope_type"] = …"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Call):
            pairs = [(each.arg, each.value) for each in node.keywords]
        elif isinstance(node, ast.Assign):
            at = [each.slice for each in node.targets if isinstance(each, ast.Subscript)]
            pairs = [(getattr(each, "value", None), node.value) for each in at]
        else:
            continue
        if any(key == "rope_type" and isinstance(value, kind) for key, value in pairs):
            return True
    return False


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
@pytest.mark.parametrize("rope_type", STRETCHES)
def test_a_stretch_is_written_as_the_rope_type_that_transformers_has(rope_type: str, model_type: str, tmp_path: Path):
    model = tiny(model_type)
    plain = model(LONG).logits
    ours = extend(model, STRETCHES[rope_type])(LONG).logits
    assert difference(ours, plain) > 1e-3
    model.save_pretrained(tmp_path)
    written = written_in(tmp_path)["rope_parameters"]
    assert written.get("full_attention", written)["rope_type"] == rope_type
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(stock.model.rotary_emb).__module__.startswith("transformers.")
    assert difference(stock.eval()(LONG).logits, ours) < CLOSE


def test_plan_and_extend_write_the_same():
    model = tiny("llama")
    for name in ("interpolation, fixed", "NTK", "NTK, mixed", "dynamic NTK", "by parts", "YaRN", "Llama 3", "LongRoPE"):
        candidate = plan(restore(model), 256)[name]
        extend(model, *candidate.parts)
        assert {key: getattr(model.config, key) for key in candidate.config} == candidate.config, name


def test_another_original_length_of_phi3_is_written_twice(tmp_path: Path):
    # transformers lets the one outside the rope settings win.
    model = tiny("phi3", original_max_position_embeddings=32)
    ours = extend(model, mp.LongRope((1.0,) * 4, (1.0, 1.5, 2.0, 4.0), trained=64, factor=4.0))(LONG).logits
    model.save_pretrained(tmp_path)
    assert difference(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(LONG).logits, ours) < CLOSE
    assert restore(model).config.original_max_position_embeddings == 32


def test_what_stock_reads_otherwise_is_never_written(monkeypatch: pytest.MonkeyPatch):
    """The rotary module of transformers is asked, so that a quirk that nobody knows of leads to a refusal."""
    model = tiny("llama")
    module = type(model.model.rotary_emb)
    inner = module.forward
    quirk = {"default": 1.0, "yarn": 1.001}
    monkeypatch.setattr(
        module, "forward", lambda self, x, p: tuple(quirk[self.rope_type] * each for each in inner(self, x, p))
    )
    extend(model, mp.Yarn(4, trained=64))
    assert model.config.to_dict()["rope_parameters"]["rope_type"] == "read this folder with milepost.hf.load"


def test_a_scheme_that_leaves_the_rotation_out_is_not_written_as_one_that_has_it(tmp_path: Path):
    model = extend(tiny("llama"), mp.Scheme(mp.causal))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="milepost"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_deepseek_keeps_its_temperature(tmp_path: Path):
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    model = tiny("deepseek_v3", rope_parameters=yarn | {"mscale": 1.0, "mscale_all_dim": 0.7})
    rope = mp.Scheme.of(model).parts[0].method
    for number, part in enumerate(
        (mp.Rope(rope.head_dim, theta=2e4, pairs=rope.pairs), mp.Rope(rope.head_dim, pairs=rope.pairs))
    ):
        stretch = (mp.NtkMixed(4.0), None)[number]
        given = mp.Partial(
            mp.Rope(part.head_dim, theta=part.theta, pairs=part.pairs, stretch=stretch),
            of=mp.Scheme.of(model).parts[0].of,
        )
        ours = extend(model, given)(LONG).logits
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        assert difference(AutoModelForCausalLM.from_pretrained(folder).eval()(LONG).logits, ours) < CLOSE
        restore(model)


# Refused by name


def test_the_error_of_stock_transformers_is_a_sentence_and_the_word_it_was_before_is_read(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(8))
    save(model, tmp_path)
    for given, error in (({}, ValueError), ({"attn_implementation": "eager"}, KeyError)):
        with pytest.raises(error, match=r"read this folder with milepost\.hf\.load"):
            AutoModelForCausalLM.from_pretrained(tmp_path, **given)
    text = (tmp_path / "config.json").read_text()
    assert text.count("read this folder with ") == 2
    (tmp_path / "config.json").write_text(text.replace("read this folder with ", ""))
    assert difference(load(tmp_path)(LONG).logits, model(LONG).logits) < CLOSE
    assert mp.Schedule.of(tmp_path).same_as(mp.Schedule.of(model))


def test_every_way_to_write_a_config_names_milepost(tmp_path: Path):
    for number, (model_type, part) in enumerate((("llama", mp.Rerope(8)), ("bloom", mp.LogN(64)))):
        model = extend(tiny(model_type), part)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(model.config)))
        for way, config in enumerate((model.config, copy.deepcopy(model).config, twin)):
            folder = tmp_path / f"{number}-{way}"
            model.save_pretrained(folder)
            config.save_pretrained(folder)
            with pytest.raises((KeyError, ValueError), match="milepost"):
                AutoModelForCausalLM.from_pretrained(folder)
            (folder / "config.json").write_text(json.dumps(config.to_dict()))
            with pytest.raises((KeyError, ValueError), match="milepost"):
                AutoModelForCausalLM.from_pretrained(folder)
        assert type(restore(model).config) is type(tiny(model_type).config)


def test_a_class_that_is_called_by_its_name_refuses_too(tmp_path: Path):
    extend(tiny("bloom"), mp.AlibiNtk(4.0)).save_pretrained(tmp_path)
    # The attention that a caller names takes the place of the one that is stored.
    for options in ({}, {"attn_implementation": "eager"}, {"attn_implementation": "sdpa"}):
        with pytest.raises(Exception, match=r"milepost\.hf\.load"):
            BloomForCausalLM.from_pretrained(tmp_path, **options)


OTHER = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize("change", [{"rope_parameters": OTHER}, {"rope_scaling": {"type": "linear", "factor": 2.0}}])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt_neox"])
def test_other_rope_settings_do_not_make_a_stock_model_of_a_folder(
    model_type: str, change: dict[str, Any], tmp_path: Path
):
    model = extend(tiny(model_type), mp.Rerope(8))
    model.save_pretrained(tmp_path)
    if "rope_parameters" in change:
        with pytest.raises(ValueError, match="milepost"):
            AutoModelForCausalLM.from_pretrained(tmp_path, **change)
    edited(tmp_path, **change)
    for read in (AutoModelForCausalLM.from_pretrained, type(model).from_pretrained, load):
        with pytest.raises(ValueError, match="milepost"):
            read(tmp_path)


def test_in_memory_a_config_is_what_transformers_made_of_it():
    model = extend(tiny("bloom"), mp.AlibiNtk(4.0))
    assert model.config.model_type == "bloom"
    model = extend(tiny("phi3"), mp.Rerope(8))
    assert model.config.rope_parameters["rope_type"] == "default"


# What a model has


@pytest.mark.parametrize(
    ("model_type", "given"),
    [("llama", (mp.Pivot(mp.Rerope(16), 64), mp.LogN(64))), ("llama", (mp.Yarn(4, 64),)), ("gptj", (mp.Rerope(16),)),
     ("gemma3_text", (mp.Rerope(16),)), ("gpt_oss", (mp.Rerope(16),)), ("bloom", (mp.AlibiNtk(4.0),))],
)  # fmt: skip
def test_a_model_a_config_and_a_folder_answer_what_the_model_does(
    model_type: str, given: tuple[object, ...], tmp_path: Path
):
    model = tiny(model_type)
    before = mp.Schedule.of(model)
    now = extension_of(extend(model, *given)).schedule
    model.save_pretrained(tmp_path)
    for each in (model, model.config, tmp_path, str(tmp_path), tmp_path / "config.json", written_in(tmp_path),
                 load(tmp_path)):  # fmt: skip
        assert mp.Schedule.of(each).same_as(now)
        assert mp.Scheme.of(each, layer=1).same_as(now[1])
        assert mp.Schedule.of(each).trained == before.trained
        assert mp.Scheme.of(each).trained == before[0].trained
        assert plan(each, 1024, trained=64).extension == repr(now)
        assert type(given[0]).__name__ in str(plan(each, 1024, trained=64)).replace("\n", "")
    assert mp.Schedule.of(restore(model)).same_as(before)
    assert plan(model, 1024, trained=64).extension == ""


def test_the_rotation_of_an_extended_model(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rope(8, theta=5e5), mp.Rerope(16))
    save(model, tmp_path)
    for each in (model, tmp_path):
        assert mp.Rope.of(each) == mp.Rope.of(each, layer=1) == mp.Rope(8, theta=5e5)
    config = AutoConfig.from_pretrained(tmp_path)
    assert mp.Scheme.of(config).same_as(mp.Scheme.of(model))


BUILDS: dict[str, Callable[[Any, Path], Any]] = {
    "class": lambda model, _: type(model)(model.config),
    "inner class": lambda model, _: type(model.base_model)(model.config),
    "copy": lambda model, _: type(model)(pickle.loads(pickle.dumps(copy.deepcopy(model.config)))),
    "from_config": lambda model, _: type(model)._from_config(model.config),
    "from_pretrained": lambda model, folder: type(model).from_pretrained(folder, config=model.config),
}


@pytest.mark.parametrize("way", BUILDS)
@pytest.mark.parametrize(
    ("model_type", "part"),
    [("bloom", mp.AlibiNtk(4.0)), ("llama", mp.Rerope(8)), ("falcon", mp.Rerope(8)), ("t5", mp.LogN(64))],
)
def test_a_model_built_from_the_config_of_an_extended_one_is_refused(
    model_type: str, part: Any, way: str, tmp_path: Path
):
    model = T5ForConditionalGeneration(AutoConfig.for_model("t5", **T5)) if model_type == "t5" else tiny(model_type)
    model.save_pretrained(tmp_path)
    extend(model, part)
    with pytest.raises(ValueError, match=r"would be built without the extension that this config stores"):
        BUILDS[way](model, tmp_path)
    copy.deepcopy(model)
    BUILDS[way](restore(model), tmp_path)


class Reward(PreTrainedModel):
    """A value head on a model."""

    def __init__(self, model: Any, config: Any = None) -> None:
        super().__init__(model.config if config is None else config)
        self.model, self.score = model, nn.Linear(32, 1)
        self.post_init()

    def forward(self, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.score(self.model(tokens, output_hidden_states=True, **options).hidden_states[-1])[..., 0]


class Fresh(PreTrainedModel):
    """Makes the model that it holds of the config."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LlamaForCausalLM(config)


@pytest.mark.parametrize("inner", [lambda reward: reward.model, lambda reward: reward.model.base_model])
@pytest.mark.parametrize(
    ("model_type", "part"), [("bloom", mp.AlibiNtk(4.0)), ("llama", mp.Rerope(8)), ("llama", mp.Yarn(4.0, trained=64))]
)
def test_a_users_own_class_around_what_was_extended_is_saved_as_extended(
    model_type: str, part: Any, inner: Callable[[Any], Any], tmp_path: Path
):
    stock = tiny(model_type)
    stock.config._attn_implementation = "eager"
    reward, beside = Reward(stock), Reward(stock.base_model)
    extend(inner(reward), part)
    for each in (reward, stock, beside):
        each.save_pretrained(tmp_path)
        assert written_in(tmp_path)["milepost"] == each.config.milepost
    restore(reward)
    beside.save_pretrained(tmp_path)
    assert "milepost" not in written_in(tmp_path)


class OwnHead(LlamaForCausalLM):
    """Has layers, as what it derives from."""


@pytest.mark.parametrize(
    ("model_type", "given"),
    [("bloom", (mp.AlibiNtk(4.0),)), ("llama", (mp.Rerope(8),)), ("gemma2", (mp.LogN(64),)), ("gptj", (mp.Rerope(8),))],
)
def test_a_users_own_class_holds_an_extended_model(model_type: str, given: tuple[Any, ...], tmp_path: Path):
    model, text = tiny(model_type), tokens(2, 64)
    model.config._attn_implementation = "eager"
    stock = model(text).logits
    extend(model, *given)
    ours, its = model(text).logits, model.config._attn_implementation
    reward = Reward(model).eval()
    value = reward(text)
    assert torch.equal(model(text).logits, ours)
    assert model.config._attn_implementation == its
    assert torch.equal(Reward(model, copy.deepcopy(model.config)).eval().model(text).logits, ours)
    assert torch.equal(copy.deepcopy(reward)(text), value)
    reward.save_pretrained(tmp_path)
    assert written_in(tmp_path)["milepost"] == model.config.milepost
    restore(reward)
    assert torch.equal(model(text).logits, stock)
    extend(reward, *given)
    assert torch.equal(reward(text), value)


@pytest.mark.parametrize(("kind", "named"), [(Fresh, "LlamaForCausalLM"), (OwnHead, "OwnHead")])
def test_a_users_own_class_that_has_layers_is_refused(kind: type[PreTrainedModel], named: str):
    model = extend(tiny("llama"), mp.Rerope(8))
    with pytest.raises(ValueError, match=rf"{named}\(config\) would be built without the extension"):
        kind(model.config)


def test_a_model_whose_config_stores_an_extension_that_it_lacks_is_refused():
    config = copy.deepcopy(tiny("bloom").config)
    config.milepost = extend(tiny("bloom"), mp.AlibiNtk(4.0)).config.milepost
    with pytest.raises(ValueError, match="its config stores an extension by milepost, and the model was built without"):
        mp.Scheme.of(BloomForCausalLM(config))


def test_a_folder_of_version_0_1_is_read(tmp_path: Path):
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    own = mp.Schedule.of(model)
    ours = extend(model, mp.Rerope(8))(LONG).logits
    now = extension_of(model).schedule
    old = {"model_type": "llama", "schedule": now.to_dict(), "through": "attend", "transformers_reads_it": False,
           "config": own.to_dict()}  # fmt: skip
    (tmp_path / "milepost.json").write_text(json.dumps({"milepost": old}))
    assert difference(load(tmp_path).eval()(LONG).logits, ours) < CLOSE
    assert mp.Schedule.of(tmp_path).same_as(now)
    edited(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    for read in (load, mp.Scheme.of):
        with pytest.raises(ValueError, match="was changed after milepost stored an extension in it"):
            read(tmp_path)


def test_falcons_own_slopes_are_stored(tmp_path: Path):
    model = extend(tiny("falcon", alibi=True), mp.AlibiNtk(4.0))
    save(model, tmp_path)
    assert isinstance(mp.Scheme.of(tmp_path).parts[0].stretch, FalconSlopes)


def mixed(turn: Any) -> mp.Schedule:
    return mp.Schedule([mp.Scheme(turn, mp.causal), mp.Scheme(turn, mp.Rerope(8), mp.causal)])


@pytest.mark.parametrize(
    ("model_type", "given"),
    [
        ("llama", mixed(mp.Rope(8))), ("gemma2", mp.Rerope(8)), ("smollm3", mp.Yarn(4.0, trained=64)),
        ("gptj", mixed(mp.Partial(mp.Rope(4, pairs="neighbours"), of=8))),
    ],
)  # fmt: skip
def test_layers_of_different_schemes_that_were_moved_are_not_saved(model_type: str, given: Any, tmp_path: Path):
    model, text = extend(tiny(model_type), given), tokens(2, 48)
    ours = model(text).logits
    parent, name = (model.transformer, "h") if model_type == "gptj" else (model.model, "layers")
    layers = list(getattr(parent, name))
    for moved in (layers[::-1], [layers[0], copy.deepcopy(layers[0])], layers[1:]):
        setattr(parent, name, nn.ModuleList(moved))
        for each in (model, copy.deepcopy(model)):
            each(text, use_cache=False)
            with pytest.raises(RuntimeError, match=r"layers of this \w+ were moved or replaced after extend .*schemes"):
                each.save_pretrained(tmp_path)
            with pytest.raises(RuntimeError, match="were moved or replaced after extend"):
                save(each, tmp_path)
        assert not list(tmp_path.glob("*.safetensors"))
    for n, layer in enumerate(layers[::-1]):
        next(each for each in layer.modules() if "layer_idx" in vars(each)).layer_idx = n
    setattr(parent, name, nn.ModuleList(layers[::-1]))
    with pytest.raises(RuntimeError, match="were moved or replaced after extend"):
        model.state_dict()
    setattr(parent, name, nn.ModuleList(layers))
    for n, layer in enumerate(layers):
        next(each for each in layer.modules() if "layer_idx" in vars(each)).layer_idx = n
    save(model, tmp_path)
    assert difference(load(tmp_path)(text).logits, ours) < CLOSE
    restore(model)
    setattr(parent, name, nn.ModuleList(layers[::-1]))
    model.state_dict()


def test_layers_of_one_scheme_that_were_moved_are_saved(tmp_path: Path):
    model = extend(tiny("llama"), mp.Rerope(8))
    model.model.layers = nn.ModuleList(reversed(list(model.model.layers)))
    save(model, tmp_path)
    assert difference(load(tmp_path)(LONG).logits, model(LONG, use_cache=False).logits) < CLOSE


# Read by milepost


@pytest.mark.parametrize(
    "given",
    [(mp.Pivot(mp.Rerope(8), 64), mp.LogN(64)), (mp.Yarn(4, 64, ramp="paper"),), (mp.DynamicNtk(64),),
     (mp.causal & (mp.window(8) | mp.sinks(2)),)],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "smollm3"])
def test_load_gives_back_what_was_saved(model_type: str, given: tuple[object, ...], tmp_path: Path):
    model = extend(tiny(model_type), *given)
    save(model, tmp_path)
    again = load(tmp_path).eval()
    assert difference(again(LONG).logits, model(LONG).logits) < CLOSE
    assert extension_of(again).through == extension_of(model).through
    assert extension_of(again).schedule.same_as(extension_of(model).schedule)


@pytest.mark.parametrize("sharded", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("part", [mp.Rerope(8), mp.Yarn(4, 64)])
def test_weights_of_an_earlier_save_are_not_read(sharded: tuple[bool, bool], part: object, tmp_path: Path):
    for seed, shards in enumerate(sharded):
        model = extend(tiny("llama", seed=seed, num_hidden_layers=2 - seed), part)
        save(model, tmp_path, **({"max_shard_size": "10KB"} if shards else {}))
        assert difference(load(tmp_path).eval()(LONG).logits, model(LONG).logits) < CLOSE
    if isinstance(part, mp.Yarn):
        assert (
            difference(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(LONG).logits, model(LONG).logits) < CLOSE
        )


def test_two_sets_of_weights_in_a_folder_are_refused(tmp_path: Path):
    for seed, size in enumerate(("5GB", "10KB")):
        extend(tiny("llama", seed=seed), mp.Rerope(8)).save_pretrained(tmp_path, max_shard_size=size)
    with pytest.raises(ValueError, match=r"has model\.safetensors and shards as well, one of which an earlier save"):
        load(tmp_path)


def test_a_copy_saves_itself(tmp_path: Path):
    twin = copy.deepcopy(extend(tiny("llama"), mp.Rerope(8)))
    twin.model.embed_tokens.weight += 1
    twin.save_pretrained(tmp_path)
    assert difference(load(tmp_path).eval()(tokens()).logits, twin(tokens()).logits) < CLOSE


def test_nothing_is_stored_in_a_model_that_was_restored(tmp_path: Path):
    model = tiny("llama")
    before = model.config.to_dict()
    assert restore(extend(model, mp.Rerope(8))).config.to_dict() == before
    model.save_pretrained(tmp_path)
    assert "milepost" not in written_in(tmp_path)


# Trainers warn of much, by release.
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_writes_checkpoints_that_load_reads(tmp_path: Path):
    pytest.importorskip("accelerate")
    model = extend(tiny("llama"), mp.Pivot(mp.Rerope(6), 64))
    data = [{"input_ids": each, "labels": each} for each in tokens(4, 12)]
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    with torch.enable_grad():
        args = TrainingArguments(str(tmp_path), save_steps=1, **options)
        Trainer(model=model, args=args, train_dataset=data).train()
    again = load(tmp_path / "checkpoint-1").eval()
    assert (again(tokens()).logits - model.eval()(tokens()).logits).abs().max() < CLOSE


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no such folder\. Nothing is downloaded"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config\.json, which save writes; it is empty"):
        load(tmp_path)
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="stores no extension, so it is a model without one"):
        load(tmp_path)
    (tmp_path / "milepost.json").write_text("{}")
    with pytest.raises(ValueError, match="what it stores of an extension lacks the schedule"):
        load(tmp_path)
    with pytest.raises(ValueError, match="this model is not extended"):
        save(tiny("llama"), tmp_path)


def edited(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_config_that_disagrees_with_the_weights_is_refused(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    edited(tmp_path, num_hidden_layers=3)
    with pytest.raises(ValueError, match="disagrees with its weights"):
        load(tmp_path)
    edited(tmp_path, num_hidden_layers=2, hidden_size=64, head_dim=8)
    with pytest.raises(ValueError, match="disagrees with its weights"):
        load(tmp_path)


def test_a_config_edited_by_hand_is_noticed(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    edited(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    with pytest.raises(ValueError, match="was changed after milepost stored an extension in it"):
        load(tmp_path)


CONFIGS: dict[str, tuple[str, object, dict[str, Any]]] = {
    "the base, beside a stretch": ("llama", mp.Yarn(4.0, trained=64), {"rope_theta": 777.0}),
    "the base of one layer type": ("olmo3", mp.Yarn(4.0, trained=64), {"full_attention": {"rope_theta": 777.0}}),
    "the base, beside a method": ("qwen3", mp.Rerope(8), {"rope_theta": 777.0}),
    "a window": ("gemma2", mp.Yarn(4.0, trained=64), {"sliding_window": 5}),
    "slopes": ("mpt", mp.AlibiNtk(4.0), {"alibi_bias_max": 4}),
    "buckets": ("t5", mp.LogN(128), {"relative_attention_max_distance": 30}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_edited_after_extend_is_not_saved(name: str, tmp_path: Path):
    kind, part, edit = CONFIGS[name]
    model = extend(bucketed(kind) if kind == "t5" else tiny(kind), part)
    before, state = copy.deepcopy(model.config), torch.random.get_rng_state()
    for key, value in edit.items():
        if hasattr(model.config, key):
            setattr(model.config, key, value)
        elif kind == "mpt":
            setattr(model.config.attn_config, key, value)
        elif isinstance(value, dict):
            model.config.rope_parameters[key].update(value)
        else:
            model.config.rope_parameters[key] = value
    # Of T5, whose stacks have a config each, save alone notices it.
    for write in (save, *([] if kind == "t5" else [type(model).save_pretrained])):
        with pytest.raises(ValueError, match="was changed after milepost stored an extension in it"):
            write(model, tmp_path)
        assert not list(tmp_path.glob("*.safetensors"))
    for key in edit:
        if hasattr(model.config, key):
            setattr(model.config, key, getattr(before, key))
    for key in ("attn_config", "rope_parameters"):
        if hasattr(before, key):
            setattr(model.config, key, getattr(before, key))
    save(model, tmp_path)
    load(tmp_path)
    assert torch.equal(state, torch.random.get_rng_state())


def test_another_config_in_the_place_of_that_which_stores_the_extension_is_not_saved(tmp_path: Path):
    model = tiny("llama")
    config = copy.deepcopy(model.config)
    extend(model, mp.Rerope(8))
    model.config = config
    with pytest.raises(ValueError, match="was replaced by one that stores no extension"):
        save(model, tmp_path)


def test_a_setting_that_no_scheme_reads_may_be_edited(tmp_path: Path):
    model = extend(tiny("llama"), mp.Yarn(4.0, trained=64))
    model.config.eos_token_id, model.config.max_position_embeddings = 5, 512
    model.save_pretrained(tmp_path)
    assert difference(load(tmp_path)(LONG).logits, model(LONG).logits) < CLOSE


def test_pickled_weights_are_not_read(tmp_path: Path):
    save(extend(tiny("llama"), mp.Rerope(8)), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled weights can run code"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("stretch", "longest"),
    [(mp.Yarn(8, 64), 512), (mp.Llama3(8, 64), 512), (mp.Interpolate(8.0), 64), (mp.Ntk(8.0), 512),
     (mp.DynamicNtk(64), 64), (mp.LongRope((1.0,) * 4, (2.0,) * 4, 64, factor=8.0), 512), (mp.NtkMixed(8.0), 512)],
)  # fmt: skip
def test_the_longest_length_is_what_each_rope_type_counts_from(stretch: object, longest: int):
    assert extend(tiny("llama"), stretch).config.max_position_embeddings == longest


def test_restore_gives_the_config_back():
    model = tiny("llama")
    before = model.config.to_dict()
    extend(model, mp.Yarn(4, trained=64))
    assert model.config.max_position_embeddings == 256
    assert model.config.rope_parameters["factor"] == 4.0
    assert restore(model).config.to_dict() == before


# Models inside others


def llava() -> Any:
    vision = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1,
              "num_attention_heads": 4, "image_size": 8, "patch_size": 4}  # fmt: skip
    text = {"model_type": "llama", **SMALL}
    config = AutoConfig.for_model("llava", vision_config=vision, text_config=text, image_token_index=47)
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


INSIDE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
    "causal": (lambda: tiny("llama"), lambda model: model.model, AutoModelForCausalLM),
    "text of images": (llava, lambda model: model.model.language_model, AutoModelForImageTextToText),
    "images": (llava, lambda model: model, AutoModelForImageTextToText),
}


@pytest.mark.parametrize("part", [mp.Rerope(6), mp.Yarn(4, trained=64)], ids=["Rerope", "YaRN"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_model_around_an_extended_one_is_never_read_back_as_stock(name: str, part: Any, tmp_path: Path):
    make, inner, auto = INSIDE[name]
    model, other = make(), make()
    other_inner = type(inner(model))(inner(model).config)
    before = repr(other_inner.config)
    extend(inner(model), part)
    ours = model(input_ids=LONG).logits
    model.save_pretrained(tmp_path)
    if isinstance(part, mp.Yarn):
        assert difference(auto.from_pretrained(tmp_path).eval()(input_ids=LONG).logits, ours) < CLOSE
    else:
        with pytest.raises((KeyError, ValueError), match="milepost"):
            auto.from_pretrained(tmp_path)
    assert difference(load(tmp_path).eval()(input_ids=LONG).logits, ours) < CLOSE
    assert repr(other_inner.config) == before
    restore(inner(model))
    assert torch.equal(model(input_ids=LONG).logits, other(input_ids=LONG).logits)
    model.save_pretrained(tmp_path)
    assert (
        difference(auto.from_pretrained(tmp_path).eval()(input_ids=LONG).logits, other(input_ids=LONG).logits) < CLOSE
    )


def test_what_is_saved_has_the_words_of_vllm_beside_those_of_transformers(tmp_path: Path):
    """vLLM's longrope does not read attention_factor, and would take a temperature of its own without a word."""
    extend(tiny("llama"), mp.NtkMixed(4.0)).save_pretrained(tmp_path / "mixed")
    mixed = json.loads((tmp_path / "mixed" / "config.json").read_text())["rope_parameters"]
    assert mixed["rope_type"] == "longrope"
    assert mixed["short_mscale"] == mixed["long_mscale"] == mixed["attention_factor"] == 1
    extend(tiny("llama"), mp.Yarn(4, trained=64)).save_pretrained(tmp_path / "yarn")
    assert "attn_factor" not in json.loads((tmp_path / "yarn" / "config.json").read_text())["rope_parameters"]
