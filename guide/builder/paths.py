"""Where the guide's files are, and where what is made of them goes."""

from __future__ import annotations

from pathlib import Path

GUIDE = Path(__file__).parents[1]
ROOT = GUIDE.parent
CHAPTERS, THEME = GUIDE / "chapters", GUIDE / "theme"
OUT = ROOT / "out"
SITE, CACHE, STAGE = OUT / "site", OUT / "guide" / "cache", OUT / "guide" / "stage"
LANGUAGES = ("en", "zh")
