"""The page as a process of its own: guarded, started again where it was, ended with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spark_replication.config import Settings, settings_from
from spark_replication.page import served
from spark_replication.page.served import ServedPage, is_told, read_url
from spark_replication.process import logs
from tests.live.cluster.faults import hang, kill
from tests.unit.page.viewer import Viewer
from tests.unit.transport.certificates import Authority, tls_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

NOBODY = "127.0.0.1:1"
TIMEOUT_S = 60.0
SOON_S = 3.0  # a question to the cluster may take 5 s
PROCESS = (
    *(sys.executable, "-m", "spark_replication.page.process", f"--log={os.devnull}"),
    *(f"--bootstrap={NOBODY}", "--host=127.0.0.1"),
)
GUARD = """
import sys, pathlib
from spark_replication.config import Settings
from spark_replication.page.served import ServedPage
page = ServedPage("127.0.0.1:1", Settings(), host="127.0.0.1", directory=pathlib.Path(sys.argv[1]))
print(page.wait_known(60), page._process.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(directory: Path, settings: Settings | None = None) -> Iterator[ServedPage]:
    page = ServedPage(NOBODY, settings or Settings(), host="127.0.0.1", directory=directory)
    try:
        yield page
    finally:
        page.stop()


def answers(url: str | None) -> bool:
    try:
        return url is not None and Viewer(url).ask("/healthz").status == 200
    except OSError:
        return False


def pid_of(page: ServedPage) -> int:
    assert page._process is not None
    return page._process.pid


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()  # nobody here is its parent


def test_it_is_served_by_another_process_and_where_it_was_before(tmp_path: Path) -> None:
    assert (read_url(tmp_path), is_told(tmp_path, os.getpid())) == (None, False)
    with serving(tmp_path) as page:
        url = page.wait_known(TIMEOUT_S)
        assert (page.url, answers(url)) == (url, True)
        assert (read_url(tmp_path), is_told(tmp_path, os.getpid()), is_told(tmp_path, 1)) == (url, True, False)
        assert pid_of(page) != os.getpid()
        assert os.getpriority(os.PRIO_PROCESS, pid_of(page)) > os.getpriority(os.PRIO_PROCESS, 0)
    assert (page.url, answers(url), is_gone(pid_of(page))) == (None, False, True)
    with serving(tmp_path) as again:
        assert (again.wait_known(TIMEOUT_S), answers(url)) == (url, True)


def test_one_that_is_killed_is_started_again_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as page:
        url = page.wait_known(TIMEOUT_S)
        first = pid_of(page)
        kill(first)
        eventually(lambda: pid_of(page) != first and answers(url), "it is served again", TIMEOUT_S)
        assert page.url == url
    assert "the page's process has ended (exit code -9): starting it again" in caplog.text


def test_its_log_has_a_bound_whatever_strangers_make_it_say(tmp_path: Path) -> None:
    """A request that is none has it write a line."""
    log = tmp_path / served.LOG_FILE
    with serving(tmp_path) as page:
        url = page.wait_known(TIMEOUT_S)
        assert url is not None
        os.truncate(log, logs.FILE_BYTES_MAX)

        def is_begun_anew() -> bool:
            with socket.create_connection(
                ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])), TIMEOUT_S
            ) as stranger:
                stranger.sendall(b"no HTTP\r\n\r\n")
                stranger.recv(1 << 10)
            return log.with_name(f"{log.name}.1").exists()

        eventually(is_begun_anew, "its log is begun anew", TIMEOUT_S)
        assert log.stat().st_size < logs.FILE_BYTES_MAX


def test_one_that_hangs_is_killed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "STOP_S", 0.2)
    with serving(tmp_path) as page:
        assert page.wait_known(TIMEOUT_S)
        hang(pid_of(page))
    assert is_gone(pid_of(page))


def test_one_that_somebody_looks_at_ends_soon_though_the_cluster_is_silent(tmp_path: Path) -> None:
    with serving(tmp_path) as page:
        url = page.wait_known(TIMEOUT_S)
        assert url is not None
        Viewer(url).ask("/api/view")  # the cluster is asked, again and again
        began_s = time.monotonic()
        page.stop()
        assert time.monotonic() - began_s < SOON_S
        assert is_gone(pid_of(page))


