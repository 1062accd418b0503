"""Who may see the page, and the headers of every answer. This is decided before anything else of a request is read.

Rules:
- Without a token, only this host is served, and only if the Host header is a name of loopback: another site that lets
  its own name resolve to 127.0.0.1 sends that name (DNS rebinding).
- With a token, a request needs the header `Authorization: Bearer TOKEN`, or the cookie that the form at /login gives
  for the token. Both are compared in constant time. The cookie holds no secret, and expires.
- Only GET and HEAD are served, but for the POST of that form.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_replication.page.document import Document
from spark_replication.transport.token import AUTHORIZATION
from spark_replication.transport.tokens import Tokens

LOGIN = "/login"
COOKIE = "spark_replication_page"
COOKIE_S = 12 * 3600
FORM_BYTES_MAX = 4_096

_READING = ("GET", "HEAD")


class Entry:
    """An ASGI application that passes the requests it admits to the inner one."""

    def __init__(
        self,
        inner: ASGIApp,
        document: Document,
        tokens: Tokens | None,
        now_s: Callable[[], float],
        *,
        is_encrypted: bool,
    ) -> None:
        self._inner = inner
        self._document = document
        #: None if only loopback is served.
        self._tokens = tokens
        self._now_s = now_s
        #: Whether browsers are to send the cookie over encrypted connections alone.
        self._is_encrypted = is_encrypted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._document.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = await self._refusal(scope, receive) or self._inner
        await answer(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope, receive: Receive) -> ASGIApp | None:
        """The answer to a request that does not go on, as a refusal or the login. None if the request may go on."""
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if self._tokens is None:
            if not is_loopback(headers.get("host", "")):
                return refusal(403, "FORBIDDEN", "this page is for its own host: open it by 127.0.0.1 or localhost")
            return None if method in _READING else _only_reading()
        if path == LOGIN and method == "POST":
            return await self._log_in(Request(scope, receive), self._tokens)
        if method not in _READING:
            return _only_reading()
        if self._is_admitted(headers, self._tokens):
            return None
        if path == "/":
            return HTMLResponse(self._document.login(""), 401, {"WWW-Authenticate": "Bearer"})
        why = f"the request came with no token of this cluster: send the header `{AUTHORIZATION}: Bearer TOKEN`"
        return refusal(401, "AUTHENTICATION_FAILED", why, {"WWW-Authenticate": "Bearer"})

    def _is_admitted(self, headers: Headers, tokens: Tokens) -> bool:
        shown = headers.getlist(AUTHORIZATION)
        return tokens.shown(shown) is not None if shown else self._is_of_form(headers.getlist("cookie"), tokens)

    def _is_of_form(self, cookies: Iterable[str], tokens: Tokens) -> bool:
        for header in cookies:
            try:
                found = SimpleCookie(header).get(COOKIE)
            except CookieError:
                continue
            if found is None:
                continue
            ends, _, seal = found.value.partition(".")
            seals = (token.sealed(_said(ends)) for token in tokens.all())
            is_genuine = any(hmac.compare_digest(seal.encode(), each.encode()) for each in seals)
            if is_genuine and ends.isdecimal() and self._now_s() < int(ends):
                return True
        return False

    async def _log_in(self, request: Request, tokens: Tokens) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                return refusal(413, "INVALID_REQUEST", "a token is shorter than that")
        given = parse_qs(body.decode("ascii", errors="replace")).get("token", [""])[0].strip()
        token = tokens.shown([f"Bearer {given}"])
        if token is None:
            return HTMLResponse(self._document.login("This is no token of this cluster."), 401)
        ends = str(int(self._now_s()) + COOKIE_S)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            f"{ends}.{token.sealed(_said(ends))}",
            max_age=COOKIE_S,
            httponly=True,
            samesite="strict",
            secure=self._is_encrypted,
        )
        return answer


def _said(ends: str) -> str:
    return f"page until {ends}"


def is_loopback(host: str) -> bool:
    """Whether a Host header, with or without a port, is a name of loopback."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]")
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": code, "message": message}, status, headers)


def _only_reading() -> Response:
    return refusal(405, "INVALID_REQUEST", "this page changes nothing: GET is all it answers", {"Allow": "GET, HEAD"})
