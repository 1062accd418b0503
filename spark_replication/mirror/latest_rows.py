"""What each partition is now, and which of that is to be written. Pure.

Rules: a row waits at most once, however often its partition changes meanwhile; active_epoch never falls within one
topic_id; of a partition that is gone a tombstone is told once, and then nothing.
"""

from __future__ import annotations

import msgspec

from spark_replication.core.controller.news import Complete, News, PartitionNews
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.partitions import NEVER_CONFIRMED, PartitionGone, PartitionRow
from spark_replication.model import TopicPartition

NOTHING_CONFIRMED = ("", NEVER_CONFIRMED)


class Batch(msgspec.Struct, frozen=True):
    """What goes into one write. complete: whatever else the table has is gone, as far as this says (M2)."""

    live: list[PartitionRow]
    gone: list[PartitionGone]
    complete: Complete | None = None


class LatestRows:
    """Not thread-safe. Bounded by the number of partitions: what waits, or is being written, is in `_latest`, too."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._latest: dict[TopicPartition, PartitionRow | PartitionGone] = {}
        # Since when, oldest first: what is to be written next, and what is being written.
        self._waiting: dict[TopicPartition, int] = {}
        self._writing: dict[TopicPartition, int] = {}
        self._complete: Complete | None = None
        # The highest that leaders have confirmed, of each partition of which nobody has told that yet.
        self._ahead: dict[TopicPartition, tuple[str, int]] = {}
        self._told_zxid = self._writing_zxid = self._written_zxid = -1

    @property
    def written_zxid(self) -> int:
        """All that was told up to there is in the table."""
        return self._written_zxid

    @property
    def waiting(self) -> bool:
        return bool(self._waiting) or self._complete is not None

    @property
    def pending(self) -> int:
        return len(self._waiting.keys() | self._writing.keys())

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the table yet was told."""
        return next(iter((self._writing or self._waiting).values()), None)

    def knows(self, partition: TopicPartition) -> bool:
        """It exists, or it is being written that it does not."""
        return partition in self._latest

    def tell(self, news: News, now_ms: int) -> None:
        self._told_zxid = max(self._told_zxid, _highest(news))
        for each in news.partitions:
            self._changed(each, now_ms, again=news.complete is not None)
        for partition, zxid in news.removed:
            self._gone(partition, zxid, now_ms)
        for topic, zxid in news.deleted:
            # One look at every partition; topics are deleted rarely.
            for partition in [known for known in self._latest if known.topic == topic]:
                self._gone(partition, zxid, now_ms)
            self._ahead = {known: word for known, word in self._ahead.items() if known.topic != topic}
        self._complete = news.complete or self._complete

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int, now_ms: int) -> None:
        """Of another topic of that name it says nothing (E4). The decision may not have been told yet (M4)."""
        known = self._latest.get(partition)
        is_known = isinstance(known, PartitionRow) and known.command.topic_id == topic_id
        if not isinstance(known, PartitionRow) or not is_known or known.command.state.leader_epoch < leader_epoch:
            self._ahead[partition] = max((topic_id, leader_epoch), self._ahead.get(partition, NOTHING_CONFIRMED))
        elif known.active_epoch < leader_epoch:
            self._put(partition, msgspec.structs.replace(known, active_epoch=leader_epoch, told_ms=now_ms), now_ms)

    def take(self) -> Batch:
        """What waits is being written from now on, until `written` or `failed`."""
        assert not self._writing, "one write at a time (M2)"
        self._writing, self._waiting = self._waiting, {}
        self._writing_zxid = self._told_zxid
        complete, self._complete = self._complete, None
        rows = [self._latest[partition] for partition in self._writing]
        live = [row for row in rows if isinstance(row, PartitionRow)]
        return Batch(live, [row for row in rows if isinstance(row, PartitionGone)], complete)

    def written(self) -> None:
        self._written_zxid = self._writing_zxid
        for partition in self._writing:
            if isinstance(self._latest[partition], PartitionGone) and partition not in self._waiting:
                del self._latest[partition]
        self._writing = {}

    def failed(self) -> None:
        """They wait again, as long as they have. Whether the table is complete is found out anew."""
        self._waiting = self._writing | {p: since for p, since in self._waiting.items() if p not in self._writing}
        self._writing = {}

    def _changed(self, told: PartitionNews, now_ms: int, *, again: bool) -> None:
        partition = told.command.topic_partition
        known = self._latest.get(partition)
        if known is not None and told.zxid <= known.zxid:
            if again and told.zxid == known.zxid:
                self._put(partition, known, now_ms)
            return
        active_epoch = NEVER_CONFIRMED
        if isinstance(known, PartitionRow) and known.command.topic_id == told.command.topic_id:
            active_epoch = known.active_epoch
        row = PartitionRow(
            cluster_id=self._cluster_id,
            command=told.command,
            zxid=told.zxid,
            told_ms=now_ms,
            active_epoch=max(active_epoch, self._confirmed_ahead(partition, told.command)),
        )
        self._put(partition, row, now_ms)

    def _confirmed_ahead(self, partition: TopicPartition, command: PartitionCommand) -> int:
        """Once it is told what it is of, or of what came later, it has been heard."""
        topic_id, leader_epoch = self._ahead.get(partition, NOTHING_CONFIRMED)
        if (topic_id, leader_epoch) > (command.topic_id, command.state.leader_epoch):
            return NEVER_CONFIRMED
        self._ahead.pop(partition, None)
        return leader_epoch if topic_id == command.topic_id else NEVER_CONFIRMED

    def _gone(self, partition: TopicPartition, zxid: int, now_ms: int) -> None:
        known = self._latest.get(partition)
        if isinstance(known, PartitionRow) and known.zxid < zxid:
            gone = PartitionGone(cluster_id=self._cluster_id, partition=partition, zxid=zxid, told_ms=now_ms)
            self._put(partition, gone, now_ms)

    def _put(self, partition: TopicPartition, row: PartitionRow | PartitionGone, now_ms: int) -> None:
        self._latest[partition] = row
        self._waiting.setdefault(partition, now_ms)


def _highest(news: News) -> int:
    zxids = [each.zxid for each in news.partitions]
    zxids += [zxid for _, zxid in (*news.removed, *news.deleted)]
    return max(zxids, default=-1) if news.complete is None else max([news.complete.zxid, *zxids])
