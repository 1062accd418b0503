"""Who may see the page, and the headers of every answer. This is decided before anything else of a request is read.

Rules:
- Without a token, only this host is served, and only if the Host header is a name of loopback: another site that lets
  its own name resolve to 127.0.0.1 sends that name (DNS rebinding).
- With a token, a request needs the header `Authorization: Bearer TOKEN`, or the cookie that the form at /login gives
  for the token. Both are compared in constant time. The cookie holds no secret, and expires. Its name has the page's
  port, since browsers keep the cookies of all ports of a host together.
- With a login link, only this host is served, and a request needs the cookie that the link gives once.
- Only GET and HEAD are served, but for the POST of that form.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_replication.errors import Overloaded
from spark_replication.page.document import Document
from spark_replication.transport.proofs.token import AUTHORIZATION, Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.proofs.verifier import Known

LOGIN = "/login"
COOKIE = "spark_replication_page_"  # and the port
COOKIE_S = 12 * 3600
KEY = "key"  # in the query of a login link
KEY_BYTES = 32
FORM_BYTES_MAX = 4_096
FORM_S = 10.0

_READING = ("GET", "HEAD")


class LoginLink:
    """Lets one browser in, for a page whose clients are known by certificates: a browser has none of them.

    Once it was used, the next one is told. Not thread-safe: requests come on one event loop.
    """

    def __init__(self, path: str, told: Callable[[str], None]) -> None:
        """told: called with the link at each `tell`."""
        #: What cookies are sealed with. It never leaves this process.
        self.tokens = Tokens.of(Token(_new_key()))
        self._path = path
        self._told = told
        self._key = _new_key()  # which nobody is told: the page is served a moment before `tell`

    def tell(self) -> None:
        self._key = _new_key()
        self._told(f"{self._path}?{KEY}={self._key}")

    def spent(self, key: str) -> bool:
        """Whether this was the key of the link that is told. It is of no use any more, and the next one is told."""
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            return False
        self.tell()
        return True


class Entry:
    """An ASGI application that passes the requests it admits to the inner one."""

    def __init__(
        self,
        inner: ASGIApp,
        document: Document,
        door: Tokens | LoginLink | None,
        now_s: Callable[[], float],
        *,
        port: int,
        is_encrypted: bool,
    ) -> None:
        self._inner = inner
        self._document = document
        #: What lets a request in. None: to be of this host is enough.
        self._door = door
        self._now_s = now_s
        self._cookie = f"{COOKIE}{port}"
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

        try:
            answer = await self._refusal(scope, receive) or self._inner
        except Overloaded as error:
            answer = refusal(503, error.code, error.message, {"Retry-After": "1"})
        await answer(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope, receive: Receive) -> ASGIApp | None:
        """The answer to a request that does not go on, as a refusal or the login. None if the request may go on."""
        headers, path, method, door = Headers(scope=scope), scope["path"], scope["method"], self._door
        if not isinstance(door, Tokens) and not is_loopback(headers.get("host", "")):
            return refusal(403, "FORBIDDEN", "this page is for its own host: open it by 127.0.0.1 or localhost")
        if path == LOGIN and method == "POST" and isinstance(door, Tokens):
            return await self._log_in(Request(scope, receive), door)
        if method not in _READING:
            return _only_reading()
        if door is None:
            return None
        if path == LOGIN and method == "GET" and isinstance(door, LoginLink):
            return self._opened(Request(scope), door)
        if await self._is_admitted(headers, door.tokens if isinstance(door, LoginLink) else door):
            return None
        if path == "/":
            form = self._document.linked("") if isinstance(door, LoginLink) else self._document.login("")
            return HTMLResponse(form, 401, {"WWW-Authenticate": "Bearer"})
        return refusal(401, "AUTHENTICATION_FAILED", _why_not(door), {"WWW-Authenticate": "Bearer"})

    async def _is_admitted(self, headers: Headers, tokens: Tokens) -> bool:
        shown = headers.getlist(AUTHORIZATION)
        if not shown:
            return self._is_of_form(headers.getlist("cookie"), tokens)
        return await _shown(tokens, shown) is not None

    def _is_of_form(self, cookies: Iterable[str], tokens: Tokens) -> bool:
        for header in cookies:
            try:
                found = SimpleCookie(header).get(self._cookie)
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
        try:
            async with asyncio.timeout(FORM_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > FORM_BYTES_MAX:
                        return refusal(413, "INVALID_REQUEST", "a token is shorter than that")
        except (TimeoutError, ClientDisconnect):  # nobody hears that, perhaps
            return refusal(
                408, "REQUEST_TIMED_OUT", f"a token takes no {FORM_S:.0f} s to send", {"Connection": "close"}
            )
        given = parse_qs(body.decode("ascii", errors="replace")).get("token", [""])[0].strip()
        token = await _shown(tokens, [f"Bearer {given}"])
        if token is None:
            return HTMLResponse(self._document.login("This is no token of this cluster."), 401)
        return self._welcome(token)

    def _opened(self, request: Request, link: LoginLink) -> Response:
        if not link.spent(request.query_params.get(KEY, "")):
            return HTMLResponse(self._document.linked("This link was used before, or is none of this page."), 401)
        return self._welcome(link.tokens.own)

    def _welcome(self, token: Known) -> Response:
        ends = str(int(self._now_s()) + COOKIE_S)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._cookie,
            f"{ends}.{token.sealed(_said(ends))}",
            max_age=COOKIE_S,
            httponly=True,
            samesite="strict",
            secure=self._is_encrypted,
        )
        return answer


async def _shown(tokens: Tokens, headers: list[str]) -> Known | None:
    """Aside, since a verifier takes its time to be compared with. Raises Overloaded."""
    return await asyncio.to_thread(tokens.shown, headers)


def _new_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def _why_not(door: Tokens | LoginLink) -> str:
    if isinstance(door, LoginLink):
        return "the request came with no cookie of this page: open the link that whoever started the page was told"
    return f"the request came with no token of this cluster: send the header `{AUTHORIZATION}: Bearer TOKEN`"


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
