"""Reads the partitions of a topic side by side, each in its order, and gives their batches as they come.

Each partition has a thread, which waits once `ROOM` of its batches have not been taken. Partitions that the topic gets
meanwhile are read from their beginning. The first error of any partition ends it all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.errors import ReplicationError

ROOM = 2  # batches of each partition that wait for whoever takes them
LOOK_S = 1.0  # between two looks whether the topic has more partitions

ReadPartition = Callable[[int, bool], Generator[LogBatch, None, None]]


def together(
    numbers: Callable[[], Sequence[int]], read: ReadPartition, closed: threading.Event
) -> Generator[LogBatch, None, None]:
    """numbers: the topic's partitions at present. read: called with a partition, and whether it has come since.
    closed: set once its reads end, since their reader was closed."""
    gathered = _Gathered(read, closed)
    try:
        for number in numbers():
            gathered.begin(number, is_new=False)
        look_s = time.monotonic() + LOOK_S
        while not closed.is_set():
            found = gathered.take(max(0.0, look_s - time.monotonic()))
            if found is not None:
                yield found
            if time.monotonic() >= look_s:
                with suppress(ReplicationError):  # the reads meet it, too, and know what to make of it
                    for number in numbers():
                        gathered.begin(number, is_new=True)
                look_s = time.monotonic() + LOOK_S
    finally:
        gathered.end()


class _Gathered:
    def __init__(self, read: ReadPartition, closed: threading.Event) -> None:
        self._read = read
        self._closed = closed
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[LogBatch] = deque()
        self._begun: set[int] = set()
        self._error: ReplicationError | None = None
        self._is_over = False

    def begin(self, number: int, *, is_new: bool) -> None:
        """Begin to read a partition, unless it is read already."""
        with self._changed:
            if number in self._begun:
                return
            self._begun.add(number)
        threading.Thread(target=self._run, args=(number, is_new), name=f"reads-{number}", daemon=True).start()

    def take(self, timeout_s: float) -> LogBatch | None:
        """The next batch. None if none comes in time, or all is closed. Raises the error of a partition, after what had
        come before."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error is not None or self._closed.is_set(), timeout_s)
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None

    def end(self) -> None:
        """A thread that waits for records ends with its broker's next answer."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self, number: int, is_new: bool) -> None:  # noqa: FBT001 (of a thread)
        try:
            with closing(self._read(number, is_new)) as batches:
                for found in batches:
                    if not self._put(found):
                        return
        except ReplicationError as error:
            with self._changed:
                self._error = self._error or error
        with self._changed:
            self._changed.notify_all()

    def _put(self, found: LogBatch) -> bool:
        """Add a batch once there is room. Return False if nobody takes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self._waiting) < ROOM * len(self._begun))
            if not self._is_over:
                self._waiting.append(found)
                self._changed.notify_all()
            return not self._is_over
