"""The page's connections: how many there are, and for how long one may say nothing.

Rules:
- Whoever has connected, or was answered, asks for something within REQUEST_S, or is hung up on.
- Of CONNECTIONS_MAX connections, one that asks for nothing gives way to a newcomer: the one that has waited longest. A
  login is nothing until it is done. So nobody who has proven nothing keeps others out.
- If all of them are being answered, SPARE more may ask whether this process is alive and ready, and nothing else.
- What is no request has one line a minute in the log, however many there are of it.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_replication.page.entry import LOGIN
from spark_replication.process.logs import Seldom

CONNECTIONS_MAX = 256
SPARE = 32
REQUEST_S = 10.0
TOLD_AGAIN_MS = 60_000
HEALTHZ, READYZ = "/healthz", "/readyz"


class FewWarnings(logging.Filter):
    """Passes one of each kind of warning on in TOLD_AGAIN_MS, with how many there were. uvicorn warns of each request
    that is none, and anybody may send as many as he likes. Errors are passed on."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds = Seldom(TOLD_AGAIN_MS)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        count = self._kinds.come(record.msg)
        if count > 1:
            record.msg = f"{record.msg} ({count - 1} more since the last such line)"
        return count > 0


class PageConnection(H11Protocol):
    """Made by uvicorn, one for each connection."""

    _late: asyncio.TimerHandle | None = None  # hangs up
    _waits_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) <= CONNECTIONS_MAX:
            return
        gone = self._longest_waiting()
        if gone is not None:
            self.app = gone.app  # its place, which may be a spare one
            gone.transport.abort()
        elif len(self.connections) <= CONNECTIONS_MAX + SPARE:
            self.app = _health_alone(self.app)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    @property
    def is_asking(self) -> bool:
        return self._late is None and self.scope["path"] != LOGIN

    def _longest_waiting(self) -> PageConnection | None:
        waiting = [
            each
            for each in self.connections
            if isinstance(each, PageConnection)
            and each is not self
            and not each.is_asking
            and not each.transport.is_closing()
        ]
        return min(waiting, key=lambda each: each._waits_since_s, default=None)

    def _wait(self) -> None:
        self._wait_no_more()
        self._waits_since_s = self.loop.time()
        self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _health_alone(app: ASGIApp) -> ASGIApp:
    busy = PlainTextResponse(f"{CONNECTIONS_MAX} connections are open: retry later\n", 503, {"Connection": "close"})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (app if scope["path"] in (HEALTHZ, READYZ) else busy)(scope, receive, send)

    return answer
