"""The server: the page, its files, and what it computes for one setting of the controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from milepost import __version__
from milepost.explore.composer.menus import form, menus
from milepost.explore.composer.reading import MOST, hint_of, python_of, text_of
from milepost.explore.composer.settings import SETTINGS
from milepost.explore.composer.story import composed
from milepost.explore.composer.terms import term, terms_of
from milepost.explore.composer.views import VIEWS
from milepost.explore.composer.views import asked as asked_for
from milepost.explore.controls import NotPossibleError, read
from milepost.explore.scene import Say, Scene, plain
from milepost.explore.server import told
from milepost.explore.server.asking import MOST as LARGEST
from milepost.explore.server.asking import asked, refuse
from milepost.explore.server.asking import text_of as text_of_request
from milepost.explore.server.export import export
from milepost.explore.server.guard import HEADER, Guard, same
from milepost.explore.server.latest import Latest, SupersededError
from milepost.explore.server.page import LANGUAGES, TYPES, html, static
from milepost.explore.stories.story import Story
from milepost.explore.written import to_csv

if TYPE_CHECKING:
    from milepost.explore.sentence import Reader

Answer = Callable[[dict[str, Any]], Any]
PATIENCE = 10
"""Seconds that the body of a call may take."""
BEYOND = (MemoryError, RuntimeError, ArithmeticError)
"""What numbers beyond a machine come to."""


@dataclass
class Explorer:
    """What one server shows, and to whom."""

    token: str
    stories: tuple[Story, ...]
    lang: str = "en"
    hosts: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    """What it answers at."""
    reader: Reader | None = None
    """The model that reads sentences; the only folder that is opened."""
    latest: Latest = field(default_factory=Latest)
    answers: dict[str, Answer] = field(default_factory=dict[str, "Answer"])
    """What can be asked, by its name: each takes an object, and returns what JSON has."""

    def __post_init__(self) -> None:
        own = {
            "story": self.story,
            "axes": self.axes,
            "read": self.read,
            "compose": self.compose,
            "term": self.term,
            "csv": self.csv,
            "words": self.words,
            "export": self.export,
        }
        self.answers = own | self.answers

    @property
    def cookie(self) -> str:
        """Return the name of the cookie; another explorer of this machine has another."""
        return f"milepost-{sha256(self.token.encode()).hexdigest()[:8]}"

    def app(self) -> Guard:
        """Return the application."""
        routes = [
            Route("/", self.page),
            Route("/static/{name:path}", self.file),
            Route("/api/start", self.start),
            Route("/api/{what:str}", self.answer, methods=["POST"]),
        ]
        return Guard(Starlette(routes=routes), self.hosts, self.address)

    # What is sent

    async def page(self, request: Request) -> Response:
        """Return the page to who knows the token, and a cookie, so that it can be loaded again."""
        given = request.query_params.get("token")
        known = same(given, self.token) or same(request.cookies.get(self.cookie), self.token)
        if not known:
            return PlainTextResponse("Open the link that milepost explore printed: it has a token.", 403)
        answer = HTMLResponse(html(self.lang))
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return answer

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"]
        found = static(name)
        if found is None:
            return PlainTextResponse("There is no such file.", 404)
        return Response(found, media_type=TYPES[name[name.rindex(".") :]])

    async def start(self, request: Request) -> Response:
        """Return all that a page has to know before it asks for anything."""
        if not self._knows(request):
            return _no_token()
        return JSONResponse(
            {
                "version": __version__,
                "lang": self.lang,
                "languages": list(LANGUAGES),
                "stories": [told.story(each) for each in self.stories],
                "menus": menus(),
                "settings": told.controls(SETTINGS),
                "views": list(VIEWS),
                "most": MOST,
                "model": None if self.reader is None else _model(self.reader),
            }
        )

    async def answer(self, request: Request) -> Response:
        """Compute what is asked for; what cannot be had is answered by the control, and why."""
        if not self._knows(request):
            return _no_token()
        answering = self.answers.get(request.path_params["what"])
        try:
            if answering is None:
                refuse("there is no such question", "没有这个问题")
            body = await _body(request)
            given = asked(body)
            page, view = text_of_request(given, "page"), text_of_request(given, "view")
            compute = _computed(answering, given)
            return JSONResponse(await self.latest.run(page, view, compute, request.is_disconnected))
        except NotPossibleError as error:
            return JSONResponse({"control": error.control, "why": plain(error.why)}, 422)
        except SupersededError:
            # No error: the page has asked for something newer, and a browser would log one.
            return Response(status_code=204)

    def _knows(self, request: Request) -> bool:
        """Return True if a call brings the token: in a header, or in the cookie of its page."""
        return same(request.headers.get(HEADER), self.token) or same(request.cookies.get(self.cookie), self.token)

    # What is computed

    def story(self, given: dict[str, Any]) -> Any:
        """Return what a story comes to."""
        return plain(self._named(given).scene(given.get("set", {})))

    def axes(self, given: dict[str, Any]) -> Any:
        """Return the empty axes of what a story lets guess."""
        named = self._named(given)
        return told.axes(named, named.scene(given.get("set", {})))

    def read(self, given: dict[str, Any]) -> Any:
        """Return schemes as the composer shows them: text, Python, equation and controls; or why one cannot be had."""
        found: list[Any] = []
        texts = given.get("schemes")
        every = cast("list[Any]", texts) if isinstance(texts, list) else [texts]
        if len(every) > MOST:
            refuse(f"give at most {MOST} schemes, not {len(every):,}", f"最多 {MOST} 个方案", "schemes")
        for text in every:
            try:
                read_ = asked_for(given | {"schemes": [text]})
                one = read_.schemes[0]
                hint = hint_of(one, read_.trained)
                parts, printed = [form(part) for part in one.parts], terms_of(one)
                found.append(
                    {"text": text_of(one), "python": python_of(one), "parts": parts, **printed}
                    | ({"hint": plain(hint)} if hint else {})
                )
            except NotPossibleError as error:
                if not error.control.startswith("scheme"):
                    raise
                found.append({"no": plain(error.why)})
            except BEYOND as error:
                found.append({"no": plain(_said(error, "this cannot be computed: "))})
        return found

    def compose(self, given: dict[str, Any]) -> Any:
        """Return one view of the schemes."""
        return plain(self._viewed(given))

    def csv(self, given: dict[str, Any]) -> Any:
        """Return the numbers of one view."""
        return to_csv(self._viewed(given))

    def term(self, given: dict[str, Any]) -> Any:
        """Return what one part of one scheme contributes."""
        number, part = given.get("scheme"), given.get("part")
        if type(number) is not int or type(part) is not int:
            refuse("scheme and part are numbers", "方案和部件是数字", "part")
        return plain(term(asked_for(given), number, part))

    def export(self, given: dict[str, Any]) -> Any:
        """Return a story, or schemes, as one file."""
        if "schemes" in given:
            asked_for(given)
            state = read(SETTINGS, given.get("state", {}))
            return export(composed(given["schemes"], state), lang=self._lang(given), guessed=False).html
        return export(self._named(given), given.get("set", {}), self._lang(given)).html

    def _lang(self, given: dict[str, Any]) -> str:
        found = given.get("lang", self.lang)
        if not isinstance(found, str):
            refuse(f"choose one of {', '.join(LANGUAGES)}", f"请从 {'、'.join(LANGUAGES)} 中选一个", "lang")
        return found if found in LANGUAGES else self.lang

    def words(self, given: dict[str, Any]) -> Any:
        """Return where the heads of the given model look in a sentence."""
        if self.reader is None:
            refuse(
                "no model was given: milepost explore --model FOLDER", "没有给定模型：milepost explore --model 文件夹"
            )
        return plain(self.reader.scene(given.get("set", {})))

    def _viewed(self, given: dict[str, Any]) -> Scene:
        view = VIEWS.get(text_of_request(given, "draw"))
        if view is None:
            refuse(f"there is no such view, only {', '.join(VIEWS)}", "没有这个视图", "draw")
        return view(asked_for(given))

    def _named(self, given: dict[str, Any]) -> Story:
        name = text_of_request(given, "name")
        for each in self.stories:
            if each.name == name:
                return each
        refuse("there is no such story", "没有这个故事", "name")


def _model(reader: Reader) -> dict[str, Any]:
    """Return what the page is told of the model."""
    return {"name": Path(reader.folder).name, "controls": told.controls(reader.controls)}


def _computed(answering: Answer, given: dict[str, Any]) -> Callable[[], Any]:
    """Return a computation whose errors are sentences: the library names what it cannot do."""

    def compute() -> Any:
        try:
            with torch.no_grad():
                return answering(given)
        except NotPossibleError:
            raise
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise NotPossibleError("", _said(error)) from error
        except BEYOND as error:
            raise NotPossibleError("", _said(error, "this cannot be computed: ")) from error

    return compute


def _said(error: BaseException, before: str = "") -> Say:
    """Return an error of the library in both languages; its own words are English."""
    words = " ".join(str(error).split())[:400]
    return Say(f"{before}{words}", f"无法计算：{words}")


async def _body(request: Request) -> bytes:
    """Return the body of a call, as long as it is short and JSON: pages of others cannot send that unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        refuse("send application/json", "请发送 application/json")
    found = bytearray()
    try:
        with anyio.fail_after(PATIENCE):
            async for some in request.stream():
                found += some
                if len(found) > LARGEST:
                    refuse(f"a request has at most {LARGEST:,} bytes", f"请求最多 {LARGEST:,} 字节")
    except TimeoutError:
        refuse(f"a request takes at most {PATIENCE} seconds to send", f"请求须在 {PATIENCE} 秒内发送完")
    return bytes(found)


def _no_token() -> Response:
    return JSONResponse(
        {"control": "", "why": plain(Say("open the printed link again", "请重新打开打印出的链接"))}, 403
    )


__all__ = ["Explorer"]
