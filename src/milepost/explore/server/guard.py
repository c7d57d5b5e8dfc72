"""Who is let in: pages of this machine that know the token, by names that are this machine's."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

OWN = ("127.0.0.1", "localhost", "::1")
"""What this machine is called in a link; a tunnel may give it any port."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
HEADER = "x-milepost-token"
Next = Callable[[Request], Awaitable[Response]]


class Guard:
    """Around an application: foreign names and origins are refused, every answer carries the policy.

    hosts: names besides this machine's own under which the page may be asked for, such as that of a proxy.
    address: what the server answers at: a name of its own, of which another port is another origin.
    """

    def __init__(self, app: Any, hosts: tuple[str, ...] = (), address: str = "") -> None:
        self.app = app
        self.own = frozenset((*OWN, address.lower())) - {""}
        self.hosts = frozenset(each.lower() for each in hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope)
        why = self.refused(request)
        inner = self.app if why is None else PlainTextResponse(why, 403)
        await inner(scope, receive, safely)

    def refused(self, request: Request) -> str | None:
        """Return why a request is not let in, or None."""
        host = request.headers.getlist("host")
        name = _name_of(f"//{host[0]}") if len(host) == 1 else None
        if name is None or name not in self.own | self.hosts:
            return "This host name is not one of this server's. Start it with --allow-host NAME to let it in."
        origin = request.headers.get("origin")
        if origin is not None and urlsplit_or_none(origin) != host[0].lower():
            # Behind a proxy that writes its own name for the host, a page comes from a name that was let in.
            known = _name_of(origin)
            if known is None or known not in self.hosts:
                return "This page comes from elsewhere. If that is a proxy of yours, start with --allow-host NAME."
        return None


def same(given: str | None, token: str) -> bool:
    """Return True if a token is the right one, in the same time for every wrong one."""
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def urlsplit_or_none(address: str) -> str | None:
    """Return the host and port of an address, in small letters."""
    try:
        return urlsplit(address).netloc.lower() or None
    except ValueError:
        return None


def _name_of(address: str) -> str | None:
    """Return the host of an address, without its port."""
    try:
        found = urlsplit(address)
        # A port that is none raises. A user, a path, a query or a fragment is no part of a host or an origin.
        plain = found.netloc == address.partition("//")[2] and not {*"@\\"} & {*found.netloc}
        return found.hostname if plain and (found.port is None or found.port >= 0) else None
    except ValueError:
        return None


__all__ = ["HEADER", "HEADERS", "OWN", "POLICY", "Guard", "same"]
