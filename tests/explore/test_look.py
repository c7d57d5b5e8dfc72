"""Where the heads of a model look, against the attention weights that stock transformers gives."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import milepost as mp

pytest.importorskip("transformers")

from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from milepost import explore
from milepost.hf import extend
from milepost.hf.model.extension import extension_of

DATA = Path(__file__).parents[3] / "shared" / "data"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=24, **more)
    ).eval()


def text(n: int = 40) -> Tensor:
    return torch.randint(0, 50, (n,), generator=torch.Generator().manual_seed(1))


def by_hand(attentions: Any, sinks: int, trained: int | None) -> dict[str, list[list[float]]]:
    """The measures of the last quarter of the queries, one weight at a time."""
    names = ("effective window", "window, sinks apart", "entropy", "sinks", "far keys", "far keys, sinks apart")
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for layer in attentions:
        rows: dict[str, list[float]] = {name: [] for name in found}
        for weights in layer[0].double():
            t = weights.shape[1]
            late = range(t - t // 4, t)
            at = [sum(float(weights[i, i - d]) for i in late if i >= d) for d in range(t)]
            apart = [sum(float(weights[i, i - d]) for i in late if i - d >= sinks) for d in range(t)]
            for name, by_distance in (("effective window", at), ("window, sinks apart", apart)):
                held = 0.0
                for d, each in enumerate(by_distance):
                    held += each
                    if held >= 0.9 * sum(by_distance):
                        rows[name].append(d)
                        break
            rows["entropy"].append(-sum(float(w) * math.log2(w) for i in late for w in weights[i] if w > 0) / len(late))
            rows["sinks"].append(sum(float(weights[i, :sinks].sum()) for i in late) / len(late))
            rows["far keys"].append(sum(at[trained:]) / len(late) if trained else 0.0)
            rows["far keys, sinks apart"].append(sum(apart[trained:]) / len(late) if trained else 0.0)
        for name, values in rows.items():
            found[name].append(values)
    return found


@pytest.mark.parametrize("kind", ["llama", "bloom"])
def test_the_measures_are_those_of_stock_attention(kind: str):
    if kind == "llama":
        model, trained = llama(), 24
    else:
        torch.manual_seed(0)
        model, trained = BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)).eval(), None
    found = explore.look(model, text(), sinks=3)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=text()[None], output_attentions=True).attentions
    for name, values in by_hand(attentions, 3, trained).items():
        if not name.startswith("far keys") or trained:
            assert torch.allclose(
                torch.tensor(found[f"{name}, unchanged"]), torch.tensor(values, dtype=torch.float64), atol=1e-5
            )


def first_token_sink(share: float) -> Any:
    """A Llama whose first layer puts about so large a share of the weight on token 0, which every text begins with."""
    model = llama()
    with torch.no_grad():
        attention = model.model.layers[0].self_attn
        attention.q_proj.weight.zero_()
        attention.k_proj.weight.zero_()
        # A bias alone makes q, the embedding of token 0 alone the key: they meet in the slowest pair.
        attention.q_proj.bias = torch.nn.Parameter(torch.zeros(32))
        attention.q_proj.bias.view(4, 8)[:, 3] = 1.0
        model.model.embed_tokens.weight[:, 0] = 0.0
        model.model.embed_tokens.weight[49] = 0.0
        model.model.embed_tokens.weight[49, 0] = 1.0
        gain = math.log(share / (1 - share) * 34) * math.sqrt(8) / math.sqrt(32)
        attention.k_proj.weight.view(2, 8, 32)[:, 3, 0] = gain
    return model


def test_a_sink_makes_a_window_of_the_whole_text_and_the_window_apart_from_it_does_not():
    ids = torch.randint(0, 49, (40,), generator=torch.Generator().manual_seed(1))
    ids[0] = 49
    found = explore.look(first_token_sink(0.6), ids, sinks=1)
    assert found["sinks, unchanged"][0] == pytest.approx([0.6] * 4, abs=0.03)
    # Even weights on the other keys: nine tenths of them, and not the token that all the rest is far from.
    assert found["effective window, unchanged"][0].min() >= 30
    assert found["window, sinks apart, unchanged"][0].max() <= 33
    assert (found["window, sinks apart, unchanged"][0] < found["effective window, unchanged"][0]).all()
    # Keys from 24 back on: the sink is among them, and apart from it the few before token 15.
    far, apart = found["far keys, unchanged"][0], found["far keys, sinks apart, unchanged"][0]
    assert (far - apart) == pytest.approx(found["sinks, unchanged"][0], abs=1e-12)
    assert 0.05 < apart.max() < 0.15
    maps = [each.title for each in found.pictures]
    assert "Far keys, sinks apart: unchanged" in maps
    assert "Window, sinks apart: unchanged" in maps
    assert not any(title.startswith("Far keys:") for title in maps)


def test_the_picture_says_of_what_it_is_and_what_its_words_mean():
    found = explore.look(llama(), text(), given=mp.Rerope(8), sinks=3, heads=())
    for said in (
        "LlamaForCausalLM, 2 layers of 4 heads, each key head serves 2 neighbouring query heads, trained at 24 tokens",
        "read: 40 tokens; measured: 10 of the last quarter of its queries",
        "sinks: the first 3 tokens",
        "90 % of a head's weight",
        "far keys: further back than the trained length",
    ):
        assert said in found.settings
    # Three in a line: unchanged, with the method, and what that adds, in two hues that meet at 0.
    titles = [each.title for each in found.pictures]
    assert titles[:3] == [
        "Window, sinks apart: unchanged",
        "Window, sinks apart: with Rerope(8)",
        "Window, sinks apart: difference",
    ]
    # A head with sinks has the whole text as its window, which would be read as looking far.
    assert titles[3:6] == [
        f"Window with sinks (the whole text if > 10 % is on sinks): {each}"
        for each in ("unchanged", "with Rerope(8)", "difference")
    ]
    assert found.settings.endswith("difference: the second map minus the first")
    assert "difference" not in explore.look(llama(), text(), heads=()).settings
    maps: Any = found.pictures
    for before, after, more in zip(maps[::3], maps[1::3], maps[2::3], strict=True):
        assert (more.values == after.values - before.values).all()
        assert more.signed
        assert more.limits[0] == -more.limits[1]
        assert before.limits == after.limits


def test_a_map_that_is_pale_all_over_says_how_much_it_has():
    from milepost.explore.heads import maps_of

    rows = {
        "unchanged": {"sinks": torch.tensor([[0.01, 0.02]]).double().numpy()},
        "with X": {"sinks": torch.tensor([[0.01, 0.9]]).double().numpy()},
    }
    assert [each.title for each in maps_of(rows)] == [
        "Sinks: unchanged (at most 0.02)", "Sinks: with X", "Sinks: difference",
    ]  # fmt: skip


def gpt_oss() -> Any:
    torch.manual_seed(0)
    config = GptOssConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=48, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, sliding_window=64,
    )  # fmt: skip
    return GptOssForCausalLM(config).eval()


def test_weight_on_a_sink_logit_is_not_weight_on_the_first_tokens():
    model = gpt_oss()
    before = explore.look(model, text())
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks += 20.0
    after = explore.look(model, text())
    assert after["sink logit, unchanged"].min() > 0.99 > before["sink logit, unchanged"].max()
    assert after["sinks, unchanged"].max() < 0.01
    assert "0 heads put more than half of it on the first tokens, 8 heads on their sink logit" in after.says
    model.set_attn_implementation("eager")
    seen: list[Tensor] = []
    with torch.no_grad():
        seen += model(input_ids=text()[None], output_attentions=True).attentions
    kept = torch.stack([each[0, :, 30:].double().sum(-1).mean(-1) for each in seen])
    assert torch.allclose(torch.tensor(after["sink logit, unchanged"]), 1 - kept, atol=1e-6)
    # A model without such a logit is not asked for it.
    plain = explore.look(llama(), text())
    assert "sink logit" not in plain.says + "".join(each.name for each in plain.arrays)


def test_the_model_is_left_as_it_was():
    model = llama()
    before = model(input_ids=text()[None]).logits
    explore.look(model, text(), given=mp.Rerope(8))
    assert torch.equal(model(input_ids=text()[None]).logits, before)
    assert extension_of(model) is None
    model.train()
    extend(model, mp.Yarn(4, trained=24))
    longer = model(input_ids=text()[None]).logits
    found = explore.look(model, text(), given=[mp.Rerope(8), mp.LogN(24)])
    assert torch.equal(model(input_ids=text()[None]).logits, longer)
    assert model.training
    assert "With Rerope(8), LogN(24), half of the heads" in found.says
    done = extension_of(model)
    assert done is not None
    assert done.through == "rotary"


def test_an_extended_model_is_looked_at_as_it_is():
    model = llama()
    plain = explore.look(model, text())
    changed = explore.look(model, text(), given=mp.Rerope(8))
    extend(model, mp.Rerope(8))
    now = explore.look(model, text())
    names = [name for name in (each.name for each in changed.arrays) if name.startswith("entropy, with")]
    assert (now["entropy, unchanged"] == changed[names[0]]).all()
    assert (now["entropy, unchanged"] != plain["entropy, unchanged"]).any()


def test_scores_by_band_sum_to_the_score():
    model = llama()
    found = explore.look(model, text(), given=mp.Rerope(8), heads=[(1, 2)])
    seen: dict[int, Tensor] = {}

    def see(module: Any, args: Any, kwargs: Any) -> None:
        x = kwargs["hidden_states"]
        q = module.q_proj(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k = module.k_proj(x).unflatten(-1, (2, 8)).transpose(1, 2)
        seen[0] = torch.stack((q[0, 2], k[0, 1]))

    hook = model.model.layers[1].self_attn.register_forward_pre_hook(see, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=text()[None])
    hook.remove()
    q, k = seen[0].double()
    t = len(q)
    bands = sum(
        found[f"score of {name}, layer 1 head 2, unchanged"] for name in ("fast pairs", "middle pairs", "slow pairs")
    )
    angle = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    turned = [
        torch.cat(
            (x[:, :4] * angle.cos() - x[:, 4:] * angle.sin(), x[:, 4:] * angle.cos() + x[:, :4] * angle.sin()), -1
        )
        for x in (q, k)
    ]
    score = turned[0] @ turned[1].T / math.sqrt(8)
    late = range(t - t // 4, t)
    for d in (0, 1, 5, 30):
        rows = [i for i in late if i >= d]
        assert bands[d] == pytest.approx(sum(float(score[i, i - d]) for i in rows) / len(rows), abs=1e-5)


def test_a_layer_of_a_hybrid_is_called_by_its_number_in_the_model():
    kinds = ["conv", "conv", "full_attention", "conv", "full_attention", "full_attention"]
    torch.manual_seed(0)
    config = Lfm2Config(
        **SMALL | {"num_hidden_layers": 6}, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=24,
        layer_types=kinds,
    )  # fmt: skip
    model = Lfm2ForCausalLM(config).eval()
    with torch.no_grad():
        model.model.layers[5].self_attn.q_layernorm.weight.zero_()
    found = explore.look(model, text(), heads=[(2, 0), (5, 1)])
    assert found["layer"].tolist() == [2, 4, 5]
    for pairs in ("fast pairs", "middle pairs", "slow pairs"):
        assert np.nanmax(np.abs(found[f"score of {pairs}, layer 2 head 0, unchanged"])) > 0
        assert np.nanmax(np.abs(found[f"score of {pairs}, layer 5 head 1, unchanged"])) == 0
    assert any("layer 4 head" in each.name for each in explore.look(model, text()).arrays)
    with pytest.raises(IndexError, match="3 layers that attend, 2, 4–5, and layer 3 is not among them"):
        explore.look(model, text(), heads=[(3, 0)])


@pytest.mark.parametrize(("length", "measure"), [(40, "far keys, sinks apart"), (24, "window, sinks apart")])
def test_without_a_head_asked_for_that_of_a_middle_layer_which_looks_furthest_is_drawn(length: int, measure: str):
    found = explore.look(llama(), text(), given=mp.Rerope(8), length=length)
    furthest = int(found[f"{measure}, unchanged"][1].argmax())
    rows = ("unchanged", "with Rerope(8)")
    assert [each.title for each in found.pictures[-2:]] == [f"Layer 1, head {furthest}, {row}" for row in rows]
    asked = explore.look(llama(), text(), given=mp.Rerope(8), length=length, heads=[(1, furthest)])
    assert asked.to_json() == found.to_json()
    # A model that does not rotate has no pairs.
    torch.manual_seed(0)
    bloom = BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)).eval()
    assert not any("score of" in each.name for each in explore.look(bloom, text()).arrays)


def test_the_page_explains_what_is_drawn_and_keeps_three_maps_that_belong_together_in_a_line(tmp_path: Path):
    from milepost.explore.heads import meanings_of
    from milepost.explore.page import write_page

    found = explore.look(llama(), text(), given=mp.Rerope(8))
    assert "sink logit" not in meanings_of(found)
    assert {"queries", "far keys", "sinks", "fast, middle, slow pairs"} <= set(meanings_of(found))
    assert "sink logit" in meanings_of(explore.look(gpt_oss(), text()))
    short = meanings_of(explore.look(llama(), text(24), heads=()))
    assert set(short) == {"queries", "window with sinks", "window, sinks apart", "entropy", "sinks"}
    write_page(found, tmp_path / "look.html", "look", "A model.", meanings_of(found))
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    maps, curves = (each.split("</section>")[0] for each in page.split('<section class="panels')[1:])
    assert maps.startswith(' three"')
    assert maps.count('class="panel"') == 15
    assert curves.startswith('"')
    assert curves.count('class="panel"') == 2
    assert "sink logit" not in page


def test_a_file_that_is_no_text_is_refused_by_what_to_give(tmp_path: Path):
    from milepost.hf.files.read import read_model

    file = tmp_path / "stories260K.bin"
    file.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"is not text; give a config\.json, or the folder of a model") as refused:
        read_model(str(file), "look")
    assert "codec" not in str(refused.value)


def test_what_cannot_be_looked_at_is_refused():
    model = llama()
    for wrong, error, said in (
        ({"heads": [(5, 0)]}, IndexError, "there are 2 layers"),
        ({"heads": [(0, 9)]}, IndexError, "there are 4 heads"),
        ({"length": 99}, ValueError, "the text has 40 tokens"),
        ({"rows": 0}, ValueError, "rows"),
    ):
        with pytest.raises(error, match=said):
            explore.look(model, text(), **wrong)
    with pytest.raises(ValueError, match="at least 8"):
        explore.look(model, text(4))


@pytest.mark.skipif(not (DATA / "stories260K.bin").exists(), reason="shared/data is not there")
def test_a_real_model():
    sys.path.insert(0, str(DATA))
    try:
        loader: Any = __import__("load_llama2c")
    finally:
        sys.path.remove(str(DATA))
    model = loader.build_hf(DATA / "stories260K.bin")
    model = model[0] if isinstance(model, tuple) else model
    words = (DATA / "tinystories.txt").read_text(encoding="utf-8")[:4000]
    ids = torch.tensor(loader.Tok(str(DATA / "tok512.bin"), 512).encode(words))
    found = explore.look(model, ids, length=512)
    window = found["effective window, unchanged"]
    assert window[0].astype(int).tolist() == [73, 250, 55, 60, 54, 4, 55, 33]
    assert window[4].astype(int).tolist() == [128, 101, 134, 116, 179, 71, 46, 65]
    apart = found["window, sinks apart, unchanged"]
    assert (apart <= window).all()
    assert apart[0].astype(int).tolist() == [73, 244, 55, 59, 54, 4, 55, 33]
    assert apart[4].astype(int).tolist() == [126, 88, 132, 115, 172, 65, 46, 65]
    assert found["sinks, unchanged"].max() < 0.2


def test_the_page_is_one_file_and_its_numbers_lie_beside(tmp_path: Path):
    from milepost.explore.page import write_page

    found = explore.look(llama(), text(), heads=[(0, 0)])
    write_page(found, tmp_path / "look.html", "look", "A <tiny> model.")
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert "A &lt;tiny&gt; model." in page
    assert page.count('class="milepost"') == len(found.pictures)
    assert "src=" not in page
    assert set(json.loads(found.to_json())["arrays"]) == {each.name for each in found.arrays}


def test_the_command_writes_a_page_and_refuses_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from typer.testing import CliRunner

    from milepost.cli import app

    words = {str(n): n for n in range(50)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    folder, file, out = tmp_path / "model", tmp_path / "text.txt", tmp_path / "look.html"
    llama().save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="0").save_pretrained(folder)
    file.write_text(" ".join(str(n % 50) for n in range(60)), encoding="utf-8")
    asked = ["look", str(folder), "--text", str(file), "--with", "Rerope(8)", "--head", "1.2", "--out", str(out)]
    done = CliRunner().invoke(app(), asked)
    assert done.exit_code == 0, done.output
    assert "half of the heads" in done.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (
        "score of slow pairs, layer 1 head 2, with Rerope(8)"
        in json.loads(out.with_suffix(".json").read_text("utf-8"))["arrays"]
    )
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were loaded"))
    for wrong, said in (
        (["--head", "9.0"], "there are 2 layers"),
        (["--head", "1.4"], "there are 4 heads"),
        (["--with", "LogN(7)"], "trained at 24 tokens"),
        (["--head", "first"], "give LAYER.HEAD"),
        (["--out", str(tmp_path / "a.txt")], "name a page"),
        (["--with", "Rerop(8)"], "Rerop"),
    ):
        refused = CliRunner().invoke(app(), [*asked, *wrong])
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
        assert "Traceback" not in refused.output


def test_a_folder_without_a_tokenizer_is_refused_in_whole_sentences(tmp_path: Path):
    from milepost.hf.files.read import read_model

    llama().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"there is no tokenizer in it; copy tokenizer\.json and") as refused:
        read_model(str(tmp_path), "look")
    said = str(refused.value)
    assert said.endswith("the model that it was made of")
    assert "(" not in said.removeprefix(f"look {tmp_path}")


def test_weights_that_were_cut_off_are_refused_by_name(tmp_path: Path):
    from milepost.hf.files.from_lab import tokenizer_of_bytes
    from milepost.hf.files.read import read_model

    llama().save_pretrained(tmp_path)
    tokenizer_of_bytes().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="its weights cannot be read, which happens where a download was cut off"):
        read_model(str(tmp_path), "look")


def test_modes_and_the_config_of_the_model_are_left_and_what_is_no_number_shows():
    model = llama().train()
    model.model.layers[0].eval()
    config = model.config
    modes = [each.training for each in model.modules()]
    explore.look(model, text(), given=mp.Rerope(8))
    explore.unseen_angles(model, text(48).repeat(2), length=48, windows=1, bins=4)
    assert [each.training for each in model.modules()] == modes
    assert model.config is config
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[:8] = math.nan
    found = explore.look(model, text())
    window = found["effective window, unchanged"]
    assert torch.tensor(window).isnan().tolist() == [[False] * 4, [True, False, False, False]]
    assert "1 head of layer 1 has weights that are no numbers" in found.says
    # What is left is drawn on its own scale, and what is lost is hatched.
    *maps, curves = found.pictures
    assert all(math.isfinite(limit) for each in maps for limit in each.limits)  # pyright: ignore
    assert ">no numbers<" in found.svg()
    # No head of which nothing can be drawn.
    assert "head 0" not in curves.title
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[:] = math.nan
    assert not any("score of" in each.name for each in explore.look(model, text()).arrays)


def test_a_model_whose_weights_are_no_numbers_is_refused():
    model = llama()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[:] = math.nan
    with pytest.raises(ValueError, match=r"look: no head of this model has attention weights that are numbers: "):
        explore.look(model, text())


def test_distances_that_few_queries_reach_are_not_drawn():
    found = explore.look(llama(), text(400), heads=[(0, 0)], rows=20)
    scores = found["score of slow pairs, layer 0 head 0, unchanged"]
    assert len(scores) == 400
    picture: Any = found.pictures[-1]
    drawn = max(point.x for curve in picture.panel.curves for point in curve.points)
    # Of the queries 300 … 399 that are looked at half see keys 353 back.
    assert drawn == 353


def test_another_thread_is_not_watched():
    from threading import Thread

    from milepost.hf.model.attention import watched

    model, seen = extend(llama(), mp.Rerope(8)), []
    with watched(lambda q, k, v, scheme, options: seen.append(scheme)), torch.no_grad():
        other = Thread(target=lambda: model(input_ids=text()[None]))
        other.start()
        other.join()
        assert not seen
        model(input_ids=text()[None])
    assert len(seen) == 2
