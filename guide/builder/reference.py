"""The reference: a page for every public name, of its docstring, its picture and its rows of the measured tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache

import torch

import milepost
from guide.builder import store
from guide.builder.pages import picture, unsearched
from guide.builder.running import Shown
from guide.builder.tables import Table, bare, tables, written
from guide.builder.words import WORDS
from milepost import explore
from milepost.catalogue import markdown
from milepost.catalogue.elsewhere import PACKAGES, elsewhere
from milepost.catalogue.find import in_chinese
from milepost.catalogue.groups import FUNCTIONS
from milepost.catalogue.names.chinese import group
from milepost.catalogue.names.spelling import ALSO
from milepost.catalogue.register import first_sentence
from milepost.catalogue.sheet import Sheet, grouped, sheets

SOURCE = "guide/reference.md"
UNEXPLAINED = ("CannotRun", "Bound", "Regime", "Relation", "Table", "Learner")
"""Exports that `milepost methods` does not list: what methods of one's own are made of, and an error."""


@dataclass(frozen=True)
class Beside:
    """What guide/reference.md says of a name: see there."""

    picture: str = ""
    cost: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()
    exports: str = ""
    use: str = ""

    @property
    def code(self) -> str:
        """The code of its picture; empty where there is a reason instead."""
        found = re.fullmatch(r"`(.+)`", self.picture)
        return found[1] if found else ""


@cache
def beside() -> dict[str, Beside]:
    """Return the rows of guide/reference.md, by name."""
    (table,) = tables(SOURCE)
    return {
        name: Beside(pictured, _named(cost), _named(reach), exports, use)
        for name, pictured, cost, reach, exports, use in table.rows
    }


def _named(cell: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in cell.split(";"))))


@cache
def all_sheets() -> tuple[Sheet, ...]:
    """Return the sheet of every public name, milepost's own first."""
    return (*sheets(), *(_plain(name) for name in UNEXPLAINED), *elsewhere())


def _plain(name: str) -> Sheet:
    """Return a sheet of an export that the catalogue leaves out."""
    each = getattr(milepost, name)
    about = inspect.getdoc(each) or ""
    like = next(sheet for sheet in elsewhere() if not sheet.paper)
    return replace(like, name=name, does=first_sentence(about), call=name, arguments=None, about=about, example="")


def is_method(sheet: Sheet) -> bool:
    """True for what has a picture, a cost and a reach: no function."""
    return sheet.group != FUNCTIONS.title


def drawn(name: str) -> Shown | None:
    """Return the picture of a name, from the cache where nothing changed."""
    code = beside()[name].code if name in beside() else ""
    return Shown(**store.made("picture", lambda: asdict(_drawn(code)), code)) if code else None


def _drawn(code: str) -> Shown:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = eval(code, {"mp": milepost, "explore": explore})
        return Shown(svg=found.svg(), says=found.says)


def pages(language: str) -> Iterator[tuple[str, str, Shown | None]]:
    """Yield the file name, the Markdown and the picture of every name."""
    for sheet in all_sheets():
        yield f"{sheet.name}.md", _page(sheet, language), drawn(sheet.name)


def _page(sheet: Sheet, language: str) -> str:
    said = WORDS[language]
    shown = in_chinese(sheet) if language == "zh" else sheet
    text = re.sub(r"^##(#?) ", lambda found: f"#{found[1]} ", markdown.page(shown, language), flags=re.M)
    head, *rest = text.split("\n\n")
    about, facts = _parted(rest, said)
    other = "zh" if language == "en" else "en"
    above = f'<a href="index.html">{said["reference"]}</a> · {group(sheet.group, "", language)[0]}'
    twin = f'<a href="../../{other}/reference/{sheet.name}.html" hreflang="{other}">{said["other"]}</a>'
    parts = [head, f'<p class="about" data-search-exclude>{above} · {twin}</p>']
    parts += [f"{said['also']}{said['comma'].join(called)}{said['stop']}" for called in [_called(sheet.name)] if called]
    # The call and the first sentence are found by the search, the rest is read here.
    brief = 3 if language == "zh" else 2
    parts += [*about[:brief], unsearched("\n\n".join(about[brief:]))] if about[brief:] else about
    if is_method(sheet):
        parts += _pictured(sheet.name, said)
        use = _use(sheet.name, language)
        parts += [f"## {said['use']}", use] if use else []
    parts += facts
    if is_method(sheet) or sheet.name in beside():
        parts += [f"## {said['cost']}", *_cost(sheet.name, said), f"## {said['reach']}", *_reach(sheet.name, said)]
        parts += [f"## {said['exports']}", *_exports(sheet.name, said)]
    # Every page has these; a search is for what a page alone says.
    parts = [f"{each} {{ data-search-exclude }}" if each.startswith("## ") else each for each in parts]
    return re.sub(r"(?<= )(https://[^\s;]+)$", r"<\1>", "\n\n".join(parts), flags=re.M) + "\n"


