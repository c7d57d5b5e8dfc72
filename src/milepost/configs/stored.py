"""An extension as config.json stores it, and the marks that make stock transformers refuse what it cannot run.

The key "milepost" of an extended model's config has the scheme of every layer:

    "milepost": {"format": 1, "version": …, "schedule": …, "through": …, "config": …, "transformers_reads_it": …,
                 "marked": …}

format counts the ways in which this was ever written; a later one than this release knows is refused. version is the
release of milepost that wrote it. Folders of 0.2 and before have neither, and are read as format 1. schedule is what
the layers do; config is what the rest of the config describes, by which an edit by hand is noticed. For an
encoder-decoder both have an entry for each stack. Where transformers reads the rest of the config as the same model,
there is no mark. Otherwise the config that is written is marked by a rope type or by a model type that no other reader
has, so that `AutoModel` raises an error that names milepost. Version 0.1 wrote the key into a file of its own,
milepost.json, and the config without marks.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from milepost.configs.falcon_slopes import FalconSlopes
from milepost.configs.reader import look_up
from milepost.seams.arguments import from_plain
from milepost.seams.known import Known

KEY = "milepost"
OLD_FILE = "milepost.json"
LOADED_BY = "milepost.hf.load"
READ_BY = f"read this folder with {LOADED_BY}"
"""The attention of a marked config, its rope type and, where it has none, what stands for the size of its vocabulary:
the error of other readers repeats it. Folders saved before have LOADED_BY alone."""
PREFIX = "milepost-"
STOCK, STOCK_SIZE = "stock_rope_type", "stock_vocab_size"
FORMAT = 1
"""The way in which an extension is stored now; a change that earlier releases would read wrongly counts it up."""
METHODS = (FalconSlopes,)
"""Methods of the configs of others, which no export names."""
Plain = dict[str, Any]


def stored_in(config: object) -> Plain | None:
    """Return what a config stores of an extension; None where it stores nothing."""
    found = look_up(config, KEY)
    if not isinstance(found, Mapping):
        return None
    stored = cast("Plain", found)
    demand_format(stored)
    return stored if "schedule" in stored else None


def stamp(version: str) -> Plain:
    """Return what tells other releases how an extension is stored, and which release of milepost stored it."""
    return {"format": FORMAT, "version": version}


def demand_format(stored: Plain) -> None:
    """Refuse an extension that another release stored in a way that is not known here."""
    number = stored.get("format", FORMAT)
    if type(number) is not int or not 1 <= number <= FORMAT:
        by = stored.get("version")
        raise ValueError(
            f"milepost: this config stores an extension in format {number!r}{f', of milepost {by}' if by else ''}, and "
            f"this release reads formats up to {FORMAT}; install a later one: pip install -U milepost"
        )


def unread_in(config: object) -> Plain | None:
    """Return what a config stores of an extension that the rest of it does not describe; None where it does."""
    found = stored_in(config)
    return None if found is None or found.get("transformers_reads_it") else found


# Marks


def marked(config: Plain) -> Plain:
    """Return the dict of a config that stores an extension so that stock transformers refuses what it cannot run."""
    mark: Literal["rope_type", "model_type"] | None = config.get(KEY, {}).get("marked")
    if mark == "rope_type":
        # Settings of a call's own, and those of an old rope_scaling, take the place of the rope type.
        marks = {"rope_parameters": _each(config["rope_parameters"], _marked_rope)}
        return config | marks | {"attn_implementation": READ_BY}
    if mark == "model_type":
        # AutoModel goes by the model type; a class of transformers that is called by its name reads the attention, and
        # where the caller names another, a size that is none.
        marks = {"model_type": PREFIX + config["model_type"], "attn_implementation": READ_BY}
        return config | marks | {"vocab_size": READ_BY, STOCK_SIZE: config["vocab_size"]}
    return config


def unmarked(config: Any) -> Any:
    """Return a config, an object or a dict, without marks; itself where it has none."""
    if isinstance(config, dict):
        return _unmarked_dict(cast("Plain", config))
    settings: Any = getattr(config, "rope_parameters", None)
    if stored_in(config) is None or LOADED_BY not in repr(settings):
        return config
    made = copy.copy(config)
    made.rope_parameters = _each(settings, _unmarked_rope)
    return made


def _unmarked_dict(config: Plain) -> Plain:
    # The text of a model that reads images as well has a config of its own inside.
    inner: Plain = {key: _unmarked_dict(each) for key, each in config.items() if key != KEY and stored_in(each)}
    made = config | inner
    if stored_in(made) is None:
        return made
    made["model_type"] = str(made["model_type"]).removeprefix(PREFIX)
    if made.get("attn_implementation") in (READ_BY, LOADED_BY):
        del made["attn_implementation"]
    if made.get("vocab_size") == READ_BY:
        made["vocab_size"] = made.pop(STOCK_SIZE)
    if made.get("rope_parameters"):
        made["rope_parameters"] = _each(made["rope_parameters"], _unmarked_rope)
    return made


def _each(settings: Plain, change: Callable[[Plain], Plain]) -> Plain:
    """Rope settings changed: all of them, or those of each layer type."""
    if any(isinstance(each, dict) for each in settings.values()):
        return {
            kind: change(cast("Plain", each)) if isinstance(each, dict) else each for kind, each in settings.items()
        }
    return change(settings)


def _marked_rope(settings: Plain) -> Plain:
    return settings | {"rope_type": READ_BY, STOCK: settings.get("rope_type", "default")}


def _unmarked_rope(settings: Plain) -> Plain:
    if settings.get("rope_type") not in (READ_BY, LOADED_BY):
        return settings
    made = settings | {"rope_type": settings.get(STOCK, "default")}
    made.pop(STOCK, None)
    return made


# What the layers do


def entries(stored: Plain, decodes: bool) -> tuple[Plain, Plain]:
    """Return what the layers do now and what the rest of the config described, of the decoder where there are two."""
    plain: Plain = stored["schedule"]
    before: Plain = stored.get("config") or {}
    if "schedule" in plain:
        return plain, before
    stack = "decoder" if decodes else "encoder"
    return plain[stack], before.get(stack, {})


def parts_in(plain: Plain, layer: int) -> list[object]:
    """Return the parts of one layer out of the dict of a schedule; none out of an empty one."""
    return list(from_plain(scheme_in(plain, layer)["scheme"], Known(METHODS))) if plain else []


def scheme_in(plain: Plain, layer: int) -> Plain:
    """Return the dict of one layer's scheme out of that of a schedule, by the number the layer has in the model."""
    return plain["schemes"][plain["schedule"][layers_in(plain).index(layer)]]


def layers_in(plain: Plain) -> Sequence[int]:
    """Return the numbers of the layers that attend, out of the dict of a schedule."""
    return plain.get("layers", range(len(plain["schedule"])))


def changed(called: str, own: object) -> ValueError:
    """Return the error about a config that was edited after an extension was stored in it."""
    return ValueError(
        f"{called}: this config was changed after milepost stored an extension in it, and now describes {own!r}; put "
        f"it back. To extend the model anew, restore(model) first, or remove from a config.json the key "
        f'"{KEY}" and the rope type or model type of milepost'
    )
