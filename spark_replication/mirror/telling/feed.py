"""The way from the controller to the tables: changes are kept in memory, coalesced, and written by one thread (M2, M4).

Whoever reports a change waits only for a lock that is never held during a write. An error here is the mirror's alone:
it asks to be told everything anew, and compares that with the tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from spark_replication.config import Settings
from spark_replication.core.controller.news import News
from spark_replication.errors import ReplicationError, RequestTimedOut, StorageFailed
from spark_replication.mirror.delta.delta_file import NOT_ALL, DeltaFile, stored_columns
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.mirror.tables.columns import Key, Table
from spark_replication.mirror.tables.events import EVENTS
from spark_replication.mirror.tables.groups import GROUPS, GroupRow
from spark_replication.mirror.tables.status import STATUS, StatusRow
from spark_replication.mirror.telling.chain import RowSeen, TablePart, Vanished
from spark_replication.mirror.telling.comparing import Shown, compared
from spark_replication.mirror.telling.events_file import EventsFile, look_in
from spark_replication.mirror.telling.latest import Latest, TableBatch
from spark_replication.mirror.telling.latest_rows import Batch, LatestRows
from spark_replication.model import TopicPartition
from spark_replication.process.threads import now_ms

BACKOFF_S_FIRST = 0.5
CLOSE_TIMEOUT_S = 3.0
TIDY_S = 3_600.0
STATUS_S_MIN = 0.5  # between two writes of the status
NOTHING_TO_WRITE = Batch([], {})

log = logging.getLogger(__name__)


class Teller(NamedTuple):
    """The controller that feeds the mirror."""

    cluster_id: str
    controller_epoch: int
    address: str


class MirrorThread:
    """A ports.MirrorFeed that writes the tables below `path`.

    The first change is written at once, then at most every mirror.interval.ms unless much waits. The table `status` is
    written after that, and at least every mirror.heartbeat.ms. An error is logged once, and the write is tried again
    with what has changed meanwhile, until `close`. The table `groups` is written whenever it is told, after all others.
    """

    def __init__(self, path: str, teller: Teller, settings: Settings, store: StoreOptions = PATIENCE) -> None:
        mode = settings.mirror_files_mode

        def file_of(table: Table[Any]) -> DeltaFile[Any]:
            folder_mode = int(mode, 8) if mode else None
            return DeltaFile(table, table.path(path), teller.cluster_id, store, folder_mode=folder_mode)

        self._teller = teller
        self._cluster_id = cluster_id = teller.cluster_id
        self._path = path
        self._status = file_of(STATUS)
        self._groups = file_of(GROUPS)
        self._settings = settings
        self._status_told_s = self._status_due_s = time.monotonic()
        self._moved = threading.Condition()  # guards everything below
        self._rows = LatestRows(cluster_id, teller.controller_epoch)
        self._files = [(rows, file_of(rows.table)) for rows in self._rows.tables]
        self._file_of = {rows.table.name: file for rows, file in self._files}
        self._events = EventsFile(file_of(EVENTS), cluster_id, teller.controller_epoch, self._status)
        # Reports are counted, to know which of them a write has covered.
        self._told = 0
        self._writing_up_to = 0
        self._written = 0
        #: The report that told everything last.
        self._all_told = 0
        self._flushing = 0
        self._wants_all = False
        self._closing = False
        self._last_try = False
        self._problems: tuple[str, ...] = ()
        #: All of the table `groups`, as it was told last and is not written. None: it is.
        self._told_groups: Sequence[GroupRow] | None = None
        self._ended = False
        self._error: ReplicationError | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    @property
    def wants_all(self) -> bool:
        """See ports.MirrorFeed."""
        return self._wants_all

    def tell(self, news: News) -> None:
        def put(now_ms: int) -> None:
            self._rows.tell(news, now_ms)
            if news.complete is not None:
                self._wants_all, self._all_told = False, self._told + 1

        self._tell(put)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._tell(lambda now_ms: self._rows.confirmed(partition, topic_id, leader_epoch, now_ms))

    def heed(self, problems: Sequence[str]) -> None:
        """Take what keeps the cluster from health at present, for the table `status`."""
        with self._moved:
            if self._problems != (told := tuple(problems)):
                self._problems = told
                self._status_is_due()
                self._moved.notify_all()

    def tell_groups(self, rows: Sequence[GroupRow]) -> None:
        """Take all rows of the table `groups`."""
        with self._moved:
            self._told_groups = rows
            self._moved.notify_all()

    @property
    def pending(self) -> int:
        """How many rows the tables do not show yet as they are."""
        with self._moved:
            return self._rows.pending

    @property
    def error(self) -> ReplicationError | None:
        """Why the last write failed; None if it did not."""
        with self._moved:
            return self._error

    def lag_ms(self) -> int:
        """How long the oldest change has waited; 0 if the tables show everything."""
        with self._moved:
            since_ms = self._rows.pending_since_ms()
        return 0 if since_ms is None else max(0, now_ms() - since_ms)

    def flush(self, timeout_s: float) -> None:
        """Return once everything told before is in the tables. RequestTimedOut: it is not yet, and the thread goes
        on."""
        with self._moved:
            target = self._told
            self._flushing += 1
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._written >= target or self._ended, timeout_s)
            self._flushing -= 1
            if self._written < target:
                reason = "the mirror has ended" if self._ended else self._error or "Delta has not answered yet"
                raise RequestTimedOut(f"{self._rows.pending} rows are not in the tables at {self._path}: {reason}")

    def rebuild(self, timeout_s: float) -> None:
        """Return once everything was told anew, compared with the tables, and is in them. Raises what prevents
        that."""
        with self._moved:
            self._wants_all, self._error = True, None
            self._flushing += 1
            self._moved.wait_for(
                lambda: self._ended or self._error is not None or self._is_rebuilt,
                timeout_s,
            )
            self._flushing -= 1
            if self._error is not None:
                raise self._error
            if not self._is_rebuilt:
                raise RequestTimedOut(f"the tables at {self._path} are being written: ask again")

    @property
    def _is_rebuilt(self) -> bool:
        """Whether everything has been told since it was wanted, and is written, whatever was told after it."""
        return not self._wants_all and self._written >= self._all_told

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the thread, after one last try to write what waits. Past the timeout that goes on in the background."""
        with self._moved:
            self._closing = True
            self._moved.notify_all()
        self._thread.join(timeout_s)
        if self.pending:
            log.warning(
                "%d rows are not in the tables at %s as they are: the next controller writes them",
                self.pending,
                self._path,
            )

    def _tell(self, put: Callable[[int], None]) -> None:
        try:
            with self._moved:
                put(now_ms())
                self._told += 1
                self._moved.notify_all()
        except Exception:
            log.exception("the mirror failed to take what it was told, and wants to be told all: please report")
            self._wants_all = True

    # Its thread

    def _run(self) -> None:
        backoff_s = BACKOFF_S_FIRST
        interval_s = self._settings.mirror_interval_ms / 1_000
        tidy_at_s = time.monotonic() + TIDY_S
        try:
            # The tables are made while brokers are still starting.
            self._succeeds(self._open, 0)
            while (batch := self._next_batch()) is not None:
                written = self._write(batch)
                if self._tell_status() and self._write_groups() and written:
                    backoff_s = BACKOFF_S_FIRST
                    self._wait(lambda: self._closing or self._flushing > 0 or self._rows.much_waits, interval_s)
                else:
                    self._wait(lambda: self._closing, backoff_s)
                    backoff_s = max(backoff_s, min(2 * backoff_s, self._settings.mirror_heartbeat_ms / 1_000))
                is_time = time.monotonic() >= tidy_at_s
                self._tidy(is_due=is_time)
                if is_time:
                    tidy_at_s = time.monotonic() + TIDY_S
        finally:
            with self._moved:
                self._ended = True
                self._moved.notify_all()

    def _open(self) -> None:
        for _, file in self._files:
            file.open()
        self._status.open()
        self._groups.open()
        self._events.file.open()

    def _next_batch(self) -> Batch | None:
        """Wait for something to write; empty if only the status is due, or groups. None: it is over."""
        with self._moved:
            while not self._rows.waiting and not self._closing:
                self._written = self._told  # the last reports told nothing new
                self._moved.notify_all()
                if (left_s := self._status_due_s - time.monotonic()) <= 0 or self._told_groups is not None:
                    return NOTHING_TO_WRITE
                self._moved.wait(left_s)
            if self._last_try or not self._rows.waiting:
                return None
            batch = self._rows.take()
            self._last_try = self._closing and batch.is_all
            self._writing_up_to = self._told if batch.is_all else self._written
            return batch

    def _write(self, batch: Batch) -> bool:
        if batch is NOTHING_TO_WRITE:
            return True

        def write() -> None:
            parts = [
                TablePart(rows, batch.tables[rows.table.name], partial(self._knows, rows)) for rows, _ in self._files
            ]
            self._events_written(self._events.write(batch.facts, parts, self._look))
            for rows, file in self._files:
                with self._moved:
                    told = self._rows.with_confirmed(rows, batch.tables[rows.table.name])
                self._write_table(rows, file, told)

        if not self._succeeds(write, sum(map(len, batch.tables.values()))):
            return False
        if self._error is not None:  # logged before anybody who waits for the rows goes on
            log.info("the mirror at %s is written again", self._path)
        with self._moved:
            self._error = None
            self._rows.written(is_behind=self._events.is_behind)
            self._written = self._writing_up_to
            self._status_is_due()
            self._moved.notify_all()
        return True

    def _status_is_due(self) -> None:
        self._status_due_s = min(self._status_due_s, self._status_told_s + STATUS_S_MIN)

    def _write_table(self, rows: Latest[Any], file: DeltaFile[Any], batch: TableBatch[Any]) -> None:
        whole = batch.whole
        if not batch and whole is None:
            return
        file.merge(partial(self._told_of, rows, batch), as_of=NOT_ALL if whole is None else whole.zxid)
        with self._moved:
            forgets = rows.forgets()
        if forgets is not None:
            file.forget(forgets)

    def _tell_status(self) -> bool:
        """Write `status` if it is due, also if the other tables cannot be written: it says so. Not before this
        controller has written everything for the first time. While much waits, only with the heartbeat."""
        if time.monotonic() < self._status_due_s:
            return True
        heartbeat_ms = self._settings.mirror_heartbeat_ms
        with self._moved:
            if self._rows.much_waits and time.monotonic() < self._status_told_s + heartbeat_ms / 1_000:
                return True
            zxid, event, problems = self._rows.written_zxid, self._rows.written_event, self._problems
        if zxid < 0:
            self._status_due_s = time.monotonic() + heartbeat_ms / 1_000
            return True
        row = StatusRow(
            cluster_id=self._cluster_id,
            controller=self._teller.address,
            controller_epoch=self._teller.controller_epoch,
            zxid=zxid,
            event=event,
            as_of_ms=now_ms(),
            lag_ms=self.lag_ms(),
            heartbeat_ms=heartbeat_ms,
            problems=problems,
        )
        if not self._succeeds(lambda: self._status.merge(lambda _opened: STATUS.rows([row], [])), 0):
            return False
        with self._moved:
            self._status_told_s = time.monotonic()
            self._status_due_s = self._status_told_s + heartbeat_ms / 1_000
            if self._problems != problems:  # they have changed since the row was made
                self._status_is_due()
        return True

    def _write_groups(self) -> bool:
        """Write the table `groups` if it was told, and not much else waits."""
        with self._moved:
            if self._told_groups is None or self._rows.much_waits:
                return True
            rows, self._told_groups = self._told_groups, None
        told = GROUPS.rows(rows, [])
        return self._succeeds(lambda: self._groups.replace(told, self._teller.controller_epoch), len(rows))

    def _succeeds(self, write: Callable[[], None], count: int) -> bool:
        """Whether the write has succeeded. count: the rows that it would write, for the log."""
        try:
            write()
        except ReplicationError as error:
            self._failed(error, count)
            return False
        except BaseException as error:
            log.exception("the mirror met an error that nobody expected: please report")
            self._failed(StorageFailed(f"the mirror at {self._path} was not written: {error!r}"), count)
            return False
        return True

    def _failed(self, error: ReplicationError, count: int) -> None:
        if self._error is None:
            log.warning("%s; it is tried again, and %d rows are kept until then", error, count)
        with self._moved:
            self._error = error
            self._rows.failed()
            self._wants_all = True
            self._moved.notify_all()

    def _told_of(self, rows: Latest[Any], batch: TableBatch[Any], opened: DeltaTable) -> pa.Table:
        """The rows to merge, made anew for each version of the table that they may be merged into."""
        if batch.whole is not None:
            batch = compared(
                rows.table,
                batch,
                _shown(rows.table, opened),
                knows=partial(self._knows, rows),
                cluster_id=self._cluster_id,
                now_ms=now_ms(),
            )
        return rows.table.rows(batch.live, batch.gone)

    def _events_written(self, found: Sequence[Vanished]) -> None:
        """The events are written, whatever becomes of their rows."""
        with self._moved:
            self._rows.facts.written()
            for (rows, batch, _), gone in found:
                self._rows.vanished(rows, gone, None if batch.whole is None else batch.whole.origin, now_ms())
                self._writing_up_to = self._written

    def _look(self, table: Table[Any], keys: Collection[Key] | None) -> dict[Key, RowSeen]:
        return look_in(self._file_of[table.name], table, keys)

    def _knows(self, rows: Latest[Any], key: Key) -> bool:
        with self._moved:
            return rows.knows(key)

    def _tidy(self, *, is_due: bool) -> None:
        try:
            for file in (*(file for _, file in self._files), self._events.file, self._status, self._groups):
                if is_due or file.is_untidy:
                    file.tidy(self._settings.mirror_history_bytes)
            if is_due:
                self._events.expire(self._settings.mirror_events_retention_ms)
        except ReplicationError as error:
            log.warning("%s; it is tidied later", error)
        except BaseException:
            log.exception("the mirror met an error that nobody expected, and is tidied later: please report")

    def _wait(self, until: Callable[[], bool], seconds: float) -> None:
        with self._moved:
            self._moved.wait_for(until, seconds)


def _shown(table: Table[Any], opened: DeltaTable) -> dict[Key, Shown]:
    *told, deleted = stored_columns(opened, *table.key, *table.order, "deleted")
    keys, orders = told[: len(table.key)], told[len(table.key) :]
    return dict(zip(zip(*keys, strict=True), map(Shown, zip(*orders, strict=True), deleted), strict=True))
