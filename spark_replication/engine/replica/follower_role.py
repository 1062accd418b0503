"""A replica that follows: what it fetches from its leader, and what it does with the answer.

Whoever calls has the partition.
"""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.core.replica import replica
from spark_replication.core.replica.replica import Following
from spark_replication.engine.replica.own_log import OwnLog
from spark_replication.errors import CorruptLog, StorageFailed
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import PartitionState
from spark_replication.ports import LogSlice


class FollowerRole:
    """Follows one leader, or nobody, at one leader epoch."""

    def __init__(self, own: OwnLog, following: Following) -> None:
        self.part = following
        self._own = own
        self._asked: FetchPartition | None = None  # the last fetch; None if no answer counts any longer

    def follows(self, state: PartitionState) -> bool:
        return (self.part.leader, self.part.leader_epoch) == (state.leader, state.leader_epoch)

    def commanded(self, command: PartitionCommand) -> None:
        """Take in a command of the same leader and leader epoch."""
        self.part = replace(self.part, partition_epoch=command.partition_epoch, created=command.state.created)

    def stop(self) -> None:
        """Follow nobody from here on: no answer changes the log."""
        self.part = replace(self.part, leader=None)
        self._asked = None

    def next_fetch(self, clean_since: int) -> FetchPartition | None:
        """The next fetch. None if this replica has no leader, is backing off after a disk error, or (flush=always) has
        unflushed data: a fetch at offset n claims everything below n."""
        own, view = self._own, self._own.view
        if self.part.leader is None or own.disk_trouble.is_recent or view.vouched_end < view.log_end:
            return None
        self._asked = FetchPartition(
            topic=own.partition.topic,
            partition=own.partition.partition,
            topic_id=own.topic_id,
            leader_epoch=self.part.leader_epoch,
            offset=view.log_end,
            last_epoch=view.epoch_before(view.log_end),
            clean_since=clean_since,
            # Not part.high_watermark: at the end of an idle partition this leader would tell nothing, ever.
            high_watermark=self.part.served or 0,
        )
        return self._asked

    def answered(self, fetch: FetchPartition, answer: FetchedPartition, records: LogSlice | None) -> None:
        """Take the leader's answer in: cut what diverges from the leader's log, or append the same bytes (F1, F2), and
        forget what the leader has forgotten.

        fetch: the very object that `next_fetch` returned last. An answer to an earlier fetch, or of another leader
        epoch, is ignored: the log may have grown since, and the leader counts on that.
        """
        if fetch is not self._asked:
            return
        self._asked = None
        if answer.leader_epoch != self.part.leader_epoch:
            return
        try:
            self._take(answer, records)
        except Exception as error:
            if isinstance(error, StorageFailed):
                self._own.disk_trouble.refused(self.part, error)
            self.part = replica.within(self.part, self._own.view)  # what failed half-way may have cut the log
            raise

    def _take(self, answer: FetchedPartition, records: LogSlice | None) -> None:
        own, following, parted = self._own, self.part, answer.diverging
        if parted is not None and (parted.end > answer.log_start or not answer.log_start):
            own.numbered.truncate(replica.truncation(own.view, parted))
        elif parted is not None or answer.log_start > own.log.log_end:  # nobody can tell what is right below that
            own.numbered.begin_anew(answer.log_start, answer.producers)
        elif answer.producers:
            own.numbered.learn(answer.producers)
        if own.log.log_end and not own.log.epochs:  # the epoch tells of which life of the partition this log is (E4)
            own.log.begin_epoch(following.created)
        if records is not None:
            if records.first_offset != own.log.log_end:
                raise CorruptLog(f"{own.partition}: asked for {own.log.log_end}, got {records.first_offset}")
            own.numbered.append_slice(records)
        high_watermark, served = max(answer.high_watermark, following.high_watermark), following.served
        if parted is None:  # otherwise what is left after the cut may diverge from the leader's log, too
            served = max(answer.high_watermark, served or 0)
        told = replace(following, high_watermark=high_watermark, served=served)
        self.part = part = replica.within(told, own.view)
        if part.served != following.served:
            own.progress.wake()
        own.flushing.written()
        # Last, since the disk may refuse it: what has come counts all the same.
        if answer.log_start > own.log.log_start:
            own.numbered.forget(min(answer.log_start, part.high_watermark))
