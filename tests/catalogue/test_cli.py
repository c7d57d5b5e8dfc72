"""`milepost methods` in a terminal, in a pipe, as Markdown and as JSON."""

from __future__ import annotations

import io
import json
import re
import runpy
import sys

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import milepost as mp
from milepost.catalogue.elsewhere import elsewhere
from milepost.catalogue.groups import GROUPS
from milepost.catalogue.names.chinese import GROUPS as GROUPS_IN_CHINESE
from milepost.catalogue.names.chinese import LINES
from milepost.catalogue.names.spelling import ALSO, plain
from milepost.catalogue.sheet import sheets
from milepost.cli import app, main

SHEETS = sheets()
NAMES = [sheet.name for sheet in SHEETS]


def run(*words: str, columns: int = 80, **around: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(app(), list(words), env={"COLUMNS": str(columns), **around})
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def refused(*words: str) -> str:
    """What the command says where it ends with 2."""
    done = CliRunner().invoke(app(), list(words))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


# The table


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160, 240])
def test_the_table_keeps_to_the_width_and_loses_no_word(columns: int):
    printed = run("methods", columns=columns)
    assert max(map(len, printed.splitlines())) <= columns
    shown = set(printed.split())
    for sheet in SHEETS:
        assert {sheet.name, *sheet.verbs, *sheet.does.split(), *sheet.formula.split()} <= shown, sheet.name


def test_a_terminal_of_110_columns_has_room_for_papers_and_one_of_150_for_everything():
    papers = {word for sheet in SHEETS for word in sheet.paper.split()}
    assert not papers <= set(run("methods", columns=109).split())
    assert papers <= set(run("methods", columns=110).split())
    heads = {"paper", "relative", "learned", "backends"}
    assert not heads <= set(run("methods", columns=149).splitlines()[1].split())
    assert heads <= set(run("methods", columns=150).splitlines()[1].split())


def test_a_narrow_table_says_how_to_see_the_rest():
    assert " ".join(run("methods", columns=80).split()).endswith(
        "milepost methods NAME shows one in full, with an example; --markdown and --json list what a wider terminal "
        "shows."
    )


def test_the_groups_follow_the_equation():
    printed = run("methods")
    heads = [line.split(" · ")[0] for line in printed.splitlines() if not line.startswith(" ") and " · " in line]
    assert heads == [group.title for group in GROUPS]
    assert heads == [
        "Input", "Turns", "Stretches of RoPE", "Relations", "Biases", "Stretches of ALiBi", "Counting", "Places",
        "Scale and softmax", "No position", "Visible", "Samplers", "Functions",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("Learned", "Input"), ("Rope", "Turns"), ("Yarn", "Stretches of RoPE"), ("TransformerXL", "Relations"),
        ("Deberta", "Relations"), ("SplitAlibi", "Biases"), ("AlibiNtk", "Stretches of ALiBi"), ("Cope", "Counting"),
        ("Stream", "Places"), ("LogN", "Scale and softmax"), ("SinkLogit", "Scale and softmax"),
        ("Nope", "No position"), ("window", "Visible"), ("Pose", "Samplers"), ("linear_attend", "Functions"),
    ],
)  # fmt: skip
def test_a_method_stands_in_the_group_of_its_seam(name: str, group: str):
    assert {sheet.name: sheet.group for sheet in SHEETS}[name] == group


def test_a_row_says_what_it_should():
    (line,) = [line for line in run("methods", columns=300).splitlines() if re.match(r"  Shaw ", line)]
    cells = re.split(r" {2,}", line.strip())
    assert cells == [
        "Shaw", "relate", "Add to every key, and to every value, a vector that depends on how far away it is.",
        "Shaw et al., 2018,", "yes", "key_table,", "all but",
    ]  # fmt: skip


# Colours


def test_a_pipe_gets_no_colours():
    assert "\x1b" not in run("methods") + run("methods", "Alibi")


