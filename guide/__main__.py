"""`python -m guide`: build the site, run chapters, stamp translations."""

from __future__ import annotations

import sys

from guide.builder.chapter import chapters, in_language
from guide.builder.translation import stamp
from milepost.refusal import need, refuse

HELP = """python -m guide build           write the site in out/site, strictly
python -m guide run [NAME …]    run chapters, such as 04-rope, and print what they show
python -m guide stamp NAME …    record that zh/NAME.md translates en/NAME.md as it is now"""


def main(words: list[str]) -> int:
    """Do what the words of a command line ask for; return its exit status."""
    match words:
        case ["build"]:
            try:
                need("guide build", "docs", ("zensical", "latex2mathml", "nbformat"))
            except ImportError as error:
                refuse(f"{error}, with Python 3.11 or later")
            from guide.builder.site import build

            found = build()
            print("\n".join(found), file=sys.stderr)
            return 1 if found else 0
        case ["run", *names]:
            from guide.builder.running import run

            for chapter in chapters():
                if not names or chapter.name in names:
                    for block, shown in zip(chapter.code, run(chapter), strict=True):
                        print(f"— {chapter.name}, line {block.line}\n{shown.text}{shown.says}")
            return 0
        case ["stamp", first, *more]:
            for chapter in chapters():
                if chapter.name in (first, *more):
                    stamp(in_language(chapter, "zh"), chapter)
            return 0
        case _:
            print(HELP)
            return 2


sys.exit(main(sys.argv[1:]))
