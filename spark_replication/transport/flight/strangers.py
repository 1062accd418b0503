"""Connections to a Flight server that are hung up: once descriptors run out, those over which nobody has made a call,
and those whose caller is known no longer.

gRPC takes every connection, and pyarrow's servers neither bound nor name them. So the process looks at its own sockets.

Rules:
- While there are enough descriptors, strangers may stay: a client that has connected is one until its first call.
- Whoever has made a call that was let in stays, whatever there are.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from spark_replication.process.files import SpareDescriptor, lowest_free
from spark_replication.process.logs import Seldom

RESERVE_MAX = 4_096  # descriptors that strangers leave to others; of few, a quarter
KNOWN_MAX = 100_000
QUIET_MS = 10_000  # between two lines in the log

log = logging.getLogger(__name__)

_OVER_IP = (socket.AF_INET, socket.AF_INET6)
_FOUR_IN_SIX = "::ffff:"  # how a socket for both names an address of version 4


class Strangers:
    """Thread-safe; one thread calls `look`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Peers that have made a call, as gRPC names them, the earliest first.
        self._known: dict[str, None] = {}
        self._spare = SpareDescriptor()  # a look needs one
        self._lines = Seldom(QUIET_MS)

    def known(self, peer: str) -> None:
        """It has made a call that was let in."""
        if peer not in self._known:
            with self._lock:
                self._known[peer] = None
                if len(self._known) > KNOWN_MAX:
                    del self._known[next(iter(self._known))]

    def look(self, port: int) -> None:
        """Hangs up on strangers at this port, if descriptors run out."""
        if are_scarce():
            self._spare.give()
            hung_up = self._lines.come(port, self._hang_up_on_strangers(port))
            if hung_up:
                log.warning("descriptors run out: hung up on %d strangers at port %d", hung_up, port)
        self._spare.keep()

    def close(self) -> None:
        self._spare.give()

    def hang_up(self, port: int, peers: Container[str]) -> int:
        """Hangs up on these peers at this port: all that they have open there ends. Returns how many there were."""
        self._spare.give()
        hung_up = _hang_up(port, lambda peer: peer in peers)
        self._spare.keep()
        return hung_up

    def _hang_up_on_strangers(self, port: int) -> int:
        with self._lock:
            gone = set(self._known)

        def is_stranger(peer: str) -> bool:
            if peer not in self._known:
                return True
            gone.discard(peer)
            return False

        hung_up = _hang_up(port, is_stranger)
        with self._lock:  # the port of one that is gone may be a stranger's next
            for peer in gone:
                self._known.pop(peer, None)
        return hung_up


def _hang_up(port: int, is_to_go: Callable[[str], bool]) -> int:
    hung_up = 0
    for number in _descriptors():
        connection = _connection(number)
        if connection is None:
            continue
        with connection, suppress(OSError):  # it is no connection, or ends by itself
            peer = _named(*connection.getpeername()[:2])
            if connection.getsockname()[1] == port and is_to_go(peer):
                connection.shutdown(socket.SHUT_RDWR)
                hung_up += 1
    return hung_up


def are_scarce() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = lowest_free()
    if free is None:
        return True
    return limit != resource.RLIM_INFINITY and free >= limit - min(limit // 4, RESERVE_MAX)


def _descriptors() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:  # there is no such directory, or no descriptor to look into it
        return []


def _named(host: str, port: int) -> str:
    """As gRPC names a peer."""
    host = host.removeprefix(_FOUR_IN_SIX)
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _connection(number: int) -> socket.socket | None:
    """Another descriptor of the same socket: it is that one still, if the first is closed and its number given anew."""
    try:
        another = os.dup(number)
    except OSError:  # it is closed
        return None
    try:
        found = socket.socket(fileno=another)
    except OSError:  # it is no socket
        os.close(another)
        return None
    if found.family in _OVER_IP:
        return found
    found.close()
    return None
