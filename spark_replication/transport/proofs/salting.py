"""scrypt, which is slow on purpose: whoever has a verifier and tries tokens against it needs this long for each.

A process needs it once for each token that it proves, and once for each that somebody shows to it and that is good. So
both are kept, under a name that only this process can make. A token that is none is not kept for long, and of those one
is looked at at a time: strangers can show as many as they like, and each takes 16 MiB or more for tens of milliseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading

from spark_replication.errors import Overloaded
from spark_replication.messages.replication import Salt

BLOCK, PARALLEL = 8, 1  # scrypt's r and p
ROOT_BYTES = 32
KEPT_MAX = 1_000
TRIED_MAX = 16
STRANGERS_MAX = 8  # threads that wait until a token which nobody knows was looked at


class Roots:
    """What scrypt has made of tokens. Thread-safe."""

    def __init__(self) -> None:
        self._name_key = os.urandom(32)
        self._lock = threading.Lock()
        #: By name, the one that was used last at the end. Under the lock.
        self._kept: dict[bytes, bytes] = {}
        self._tried: dict[bytes, bytes] = {}
        self._making = threading.Lock()
        self._trying = threading.Lock()
        self._strangers = threading.BoundedSemaphore(STRANGERS_MAX)

    def of(self, secret: bytes, salt: Salt) -> bytes:
        """The root of a token that this process has itself."""
        name = self._name(secret, salt)
        found = self._found(name)
        if found is None:
            with self._making:
                found = self._found(name) or _made(secret, salt)
                self._keep(name, found)
        return found

    def tried(self, secret: bytes, salt: Salt) -> bytes:
        """The root of a token that somebody shows. Raises Overloaded if too many are shown that nobody knows."""
        name = self._name(secret, salt)
        found = self._found(name)
        if found is not None:
            return found
        if not self._strangers.acquire(blocking=False):
            raise Overloaded(f"{STRANGERS_MAX} tokens that nobody knows are looked at here: retry later")
        try:
            with self._trying:
                found = self._found(name) or _made(secret, salt)
                with self._lock:
                    _put(self._tried, name, found, TRIED_MAX)
                return found
        finally:
            self._strangers.release()

    def is_good(self, secret: bytes, salt: Salt) -> None:
        """A token that was tried is somebody's: it is not looked at again."""
        name = self._name(secret, salt)
        found = self._found(name)
        if found is not None:
            self._keep(name, found)

    def _name(self, secret: bytes, salt: Salt) -> bytes:
        return hmac.digest(self._name_key, salt.value + bytes([salt.cost]) + secret, "sha256")

    def _found(self, name: bytes) -> bytes | None:
        with self._lock:
            return self._kept.get(name) or self._tried.get(name)

    def _keep(self, name: bytes, root: bytes) -> None:
        with self._lock:
            _put(self._kept, name, root, KEPT_MAX)


def _put(roots: dict[bytes, bytes], name: bytes, root: bytes, at_most: int) -> None:
    roots.pop(name, None)
    while len(roots) >= at_most:
        del roots[next(iter(roots))]
    roots[name] = root


def _made(secret: bytes, salt: Salt) -> bytes:
    n = 1 << salt.cost
    memory_bytes_max = 128 * BLOCK * (n + PARALLEL) + (1 << 20)
    return hashlib.scrypt(secret, salt=salt.value, n=n, r=BLOCK, p=PARALLEL, maxmem=memory_bytes_max, dklen=ROOT_BYTES)


#: Of this process.
ROOTS = Roots()
