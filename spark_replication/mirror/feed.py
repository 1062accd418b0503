"""The way from the controller to the table: changes are kept in memory, coalesced, and written by one thread (M2, M4).

Whoever tells of a change waits for nothing but a lock that is never held during a write.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable

from pyspark.sql import SparkSession

from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.delta_tables import PartitionsTable
from spark_replication.mirror.rows import LatestRows, MirrorRow
from spark_replication.model import TopicPartition

BACKOFF_S_FIRST = 0.5
BACKOFF_S_MAX = 30.0
CLOSE_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class MirrorThread:
    """A ports.MirrorFeed that writes `<path>/partitions` every `interval_ms`, if there is something to write.

    An error is logged once, and the write tried again with what has changed meanwhile, until `close`.
    """

    def __init__(self, spark: SparkSession, path: str, cluster_id: str, interval_ms: int) -> None:
        self._table = PartitionsTable(spark, path, cluster_id)
        self._interval_s = interval_ms / 1_000
        self._moved = threading.Condition()  # guards everything below
        self._rows = LatestRows(cluster_id)
        # Tellings are counted, to know which of them a write has covered.
        self._told = 0
        self._writing_up_to = 0
        self._written = 0
        self._flushing = 0
        self._closing = False
        self._last_try = False
        self._ended = False
        self._error: ReplicationError | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def changed(self, partitions: Iterable[tuple[PartitionCommand, int]]) -> None:
        told = list(partitions)  # it may be a generator over what only the caller's thread may read
        self._tell(lambda now_ms: self._rows.changed(told, now_ms))

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._tell(lambda now_ms: self._rows.confirmed(partition, topic_id, leader_epoch, now_ms))

    def removed(self, partition: TopicPartition, zxid: int) -> None:
        self._tell(lambda now_ms: self._rows.removed(partition, zxid, now_ms))

    def deleted(self, topic: str, zxid: int) -> None:
        self._tell(lambda now_ms: self._rows.deleted(topic, zxid, now_ms))

    @property
    def pending(self) -> int:
        """Partitions that the table does not show yet as they are."""
        with self._moved:
            return self._rows.pending

    @property
    def error(self) -> ReplicationError | None:
        """Why the last write failed; None: it did not."""
        with self._moved:
            return self._error

    def lag_ms(self) -> int:
        """For how long the oldest change has waited; 0: the table shows everything."""
        with self._moved:
            since_ms = self._rows.pending_since_ms()
        return 0 if since_ms is None else max(0, _now_ms() - since_ms)

    def flush(self, timeout_s: float) -> None:
        """Returns once all that was told before is in the table. RequestTimedOut: it is not, and will be tried on."""
        with self._moved:
            target = self._told
            self._flushing += 1
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._written >= target or self._ended, timeout_s)
            self._flushing -= 1
            if self._written < target:
                reason = "the mirror has ended" if self._ended else self._error or "Delta has not answered yet"
                raise RequestTimedOut(f"{self._rows.pending} partitions are not in {self._table.path}: {reason}")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """What waits is written, in one last try. Past the timeout the write goes on in the background."""
        with self._moved:
            self._closing = True
            self._moved.notify_all()
        self._thread.join(timeout_s)
        if self.pending:
            log.warning(
                "%d partitions are not in %s as they are: the next controller writes them",
                self.pending,
                self._table.path,
            )

    def _tell(self, put: Callable[[int], None]) -> None:
        with self._moved:
            put(_now_ms())
            self._told += 1
            self._moved.notify_all()

    def _run(self) -> None:
        backoff_s = BACKOFF_S_FIRST
        try:
            # Brokers are still starting: the table can be made meanwhile. What fails here fails in the first write too.
            with contextlib.suppress(ReplicationError):
                self._table.open()
            while rows := self._next_rows():
                if self._write(rows):
                    backoff_s = BACKOFF_S_FIRST
                else:
                    self._wait(backoff_s)
                    backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        finally:
            with self._moved:
                self._ended = True
                self._moved.notify_all()

    def _next_rows(self) -> list[MirrorRow]:
        """Waits for something to write; nothing: it is over."""
        with self._moved:
            while not self._rows.waiting and not self._closing:
                self._written = self._told  # the last tellings were known already
                self._moved.notify_all()
                self._moved.wait()
            # What changes within the interval goes into the same MERGE.
            self._moved.wait_for(lambda: self._flushing > 0 or self._closing, self._interval_s)
            if self._last_try:
                return []
            self._last_try = self._closing
            self._writing_up_to = self._told
            return self._rows.take()

    def _write(self, rows: list[MirrorRow]) -> bool:
        try:
            self._table.merge(rows)
        except ReplicationError as error:
            if self._error is None:
                log.warning("%s; it is tried again, and %d partitions are kept until then", error, len(rows))
            with self._moved:
                self._error = error
                self._rows.failed()
            return False
        if self._error is not None:  # said before anybody who waits for the rows goes on
            log.info("the mirror at %s is written again", self._table.path)
        with self._moved:
            self._error = None
            self._rows.written()
            self._written = self._writing_up_to
            self._moved.notify_all()
        return True

    def _wait(self, seconds: float) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._closing, seconds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
