"""What a replica has in every role: its log, the flushes of that log, its producers, and who waits for progress.

Whoever calls has the partition.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.config import Settings
from spark_replication.core.replica.replica import LogView
from spark_replication.engine.replica.damage import Damage
from spark_replication.engine.replica.disk_trouble import DiskTrouble
from spark_replication.engine.replica.flushing import Flushing
from spark_replication.engine.replica.numbered_log import NumberedLog
from spark_replication.engine.replica.waiters import Progress
from spark_replication.errors import StorageFailed
from spark_replication.model import ReplicaOf, TopicPartition
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

    @property
    def view(self) -> LogView:
        flushed_end = self.log.flushed_end if self.flushing.always else None
        return LogView(self.log.log_start, self.log.log_end, self.log.epochs, flushed_end)