def _called(name: str) -> list[str]:
    """Return what else a method is called, in both languages."""
    return [word for word, method in ALSO.items() if method == name]


def _parted(blocks: list[str], said: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return what a page of the catalogue says of a name, and the facts that follow."""
    first = next((n for n, each in enumerate(blocks) if each.startswith("- **")), None)
    if first is None:
        first = next((n for n, each in enumerate(blocks) if each.startswith("## ")), len(blocks))
        return blocks[:first], blocks[first:]
    return blocks[:first], [f"## {said['facts']}", *blocks[first:]]


def _pictured(name: str, said: dict[str, str]) -> list[str]:
    shown = drawn(name)
    if shown is None:
        reason = beside()[name].picture if name in beside() else ""
        return [f"{said['no picture']}{reason}{said['stop']}"] if reason else []
    code = beside()[name].code
    return [f"## {said['picture']}", picture(f"../pictures/{name}.svg", shown), f"```python\n{code}\n```"]


@cache
def _uses() -> dict[str, str]:
    """Return what README says each method is for, by name."""
    (table,) = (each for each in tables("README.md") if each.head == ("", "what it does", "use"))
    return {name: row[2] for row in table.rows for name in re.findall(r"`(\w+)`", row[0])}


def _use(name: str, language: str) -> str:
    if language == "zh":
        found = beside().get(name, Beside()).use
        return f"{found}。" if found else ""
    found = _uses().get(name, "")
    return f"{found[:1].upper()}{found[1:]}." if found else ""


def cost_of(name: str) -> list[tuple[Table, tuple[str, ...]]]:
    """Return the rows of docs/speed.md for a name of that page."""
    return _rows_of(name, [each for each in tables("docs/speed.md") if each.section == "Attention"])


def reach_of(name: str) -> list[tuple[Table, tuple[str, ...]]]:
    """Return the rows of docs/results.md for a name of that page."""
    by_length = ("As trained", "RoPE, changed without training")
    judged = [each for each in tables("docs/results.md") if each.section in by_length and "16,384" in each.head]
    return _rows_of(name, [*judged, *(each for each in tables("docs/results.md") if each.section == "Counting")])


def _rows_of(name: str, among: list[Table]) -> list[tuple[Table, tuple[str, ...]]]:
    found = ((table, table.row(name)) for table in among if "peers" not in table.lead)
    return [(table, row) for table, row in found if row is not None]


def exports_of(start: str) -> tuple[Table, tuple[str, ...]] | None:
    """Return README's row whose name begins so."""
    (table,) = (each for each in tables("README.md") if "prefix caching" in each.head)
    return next(((table, row) for row in table.rows if bare(row[0]).startswith(start)), None) if start else None


def _cost(name: str, said: dict[str, str]) -> list[str]:
    found = [pair for each in beside().get(name, Beside()).cost for pair in cost_of(each)]
    if not found:
        return [said["not measured"]]
    made: list[str] = []
    for lead in dict.fromkeys(table.lead for table, _ in found):
        rows = [row for table, row in found if table.lead == lead]
        head = next(table.head for table, _ in found if table.lead == lead)
        made += [f"{lead.rstrip('.')}:", written(head[:6], [row[:6] for row in rows])]
    return [*made, said["speed"]]


def _reach(name: str, said: dict[str, str]) -> list[str]:
    found = [pair for each in beside().get(name, Beside()).reach for pair in reach_of(each)]
    if not found:
        return [said["not measured"]]
    made: list[str] = []
    for section in dict.fromkeys(table.section for table, _ in found):
        rows = [row for table, row in found if table.section == section]
        head = next(table.head for table, _ in found if table.section == section)
        made += [f"{section}:", written(head, rows)]
    return [*made, said["results"]]


def _exports(name: str, said: dict[str, str]) -> list[str]:
    found = exports_of(beside().get(name, Beside()).exports)
    return [said["not run"]] if found is None else [written(found[0].head, [found[1]]), said["exported"]]


def index(language: str) -> str:
    """Return the page that lists every name."""
    said = WORDS[language]
    lines = [f"# {said['reference']}", "", said["reference says"], ""]
    own = [sheet for sheet in all_sheets() if "." not in sheet.name]
    for each, members in grouped(own):
        title, about = group(each.title, each.about, language)
        lines += [
            f"## {title}",
            "",
            f"{about[:1].upper()}{about[1:]}{said['stop']}",
            "",
            *_listed(members, language),
            "",
        ]
    for package in PACKAGES:
        members = [sheet for sheet in all_sheets() if sheet.name.startswith(f"{package}.")]
        lines += [f"## milepost.{package}", "", *_listed(members, language), ""]
    return "\n".join(lines)


def _listed(members: list[Sheet], language: str) -> list[str]:
    return [
        f"- [`{each.name}`]({each.name}.md): {(in_chinese(each) if language == 'zh' else each).does}"
        for each in members
    ]
