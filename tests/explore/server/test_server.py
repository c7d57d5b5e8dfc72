"""The server of the explorer: what it answers, and to whom."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack

import numpy as np
import pytest

from milepost.explore.scene import plain
from milepost.explore.server.app import Explorer
from milepost.explore.server.page import MORE_SCRIPTS, SCRIPTS, STYLES
from milepost.explore.server.serve import MOST
from tests.explore.server.serving import Served, served
from tests.explore.server.trial import STORIES, TRIAL

TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def server() -> Generator[Served]:
    with served(Explorer(TOKEN, STORIES)) as found:
        yield found


def test_the_page_is_for_who_has_the_token(server: Served):
    assert server.ask("GET", "/").status == 403
    assert server.ask("GET", "/?token=another").status == 403
    page = server.ask("GET", f"/?token={TOKEN}")
    assert page.status == 200
    cookie = page.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= {each.strip() for each in cookie.split(";")}
    assert server.ask("GET", "/", cookie=cookie.split(";")[0]).status == 200
    assert server.ask("GET", "/", cookie=cookie.split("=")[0] + "=another").status == 403


def test_every_link_of_the_page_is_relative_and_is_answered(server: Served):
    page = server.ask("GET", f"/?token={TOKEN}").body.decode()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links == [f"static/{name}" for name in ("icon.svg", *STYLES, *SCRIPTS, *MORE_SCRIPTS)]
    assert {server.ask("GET", f"/{each}").status for each in links} == {200}
    assert not re.search(r"<script(?![^>]*src)|<style|\son\w+=|style=", page)


def test_every_answer_has_the_policy_and_is_kept_nowhere(server: Served):
    for path in ("/", f"/?token={TOKEN}", "/static/explore.css", "/nowhere", "/static/../app.py", "/api/start"):
        headers = server.ask("GET", path).headers
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_a_story_is_computed(server: Served):
    given = {"period": 8, "length": 128, "shape": "exp"}
    found = server.call("story", {"name": "trial", "set": given})
    assert found.status == 200
    assert found.json == plain(TRIAL.scene(given))
    assert found.json["figures"][0]["lines"][0]["values"][3] is None


def test_axes_give_nothing_away(server: Served):
    found = server.call("axes", {"name": "trial", "set": {}}).json
    assert found["lines"] == []
    low, high = found["y_range"]
    assert low < -1
    assert high > 1.1


def test_a_no_names_its_control_in_both_languages(server: Served):
    asked = [
        ({"period": 1000}, "period", "give a number within 2 … 64"),
        ({"period": "8"}, "period", "give a number"),
        ({"shape": "sin"}, "shape", "choose one of cos, exp"),
        ({"text": "no"}, "text", "not this word"),
        ({"text": "wrong"}, "", "Rope(dim=7): dim must be even"),
        ({"weather": 1}, "weather", "there is no such control, only period, length, shape, log, text"),
    ]
    for given, control, why in asked:
        found = server.call("story", {"name": "trial", "set": given})
        assert (found.status, found.json["control"], found.json["why"]["en"]) == (422, control, why)
        assert found.json["why"]["zh"]
    assert server.call("story", {"name": "trial", "set": {}}).status == 200


def test_calls_need_the_token_and_come_from_here(server: Served):
    given = {"name": "trial", "set": {}}
    assert server.call("story", given, x_milepost_token="another").status == 403
    assert server.call("story", given, origin="http://elsewhere.example").status == 403
    assert server.call("story", given, origin="null").status == 403
    assert server.call("story", given, origin=f"http://127.0.0.1:{server.port + 1}").status == 403
    assert server.call("story", given, origin=f"http://127.0.0.1:{server.port}").status == 200
    assert server.call("story", given, content_type="text/plain").status == 422


def test_names_of_others_are_refused_and_tunnels_let_in(server: Served):
    for host in ("elsewhere.example", "127.0.0.1.elsewhere.example", "localhost:x", "", "127.0.0.1@elsewhere.example"):
        assert server.ask("GET", f"/?token={TOKEN}", host=host).status in (400, 403)
    for host in ("localhost:9999", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert server.ask("GET", f"/?token={TOKEN}", host=host).status == 200


def test_a_proxy_that_was_named_is_let_in():
    with served(Explorer(TOKEN, STORIES, hosts=("hub.example",))) as found:
        assert found.ask("GET", f"/?token={TOKEN}", host="hub.example").status == 200
        # It may give the server's own name as the host, and the page still comes from the hub.
        assert found.call("story", {"name": "trial"}, origin="https://hub.example").status == 200
        assert found.call("story", {"name": "trial"}, origin="https://other.example").status == 403


def test_of_a_page_the_newest_question_alone_is_answered():
    started, go = threading.Event(), threading.Event()

    def slow(given: object) -> object:
        started.set()
        go.wait(10)
        return "slow"

    with served(Explorer(TOKEN, STORIES, answers={"slow": slow})) as found:
        got: dict[str, int] = {}

        def ask(name: str, what: str, page: str) -> None:
            got[name] = found.call(what, {"name": "trial", "page": page, "view": "one"}).status

        threads = [threading.Thread(target=ask, args=("first", "slow", "a"))]
        threads[0].start()
        assert started.wait(10)
        for name, page in (("older", "b"), ("newer", "b"), ("other page", "c")):
            threads.append(threading.Thread(target=ask, args=(name, "story", page)))
            threads[-1].start()
            time.sleep(0.3)
        go.set()
        for each in threads:
            each.join(20)
        assert got == {"first": 200, "older": 204, "newer": 200, "other page": 200}


def test_what_nobody_waits_for_any_more_is_not_computed():
    started, go, computed = threading.Event(), threading.Event(), list[object]()

    def slow(given: dict[str, object]) -> object:
        started.set()
        go.wait(10)
        computed.append(given["page"])
        return "slow"

    with served(Explorer(TOKEN, STORIES, answers={"slow": slow})) as found:
        first = threading.Thread(target=found.call, args=("slow", {"page": "first"}))
        first.start()
        assert started.wait(10)
        body = b'{"page": "left", "view": "v"}'
        head = f"POST /api/slow HTTP/1.1\r\nhost: localhost\r\nx-milepost-token: {TOKEN}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", found.port), 5) as made:
                made.sendall(head.encode() + body)
                time.sleep(0.1)
        go.set()
        first.join(20)
        assert found.call("slow", {"page": "last"}).status == 200
        assert computed == ["first", "last"]


def test_a_body_that_does_not_come_is_not_waited_for(server: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.explore.server.app.PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), 5) as made:
        head = f"POST /api/story HTTP/1.1\r\nhost: localhost\r\nx-milepost-token: {TOKEN}\r\n"
        made.sendall(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
        found = made.recv(10_000)
    assert b" 422 " in found
    assert server.call("story", {"name": "trial"}).status == 200


def test_connections_that_ask_for_nothing_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.explore.server.serve.PATIENCE", 0.5)

    def slow(given: object) -> object:
        return time.sleep(1.5)

    with served(Explorer(TOKEN, STORIES, answers={"slow": slow})) as found, ExitStack() as held:
        for n in range(MOST + 10):
            made = held.enter_context(socket.create_connection(("127.0.0.1", found.port), 5))
            # Some say nothing, some begin, and some have been answered once and begin again.
            made.sendall((b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\nGET /")[n % 3])
        assert found.ask("GET", f"/?token={TOKEN}").status == 503
        time.sleep(1.5)
        assert found.ask("GET", f"/?token={TOKEN}").status == 200
        # What takes longer to compute is waited for.
        assert found.call("slow", {}).status == 200


def test_many_numbers_are_shortened_as_one_is():
    drawn = np.random.default_rng(0).standard_normal(2000)
    given = [*(drawn * 10.0 ** np.linspace(-300, 300, 2000)), *drawn, 0.0, -0.0, 0.5, 1.0, 99999.95, 999999.5, 1e22]
    given = [float(each) for each in [*given, math.nan, math.inf, -math.inf]]
    one_by_one = [plain(each) for each in given]
    assert plain(given) == one_by_one
    assert [*map(type, plain(given))] == [*map(type, one_by_one)]
