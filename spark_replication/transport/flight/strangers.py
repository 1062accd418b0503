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
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path

from spark_replication.process.files import SpareDescriptor, lowest_free
from spark_replication.process.logs import Seldom
from spark_replication.transport.flight.known_peers import KnownPeers, as_grpc_names

RESERVE_MAX = 4_096  # descriptors that strangers leave to others; of few, a quarter
QUIET_MS = 10_000  # between two lines in the log

log = logging.getLogger(__name__)

_OVER_IP = (socket.AF_INET, socket.AF_INET6)


class Strangers:
    """One thread calls `look`; whoever is let in is `known`, on any thread."""

    def __init__(self) -> None:
        self.known = KnownPeers(_peers)
        self._spare = SpareDescriptor()  # a look needs one
        self._lines = Seldom(QUIET_MS)

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
        gone = self.known.peers()

        def is_stranger(peer: str) -> bool:
            gone.discard(peer)
            return peer not in self.known

        hung_up = _hang_up(port, is_stranger)
        self.known.forget(gone)  # the port of one that is gone may be a stranger's next
        return hung_up


def _peers(port: int) -> set[str] | None:
    if are_scarce():  # without descriptors nothing is found
        return None
    return {peer for _, peer in _connections(port)}


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
                yield connection, as_grpc_names(*peer[:2])


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
