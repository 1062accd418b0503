"""Connections to a Flight server that are hung up: once descriptors run out, those over which nobody has made a call,
and those whose caller is known no longer.

gRPC takes every connection, and pyarrow's servers neither bound nor name them. So the process looks at its own sockets.

Rules:
- While there are enough descriptors, strangers may stay: a client that has connected is one until its first call.
- Whoever has made a call that was let in stays, whatever there are.
- A principal has so many connections that stay, and of more each remains a stranger. What has ended counts until
  somebody looks, as the principal comes to its limit, and at most once in LOOK_AGAIN_S.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from spark_replication.process.files import SpareDescriptor, lowest_free
from spark_replication.process.logs import Seldom

RESERVE_MAX = 4_096  # descriptors that strangers leave to others; of few, a quarter
KNOWN_MAX = 100_000
LOOK_AGAIN_S = 1.0
QUIET_MS = 10_000  # between two lines in the log

log = logging.getLogger(__name__)

_OVER_IP = (socket.AF_INET, socket.AF_INET6)
_FOUR_IN_SIX = "::ffff:"  # how a socket for both names an address of version 4


class Strangers:
    """Thread-safe; one thread calls `look`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whose they are: peers that have made a call, as gRPC names them, the earliest first.
        self._known: dict[str, str] = {}
        #: How many of those each principal has. Under the lock.
        self._counts: Counter[str] = Counter()
        self._counted_s = -LOOK_AGAIN_S  # when it was looked last which of them are gone
        self._spare = SpareDescriptor()  # a look needs one
        self._lines = Seldom(QUIET_MS)

    def known(self, peer: str, principal: str = "", *, port: int = 0, at_most: int | None = None) -> bool:
        """It has made a call that is let in. False: the principal has at_most others at this port, and this one remains
        a stranger. None: it may have any number."""
        if self._known.get(peer) == principal:
            return True
        with self._lock:
            self._forget([peer])  # the port of one that is gone may be another's next
            if at_most is not None and self._counts[principal] >= at_most:
                self._forget_gone(port)
                if self._counts[principal] >= at_most:
                    return False
            self._known[peer] = principal
            self._counts[principal] += 1
            if len(self._known) > KNOWN_MAX:
                self._forget([next(iter(self._known))])
            return True

    def _forget_gone(self, port: int) -> None:
        now_s = time.monotonic()
        if now_s - self._counted_s < LOOK_AGAIN_S or are_scarce():  # without descriptors nothing is found
            return
        self._counted_s = now_s
        there = {peer for _, peer in _connections(port)}
        self._forget([peer for peer in self._known if peer not in there])

    def _forget(self, peers: Iterable[str]) -> None:
        for peer in peers:
            principal = self._known.pop(peer, None)
            if principal is not None:
                self._counts[principal] -= 1
                if not self._counts[principal]:
                    del self._counts[principal]

    def look(self, port: int) -> None:
        """Hang up on strangers at this port, if descriptors run out."""
        if are_scarce():
            self._spare.give()
            hung_up = self._lines.come(port, self._hang_up_on_strangers(port))
            if hung_up:
                log.warning("descriptors run out: hung up on %d strangers at port %d", hung_up, port)
        self._spare.keep()

    def close(self) -> None:
        self._spare.give()

    def hang_up(self, port: int, peers: Container[str]) -> int:
        """Hang up on these peers at this port: all that they have open there ends. Returns how many there were."""
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
            self._forget(gone)
        return hung_up


def _hang_up(port: int, is_to_go: Callable[[str], bool]) -> int:
    hung_up = 0
    for connection, peer in _connections(port):
        if is_to_go(peer):
            with suppress(OSError):  # it ends by itself
                connection.shutdown(socket.SHUT_RDWR)
                hung_up += 1
    return hung_up


def _connections(port: int) -> Iterator[tuple[socket.socket, str]]:
    """The connections at this port, each while it is looked at, with its peer as gRPC names it."""
    for number in _descriptors():
        connection = _connection(number)
        if connection is None:
            continue
        with connection:
            try:
                peer, here = connection.getpeername(), connection.getsockname()
            except OSError:  # it is no connection, or has ended
                continue
            if here[1] == port:
                yield connection, _named(*peer[:2])


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
