"""Runs the page in a child process, which a thread of this process guards. This process loads none of the page's code.

The cluster goes on whether or not the page can be served.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from spark_replication.client.finding.settings_file import overrides_of
from spark_replication.config import Settings
from spark_replication.messages.actions import DESCRIBE_PAGE
from spark_replication.messages.observing import DescribePage, PageDescription
from spark_replication.process.files import replace_secret
from spark_replication.process.logs import rotate_unused
from spark_replication.process.loopback import port_again
from spark_replication.process.processes import last_lines
from spark_replication.transport.flight.actions import Handled, handled

LOOPBACK = "127.0.0.1"
FILE_CHARACTERS_MAX = 1_000
FILE = "page"  # in the directory of the process that guards it
LOG_FILE = "page.log"
RESTART_S = 2.0
STOP_S = 5.0
KILLED_S = 5.0  # in which one that was killed is gone, however busy the machine is
PORT_WAIT_S = 3.0  # for the port of a page whose guard was killed: that page ends by itself
POLL_S = 0.05
REFUSED = 1  # the exit code of page.process if the page cannot be served: the last line of its log says why

log = logging.getLogger(__name__)


class ServedPage:
    """A page that is served until `stop`. Its process is started again if it is killed."""

    def __init__(self, bootstrap: str, settings: Settings, *, host: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        # The page has no TLS or token of its own: without a token nobody beyond this host may see it.
        is_encrypted = settings.security_mode == "tls"
        may_leave = settings.security_token_file and (is_encrypted or settings.security_token_in_clear)
        self._host = host if may_leave else LOOPBACK
        #: Its file `page` tells other processes of this user the page's URL (empty if it is not served), and the pid of
        #: its guard. The next guard serves the page at the same port.
        self._directory = directory
        self._url: str | None = None
        self._known = threading.Event()  # set once it is known where the page is served, or that it is not
        self._lock = threading.Lock()  # guards what follows
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._guard, name="page-guard", daemon=True)
        if settings.page_enabled:
            self._thread.start()
        else:
            self._tell(None)

    @property
    def url(self) -> str | None:
        """What to open: the page's address, or the link that lets one browser in. None if it is not served, or not
        yet."""
        return self._url

    @property
    def address(self) -> str | None:
        """Where the page is, for everybody: no link is in it."""
        return None if self._url is None else urlsplit(self._url)._replace(path="/", query="").geturl()

    def wait_known(self, timeout_s: float) -> str | None:
        """Wait until it is known where the page is served, or that it is not. Return its URL, or None."""
        self._known.wait(timeout_s)
        return self._url

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            process = self._process
            if process is not None:
                _close_input(process)
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
            if process is not None and self._thread.is_alive():
                log.warning("the page's process has not ended in %.0f s: killing it", STOP_S)
                process.kill()
                self._thread.join(KILLED_S)
        self._url = None

    # On the thread of its own

    def _guard(self) -> None:
        while not self._stopping.is_set():
            try:
                code = self._serve()
            except OSError as error:
                return self._give_up(str(error))
            if self._stopping.is_set():
                return None
            if code == REFUSED:
                return self._give_up(last_lines(self._directory / LOG_FILE, lines=1))
            log.warning("the page's process has ended (exit code %s): starting it again", code)
            self._stopping.wait(RESTART_S)
        return None

    def _give_up(self, why: str) -> None:
        log.warning("there is no page: %s", why)
        self._tell(None)

    def _serve(self) -> int:
        """Run the page's process until it ends. Return its exit code."""
        port = self._settings.page_port or self._port_before()
        with self._lock:
            if self._stopping.is_set():
                return 0
            process = self._process = self._started(port)
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._tell(line.decode(errors="replace").strip())
            return process.wait()

    def _port_before(self) -> int:
        """The port that the page had before. 0 if there was none, or if it is taken after PORT_WAIT_S."""
        wanted = _port_of(read_url(self._directory))
        deadline_s = time.monotonic() + PORT_WAIT_S
        while (found := port_again(self._host, wanted)) != wanted and time.monotonic() < deadline_s:
            if self._stopping.wait(POLL_S):
                break
        return found

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spark_replication.page.process"]
        log_path = self._directory / LOG_FILE
        place = [f"--bootstrap={self._bootstrap}", f"--host={self._host}", f"--port={port}", f"--log={log_path}"]
        rotate_unused(log_path)
        with log_path.open("ab") as log_file:
            # A session of its own, since Ctrl-C is for the guard, and a session has a niceness (process.processes).
            process = subprocess.Popen(
                [*command, *place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its exit code tells
            process.stdin.write(json.dumps(overrides_of(self._settings)).encode() + b"\n")
            process.stdin.flush()
        return process

    def _tell(self, url: str | None) -> None:
        self._url = url
        with contextlib.suppress(OSError):  # whoever asks this process by RPC is answered all the same
            replace_secret(self._directory / FILE, f"{url or ''}\n{os.getpid()}\n")
        self._known.set()


def page_action(page: Callable[[], ServedPage | None]) -> Handled:
    """The action that tells where the page is served. `page` is called for each request: the page starts later than the
    server of this action."""

    def describe(_asked: DescribePage) -> PageDescription:
        served = page()
        return PageDescription(url=None if served is None else served.address)

    return handled(DESCRIBE_PAGE, describe)


def is_told(directory: Path, guard: int) -> bool:
    """Whether the process with this pid has told where it serves the page, or that it is nowhere."""
    return _told(directory)[1] == str(guard)


def read_url(directory: Path) -> str | None:
    """The last URL of the page, whoever guarded it; None if there is none."""
    return _told(directory)[0] or None


def _told(directory: Path) -> tuple[str, str]:
    """The page's URL and the guard's pid, each empty if unknown."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = (directory / FILE).read_text(encoding="utf-8")[:FILE_CHARACTERS_MAX].splitlines()
        url, guard = [each.strip() for each in [*lines, "", ""][:2]]
        return url, guard
    return "", ""


def _port_of(url: str | None) -> int:
    """0 if there is none."""
    try:
        return urlsplit(url or "").port or 0
    except ValueError:
        return 0


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
