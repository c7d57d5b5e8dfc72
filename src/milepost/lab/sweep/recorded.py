"""What a store was last asked for, kept in it: `milepost report` and `milepost diff` need no text and no command."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, cast

from milepost.lab.cells.store import Store
from milepost.lab.judging.scoring import Judging
from milepost.lab.schemes.own import Source
from milepost.lab.sweep.sweep import Sweep
from milepost.lab.text.corpus import Facts, Remembered
from milepost.lab.training.model import Shape
from milepost.lab.training.recipe import Recipe, Size

NOTE = "sweep"


def record(store: Store, sweep: Sweep, command: str) -> None:
    """Keep what is asked for, and by which command."""
    plain = {each.name: getattr(sweep, each.name) for each in fields(sweep)}
    plain |= {"size": asdict(sweep.size), "own": [asdict(each) for each in sweep.own], "recipes": [], "chosen": []}
    plain |= {"judging": None if sweep.judging is None else asdict(sweep.judging)}
    plain |= {"corpus": asdict(sweep.corpus.facts), "command": command}
    store.note(NOTE, plain)


def recorded(store: Store) -> tuple[Sweep, str]:
    """The sweep that a store was last asked for, and the command; found out from its cells where none was kept."""
    plain = store.noted(NOTE)
    if plain is None:
        return _from_cells(store), ""
    size, judging = plain["size"], plain["judging"]
    made: dict[str, Any] = {each.name: _tuples(plain[each.name]) for each in fields(Sweep) if each.name in plain}
    made |= {
        "size": Size(Shape.of(size["shape"]), _recipe(size["recipe"]), size["longest"], size["judged"]),
        "judging": None if judging is None else _judging(judging),
        "corpus": Remembered.of(Facts(**plain["corpus"])),
        "own": tuple(Source(**each) for each in plain["own"]),
    }
    return Sweep(**made), str(plain["command"])


def _from_cells(store: Store) -> Sweep:
    """Return the sweep of the last cell of a store of an earlier version, and of all cells that were made alike."""
    cells = [settings for _, settings in store.cells()]
    if not cells:
        raise ValueError(f"the store {store.path} is empty; milepost compare --out {store.path.parent} fills it")
    last = cells[-1]
    if "on" in last:
        raise ValueError(
            f"the store {store.path} is of an experiment with tasks of its own, and has no report; the script that "
            f"made it prints its table"
        )
    alike = [each for each in cells if all(each[name] == last[name] for name in ("shape", "judging", "corpus"))]
    language = [each for each in alike if not each.get("task")] or alike
    first = language[0]
    judging = _judging(first["judging"])
    rows = [(each["name"], text) for each in language for label, text in each["variants"] if label == text]
    return Sweep(
        schemes=tuple(dict.fromkeys(each["name"] for each in language)),
        size=Size(Shape.of(first["shape"]), _recipe(first["recipe"]), judging.longest, judging.total),
        corpus=Remembered.of(Facts("a text that the store does not name", first["corpus"])),
        seeds=tuple(sorted({each["seed"] for each in language})),
        judging=judging,
        free=any(each["variants"] for each in language),
        threads=first["threads"],
        tasks=tuple(dict.fromkeys(each["task"] for each in alike if each.get("task"))),
        rows=tuple(dict.fromkeys(rows)),
    )


def _recipe(plain: dict[str, Any]) -> Recipe:
    return Recipe(**{each.name: plain[each.name] for each in fields(Recipe) if each.name in plain})


def _judging(plain: dict[str, Any]) -> Judging:
    known = {each.name: _tuples(plain[each.name]) for each in fields(Judging) if each.name in plain}
    return replace(Judging(plain["longest"]), **known)


def _tuples(value: Any) -> Any:
    """Lists, which JSON has in place of tuples, as tuples."""
    return tuple(map(_tuples, cast("list[Any]", value))) if isinstance(value, list) else value
