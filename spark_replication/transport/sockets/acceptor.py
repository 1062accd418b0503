"""Accepts connections from a listener, whatever the process runs out of.

Rules:
- An accept() that fails is repeated after a pause: without descriptors it would fail at once, again and again.
- Without descriptors, a waiting connection is accepted with a spare descriptor and closed at once. Its peer tries again
  soon, rather than wait in the backlog for its own timeout.
- A failure is logged once a second at most: the log must not fill the disk.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from contextlib import suppress

from spark_replication.process.files import SpareDescriptor

PAUSE_S = 0.1
LOG_S = 1.0

log = logging.getLogger(__name__)


class Acceptor:
    """`next` is called by one thread, `close` by any."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._closed = threading.Event()
        self._spare = SpareDescriptor()
        self._quiet_until_s = 0.0

    def next(self) -> socket.socket | None:
        """The next connection; None once this acceptor was closed."""
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                return connection
            except OSError as error:
                if self._closed.is_set():
                    break
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._hang_up_on_one()  # before the pause, after which there may be descriptors again
                self.pause(f"a connection could not be accepted: {error}")
        self._spare.give()
        return None

    def pause(self, why: str) -> None:
        """Wait before the next accept, since the process has run out of something."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + LOG_S
            log.warning("%s", why)
        self._closed.wait(PAUSE_S)

    def close(self) -> None:
        """Make `next` return None, once the listener is shut down as well."""
        self._closed.set()

    def _hang_up_on_one(self) -> None:
        # accept() fails without a descriptor even if no connection waits, so look for one first.
        waiting = select.poll()  # select.select takes no descriptor above 1,023
        waiting.register(self._listener, select.POLLIN)
        if waiting.poll(0):
            self._spare.give()
            with suppress(OSError):
                self._listener.accept()[0].close()
        self._spare.keep()
