"""What a measurement gives back: scores that print, save and write themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milepost.hf.measured_page import write
from milepost.hf.scores import Scores
from milepost.refusal import need


@dataclass
class Measured(Scores):
    """Scores of every row: `print(measured)` shows them, `to_json()` keeps them, `to_html(path)` writes a page."""

    def to_html(self, path: str | Path) -> Path:
        """Write the report: one HTML file that needs no network."""
        need("to_html", "hf", ("jinja2",))
        return write(self, Path(path))
