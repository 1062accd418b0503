"""Viewers of the page while something is measured: each asks as the page's script does, and draws nothing."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

EVENTS_S = 2.0
LEAST_S = 0.15  # between two questions
TIMEOUT_S = 30.0
END_S = 10.0


@contextmanager
def viewers(url: str | None, count: int) -> Iterator[None]:
    """Keep so many pages open; each has its first answer when the block begins. `url` may be None only for 0 pages."""
    if not count:
        yield
        return
    assert url is not None, "this cluster serves no page"
    stopping, begun = threading.Event(), threading.Semaphore(0)
    threads = [
        threading.Thread(target=_look, args=(urlsplit(url).netloc, stopping, begun), daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=TIMEOUT_S), "a page has no answer"
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(END_S)


def _look(host: str, stopping: threading.Event, begun: threading.Semaphore) -> None:
    """Ask again and again. A connection that fails is made anew, as a browser does."""
    version, told_s = "", 0.0
    while not stopping.is_set():
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        with suppress(OSError, http.client.HTTPException):
            while not stopping.is_set():
                first = not version
                version = _ask(connection, f"/api/view?since={version}").partition("-")[0]
                if first:
                    begun.release()
                if time.monotonic() >= told_s + EVENTS_S:
                    _ask(connection, "/api/events?last=60")
                    told_s = time.monotonic()
                stopping.wait(LEAST_S)
        connection.close()
        stopping.wait(LEAST_S)


def _ask(connection: http.client.HTTPConnection, path: str) -> str:
    """Ask for this path, and return the answer's ETag."""
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    answer.read()
    return (answer.getheader("ETag") or "").strip('"')
