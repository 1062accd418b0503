"""Who calls over which connection to a Flight port, and how many connections each principal has there.

gRPC names a connection by its other end. It tells of none that ends, so the process that has the port looks at its own
sockets, and another one asks the kernel.

Rules:
- A principal has so many connections that are known, and of more each remains a stranger's. What has ended counts until
  somebody looks, as the principal comes to its limit, and at most once in LOOK_AGAIN_S.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

KNOWN_MAX = 100_000
LOOK_AGAIN_S = 1.0
ESTABLISHED = "01"

_FOUR_IN_SIX = "::ffff:"  # how a socket for both names an address of version 4


class KnownPeers:
    """Thread-safe."""

    def __init__(self, there: Callable[[int], Set[str] | None]) -> None:
        """there: the peers that are connected to this port; None if that cannot be found out now."""
        self._there = there
        self._lock = threading.Lock()
        #: Whose they are: peers that have made a call, as gRPC names them, the earliest first.
        self._principals: dict[str, str] = {}
        #: How many of those each principal has. Under the lock.
        self._counts: Counter[str] = Counter()
        self._looked_s = -LOOK_AGAIN_S  # when it was looked last which of them are gone

    def __contains__(self, peer: str) -> bool:
        return peer in self._principals

    def peers(self) -> set[str]:
        with self._lock:
            return set(self._principals)

    def let_in(self, peer: str, principal: str = "", *, port: int = 0, at_most: int | None = None) -> bool:
        """It has made a call that is let in. False: the principal has at_most others at this port, and this one remains
        a stranger. None: it may have any number."""
        if self._principals.get(peer) == principal:
            return True
        with self._lock:
            self._forget([peer])  # the port of one that is gone may be another's next
            if at_most is not None and self._counts[principal] >= at_most:
                self._forget_gone(port)
                if self._counts[principal] >= at_most:
                    return False
            self._principals[peer] = principal
            self._counts[principal] += 1
            if len(self._principals) > KNOWN_MAX:
                self._forget([next(iter(self._principals))])
            return True

    def forget(self, peers: Iterable[str]) -> None:
        with self._lock:
            self._forget(peers)

    def _forget_gone(self, port: int) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return
        there = self._there(port)
        if there is not None:
            self._looked_s = now_s
            self._forget([peer for peer in self._principals if peer not in there])

    def _forget(self, peers: Iterable[str]) -> None:
        for peer in peers:
            principal = self._principals.pop(peer, None)
            if principal is not None:
                self._counts[principal] -= 1
                if not self._counts[principal]:
                    del self._counts[principal]


def peers_by_kernel(port: int) -> set[str] | None:
    """The peers of this host's port, whichever process has it. None if the kernel does not tell."""
    found: set[str] = set()
    told = False
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError):  # without IPv6 there is no such file
            lines = Path("/proc/self/net", name).read_text(encoding="ascii").splitlines()[1:]
            told = True
            for line in lines:
                _, here, peer, state, *_ = line.split()
                if state == ESTABLISHED and int(here.rpartition(":")[2], 16) == port:
                    host, _, number = peer.partition(":")
                    found.add(as_grpc_names(socket.inet_ntop(family, _address(host)), int(number, 16)))
    return found if told else None


def _address(text: str) -> bytes:
    """The kernel writes an address as numbers of four bytes, each as this processor has it."""
    words = [bytes.fromhex(text[start : start + 8]) for start in range(0, len(text), 8)]
    return b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)


def as_grpc_names(host: str, port: int) -> str:
    host = host.removeprefix(_FOUR_IN_SIX)
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
