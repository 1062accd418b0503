"""Connections to the frames' port that have proven nothing yet: they take no place of those that have (W5).

Rules:
- So many of one host may shake hands at a time, and so many of all hosts. Of more, the one that has taken longest gives
  way: of the same host, or else of the host that has most of them.
- Whoever shakes hands at once is done before anybody makes it give way. Whoever says nothing waits for its own timeout,
  or for the next newcomer.
"""

from __future__ import annotations

import socket
import threading

NEWCOMERS_MAX = 1_000
NEWCOMERS_OF_A_HOST_MAX = 500


class Newcomers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By host, the one that came first at the beginning.
        self._hosts: dict[str, dict[socket.socket, None]] = {}
        self._of: dict[socket.socket, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def came(self, connection: socket.socket, host: str) -> socket.socket | None:
        """It shakes hands from now on. Returns one that has to give way to it, if any has."""
        with self._lock:
            gone = None
            if len(self._hosts.get(host, ())) >= NEWCOMERS_OF_A_HOST_MAX:
                gone = self._first_of(host)
            elif len(self._of) >= NEWCOMERS_MAX:
                gone = self._first_of(max(self._hosts, key=lambda each: len(self._hosts[each])))
            self._of[connection] = host
            self._hosts.setdefault(host, {})[connection] = None
            return gone

    def left(self, connection: socket.socket) -> bool:
        """It is known, or has ended. False: it has given way before."""
        with self._lock:
            return self._drop(connection)

    def _first_of(self, host: str) -> socket.socket:
        first = next(iter(self._hosts[host]))
        self._drop(first)
        return first

    def _drop(self, connection: socket.socket) -> bool:
        host = self._of.pop(connection, None)
        if host is None:
            return False
        of_host = self._hosts[host]
        del of_host[connection]
        if not of_host:
            del self._hosts[host]
        return True


def host_of(connection: socket.socket) -> str:
    """Empty if it is gone already."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""
