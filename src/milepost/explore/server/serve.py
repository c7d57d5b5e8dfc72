"""The explorer at a port of this machine, until it is stopped."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from milepost.explore.server.app import PATIENCE, Explorer

MOST = 128
"""Connections at once; more are told that the server is busy."""


class Patient(H11Protocol):
    """Closes a connection that asks for nothing, or never ends its question: without a token one could hold them all.

    A connection is looked at every so many seconds; what is being answered is left alone.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to look."""
        super().connection_made(transport)
        self.loop.call_later(PATIENCE, self._look, None)

    def _look(self, before: object) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or self.cycle.response_complete):
            self.transport.close()
            return
        self.loop.call_later(PATIENCE, self._look, self.cycle)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket at a port; 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise ValueError(
            f"explore: {host} port {port} cannot be had ({error.strerror}); give another, --port 0 takes a free one"
        ) from error
    return made


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(24)


def link_to(made: socket.socket, token: str) -> str:
    """Return the link that opens the page."""
    host, port = made.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/?token={token}"


def server_of(explorer: Explorer) -> uvicorn.Server:
    """Return a server that answers one machine."""
    return uvicorn.Server(
        uvicorn.Config(
            explorer.app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            http=Patient,
            limit_concurrency=MOST,
            timeout_graceful_shutdown=2,
        )
    )


def serve(explorer: Explorer, made: socket.socket, ready: Callable[[], object] = lambda: None) -> None:
    """Serve until it is stopped; ready is called when the port is open."""
    made.listen(MOST)
    ready()
    server_of(explorer).run(sockets=[made])


__all__ = ["bound", "link_to", "new_token", "serve", "server_of"]
