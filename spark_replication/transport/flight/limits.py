"""Limits on what clients may take of a broker at one time: slots and bytes. A full one raises Overloaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_replication.errors import Overloaded

LOOK_S = 1.0  # how often a wait checks whether somebody still wants it


class Slots:
    def __init__(self, count_max: int, setting: str, of: str) -> None:
        """setting: the name of the setting that `count_max` is from. of: what takes a slot, for the error."""
        self._free = threading.Semaphore(count_max)
        self._full = f"{count_max} {of} ({setting}) are open on this broker: retry later"

    @contextmanager
    def one(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise Overloaded(self._full)
        try:
            yield
        finally:
            self._free.release()


class Room:
    """At most `bytes_max` are taken at one time by all holders together. A single holder may take more than that."""

    def __init__(self, bytes_max: int, setting: str, *, wait_s: float) -> None:
        """wait_s: how long a holder waits for its bytes before it is refused."""
        self._bytes_max = bytes_max
        self._setting = setting
        self._wait_s = wait_s
        self._taken = 0
        self._waiting = 0
        # Each batch passes here twice, and most take the bare lock and wake nobody.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def free(self) -> int:
        """As it is at the moment."""
        return max(0, self._bytes_max - self._taken)

    def take(self, count: int, unwanted: Callable[[], bool] = lambda: False) -> None:
        """Wait for the bytes, so not while having a partition. unwanted: whether nobody wants them any longer."""
        with self._lock:
            if self._taken and self._taken + count > self._bytes_max:
                self._wait(count, unwanted)
            self._taken += count

    def give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count
            if self._waiting:
                self._changed.notify_all()

    def _wait(self, count: int, unwanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + self._wait_s
        self._waiting += 1
        try:
            while self._taken and self._taken + count > self._bytes_max:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or unwanted():
                    raise Overloaded(
                        f"{count} bytes found no room within {self._wait_s:.0f} s: {self._taken} of "
                        f"{self._setting}={self._bytes_max} are in use on this broker. Retry later"
                    )
                self._changed.wait(min(LOOK_S, left_s))
        finally:
            self._waiting -= 1
