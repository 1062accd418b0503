"""Guards of partitions that may be held for as long as a disk takes: who looks after many waits for none of them.

A guard is held over pwrite. A thread that waits for one partition's holds up what it does for all others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

ROUND_S = 0.2


class Lock(Protocol):
    """What a broker's guards are (threading.RLock)."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: FBT001, FBT002
    def release(self) -> None: ...


class Patience:
    """So long one round waits for guards, all of them together; one that is still held is left for the next round."""

    def __init__(self, round_s: float = ROUND_S) -> None:
        self._left_s = round_s

    @contextmanager
    def holds(self, guard: AbstractContextManager[object]) -> Iterator[bool]:
        """Whether it does, within."""
        lock = cast("Lock", guard)
        got = lock.acquire(blocking=False)
        if not got and self._left_s > 0:
            began_s = time.monotonic()
            got = lock.acquire(timeout=self._left_s)
            self._left_s -= time.monotonic() - began_s
        try:
            yield got
        finally:
            if got:
                lock.release()
