"""How kazoo's connection thread is woken: by a counter that never fills up.

kazoo writes a byte into a socket pair for each request and reads one for each it sends. The pair holds some 270 bytes,
and those of requests that a lost connection failed stay in it: then whoever makes a request blocks, and where it is
kazoo's own thread that calls back, everything does.
"""

from __future__ import annotations

import os

from kazoo.handlers.threading import SequentialThreadingHandler


class _Counter:
    """Both ends of the pair. Reading takes one off, and the descriptor is readable while it is above zero."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> int:
        if self._closed:
            raise OSError("the connection is closed")
        os.eventfd_write(self._descriptor, len(data))
        return len(data)

    def recv(self, _count: int) -> bytes:
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


class NeverBlockingHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    def create_socket_pair(self) -> tuple[_Counter, _Counter]:
        counter = _Counter()
        return counter, counter
