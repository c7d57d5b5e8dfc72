"""The length that a model was trained at, as far as its configuration says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from milepost.configs.reader import LENGTH, Reader
from milepost.configs.stretches import TRAINED, rope_type
from milepost.methods.learned import Learned

OTHERS = ("seq_length", "max_source_positions", "max_encoder_position_embeddings")


def trained_length(reader: Reader, parts: Iterable[object]) -> int | None:
    """The trained length: that before a stretch where there is one, the rows of a learned table, the longest length.

    None where the config has no length at all. It is one for all layers, those without a stretch included. A linear or
    dynamic stretch that does not name an original length is counted from the longest, as transformers does.
    """
    stretched = [settings for settings in rope_settings(reader) if rope_type(reader, settings) != "default"]
    before = [settings.get(TRAINED) or reader.get(TRAINED) for settings in stretched]
    rows = [part.length for part in parts if isinstance(part, Learned)]
    return next((length for length in (*before, *rows) if length), reader.get(*LENGTH, *OTHERS))


def rope_settings(reader: Reader) -> list[Mapping[str, Any]]:
    """The rope settings of every layer type, or the one that all layers share."""
    found: Mapping[str, Any] = reader.get("rope_parameters") or reader.get("rope_scaling") or {}
    return [each for each in found.values() if isinstance(each, Mapping)] or [found]
