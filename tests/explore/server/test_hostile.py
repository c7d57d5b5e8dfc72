"""Random and hostile requests: none crashes the server, is echoed as markup, or reads a file."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from milepost.explore.server.app import Explorer
from tests.explore.server.serving import Answer, Served, served
from tests.explore.server.trial import STORIES, TRIAL

TOKEN = "a-token-of-a-test"
SECRET = "the text of a file that nobody was given"
MARKUP = "<script>alert(1)</script>"
TEXTS = (
    "", " ", MARKUP, "<img src=x onerror=alert(1)>", "../../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "\0",
    "\u202e", "A" * 5000, "Rope(" * 300, "__import__('os').system('id')", "open('/etc/passwd').read()", "{{7*7}}",
    "9**9**9", "Rope(64), causal", "T5Bias(65536, buckets=65536)", "[1]*10**9", "LongRope((1.0,)*10**8)", "﷽" * 99,
)  # fmt: skip
NUMBERS = (0, -1, 1e308, 1e15, 2**53, 0.1, 3, 16, 1e-300, -0.0, True, None)
BODIES = (
    b"", b"null", b"[]", b"{", b'"', b"\xff\xfe", b"NaN", b'{"set": NaN}', b'{"set": 1e999}', b'{"set": -Infinity}',
    b'{"set": ' + b"9" * 5000 + b"}", b"[" * 60_000, b'{"a":' * 9000, b"{}" + b" " * 70_000,
    b'{"set": 123456789012345678901}',
    b'{"page": "p", "page": {}}', b"\0" * 100, MARKUP.encode(),
)  # fmt: skip
WHATS = (
    "story",
    "axes",
    "read",
    "compose",
    "term",
    "words",
    "csv",
    "export",
    "start",
    "nothing",
    "../start",
    "%2e%2e",
    MARKUP,
)


def value(draw: random.Random, deep: int = 0) -> Any:
    if deep < 4 and draw.random() < 0.3:
        return [value(draw, deep + 1) for _ in range(draw.randrange(4))]
    if deep < 4 and draw.random() < 0.3:
        return {draw.choice((*TEXTS, "period", "text", "s")): value(draw, deep + 1) for _ in range(draw.randrange(4))}
    return draw.choice((*TEXTS, *NUMBERS))


def body(draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return draw.choice(BODIES)
    names = ("name", "set", "page", "view", "schemes", "state", "scheme", "part", "text", "with")
    given = {name: value(draw) for name in draw.sample(names, draw.randrange(len(names)))}
    if draw.random() < 0.7:
        given |= {
            "page": "p",
            "view": draw.choice(("v", "score", "map")),
            "name": draw.choice(("trial", "chosen", *TEXTS)),
        }
    if draw.random() < 0.5:
        given["set"] = {
            name: draw.choice((*TEXTS, *NUMBERS))
            for name in [each.name for each in TRIAL.controls]
            if draw.random() < 0.5
        }
    if draw.random() < 0.5:
        given["schemes"] = [draw.choice(TEXTS) for _ in range(draw.randrange(6))]
    return json.dumps(given).encode()


def headers(draw: random.Random) -> dict[str, str]:
    found = {"content_type": "application/json", "x_milepost_token": TOKEN}
    for name, others in {
        "origin": ("null", "http://elsewhere.example", "http://127.0.0.1:1", "file://", MARKUP, "http://[", "a" * 3000),
        "host": ("elsewhere.example", "127.0.0.1.example", "[", "localhost:99999999", "a" * 300, "127.0.0.1:80:80"),
        "x_milepost_token": ("", "x", TOKEN[:-1], TOKEN + "x", "é"),
        "content_type": ("text/plain", "application/x-www-form-urlencoded", "", MARKUP),
        "cookie": ("milepost=x", "a=" + "b" * 3000),
    }.items():
        if draw.random() < 0.12:
            found[name] = draw.choice(others)
    return found


def paths(draw: random.Random) -> str:
    return draw.choice((
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd",
        "/static/vendor/../../app.py",
        "/static/core", "/static/", "/static/core/words.js%00.css", "/static/core\\words.js",
        "//etc/passwd", "/..%5c..%5cetc",
        "/?token=", "/?token=" + "x" * 3000, "/api/start?token=x", "/api/", "/" + "a/" * 500,
        f"/{MARKUP.replace(' ', '')}",
    ))  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Served, Path]]:
    secret = tmp_path_factory.mktemp("kept") / "secret.txt"
    secret.write_text(SECRET)
    with served(Explorer(TOKEN, STORIES)) as found:
        yield found, secret


def harmless(answer: Answer) -> None:
    assert answer.status in (200, 204, 307, 400, 403, 404, 405, 413, 422, 431), (answer.status, answer.body[:300])
    text = answer.body.decode("utf-8", "replace")
    assert SECRET not in text
    assert "root:" not in text
    assert "Traceback" not in text
    if "html" in answer.headers.get("content-type", ""):
        assert "alert(1)" not in text
    else:
        # What is no HTML is not taken for HTML.
        assert answer.status in (400, 404, 405) or answer.headers["x-content-type-options"] == "nosniff"


def test_two_hundred_hostile_requests(server: tuple[Served, Path]):
    asked, secret = server
    seed = os.environ["MILEPOST_SEED"]
    draw = random.Random(f"{seed} hostile")
    for number in range(200):
        kinds: tuple[Callable[[], Answer], ...] = (
            lambda: asked.ask("POST", f"/api/{draw.choice(WHATS)}", body(draw), **headers(draw)),
            lambda: asked.ask(
                draw.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD")), paths(draw), **headers(draw)
            ),
            lambda: asked.ask("GET", f"/static/{draw.choice(('..', '%2e%2e', ''))}/{secret}"),
        )
        kind = kinds[0] if number % 4 else draw.choice(kinds[1:])
        try:
            harmless(kind())
        except ValueError as error:
            # The client itself sends no such line.
            assert "control characters" in str(error) or "codec" in str(error)
    assert asked.call("story", {"name": "trial", "set": {}}).status == 200, f"seed {seed}"


def test_what_is_no_http_at_all_is_survived(server: tuple[Served, Path]):
    asked, _ = server
    for line in (
        b"\0\1\2",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /api/story HTTP/1.1\r\nHost: localhost\r\ncontent-length: -1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", asked.port), 5) as made:
            made.sendall(line)
            made.settimeout(2)
            try:
                found = made.recv(1000)
            except TimeoutError:
                found = b""
            assert b" 200 " not in found
    assert asked.call("story", {"name": "trial", "set": {}}).status == 200


@pytest.mark.parametrize("given", BODIES, ids=range(len(BODIES)))
def test_a_body_that_cannot_be_read_is_named(server: tuple[Served, Path], given: bytes):
    found = server[0].call("story", given)
    assert found.status == 422
    assert found.json["why"]["en"]
    assert found.json["why"]["zh"]
