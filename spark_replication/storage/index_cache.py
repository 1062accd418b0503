"""The batch indexes that are in memory: searched for every fetch, and too many to keep them all."""

from __future__ import annotations

import threading
from collections import OrderedDict


class IndexCache:
    """At most `bytes_max` of entries, the least recently used giving way; the one that came last stays, however large.

    What it holds of a segment, the segment's file holds too: who finds nothing here reads it there. Thread-safe; the
    entries of one segment are their owner's, under its partition's lock.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[object, bytearray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, segment: object) -> bytearray | None:
        with self._lock:
            found = self._entries.get(segment)
            if found is not None:
                self._entries.move_to_end(segment)
            return found

    def put(self, segment: object, entries: bytearray) -> None:
        with self._lock:
            self._entries[segment] = entries
            self._bytes += len(entries)
            self._make_room()

    def extend(self, segment: object, entries: bytes) -> None:
        """With what was appended; nothing, if it is not here."""
        with self._lock:
            found = self._entries.get(segment)
            if found is not None:
                found += entries
                self._bytes += len(entries)
                self._entries.move_to_end(segment)
                self._make_room()

    def drop(self, segment: object) -> None:
        with self._lock:
            self._bytes -= len(self._entries.pop(segment, b""))

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            _, gone = self._entries.popitem(last=False)
            self._bytes -= len(gone)
