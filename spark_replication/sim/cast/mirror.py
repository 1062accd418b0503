"""The mirror of simulated drivers: the production rows and comparisons, over tables in memory.

A write is prepared for one version of a table, and stored only if that version is still the last, as in
mirror.delta.delta_file. In between, its process may be killed, stopped or deposed. A deposed process goes on with the
news that it has.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from spark_replication.core.controller.news import News
from spark_replication.errors import StorageFailed
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import Key, Table, Tombstone
from spark_replication.mirror.tables.events import EventRow, face_of, subject_of, text_of
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.tables.topics import TOPICS
from spark_replication.mirror.telling.chain import Chain, RowSeen, TablePart, Vanished
from spark_replication.mirror.telling.comparing import Shown, compared
from spark_replication.mirror.telling.latest import Latest, TableBatch
from spark_replication.mirror.telling.latest_rows import Batch, LatestRows
from spark_replication.model import TopicPartition
from spark_replication.sim.world.stored import CLUSTER_ID
from spark_replication.sim.world.world import InvariantBroken, Process, World

TELL_MS = (0, 10)
BEGIN_MS = (1, 30)
WRITE_MS = (5, 60)
LATE_MS = (200, 2_000)
LATE = 0.05
FAILS = 0.05
STORED_ALL_THE_SAME = 0.5  # of the writes of events that fail
RETRY_MS = (100, 400)
MUCH = 0  # so many rows may wait before confirmed leaders are written first: a thousand in the real mirror


class MirrorTable:
    """A table of the mirror, as a MERGE by the conditions of `table` leaves it."""

    def __init__(self, table: Table[Any], looked_at: Callable[[Table[Any], Any], None]) -> None:
        self.rows: dict[Key, Any] = {}
        self.version = 0
        self._table = table
        #: Called with each row that comes to be shown.
        self._looked_at = looked_at
        self._low_water = -1
        #: The zxid of the newest row that each key ever had.
        self._highest: dict[Key, int] = {}

    def existing(self) -> dict[Key, Any]:
        return {key: row for key, row in self.rows.items() if not isinstance(row, Tombstone)}

    def faces(self) -> dict[Key, str | None]:
        return {key: text_of(self._table.face(row)) for key, row in self.existing().items()}

    def seen(self) -> dict[Key, RowSeen]:
        return {key: RowSeen(row.zxid, self._table.face(row)) for key, row in self.rows.items()}

    def shown(self) -> dict[Key, Shown]:
        return {key: Shown(self._table.order_of(row), isinstance(row, Tombstone)) for key, row in self.rows.items()}

    def merge(self, batch: TableBatch[Any]) -> None:
        as_of = -1 if batch.whole is None else batch.whole.zxid
        for told in (*batch.live, *batch.gone):
            self._merge(self._table.key_of(told), told, as_of)

    def forget(self, zxid: int) -> None:
        self.version += 1
        self._low_water = max(self._low_water, zxid)
        self.rows = {
            key: row for key, row in self.rows.items() if not isinstance(row, Tombstone) or row.zxid > self._low_water
        }

    def _merge(self, key: Key, told: Any, as_of: int) -> None:
        stored = self.rows.get(key)
        if stored is None and told.zxid <= self._low_water and as_of < self._low_water:
            return
        if stored is not None and self._table.order_of(told) <= self._table.order_of(stored):
            return
        self.version += 1
        self._looked_at(self._table, told)
        self.rows[key] = _with_confirmed(told, stored)
        if isinstance(told, PartitionRow) and told.active_epoch > told.command.state.leader_epoch:
            raise InvariantBroken("mirror_never_ahead", f"{key} is shown as confirmed before it is elected: {told}")
        if told.zxid < self._highest.get(key, -1):
            raise InvariantBroken(
                "mirror_never_ahead",
                f"{self._table.name} of {key} goes back to zxid {told.zxid} from {self._highest[key]}",
            )
        self._highest[key] = told.zxid


class MirrorEvents:
    """The table `events`. The chain of each row is checked as it grows."""

    def __init__(self) -> None:
        self.rows: list[EventRow] = []
        self.version = 0
        self.last = -1
        #: The last event that the tables show, as `event` of the status says it.
        self.shown = -1
        #: What each row became last.
        self.became: dict[tuple[str, Key], str | None] = {}
        #: Everything that each row ever became.
        self._all: dict[tuple[str, Key], set[str]] = {}

    def append(self, rows: list[EventRow]) -> None:
        self.version += 1
        for row in rows:
            if row.number <= self.last:
                raise InvariantBroken("events_are_a_chain", f"{row} comes after number {self.last}")
            self.last = row.number
            self.rows.append(row)
            subject = _subject(row)
            if subject is None:
                continue
            if self.became.get(subject) != row.was:
                raise InvariantBroken("events_are_a_chain", f"{row} comes after {self.became.get(subject)}")
            self.became[subject] = row.became
            if row.became is not None:
                self._all.setdefault(subject, set()).add(row.became)

    def check_shown(self, table: Table[Any], row: Any) -> None:
        face = text_of(table.face(row))
        if face is not None and face not in self._all.get((table.name, table.key_of(row)), ()):
            raise InvariantBroken("events_are_a_chain", f"{table.name} shows {face}, which no event says")


def _subject(row: EventRow) -> tuple[str, Key] | None:
    return subject_of({name: row.subject.get(name) for name in ("topic", "partition", "broker")})


def _with_confirmed(told: Any, stored: Any) -> Any:
    if not isinstance(told, PartitionRow) or not isinstance(stored, PartitionRow):
        return told
    if told.command.topic_id != stored.command.topic_id:
        return told
    return replace(told, active_epoch=max(told.active_epoch, stored.active_epoch))


class MirrorTables:
    def __init__(self, world: World) -> None:
        self.world = world
        #: A generator of its own, so that a seed's story is the same with a mirror and without one.
        self.rng = random.Random(f"{world.seed}/mirror")
        self.events = MirrorEvents()
        self.of = {table.name: MirrorTable(table, self.events.check_shown) for table in (BROKERS, TOPICS, PARTITIONS)}


class MirrorWriter:
    """ports.MirrorFeed of one term, as mirror.telling.feed runs it: one write after the other, of one table after the
    other."""

    def __init__(self, tables: MirrorTables, process: Process, controller_epoch: int) -> None:
        self.wants_all = False
        self._tables = tables
        self._process = process
        self._rows = LatestRows("simulated", controller_epoch, much=MUCH)
        self._chain = Chain("simulated", controller_epoch)
        self._read_at = -1
        self._news: deque[News] = deque()
        self._busy = False

    def tell(self, news: News) -> None:
        """Take news a while later: brokers know it already, and a leader may confirm it before the mirror has it."""
        self._news.append(news)
        self.wants_all = self.wants_all and news.complete is None
        self._after(TELL_MS, "tells the mirror", self._take_news)

    def _take_news(self) -> None:
        self._rows.tell(self._news.popleft(), self._tables.world.now_ms)
        self._wake(BEGIN_MS)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._rows.confirmed(partition, topic_id, leader_epoch, self._tables.world.now_ms)
        self._wake(BEGIN_MS)

    def _wake(self, delay_ms: tuple[int, int]) -> None:
        if not self._busy and self._rows.waiting:
            self._busy = True
            self._after(delay_ms, "begins a write of the mirror", self._begin)

    def _after(self, delay_ms: tuple[int, int], what: str, action: Callable[[], None]) -> None:
        self._tables.world.after(self._tables.rng.randint(*delay_ms), what, action, on=self._process)

    def _begin(self) -> None:
        self._write_events(self._rows.take())

    def _write_events(self, batch: Batch) -> None:
        events = self._tables.events
        version = events.version
        if version != self._read_at:
            others = (row for row in events.rows if row.number > events.shown)
            self._chain.read(
                (*subject, RowSeen(row.zxid, face_of(row.became)))
                for row in others
                if (subject := _subject(row)) is not None
            )
            self._read_at = version
        parts = [TablePart(rows, batch.tables[rows.table.name], rows.knows) for rows in self._rows.tables]
        try:
            told = self._chain.next(batch.facts, parts, self._look, last=events.last, now_ms=self._now_ms)
        except StorageFailed:
            self._count("mirror_fenced")
            self._fail()
            return

        def store() -> None:
            is_lost = self._tables.rng.random() < FAILS
            if version != events.version:
                self._count("mirror_lost_race")
                self._write_events(batch)
            elif is_lost and self._tables.rng.random() < STORED_ALL_THE_SAME:
                events.append(told.events)
                self._fail()
            elif is_lost:
                self._fail()
            else:
                events.append(told.events)
                self._read_at = events.version
                self._write_rows(batch, told.vanished)

        if told.events:
            self._after(self._write_ms(), "writes events", store)
        else:
            self._write_rows(batch, told.vanished)

    def _write_rows(self, batch: Batch, vanished: Sequence[Vanished]) -> None:
        self._chain.written()
        self._rows.facts.written()
        for (rows, told, _), gone in vanished:
            self._rows.vanished(rows, gone, None if told.whole is None else told.whole.origin, self._now_ms)
        tables = ((rows, batch.tables[rows.table.name]) for rows in self._rows.tables)
        self._next((rows, told) for rows, told in tables if told or told.whole is not None)

    @property
    def _now_ms(self) -> int:
        return self._tables.world.now_ms

    def _look(self, table: Table[Any], _keys: object) -> dict[Key, RowSeen]:
        return self._tables.of[table.name].seen()

    def _next(self, left: Iterator[tuple[Latest[Any], TableBatch[Any]]]) -> None:
        found = next(left, None)
        if found is None:
            self._rows.written(is_behind=self._chain.is_behind)
            self._tables.events.shown = max(self._tables.events.shown, self._rows.written_event)
            self._go_on(BEGIN_MS)
        else:
            rows, batch = found
            self._write(rows, self._rows.with_confirmed(rows, batch), left)

    def _write(
        self, rows: Latest[Any], batch: TableBatch[Any], left: Iterator[tuple[Latest[Any], TableBatch[Any]]]
    ) -> None:
        table = self._tables.of[rows.table.name]
        version = table.version
        told = compared(
            rows.table,
            batch,
            table.shown(),
            knows=rows.knows,
            cluster_id=CLUSTER_ID,
            now_ms=self._tables.world.now_ms,
        )

        def store() -> None:
            if self._tables.rng.random() < FAILS:
                self._fail()
            elif version != table.version:
                self._count("mirror_lost_race")
                self._write(rows, batch, left)
            else:
                table.merge(told)
                self._forget(table, rows.forgets())
                self._next(left)

        self._after(self._write_ms(), "writes the mirror", store)

    def _write_ms(self) -> tuple[int, int]:
        is_late = self._tables.rng.random() < LATE
        if is_late:
            self._count("mirror_late_write")
        return LATE_MS if is_late else WRITE_MS

    def _fail(self) -> None:
        self._count("mirror_failed_write")
        self._rows.failed()
        self._read_at = -1
        self.wants_all = True
        self._go_on(RETRY_MS)

    def _forget(self, table: MirrorTable, zxid: int | None) -> None:
        if zxid is not None:
            self._after(WRITE_MS, "forgets tombstones", lambda: table.forget(zxid))

    def _go_on(self, delay_ms: tuple[int, int]) -> None:
        self._busy = False
        self._wake(delay_ms)

    def _count(self, what: str) -> None:
        self._tables.world.counts[what] += 1
