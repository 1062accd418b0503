"""Who keeps others out of the page: nobody who has proven nothing, and nobody the probes of this process."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from spark_replication.page import app, connections, entry
from spark_replication.process.logs import Seldom
from tests.unit.page.conftest import SECRET
from tests.unit.page.viewer import TIMEOUT_S, Viewer
from tests.waiting import eventually

TOKEN = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def connected(held: ExitStack, viewer: Viewer, said: bytes = b"") -> socket.socket:
    url = urlsplit(viewer.url)
    found = held.enter_context(socket.create_connection((url.hostname, url.port), timeout=TIMEOUT_S))
    found.sendall(said)
    return found


def is_hung_up(connection: socket.socket) -> bool:
    """Nothing else comes before that."""
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def asking(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


SILENT: dict[str, bytes] = {
    "nothing": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: ",
    "half a login": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken=",
}


@pytest.mark.parametrize("said", SILENT)
def test_silent_connections_keep_nobody_out(
    stranger: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """The attack: 260 of them, and each probe and each viewer was told 503 for as long as they were held."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(connections, "REQUEST_S", 10 * TIMEOUT_S)
    silent = [connected(held, stranger, SILENT[said]) for _ in range(20)]
    for path in ("/healthz", "/readyz", "/metrics", "/api/view", "/"):
        assert stranger.ask(path, headers=TOKEN).status == 200
    assert all(map(is_hung_up, silent[:12])), "those that have waited longest"


def test_who_was_answered_and_asks_for_nothing_more_gives_way_too(
    stranger: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(connections, "SPARE", 0)
    for _ in range(4):
        kept = connected(held, stranger, asking("/api/view"))
        assert kept.recv(1 << 16).startswith(b"HTTP/1.1 401")
    assert stranger.ask("/healthz", headers=TOKEN).status == 200


@pytest.mark.parametrize("said", ["nothing", "half a request"])
def test_who_asks_for_nothing_is_hung_up_on(
    stranger: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    assert is_hung_up(connected(held, stranger, SILENT[said]))
    slow = connected(held, stranger, SILENT["half a request"])
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        trickle(slow)


def trickle(connection: socket.socket) -> None:
    """A byte now and then, which is no request."""
    connection.settimeout(0.01)
    for _ in range(1_000):
        connection.sendall(b"x")
        with suppress(TimeoutError):
            connection.recv(1)


def test_who_is_being_answered_is_not_hung_up_on(
    viewer: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = viewer.view()["version"]
    monkeypatch.setattr(app, "HOLD_S", 0.5)
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    waiting = connected(held, viewer, asking(f"/api/view?since={version + 1_000}"))
    assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200")


def held_up(held: ExitStack, viewer: Viewer, monkeypatch: pytest.MonkeyPatch, count: int) -> list[socket.socket]:
    """All places, by requests that wait for what is new."""
    monkeypatch.setattr(app, "HOLD_S", TIMEOUT_S)
    viewer.eventually("/api/view", lambda found: found["ages"]["sizes"]["as_of_ms"])
    version = viewer.view()["version"]
    found = [connected(held, viewer, asking(f"/api/view?since={version}")) for _ in range(count)]
    assert viewer.ask("/healthz").status == 200  # by then they have been read
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", count)
    return found


def test_while_all_are_being_answered_probes_are_too(
    viewer: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = held_up(held, viewer, monkeypatch, 3)
    monkeypatch.setattr(connections, "SPARE", 2)
    eventually(lambda: viewer.ask("/metrics").status == 503, "all places are taken")
    assert [viewer.ask(path).status for path in ("/healthz", "/readyz", "/api/view", "/")] == [200, 200, 503, 503]
    spare = [connected(held, viewer) for _ in range(4)]
    assert all(map(is_hung_up, spare[:2])), "of the spare ones, too, the longest silent gives way"
    assert viewer.ask("/metrics").status == 503, "its place is a spare one"
    assert viewer.ask("/healthz").status == 200
    holding[0].close()
    eventually(lambda: viewer.ask("/metrics").status == 200, "there is a place again")


def test_beyond_the_spare_ones_nobody_is_let_in(
    viewer: Viewer, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up(held, viewer, monkeypatch, 1)
    monkeypatch.setattr(connections, "SPARE", 0)

    def is_refused() -> bool:
        with ExitStack() as tried:
            return is_hung_up(connected(tried, viewer, asking("/healthz", "Connection: close")))

    eventually(is_refused, "the one place is taken")


@pytest.mark.parametrize("leaves", [True, False])
def test_a_login_that_is_broken_off_leaves_no_traceback(
    stranger: Viewer,
    held: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    leaves: bool,
) -> None:
    monkeypatch.setattr(entry, "FORM_S", TIMEOUT_S if leaves else 0.05)
    for _ in range(3):
        login = connected(held, stranger, SILENT["half a login"])
        if leaves:
            assert stranger.ask("/healthz", headers=TOKEN).status == 200  # meanwhile it is read
            login.close()
        else:
            assert login.recv(1 << 16).startswith(b"HTTP/1.1 408")
    assert stranger.ask("/healthz", headers=TOKEN).status == 200
    assert not [each for each in caplog.records if each.exc_info]


# What is said of them


def test_what_is_no_request_is_told_once_a_minute(
    viewer: Viewer, held: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """The attack: as many as somebody likes, each a line in the log."""
    for _ in range(20):
        connected(held, viewer, b"no request\r\n\r\n").recv(1)  # it was refused
    told = [each.message for each in caplog.records if "Invalid HTTP request" in each.message]
    assert len(told) <= 1, "none, if another test's were told within the minute"


def test_a_warning_says_how_many_there_were_and_errors_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0
    monkeypatch.setattr(connections, "Seldom", lambda every_ms: Seldom(every_ms, lambda: now_ms))
    few = connections.FewWarnings()

    def told(level: int, words: str) -> str | None:
        record = logging.LogRecord("uvicorn.error", level, "", 0, words, (), None)
        return record.getMessage() if few.filter(record) else None

    assert [told(logging.WARNING, "invalid") for _ in range(3)] == ["invalid", None, None]
    assert told(logging.WARNING, "unsupported") == "unsupported", "another kind"
    assert [told(logging.ERROR, "failed") for _ in range(2)] == ["failed", "failed"]
    now_ms = connections.TOLD_AGAIN_MS
    assert told(logging.WARNING, "invalid") == "invalid (2 more since the last such line)"
