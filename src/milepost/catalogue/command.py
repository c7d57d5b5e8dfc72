"""`milepost methods`. Only the command line loads this module, once it knows that typer is there."""

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from milepost.refusal import refuse

Name = Annotated[str | None, typer.Argument(help="A method or function: its page, with an example that runs.")]
Verb = Annotated[str | None, typer.Option(help="Only methods with this verb, such as turn, bend or place.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="As Markdown.")]
Lang = Annotated[str, typer.Option("--lang", help="en or zh: the language of headings and of what each does.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, with every field.")]


def methods(
    name: Name = None,
    verb: Verb = None,
    as_markdown: AsMarkdown = False,
    as_json: AsJson = False,
    lang: Lang = "en",
) -> None:
    """List every method, or show one in full.

    The list goes seam by seam, in the order of the equation of attention.
    """
    from milepost.catalogue import markdown, page, terminal
    from milepost.catalogue.find import find, in_chinese
    from milepost.catalogue.sheet import sheets, verbs_known
    from milepost.seams.arguments import did_you_mean

    if lang not in ("en", "zh"):
        refuse(f"methods --lang {lang}: give en or zh")
    if as_markdown and as_json:
        refuse("methods --markdown --json: two formats; leave one out")
    if name is not None and verb is not None:
        refuse(f"methods {name} --verb {verb}: a verb filters the list; leave out the name or the verb")
    if verb is not None and verb.lower() not in verbs_known():
        refuse(
            f"methods --verb {verb}: unknown verb; the verbs are {', '.join(verbs_known())}"
            f"{did_you_mean(verb, verbs_known())}"
        )
    listed = sheets(None if verb is None else verb.lower())
    if lang == "zh":
        listed = [in_chinese(sheet) for sheet in listed]
    if name is None:
        if as_json:
            _echo(json.dumps([asdict(sheet) for sheet in listed], ensure_ascii=False, indent=2))
        else:
            written = partial(terminal.printed, partial(terminal.table, lang=lang))
            _echo(markdown.table(listed, lang) if as_markdown else written(listed))
        return
    try:
        sheet = find(name, listed)
        sheet = in_chinese(sheet) if lang == "zh" else sheet
    except ValueError as error:
        refuse(f"methods {name}: {error}")
    if as_json:
        _echo(json.dumps(asdict(sheet), ensure_ascii=False, indent=2))
    else:
        written = partial(terminal.printed, partial(page.page, lang=lang))
        _echo(markdown.page(sheet, lang) if as_markdown else written(sheet))


def _echo(words: str) -> None:
    # Whether there are colours is known by now.
    typer.echo(words, color=True)