def test_it_ends_with_a_guard_that_is_killed_and_the_next_has_its_address(tmp_path: Path) -> None:
    command = (sys.executable, "-c", GUARD, str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as guard:
        assert guard.stdout is not None
        url, page = guard.stdout.readline().split()
        assert answers(url)
        os.kill(int(page), signal.SIGSTOP)  # so that the next guard finds the port taken for a while
        kill(guard.pid)
        with serving(tmp_path) as again:
            eventually(lambda: "page-guard" in _thread_names(again), "the next guard waits for the port")
            os.kill(int(page), signal.SIGCONT)
            assert again.wait_known(TIMEOUT_S) == url
            eventually(lambda: is_gone(int(page)), "it is gone, a moment after its port is")


def _thread_names(page: ServedPage) -> set[str]:
    return {page._thread.name} if page._thread.is_alive() else set()


@pytest.mark.parametrize(("given", "code"), [(b"", 0), (b'{"page.port": 0', 0), (b'{"none": 1}\n', served.REFUSED)])
def test_who_started_it_may_end_before_it_has_its_settings_or_give_it_none(given: bytes, code: int) -> None:
    process = subprocess.run((*PROCESS, "--port=0"), input=given, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (process.returncode, process.stdout) == (code, b"")
    assert process.stderr.decode().count("\n") == code, "one line that says why it is refused"


def test_a_stop_signal_ends_it(tmp_path: Path) -> None:
    command = (*PROCESS, "--port=0")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({}).encode() + b"\n")
        process.stdin.flush()
        assert answers(process.stdout.readline().decode().strip())
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_a_page_that_cannot_be_served_is_told_and_keeps_nobody_from_working(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "page").write_text("http://127.0.0.1:1/\n7\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = settings_from({"page.port": other.getsockname()[1]})
        with serving(tmp_path, settings) as page:
            assert page.wait_known(TIMEOUT_S) is None
            assert (read_url(tmp_path), is_told(tmp_path, os.getpid())) == (None, True)
            page._thread.join(TIMEOUT_S)
            assert not page._thread.is_alive(), "it is not tried again"
    assert caplog.text.count("there is no page: START_FAILED") == 1


def test_a_page_whose_process_cannot_be_started_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with serving(tmp_path) as page:
        assert page.wait_known(TIMEOUT_S) is None
    assert caplog.text.count("there is no page: ") == 1


def test_a_page_that_is_not_wanted_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("http://127.0.0.1:1/\n7\n")
    with serving(tmp_path, settings_from({"page.enabled": False})) as page:
        assert (page.wait_known(0), page._process) == (None, None)
        assert (read_url(tmp_path), is_told(tmp_path, os.getpid())) == (None, True)


@pytest.mark.parametrize("text", ["\n", "no address", "http://127.0.0.1:99999/\n5", "http://127.0.0.1:²/\n\n\n"])
def test_whatever_the_file_says_a_page_is_served(tmp_path: Path, text: str) -> None:
    (tmp_path / "page").write_text(text)
    with serving(tmp_path) as page:
        assert answers(page.wait_known(TIMEOUT_S))


def test_a_link_that_was_used_is_told_anew_to_this_user_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = settings_from(tls_settings(authority, authority.issue("root"), mutual=True))
    with serving(tmp_path, settings) as page:
        link = page.wait_known(TIMEOUT_S)
        assert link is not None
        assert (read_url(tmp_path), (tmp_path / "page").stat().st_mode & 0o777) == (link, 0o600)
        assert page.address == link.partition("login")[0], "which is what clients are told"
        address = urlsplit(link)
        assert Viewer(link).ask("/api/view").status == 401
        assert Viewer(link).ask(f"{address.path}?{address.query}").status == 303
        eventually(lambda: page.url not in (None, link) and read_url(tmp_path) == page.url, "the next link is told")
        kill(pid_of(page))
        before = page.url
        eventually(lambda: page.url != before, "the next page has a link of its own", TIMEOUT_S)
        assert page.address == link.partition("login")[0], "where it was"
