"""The handler of each path (page.answers has the table). Handlers read the kept answers, and wait for newer ones."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from spark_replication.client.reading.reader import Reader
from spark_replication.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    Overloaded,
    ReplicationError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from spark_replication.messages.mirroring import EVENTS_MAX
from spark_replication.model import number_of
from spark_replication.page.answers import Age
from spark_replication.page.connections import HEALTHZ, READYZ
from spark_replication.page.document import Document
from spark_replication.page.entry import refusal
from spark_replication.page.guide import contents_html, guide_html
from spark_replication.page.records import RecordLook, records_asked
from spark_replication.page.watch import Watch, events_asked
from spark_replication.process.threads import now_ms

HOLD_S = 2.0  # how long a viewer that has the newest version waits for the next
FIRST_S = 5.0  # how long a viewer that has nothing waits until the cluster was asked
FRESH_MS = 10_000
SINCE_MAX = 1 << 53  # what a browser can count to
ZIPPED_FROM_BYTES = 1_000
ZIP_LEVEL = 1  # zips 10,000 partitions in 5 ms
ENCODED_MAX = 32  # answers of one version: one for each earlier version that viewers have

LOOKS_MAX = 4  # at records, at one time: each has a thread, and room for what it reads
TURN_S = 2.0  # how long a viewer waits for others to have looked

#: Of answers that the same question gets again. 503 is for those that may pass.
STATUS = {TopicAuthorizationFailed.code: 403, UnknownTopicOrPartition.code: 404, OffsetOutOfRange.code: 410}
JSON = "application/json"
HTML = "text/html; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Bell:
    """A bell that any thread may ring. Whoever waits for it waits on the server's event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End every wait, and let no other begin."""
        self._ended = True
        self.ring()

    def ring(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait_for(self, is_true: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_true`, until the timeout, or until the server ends."""
        self._loop = asyncio.get_running_loop()
        deadline_s = self._loop.time() + timeout_s
        while not self._ended and not is_true() and (left_s := deadline_s - self._loop.time()) > 0:
            try:
                await asyncio.wait_for(self._rung.wait(), left_s)
            except TimeoutError:
                return


class Pages:
    def __init__(self, watch: Watch, reader: Reader, bell: Bell, document: Document) -> None:
        self._watch = watch
        self._reader = reader
        self._looks = asyncio.Semaphore(LOOKS_MAX)
        self._bell = bell
        self._document = document
        self._encoded = _Encoded()

    def app(self) -> Starlette:
        routes = [
            Route("/", self.page),
            Route(HEALTHZ, self.healthz),
            Route(READYZ, self.readyz),
            Route("/docs", self.contents),
            Route("/docs/{page:path}", self.docs),
            Route("/metrics", self.metrics),
            Route("/brokers/{broker:int}/metrics", self.metrics),
            Route("/groups/metrics", self.group_metrics),
            Route("/api/view", self.view),
            Route("/api/topics/{topic}", self.topic),
            Route("/api/topics/{topic}/records", self.records),
            Route("/api/topics/{topic}/{partition:int}", self.partition),
            Route("/api/brokers/{broker:int}", self.broker),
            Route("/api/groups", self.groups),
            Route("/api/groups/{group}", self.group),
            Route("/api/events", self.events),
            Route("/api/settings", self.settings),
            Route("/api/acls", self.acls),
        ]
        handlers: Any = {HTTPException: _not_found, ReplicationError: _refused, Exception: _failed}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def page(self, request: Request) -> Response:
        self._watch.want()  # so that the cluster has answered by the time that the script asks
        return _zipped(request, self._document.html, self._document.zipped, HTML)

    def contents(self, request: Request) -> Response:
        return self._documented(request, "The guide", contents_html())

    def docs(self, request: Request) -> Response:
        name = request.path_params["page"]
        found = guide_html(name)
        if found is None:
            return refusal(404, "NOT_FOUND", f"the guide has no page {name[:100]!r}: /docs lists them")
        return self._documented(request, *found)

    def _documented(self, request: Request, title: str, body: str) -> Response:
        html = self._document.docs(title, body)
        return _zipped(request, html, gzip.compress(html, ZIP_LEVEL, mtime=0), HTML)

    async def healthz(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _request: Request) -> Response:
        self._watch.want()
        await self._bell.wait_for(lambda: self._is_fresh() and not self._watch.not_ready(), FIRST_S)
        why = self._watch.not_ready() or ("" if self._is_fresh() else "the cluster has not answered for 10 s")
        return PlainTextResponse(f"{why or 'ready'}\n", 503 if why else 200)

    def _is_fresh(self) -> bool:
        as_of_ms = self._watch.age.as_of_ms
        return as_of_ms is not None and now_ms() - as_of_ms < FRESH_MS

    def metrics(self, request: Request) -> Response:
        return Response(self._watch.metrics(request.path_params.get("broker")), media_type=METRICS)

    def group_metrics(self, _request: Request) -> Response:
        return Response(self._watch.group_metrics(), media_type=METRICS)

    async def view(self, request: Request) -> Response:
        since = _number(request, "since", None, SINCE_MAX)
        self._watch.want()
        if since is None:
            await self._bell.wait_for(lambda: self._watch.tries > 0, FIRST_S)
        else:
            await self._bell.wait_for(lambda: self._watch.version != since, HOLD_S)
        mark = f"{self._watch.version}-{self._watch.tries}"
        if since is None and (same := _same(request, mark)) is not None:
            return same
        body, zipped = await run_in_threadpool(self._encoded.of, mark, since, lambda: self._watch.view(since))
        return _zipped(request, body, zipped, JSON, mark)

    async def topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        return await self._detail(request, f"topic {name!r}", lambda: self._watch.topic(name))

    async def partition(self, request: Request) -> Response:
        topic, number = request.path_params["topic"], request.path_params["partition"]
        return await self._detail(request, f"partition {topic}-{number}", lambda: self._watch.partition(topic, number))

    async def broker(self, request: Request) -> Response:
        broker = request.path_params["broker"]
        return await self._detail(request, f"broker {broker}", lambda: self._watch.broker(broker))

    async def _detail(self, request: Request, what: str, found: Callable[[], msgspec.Struct | None]) -> Response:
        self._watch.want()
        mark = self._watch.mark
        if (same := _same(request, mark)) is not None:
            return same
        detail = await run_in_threadpool(found)
        if detail is None:
            await self._look_again()
            detail = await run_in_threadpool(found)
        if detail is None:
            return refusal(404, "NOT_FOUND", f"there is no {what}, as far as the cluster has answered")
        return await run_in_threadpool(_json, request, detail, mark)

    async def _look_again(self) -> None:
        """Until the cluster was asked after this moment: what nobody looked at is known as it was SELDOM_S ago."""
        under_way = self._watch.tries + 1
        await self._bell.wait_for(lambda: self._watch.tries > under_way, FIRST_S)

    async def groups(self, request: Request) -> Response:
        topic = request.query_params.get("topic")
        age = await self._told_of_groups()
        return await run_in_threadpool(lambda: _json(request, self._watch.groups.shown(topic), _mark_of(age)))

    async def group(self, request: Request) -> Response:
        name, age = request.path_params["group"], await self._told_of_groups()
        detail = await run_in_threadpool(self._watch.groups.detail, name)
        if detail is None:
            return refusal(404, "NOT_FOUND", age.error or f"there is no group {name!r}, as far as coordinators tell")
        return await run_in_threadpool(_json, request, detail, _mark_of(age))

    async def _told_of_groups(self) -> Age:
        groups = self._watch.groups
        groups.want()
        await self._bell.wait_for(lambda: groups.is_current, FIRST_S)
        return groups.age

    async def records(self, request: Request) -> Response:
        asked = records_asked(request.path_params["topic"], request.query_params)
        try:
            async with asyncio.timeout(TURN_S):
                await self._looks.acquire()
        except TimeoutError as error:
            raise Overloaded(f"{LOOKS_MAX} others are reading records: wait a moment") from error
        try:
            return await run_in_threadpool(lambda: _json(request, RecordLook(self._reader, asked).shown()))
        finally:
            self._looks.release()

    def events(self, request: Request) -> Response:
        given = request.query_params
        asked = events_asked(
            given.get("partition"),
            given.get("topic"),
            _number(request, "broker", None, 1 << 31),
            given.get("cause"),
            max(1, _number(request, "last", 200, EVENTS_MAX) or 1),
        )
        found = self._watch.events(asked)
        return _json(request, found, _mark_of(found.age))

    def settings(self, request: Request) -> Response:
        topic, broker = request.query_params.get("topic"), _number(request, "broker", None, 1 << 31)
        if topic is not None and broker is not None:
            raise InvalidRequest("the controller tells what holds for a topic: name a topic or a broker, not both")
        found = self._watch.settings(broker if topic is None else topic)
        return _json(request, found, _mark_of(found.age))

    def acls(self, request: Request) -> Response:
        found = self._watch.acls()
        return _json(request, found, _mark_of(found.age))


class _Encoded:
    """Encodes and zips an answer once for all viewers that want the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while an answer is made: whoever wants the same one waits for it
        self._mark = ""
        self._found: dict[int | None, tuple[bytes, bytes | None]] = {}

    def of(self, mark: str, since: int | None, made: Callable[[], msgspec.Struct]) -> tuple[bytes, bytes | None]:
        with self._lock:
            if mark != self._mark or len(self._found) >= ENCODED_MAX:
                self._mark, self._found = mark, {}
            if since not in self._found:
                body = msgspec.json.encode(made())
                is_large = len(body) >= ZIPPED_FROM_BYTES
                self._found[since] = (body, gzip.compress(body, ZIP_LEVEL, mtime=0) if is_large else None)
            return self._found[since]


def _mark_of(age: Age) -> str:
    return f"{age.as_of_ms}{'-failed' if age.error else ''}"


def _json(request: Request, found: msgspec.Struct, mark: str | None = None) -> Response:
    if mark is not None and (same := _same(request, mark)) is not None:
        return same
    body = msgspec.json.encode(found, enc_hook=str)
    return _zipped(
        request, body, gzip.compress(body, ZIP_LEVEL) if len(body) >= ZIPPED_FROM_BYTES else None, JSON, mark
    )


def _zipped(request: Request, body: bytes, zipped: bytes | None, kind: str, mark: str | None = None) -> Response:
    headers = {"Vary": "Accept-Encoding"} | ({} if mark is None else {"ETag": f'"{mark}"'})
    if zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(zipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=kind)
    return Response(body, headers=headers, media_type=kind)


def _same(request: Request, mark: str) -> Response | None:
    """Answer 304 if the browser has what bears this mark. None if it has something else."""
    has = request.headers.get("if-none-match")
    return Response(status_code=304, headers={"ETag": f'"{mark}"'}) if has == f'"{mark}"' else None


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return default
    number = number_of(text, most)
    if number is None:
        raise InvalidRequest(f"{name}={text[:20]} is no number up to {most}")
    return number


def _not_found(_request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, "NOT_FOUND", f"{error.detail}: see / for the page")


def _refused(_request: Request, error: ReplicationError) -> Response:
    return refusal(400 if isinstance(error, InvalidRequest) else STATUS.get(error.code, 503), error.code, error.message)


def _failed(_request: Request, error: Exception) -> Response:
    return refusal(500, "UNKNOWN", f"an error that nobody expected: {error!r}")
