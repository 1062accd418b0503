"""Viewers of the page while something is measured: each asks as the page's script does, and draws nothing.

They are a process that comes last on its processors: people look from machines of their own.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Semaphore
from urllib.parse import urlsplit

from spark_replication.process.processes import come_last

EVENTS_S = 2.0
LEAST_S = 0.15  # between two questions
TIMEOUT_S = 30.0
END_S = 10.0
NICENESS = 19


@contextmanager
def viewers(url: str | None, count: int) -> Iterator[None]:
    """Keep so many pages open; each has its first answer when the block begins. `url` may be None only for 0 pages."""
    if not count:
        yield
        return
    assert url is not None, "this cluster serves no page"
    spawned = multiprocessing.get_context("spawn")
    begun = spawned.Semaphore(0)
    looking = spawned.Process(target=_look_at, args=(urlsplit(url).netloc, count, begun), daemon=True)
    looking.start()
    try:
        for _ in range(count):
            assert begun.acquire(timeout=TIMEOUT_S), "a page has no answer"
        yield
    finally:
        looking.terminate()
        looking.join(END_S)


def _look_at(host: str, count: int, begun: Semaphore) -> None:
    """The process."""
    os.setsid()
    come_last(NICENESS)
    threads = [threading.Thread(target=_look, args=(host, begun), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _look(host: str, begun: Semaphore) -> None:
    """Ask again and again. A connection that fails is made anew, as a browser does."""
    version, told_s = "", 0.0
    while True:
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        with suppress(OSError, http.client.HTTPException):
            while True:
                first = not version
                version = _ask(connection, f"/api/view?since={version}").partition("-")[0]
                if first:
                    begun.release()
                if time.monotonic() >= told_s + EVENTS_S:
                    _ask(connection, "/api/events?last=60")
                    told_s = time.monotonic()
                time.sleep(LEAST_S)
        connection.close()
        time.sleep(LEAST_S)


def _ask(connection: http.client.HTTPConnection, path: str) -> str:
    """Ask for this path, and return the answer's ETag."""
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    answer.read()
    return (answer.getheader("ETag") or "").strip('"')
