"""The present rows of `partitions`: with what leaders have confirmed, and since when they lead. Pure.

Within one topic_id active_epoch never falls. leader_since stays as long as leader_epoch does.
"""

from __future__ import annotations

import msgspec

from spark_replication.core.controller.news import PartitionNews
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.tables.facts import Facts
from spark_replication.mirror.tables.partitions import NEVER_CONFIRMED, PARTITIONS, PartitionRow
from spark_replication.mirror.telling.latest import Latest, TableBatch
from spark_replication.model import TopicPartition

NOTHING_CONFIRMED = ("", NEVER_CONFIRMED)


class LatestPartitions(Latest[PartitionRow]):
    def __init__(self, cluster_id: str, facts: Facts) -> None:
        super().__init__(PARTITIONS, cluster_id, facts)
        #: The highest confirmed epoch of each partition whose election has not been told yet.
        self._ahead: dict[TopicPartition, tuple[str, int]] = {}

    def tell(self, told: PartitionNews, now_ms: int, *, again: bool) -> None:
        """As `changed`, for news of a partition, which is not a whole row."""
        command, partition = told.command, told.command.topic_partition
        if not self.is_news(partition, told.zxid):
            if again:
                self.put_again(partition, told.zxid, now_ms)
            return
        before = self._of(partition, command.topic_id)
        at_ms = told.at_ms or now_ms
        is_led_on = before is not None and before.command.state.leader_epoch == command.state.leader_epoch
        row = PartitionRow(
            cluster_id=self._cluster_id,
            command=command,
            zxid=told.zxid,
            told_ms=now_ms,
            at_ms=at_ms,
            leader_since_ms=before.leader_since_ms if before is not None and is_led_on else at_ms,
            waiting_for=told.waiting_for,
            active_epoch=max(
                NEVER_CONFIRMED if before is None else before.active_epoch, self._confirmed_ahead(partition, command)
            ),
        )
        self.put(partition, row, now_ms)

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int, now_ms: int) -> None:
        """Take a leader's confirmation. It says nothing of another topic of that name (E4), and may come before the
        election is told (M4)."""
        known = self._of(partition, topic_id)
        if known is None or known.command.state.leader_epoch < leader_epoch:
            self._ahead[partition] = max((topic_id, leader_epoch), self._ahead.get(partition, NOTHING_CONFIRMED))
        elif known.active_epoch < leader_epoch:
            self.put(partition, msgspec.structs.replace(known, active_epoch=leader_epoch, told_ms=now_ms), now_ms)

    def with_confirmed(self, batch: TableBatch[PartitionRow]) -> TableBatch[PartitionRow]:
        """The batch, which is being written, with what leaders have confirmed since it was taken. A row in which
        nothing else has changed waits no longer."""
        if not self._waiting:
            return batch
        return msgspec.structs.replace(batch, live=[self._with_confirmed(row) for row in batch.live])

    def deleted(self, topic: str, zxid: int, now_ms: int) -> None:
        """Take the topic's partitions as gone. Cost: one look at every partition; topics are deleted rarely."""
        for key in [known for known in self.existing() if known[0] == topic]:
            self.gone(key, zxid, now_ms)
        self._ahead = {known: word for known, word in self._ahead.items() if known.topic != topic}

    def _of(self, partition: TopicPartition, topic_id: str) -> PartitionRow | None:
        known = self._rows.get(partition)
        return known if isinstance(known, PartitionRow) and known.command.topic_id == topic_id else None

    def _with_confirmed(self, row: PartitionRow) -> PartitionRow:
        partition = row.command.topic_partition
        newest = self._of(partition, row.command.topic_id)
        if newest is None or not row.active_epoch < newest.active_epoch <= row.command.state.leader_epoch:
            return row
        if newest.zxid == row.zxid:
            self.goes_too(partition)
            return newest
        return msgspec.structs.replace(row, active_epoch=newest.active_epoch)

    def _confirmed_ahead(self, partition: TopicPartition, command: PartitionCommand) -> int:
        """Take the confirmed epoch that waited for this election, or for an earlier one."""
        topic_id, leader_epoch = self._ahead.get(partition, NOTHING_CONFIRMED)
        if (topic_id, leader_epoch) > (command.topic_id, command.state.leader_epoch):
            return NEVER_CONFIRMED
        self._ahead.pop(partition, None)
        return leader_epoch if topic_id == command.topic_id else NEVER_CONFIRMED
