"""The mirror of simulated drivers: the production rows and comparisons, over a table in memory.

A write is made on one version of the table, and stored only if that is still the last, as mirror.delta_file does it; in
between its process may be killed, stopped or deposed. One that was deposed goes on with what it had been told.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from spark_replication.core.controller.news import News
from spark_replication.mirror.comparing import Shown, compared
from spark_replication.mirror.latest_rows import Batch, LatestRows
from spark_replication.mirror.partitions import NEVER_CONFIRMED, PartitionGone, PartitionRow
from spark_replication.model import TopicPartition
from spark_replication.sim.world.world import InvariantBroken, Process, World

TELL_MS = (0, 10)
BEGIN_MS = (1, 30)
WRITE_MS = (5, 60)
LATE_MS = (200, 2_000)
LATE = 0.05
FAILS = 0.05
RETRY_MS = (100, 400)


class MirrorTable:
    """`partitions`, as a MERGE by mirror.partitions leaves it. highest: the zxid of each partition's newest row that
    was ever there."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Of its own, so that the stories of seeds are the same with a mirror and without.
        self.rng = random.Random(f"{world.seed}/mirror")
        self.rows: dict[TopicPartition, PartitionRow | PartitionGone] = {}
        self.version = 0
        self._low_water = -1
        self._highest: dict[TopicPartition, int] = {}

    def shown(self) -> dict[TopicPartition, Shown]:
        return {
            partition: Shown(row.zxid, _active_epoch(row), isinstance(row, PartitionGone))
            for partition, row in self.rows.items()
        }

    def merge(self, batch: Batch) -> None:
        for told in batch.live:
            self._merge(told.command.topic_partition, told)
        for gone in batch.gone:
            self._merge(gone.partition, gone)

    def forget(self, zxid: int) -> None:
        self.version += 1
        self._low_water = max(self._low_water, zxid)
        self.rows = {
            partition: row
            for partition, row in self.rows.items()
            if isinstance(row, PartitionRow) or row.zxid > self._low_water
        }

    def _merge(self, partition: TopicPartition, told: PartitionRow | PartitionGone) -> None:
        stored = self.rows.get(partition)
        if stored is None and told.zxid <= self._low_water:
            return
        if stored is not None and (told.zxid, _active_epoch(told)) <= (stored.zxid, _active_epoch(stored)):
            return
        self.version += 1
        self.rows[partition] = _with_confirmed(told, stored)
        if told.zxid < self._highest.get(partition, -1):
            raise InvariantBroken(
                "mirror_never_ahead", f"{partition} goes back to zxid {told.zxid} from {self._highest[partition]}"
            )
        self._highest[partition] = told.zxid


def _active_epoch(row: PartitionRow | PartitionGone) -> int:
    return row.active_epoch if isinstance(row, PartitionRow) else NEVER_CONFIRMED


def _with_confirmed(
    told: PartitionRow | PartitionGone, stored: PartitionRow | PartitionGone | None
) -> PartitionRow | PartitionGone:
    if not isinstance(told, PartitionRow) or not isinstance(stored, PartitionRow):
        return told
    if told.command.topic_id != stored.command.topic_id:
        return told
    return replace(told, active_epoch=max(told.active_epoch, stored.active_epoch))


class MirrorWriter:
    """ports.MirrorFeed of one term, as mirror.feed runs it: one write after the other."""

    def __init__(self, table: MirrorTable, process: Process) -> None:
        self.wants_all = False
        self._table = table
        self._process = process
        self._rows = LatestRows("simulated")
        self._news: deque[News] = deque()
        self._busy = False

    def tell(self, news: News) -> None:
        """Brokers know it already, and one may confirm it sooner than the mirror is told."""
        self._news.append(news)
        self.wants_all = self.wants_all and news.complete is None
        self._after(TELL_MS, "tells the mirror", self._take_news)

    def _take_news(self) -> None:
        self._rows.tell(self._news.popleft(), self._table.world.now_ms)
        self._wake(BEGIN_MS)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._rows.confirmed(partition, topic_id, leader_epoch, self._table.world.now_ms)
        self._wake(BEGIN_MS)

    def _wake(self, delay_ms: tuple[int, int]) -> None:
        if not self._busy and self._rows.waiting:
            self._busy = True
            self._after(delay_ms, "begins a write of the mirror", lambda: self._write(self._rows.take()))

    def _after(self, delay_ms: tuple[int, int], what: str, action: Callable[[], None]) -> None:
        self._table.world.after(self._table.rng.randint(*delay_ms), what, action, on=self._process)

    def _write(self, batch: Batch) -> None:
        version = self._table.version
        told = compared(
            batch,
            self._table.shown(),
            knows=self._rows.knows,
            cluster_id="simulated",
            now_ms=self._table.world.now_ms,
        )
        is_late = self._table.rng.random() < LATE
        if is_late:
            self._count("mirror_late_write")
        self._after(LATE_MS if is_late else WRITE_MS, "writes the mirror", lambda: self._store(batch, told, version))

    def _store(self, batch: Batch, told: Batch, version: int) -> None:
        if self._table.rng.random() < FAILS:
            self._count("mirror_failed_write")
            self._rows.failed()
            self.wants_all = True
            self._go_on(RETRY_MS)
        elif version != self._table.version:
            self._count("mirror_lost_race")
            self._write(batch)
        else:
            self._table.merge(told)
            if batch.complete is not None and batch.complete.is_whole:
                zxid = batch.complete.zxid
                self._after(WRITE_MS, "forgets tombstones", lambda: self._table.forget(zxid))
            self._rows.written()
            self._go_on(BEGIN_MS)

    def _go_on(self, delay_ms: tuple[int, int]) -> None:
        self._busy = False
        self._wake(delay_ms)

    def _count(self, what: str) -> None:
        self._table.world.counts[what] += 1
