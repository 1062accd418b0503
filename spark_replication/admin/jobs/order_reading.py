"""Reads orders of several partitions at one time, and sums up their rows, amounts, offsets and lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pyarrow.compute as pc

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ReplicationError
from spark_replication.model import NamedOffset, Offset

TOLD_EVERY_S = 1.0


class Start(msgspec.Struct, frozen=True):
    """Where to begin: at an offset or a named place; or at a time, in ms since 1970."""

    offset: Offset | NamedOffset = 0
    time_ms: int | None = None


class Sum(msgspec.Struct, kw_only=True):
    """The sums of one partition."""

    partition: int
    rows: int = 0
    amount: float = 0.0
    first_offset: Offset | None = None
    last_offset: Offset | None = None
    #: Committed rows that are not read yet.
    behind: int = 0
    #: The latest at_ms of an order.
    newest_ms: int | None = None

    def add(self, found: LogBatch) -> None:
        if found.batch.num_rows == 0:
            return
        self.rows += found.batch.num_rows
        self.amount += pc.sum(found.batch.column("amount")).as_py() or 0.0
        self.first_offset = found.base_offset if self.first_offset is None else self.first_offset
        self.last_offset = found.last_offset
        self.behind = max(0, found.high_watermark - found.last_offset - 1)
        self.newest_ms = pc.max(found.batch.column("at_ms")).as_py()


class OrderReading:
    """Reads with a thread for each partition. `run` returns at their ends; with `follow`, once it is to stop."""

    def __init__(self, reader: Reader, topic: str, partitions: Sequence[int], start: Start) -> None:
        self._reader = reader
        self._topic = topic
        self._start = start
        self._errors: list[ReplicationError] = []
        self._sums = [Sum(partition=number) for number in partitions]

    def run(self, stopping: threading.Event, tell: Callable[[Sequence[Sum]], None], *, follow: bool) -> Sequence[Sum]:
        """Read all partitions. The first error of any of them is raised, after the others have stopped."""
        threads = [
            threading.Thread(target=partial(self._read, found, stopping, follow=follow), name=f"read-{found.partition}")
            for found in self._sums
        ]
        for thread in threads:
            thread.start()
        told = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            if stopping.wait(0.05) or self._errors:
                break
            if time.monotonic() - told >= TOLD_EVERY_S:
                told = time.monotonic()
                tell(self._sums)
        self._reader.close()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self._sums

    def _read(self, into: Sum, stopping: threading.Event, *, follow: bool) -> None:
        start = {"start": self._start.offset} if self._start.time_ms is None else {"start_time": self._start.time_ms}
        try:
            for found in self._reader.read(
                self._topic, partition=into.partition, follow=follow, columns=["at_ms", "amount"], **start
            ):
                into.add(found)
        except ReplicationError as error:
            if not stopping.is_set():
                self._errors.append(error)
