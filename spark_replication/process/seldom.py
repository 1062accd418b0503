"""What is said seldom, however often its cause comes: a log must not fill the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

KINDS_MAX = 10_000


class Seldom:
    """Thread-safe."""

    def __init__(self, every_ms: int, now_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000)) -> None:
        """every_ms: between two times that one kind is told. now_ms: never goes back."""
        self._every_ms = every_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        #: By kind, the one that came last at the end: when it was told last, and how many have come since.
        self._kinds: dict[Hashable, tuple[int | None, int]] = {}

    def come(self, kind: Hashable, count: int = 1) -> int:
        """So many of this kind have come. Returns how many are to be told of now, those that came before and were not
        told of among them; 0: none."""
        now_ms = self._now_ms()
        with self._lock:
            told_ms, untold = self._kinds.pop(kind, (None, 0))
            untold += count
            is_due = untold > 0 and (told_ms is None or now_ms >= told_ms + self._every_ms)
            self._kinds[kind] = (now_ms, 0) if is_due else (told_ms, untold)
            if len(self._kinds) > KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
        return untold if is_due else 0
