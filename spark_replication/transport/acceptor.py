"""Takes connections from a listener, whatever the process runs out of.

Rules:
- accept() that fails is tried again after a pause: without descriptors it fails at once, again and again.
- Without descriptors, whoever waits is let in with a spare one and hung up on: its peer is told now and tries again,
  rather than wait in the backlog for its own timeout.
- A failure is logged once a second at most: the log must not fill the disk.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from contextlib import suppress

PAUSE_S = 0.1
LOG_S = 1.0

log = logging.getLogger(__name__)


class Acceptor:
    """`next` is called by one thread, `close` by any."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._closed = threading.Event()
        self._spare = _spare()
        self._quiet_until_s = 0.0

    def next(self) -> socket.socket | None:
        """None: it was closed."""
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                return connection
            except OSError as error:
                if self._closed.is_set():
                    break
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._hang_up_on_one()  # not after the pause: there may be descriptors again by then
                self.pause(f"a connection could not be accepted: {error}")
        self._give_spare()
        return None

    def pause(self, why: str) -> None:
        """Before the next, since something is short."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + LOG_S
            log.warning("%s", why)
        self._closed.wait(PAUSE_S)

    def close(self) -> None:
        """`next` returns soon, once the listener is hung up on as well."""
        self._closed.set()

    def _hang_up_on_one(self) -> None:
        # The kernel looks for a descriptor before it looks for a connection: that there is none is no failure.
        waiting = select.poll()  # select.select takes no descriptor above 1,023
        waiting.register(self._listener, select.POLLIN)
        if waiting.poll(0):
            self._give_spare()
            with suppress(OSError):
                self._listener.accept()[0].close()
        if self._spare is None:
            self._spare = _spare()

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
