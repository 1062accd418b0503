"""Parts of segments that are in memory: every fetch needs them, and there is too much to keep it all.

The files hold all that is held here: a reader that finds nothing here reads it there. Both caches hold a number of
bytes at most, and the least recently used part gives way. The caches are thread-safe. What they hold of a segment
belongs to whoever has its partition.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_replication.ports import LogSlice

# A larger batch is not kept: it is sent faster from its file, where the kernel does not copy it.
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
        """Hold this of the segment, and make room for it. What came last stays, however large."""
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
    """The index entries of whole segments, for searches."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, len)

    def extend(self, segment: object, entries: bytes) -> None:
        """Add appended entries to those of the segment, if they are here."""
        with self._lock:
            found = self._held.get(segment)
            if found is not None:
                found += entries
                self._bytes += len(entries)
                self._held.move_to_end(segment)
                self._make_room()


class NewestBatches(_Cache[LogSlice]):
    """The last batch of each segment that a leader appends to. A reader that follows closely gets it from here, and
    needs neither the index nor the file. A follower's own batches are not kept: they are views of its receive buffer,
    which is written over."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, lambda records: len(records.data))

    def appended(self, segment: object, records: LogSlice) -> None:
        """Hold this batch in place of the one before, or none if it is large."""
        if len(records.data) <= min(self._bytes_max, BATCH_BYTES_MAX):
            self.put(segment, records)
        else:
            self.drop(segment)