def test_a_terminal_gets_colours_unless_told_otherwise():
    coloured = r"\x1b\[[0-9;]*3[0-7]"
    assert re.search(coloured, run("methods", FORCE_COLOR="1", TERM="xterm"))
    plain = run("methods", FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert "\x1b[1m" in plain
    assert not re.search(coloured, plain)


# Choosing


@pytest.mark.parametrize("verb", ["turn", "place", "bend_rows", "slopes", "sample", "see"])
def test_a_verb_chooses_those_that_answer_it(verb: str):
    listed = json.loads(run("methods", "--verb", verb.upper(), "--json"))
    assert [each["name"] for each in listed] == [sheet.name for sheet in SHEETS if verb in sheet.verbs]
    assert listed


def test_an_unknown_verb():
    assert refused("methods", "--verb", "trun") == (
        "milepost: methods --verb trun: unknown verb; the verbs are embed, turn, frequencies, magnitude, relate, "
        "bend, slopes, bend_rows, place, scale, sharpen, rest, see, sample; did you mean turn?\n"
    )


def test_an_unknown_name():
    assert refused("methods", "alibbi") == (
        "milepost: methods alibbi: unknown method 'alibbi'; `milepost methods` lists all; did you mean Alibi "
        "or AlibiNtk or SplitAlibi?\n"
    )
    assert refused("methods", "T5B").endswith("; did you mean T5Bias?\n")
    assert refused("methods", "xyzzy").endswith("lists all\n")


def test_what_cannot_be_asked_together():
    assert refused("methods", "Rope", "--verb", "turn") == (
        "milepost: methods Rope --verb turn: a verb filters the list; leave out the name or the verb\n"
    )
    assert refused("methods", "--json", "--markdown") == (
        "milepost: methods --markdown --json: two formats; leave one out\n"
    )


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (["RoPE", "rope", "Rope", "rotary"], "Rope"),
        (["ALiBi", "alibi", "ALIBI"], "Alibi"),
        (["T5", "t5", "t5_bias", "T5Bias", "T5's bias"], "T5Bias"),
        (["KERPLE", "kerple"], "Kerple"),
        (["FIRE", "fire"], "Fire"),
        (["CoPE", "cope"], "Cope"),
        (["xPos", "xpos", "XPOS"], "Xpos"),
        (["NoPE", "nope"], "Nope"),
        (["YaRN", "yarn"], "Yarn"),
        (["self-extend", "Self-Extend"], "SelfExtend"),
        (["SoftMax₁", "softmax1", "softmax-one"], "SoftmaxOne"),
        (["StreamingLLM", "streaming"], "Stream"),
        (["Dual chunk attention"], "DualChunk"),
        (["HWFA"], "hwfa"),
        (["线性内插", "PI", "位置内插"], "Interpolate"),
        (["XLNet", "xlnet式"], "TransformerXL"),
        (["BLOOM", "Baichuan", "百川"], "Alibi"),
        (["融合式"], "FusedRope"),
        (["层次分解"], "Hierarchical"),
        (["Su", "RoFormer", "旋转位置编码"], "Rope"),
        (["NBCE", "hf.nbce", "朴素贝叶斯"], "hf.nbce"),
        (["MemWalker"], "hf.MemWalker"),
        (["extend"], "hf.extend"),
    ],
)
def test_a_name_may_be_spelled_as_people_do(names: list[str], method: str):
    for name in names:
        assert run("methods", name).splitlines()[0].split(",")[0] == method, name


def test_what_the_field_says_besides_names_a_method_and_takes_no_name_away():
    assert set(ALSO.values()) <= {*NAMES, *(sheet.name for sheet in elsewhere())}
    own = {plain(word) for sheet in [*SHEETS, *elsewhere()] for word in (sheet.name, sheet.title) if word}
    assert not {plain(word) for word in ALSO} & own


def test_what_needs_transformers_has_a_page_without_it():
    printed = run("methods", "NBCE")
    assert printed.splitlines()[1].startswith("hf.nbce(model: Any, contexts: Sequence[object], ")
    assert "Su, 2023, kexue.fm/archives/9617" in printed
    assert printed.endswith("Example\n  from milepost.hf import nbce\n")


@pytest.mark.parametrize("columns", [60, 80, 120, 160])
def test_the_list_in_chinese_has_every_line_and_keeps_to_the_width(columns: int):
    printed = run("methods", "--lang", "zh", columns=columns)
    assert max(map(cell_len, printed.splitlines())) <= columns
    for each in SHEETS:
        assert each.name in printed
    assert "RoPE 的拉伸 · 作为旋转的参数" in printed


