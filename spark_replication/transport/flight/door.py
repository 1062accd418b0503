"""The port of a controller that lives in a Spark driver, held by a child process with a limit of memory.

gRPC reads a call whole before anybody looks at it, and pyarrow lets nobody bound that: two calls of a stranger with 300
MiB each took 2.4 GB of the process with the port, and one of 400 KB that unzips to 384 MiB took 1.2. In a driver the
user's own work would pay. So there the child has gRPC and its memory, and this process gets what it may hold
(transport.flight.forwarding).

Rules:
- The port belongs to this process from the start: it is bound here, and listened at by the child. So a child that
  ended, by its limit or by a kill, is started again at the same address, and the start need not wait for it.
- Leadership and the controller's state do not depend on the child. A call that is under way as it ends fails for its
  caller alone, who may ask again.
- The child ends with this process, however this one ends: its standard input is one end of a pair of sockets.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from spark_replication.errors import StartFailed
from spark_replication.process.logs import Seldom, rotate_unused
from spark_replication.process.processes import last_lines
from spark_replication.transport.flight.forwarding import (
    CHANNELS_MAX,
    Answerer,
    Body,
    ForwardedCall,
    ForwardedContext,
    LocalChannel,
)
from spark_replication.transport.flight.known_peers import KnownPeers, peers_by_kernel

LOG_FILE = "door.log"
OPENED, CHANNEL = b"o", b"c"  # what the child says: it listens; here is a channel, with the message
MESSAGE_BYTES_MAX = 1
LOOK_S = 0.25
RESTART_S = 1.0  # after one that ended before it listened
QUIET_MS = 60_000  # between two lines in the log
STOP_S = 2.0  # for calls under way
KILLED_S = 5.0

log = logging.getLogger(__name__)

Answered = Callable[[ForwardedContext, ForwardedCall, Body], list[bytes]]


class Door:
    """Its process runs from birth to `stop`. Calls wait until `opens`."""

    def __init__(self, host: str, settings: Mapping[str, object], directory: Path) -> None:
        """The caller has asked security.require_may_bind(host). settings: those that differ from the defaults.
        directory: where the log of the process lies."""
        self.host = host
        self._settings = dict(settings)
        self._log_path = directory / LOG_FILE
        self._place = _bound(host)
        self.port: int = self._place.getsockname()[1]
        self._answerer: Answerer | None = None
        self._known = KnownPeers(peers_by_kernel)
        self._look: Callable[[], None] = lambda: None
        self._has_opened = threading.Event()
        self._listens = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._stopping = threading.Event()
        self._lines = Seldom(QUIET_MS)
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channels = 0
        self._thread = threading.Thread(target=self._guard, name="door", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process that listens at the port; None while there is none."""
        process = self._process
        return process.pid if process is not None and self._listens.is_set() else None

    def opens(self, answered: Answered, look: Callable[[], None]) -> None:
        """Calls are answered from here on. look: is called every LOOK_S."""
        self._answerer, self._look = Answerer(answered), look
        self._has_opened.set()

    def wait_listening(self, timeout_s: float) -> bool:
        return self._listens.wait(timeout_s)

    def why_not(self) -> StartFailed:
        """Why nobody listens."""
        return StartFailed(f"nobody listens at {self.host}:{self.port}: {last_lines(self._log_path, lines=3)}")

    def known(self, context: Any, principal: str, at_most: int | None) -> bool:
        """Whoever makes this call is let in: the child, which has the connections and nobody's name, learns it with the
        answer. False: the principal has at_most others here."""
        context.is_known = self._known.let_in(context.peer(), principal, port=self.port, at_most=at_most)
        return bool(context.is_known)

    def hang_up(self, peers: Container[str]) -> int:
        return 0

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End the process, which gives calls under way STOP_S. If two stop it, the later one waits."""
        with self._lock:
            self._stopping.set()
            self._has_opened.set()
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.shutdown(socket.SHUT_WR)
        self._thread.join(timeout_s + STOP_S)
        process = self._process
        if process is not None and self._thread.is_alive():
            log.warning("process %d, which has port %d, has not ended: killing it", process.pid, self.port)
            process.kill()
            self._thread.join(KILLED_S)
        self._place.close()

    def shutdown(self) -> None:
        self.stop()

    # On the thread of its own

    def _guard(self) -> None:
        while not self._stopping.is_set():
            try:
                code = self._run()
            except OSError as error:
                log.warning("no process for port %d: %s", self.port, error)
                code = None
            had_listened = self._listens.is_set()
            self._listens.clear()
            if self._stopping.is_set():
                return
            if ended := self._lines.come(code):  # strangers can end it
                log.warning(
                    "the process that has the controller's port %d has ended (exit code %s, %d times): it is started "
                    "again. Calls that were under way failed, and nothing else",
                    self.port,
                    code,
                    ended,
                )
            if not had_listened:
                self._stopping.wait(RESTART_S)

    def _run(self) -> int:
        """Run the process until it ends. Returns its exit code."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            with self._lock, theirs:
                if self._stopping.is_set():
                    return 0
                process = self._process = self._started(theirs)
                self._control = control
            try:
                control.sendall(json.dumps(self._settings).encode())
                while self._heard(control):
                    continue
            except OSError as error:  # it has ended
                log.debug("the end of a control channel: %s", error)
            finally:
                with self._lock:
                    self._control = None
        try:
            return process.wait(STOP_S + KILLED_S)
        except subprocess.TimeoutExpired:  # it has closed its input, and lives
            process.kill()
            return process.wait()

    def _started(self, standard_input: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spark_replication.transport.flight.door_process"]
        rotate_unused(self._log_path)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log_file:
            # A session of its own, since Ctrl-C is for this process: the child ends once the controller has left.
            return subprocess.Popen(
                [*command, f"--host={self.host}", f"--port={self.port}", f"--log={self._log_path}"],
                stdin=standard_input.fileno(),
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )

    def _heard(self, control: socket.socket) -> bool:
        """Whether the process lives, as far as its channel says."""
        deadline_s = time.monotonic() + LOOK_S
        if not select.select([control], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            self._look()
            return True
        said, handles, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
        for handle in handles:
            self._serve(socket.socket(fileno=handle))
        if said == OPENED:
            self._listens.set()
        return bool(said)

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            if self._channels >= CHANNELS_MAX:
                connection.close()
                return
            self._channels += 1
        threading.Thread(target=self._answer, args=(connection,), name="door-calls", daemon=True).start()

    # On a thread for each channel

    def _answer(self, connection: socket.socket) -> None:
        channel = LocalChannel(connection)
        try:
            self._has_opened.wait()
            if self._answerer is not None:
                self._answerer.serve(channel)
        except OSError:  # the child has ended, or given this channel up
            pass
        finally:
            channel.close()
            with self._lock:
                self._channels -= 1


def _bound(host: str) -> socket.socket:
    """A socket that has a port of this host, and does not listen: beside it only a socket that shares addresses, as
    gRPC's do, can be bound there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartFailed(f"no port for {host!r}: {error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise StartFailed(f"no port of {host}: {error}") from error
    return found
