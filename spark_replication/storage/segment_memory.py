"""What of segments is in memory: too much to keep it all, and asked for with every fetch.

Whatever is held of a segment, its files hold too: who finds nothing here reads it there. Both caches hold a number of
bytes at most, the least recently used giving way. They are thread-safe; what is held of one segment is its owner's,
under its partition's lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_replication.ports import LogSlice

# Of a batch that is kept: a larger one is sooner sent from its file, where the kernel does not copy it.
BATCH_BYTES_MAX = 128 << 10

Held = TypeVar("Held")


class SegmentMemory:
    def __init__(self, *, index_bytes_max: int, batch_bytes_max: int) -> None:
        self.indexes = IndexCache(index_bytes_max)
        self.newest = NewestBatches(batch_bytes_max)

    def drop(self, segment: object) -> None:
        self.indexes.drop(segment)
        self.newest.drop(segment)


class _Cache(Generic[Held]):
    def __init__(self, bytes_max: int, size_of: Callable[[Held], int]) -> None:
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._bytes = 0
        self._held: OrderedDict[object, Held] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, segment: object) -> Held | None:
        with self._lock:
            found = self._held.get(segment)
            if found is not None:
                self._held.move_to_end(segment)
            return found

    def drop(self, segment: object) -> None:
        with self._lock:
            self._forget(segment)

    def put(self, segment: object, held: Held) -> None:
        """The one that came last stays, however large."""
        with self._lock:
            self._forget(segment)
            self._held[segment] = held
            self._bytes += self._size_of(held)
            self._make_room()

    def _forget(self, segment: object) -> None:
        gone = self._held.pop(segment, None)
        if gone is not None:
            self._bytes -= self._size_of(gone)

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._bytes -= self._size_of(gone)


class IndexCache(_Cache[bytearray]):
    """The entries of whole segments, which are searched."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, len)

    def extend(self, segment: object, entries: bytes) -> None:
        """With what was appended; nothing, if it is not here."""
        with self._lock:
            found = self._held.get(segment)
            if found is not None:
                found += entries
                self._bytes += len(entries)
                self._held.move_to_end(segment)
                self._make_room()


class NewestBatches(_Cache[LogSlice]):
    """The last batch of a segment that a leader appends to: who follows closely gets it from here, and needs neither
    the index nor the file. Followers' own are not kept: they are views of what was received, which is written over."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, lambda records: len(records.data))

    def appended(self, segment: object, records: LogSlice) -> None:
        """In place of the one before, if it is small."""
        if len(records.data) <= min(self._bytes_max, BATCH_BYTES_MAX):
            self.put(segment, records)
        else:
            self.drop(segment)