def test_no_line_of_chinese_is_left_out():
    printed = run("methods", "--lang", "zh", "--markdown")
    assert all(f"| `{each.name}` | {LINES[each.name]} |" in printed for each in SHEETS)


def test_every_method_and_function_has_a_line_of_chinese_and_no_line_is_left_over():
    named = {*NAMES, *(sheet.name for sheet in elsewhere() if sheet.name.startswith("hf."))}
    assert set(LINES) == named
    assert set(GROUPS_IN_CHINESE) == {group.title for group in GROUPS}
    for name, line in LINES.items():
        assert re.search("[\u4e00-\u9fff]", line), name
        assert line.endswith("。"), name
        assert not re.search("[\u4e00-\u9fff] +[\u4e00-\u9fff]|[\u4e00-\u9fff][,;:?!]", line), name


def test_a_page_in_chinese():
    printed = run("methods", "线性内插", "--lang", "zh")
    assert "线性内插（PI）：所有频率除以同一个倍数，等于把位置按比例压缩。" in printed
    assert "\n怎样组合\n" in printed
    assert run("methods", "Rope", "--markdown", "--lang", "zh").splitlines()[6] == LINES["Rope"]
    assert "| 方法 | 做什么 |" in run("methods", "--markdown", "--lang", "zh")
    assert refused("methods", "--lang", "de") == "milepost: methods --lang de: give en or zh\n"


# Other forms


def test_markdown_holds_every_row_and_every_column():
    printed = run("methods", "--markdown")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in printed.splitlines() if line.startswith("| `")]
    assert [row[0].strip(" `") for row in rows] == NAMES
    assert {len(row) for row in rows} == {9}
    assert {row[0].strip(" `"): row[3].strip() for row in rows}["Stream"] == "`bounds`, `normal`"
    assert "`score ← score − slope_h · \\|p − r\\|; slope_h = 2^(−bias_max · e_h/c), c = 2^⌊log2 heads⌋, " in printed
    assert "[Su et al., 2021, arXiv:2104.09864](https://arxiv.org/abs/2104.09864)" in printed


def test_json_holds_every_field():
    listed = json.loads(run("methods", "--json"))
    assert [each["name"] for each in listed] == NAMES
    (kerple,) = [each for each in listed if each["name"] == "Kerple"]
    assert kerple["learned"] == {"p": [8], "a": [8]}
    assert kerple["refusals"]["sdpa"] == "modifies the scores, for which it needs an n × n mask"
    assert kerple["arguments"] == ["heads: int", "*", 'form: "log" | "power" = "log"']
    assert json.loads(run("methods", "kerple", "--json")) == kerple


# How it is called


def test_without_typer_or_rich_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == (
        "milepost: the command line needs rich, which is not installed: pip install 'milepost[cli]', or in a checkout "
        "pip install '.[cli]'"
    )
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match="needs typer and rich, which are not installed"):
        main()


@pytest.mark.parametrize("words", [["--version"], ["--version", "methods"]])
def test_the_version_is_that_of_the_package(words: list[str]):
    assert run(*words) == f"milepost {mp.__version__}\n"


def test_the_package_itself_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["milepost", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("milepost", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: milepost [OPTIONS] COMMAND")


def test_a_stream_that_cannot_take_greek_gets_escapes(monkeypatch: pytest.MonkeyPatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["milepost", "methods", "SoftmaxOne"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    stream.flush()
    assert b"\\u03a3_j e^score_ij" in stream.buffer.getvalue()  # pyright: ignore


def test_the_list_of_functions_is_what_else_is_exported():
    functions = {sheet.name for sheet in SHEETS if sheet.group == "Functions"}
    assert {"attend", "explain", "Cache", "Scheme", "Schedule", "hwfa", "linear_attend", "MaskDecoder"} <= functions
    assert not functions & {"CannotRun", "Regime", "Relation", "Table", "register", "methods.rope"}
    assert all(hasattr(mp, name) for name in functions)
