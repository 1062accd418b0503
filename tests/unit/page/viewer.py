"""Asks a page as a browser would, and follows nothing by itself."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.waiting import POLL_S

TIMEOUT_S = 20.0


def nobody_hears(_url: str) -> None:
    """What a page says, which whoever made it knows."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Viewer:
    def __init__(self, url: str) -> None:
        self.url = url
        self._host = urlsplit(url).netloc

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = answer.read()
            told = {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()
        if told.get("content-encoding") == "gzip":
            found = gzip.decompress(found)
        return Answer(answer.status, told, found)

    def view(self, since: int | None = None) -> Any:
        return self.ask("/api/view" if since is None else f"/api/view?since={since}").json

    def eventually(self, path: str, holds: Callable[[Any], object]) -> Any:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.ask(path)
            if answer.status == 200 and holds(answer.json):
                return answer.json
            assert time.monotonic() < deadline_s, f"{path}: {answer}"
            time.sleep(POLL_S)
