"""The explorer at a free port, and a client that asks as a page does."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from milepost.explore.server.app import Explorer
from milepost.explore.server.serve import bound, link_to, server_of


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A server that runs."""

    port: int
    token: str
    link: str

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): each for name, each in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): each for name, each in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def call(self, what: str, given: Any, **headers: str) -> Answer:
        """As the page calls, with its token."""
        body = given if isinstance(given, bytes) else json.dumps({"page": "p", "view": "v", **given}).encode()
        own = {"content_type": "application/json", "x_milepost_token": self.token}
        return self.ask("POST", f"/api/{what}", body, **own | headers)


@contextmanager
def served(explorer: Explorer) -> Generator[Served]:
    """Serve while the block runs."""
    made = bound("127.0.0.1", 0)
    made.listen(64)
    server = server_of(explorer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [made]}, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.01)
        yield Served(made.getsockname()[1], explorer.token, link_to(made, explorer.token))
    finally:
        server.should_exit = True
        thread.join(20)
        made.close()
