"""What a replica has in every role: its log, the flushes of that log, its producers, and who waits for progress.

Whoever calls has the partition.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.config import Settings
from spark_replication.core.replica.replica import LogView
from spark_replication.core.replica.start_at import change_to_start_at
from spark_replication.engine.replica.damage import Damage
from spark_replication.engine.replica.disk_trouble import DiskTrouble
from spark_replication.engine.replica.flushing import Flushing
from spark_replication.engine.replica.numbered_log import NumberedLog
from spark_replication.engine.replica.waiters import Progress
from spark_replication.errors import StorageFailed
from spark_replication.model import Epoch, Offset, ReplicaOf, TopicPartition
from spark_replication.ports import FailureReports, Flusher, ReplicaLog


class OwnLog:
    def __init__(
        self,
        replica: ReplicaOf,
        log: ReplicaLog,
        settings: Settings,
        *,
        flusher: Flusher,
        failures: FailureReports,
        flush_ended: Callable[[StorageFailed | None], None],
    ) -> None:
        """flush_ended: as Flushing calls it."""
        self.partition: TopicPartition = replica.partition
        self.topic_id = replica.topic_id
        self.log = log
        self.settings = settings
        self.numbered = NumberedLog(log, settings)
        self.flushing = Flushing(log, flusher, settings, flush_ended)
        self.disk_trouble = DiskTrouble(replica, failures)
        self.damage = Damage(replica.partition, log)
        #: Consumers wait for it: the high watermark has risen, or the role is another.
        self.progress = Progress()

    def configure(self, settings: Settings) -> None:
        self.settings = settings
        self.flushing.configure(settings)
        self.log.configure(settings)
        self.numbered.configure(settings)

    def start_at(self, offset: Offset, created: Epoch) -> None:
        """Bring the log to start at `offset` or above it (core.replica.start_at). A disk that stops this half-way
        leaves a log that the same call, made again, brings to the same place.

        created: the epoch at which the partition was made, which an empty log gets (E4).
        """
        change = change_to_start_at(offset, self.view, self.log.batch_start)
        if change == "drop below":
            self.numbered.drop_below(offset)
        elif change == "begin anew":
            # Cut first, so that what is known of producers below the cut is known still if this ends half-way.
            self.numbered.truncate(offset)
            self.numbered.begin_anew(offset, self.numbered.known_below(offset))
            self.log.begin_epoch(created)

    @property
    def view(self) -> LogView:
        flushed_end = self.log.flushed_end if self.flushing.always else None
        return LogView(self.log.log_start, self.log.log_end, self.log.epochs, flushed_end)
