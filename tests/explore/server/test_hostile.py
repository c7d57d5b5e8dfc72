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
import torch

from milepost.explore.controls import NotPossibleError
from milepost.explore.sentence import Reader
from milepost.explore.server.app import Explorer
from milepost.explore.server.command import explore
from milepost.explore.stories.config import OLMO3, STORY
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


def test_another_port_of_this_machine_is_another_origin():
    # As the command starts it: at an address, which is a name of its own.
    with served(Explorer(TOKEN, STORIES, address="127.0.0.1")) as found:
        for origin in ("http://127.0.0.1:3000", "http://127.0.0.1", f"http://localhost:{found.port}", "http://[::1]"):
            refused = found.call("story", {"name": "trial"}, origin=origin)
            assert refused.status == 403, origin
            assert b"--allow-host" in refused.body
        assert found.call("story", {"name": "trial"}, origin=f"http://127.0.0.1:{found.port}").status == 200
    with served(Explorer(TOKEN, STORIES, address="192.0.2.1")) as found:
        assert found.ask("GET", f"/?token={TOKEN}", host="192.0.2.1:80").status == 200
        assert found.call("story", {"name": "trial"}, host="192.0.2.1:80", origin="http://192.0.2.1:81").status == 403
        assert found.call("story", {"name": "trial"}, host="192.0.2.1:80", origin="http://192.0.2.1:80").status == 200


def test_the_command_gives_its_address_and_no_more_hosts(monkeypatch: pytest.MonkeyPatch):
    made: list[Explorer] = []

    def serve(explorer: Explorer, port: socket.socket, *_: object) -> None:
        port.close()
        made.append(explorer)

    monkeypatch.setattr("milepost.explore.server.serve.serve", serve)
    for host, own in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "")):
        explore(port=0, host=host, allow_host=["hub.example"], browser=False)
        assert (made[-1].address, made[-1].hosts) == (own, ("hub.example",))


@pytest.mark.parametrize(
    "host", ["elsewhere.example@localhost", "localhost/elsewhere", "localhost#e", "localhost?e", "e\\@localhost"]
)
def test_a_host_is_a_name_and_a_port(server: tuple[Served, Path], host: str):
    assert server[0].ask("GET", f"/?token={TOKEN}", host=host).status in (400, 403)


@pytest.mark.parametrize(
    ("what", "given", "control"),
    [
        ("story", {"name": "trial", "set": {"text": "\ud800 a b"}}, "text"),
        ("story", {"name": "trial", "set": {"\ud800": 1}}, "set"),
        ("compose", {"draw": "score", "schemes": ["Rope(64)"], "state": {"\udfff": 1}}, "state"),
        ("read", {"schemes": ["Rope('\ud800')"]}, "schemes"),
    ],
)
def test_half_a_letter_is_refused_by_its_control(server: tuple[Served, Path], what: str, given: Any, control: str):
    found = server[0].call(what, given)
    assert (found.status, found.json["control"]) == (422, control)
    assert "half of a letter" in found.json["why"]["en"]


def test_a_whole_letter_of_two_halves_is_none(server: tuple[Served, Path]):
    assert server[0].call("story", {"name": "trial", "set": {"text": "\U0001f600 a"}}).status == 200


def test_no_more_schemes_are_read_than_are_drawn(server: tuple[Served, Path]):
    found = server[0].call("read", {"schemes": ["Rope(64), causal"] * 2500})
    assert (found.status, found.json["control"]) == (422, "schemes")
    assert "at most 4" in found.json["why"]["en"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Nezha(512, reach=2**31)", "2,199,023,256,064 numbers"),
        ("Nezha(64, reach=10**6)", "shorter reach"),
        ("Deberta(512, 8, 64, reach=2**31, buckets=4)", "shorter reach"),
        ("Sandwich(64, 65536)", "65,536 channels"),
        ("Nezha(64, value_dim=65536)", "65,536 channels"),
    ],
)
def test_what_would_take_a_machine_is_refused_before_it_does(server: tuple[Served, Path], text: str, why: str):
    for what in ("compose", "term"):
        found = server[0].call(what, {"draw": "score", "schemes": [text], "scheme": 0, "part": 0})
        assert (found.status, found.json["control"]) == (422, "scheme-0")
        assert why in found.json["why"]["en"]


def test_numbers_beyond_a_machine_leave_the_other_scheme(server: tuple[Served, Path]):
    beyond = ["Rope(64, stretch=Ntk(1e308))", "Rope(64, stretch=Yarn(8, 4096, fast=1e308, slow=1e-308))"]
    given: dict[str, Any] = {"schemes": [*beyond, "Rope(64)"]}
    read = server[0].call("read", given)
    assert [sorted({"no", "text"} & {*each})[0] for each in read.json] == ["no", "text", "text"]
    for view in ("score", "weights", "distances", "maps", "angles"):
        found = server[0].call("compose", given | {"draw": view})
        assert found.status == 200, (view, found.json)
        assert str(found.json["figures"]).count("'name': {'en': 'C'") or "C: " in str(found.json["figures"])
    found = server[0].call("term", given | {"schemes": beyond[1:], "scheme": 0, "part": 0})
    assert (found.status, found.json["control"]) == (422, "part")


def test_a_language_is_a_word(server: tuple[Served, Path]):
    found = server[0].call("export", {"name": "trial", "lang": []})
    assert (found.status, found.json["control"]) == (422, "lang")


@pytest.mark.parametrize(
    "text",
    ['{"x": ' + "9" * 5000 + "}", OLMO3.rstrip()[:-1] + ', "x": ' + "[" * 400 + "]" * 400 + "}"],
    ids=["digits", "deep"],
)
def test_a_config_that_python_does_not_read_is_named(text: str):
    with pytest.raises(NotPossibleError) as no:
        STORY.scene({"config": text})
    assert no.value.control == "config"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "llama", "num_hidden_layers": 2}', "the number of heads not found"),
        ("{", "is not JSON"),
    ],
)
def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path, text: str, why: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        Reader(str(tmp_path))


def test_a_scheme_beyond_a_machine_is_named_on_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def weights_in(model: object, ids: object, given: object = None) -> list[object]:
        return [] if given is None else [int(float("inf"))]

    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return "x"

    monkeypatch.setattr("milepost.explore.sentence.weights_in", weights_in)
    monkeypatch.setattr("milepost.explore.sentence.tokens_of", lambda *_: torch.arange(4))  # pyright: ignore
    monkeypatch.setattr("milepost.explore.sentence.read_model", lambda *_: (None, Tokenizer()))  # pyright: ignore
    with pytest.raises(NotPossibleError, match="infinity") as no:
        Reader(str(tmp_path)).scene({"scheme": "Ntk(1e308)"})
    assert no.value.control == "scheme"
