"""A MemoryStore that reports every change to the checkers."""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.core.law.writes import Group, GroupAnswer, IsrWrite, Made, StoredPartition, Write
from spark_replication.errors import ReplicationError
from spark_replication.model import TopicPartition, TopicState
from spark_replication.sim.world.memory_store import MemoryStore


class WatchedStore(MemoryStore):
    #: The controller epoch that the present write claims; None for a leader's write.
    writing: int | None = None
    partition_stored: Callable[[TopicPartition, str, StoredPartition], None]
    topic_stored: Callable[[str, TopicState | None, TopicState], None]
    store_changed: Callable[[], None]

    def group(self, group: Group) -> GroupAnswer:
        answer = super().group(group)
        self.store_changed()
        return answer

    def change_isr(self, write: IsrWrite) -> ReplicationError | None:
        answer = super().change_isr(write)
        self.store_changed()
        return answer

    def _store(self, write: Write) -> Made:
        before = {name: topic.state for name, topic in self.topics.items()}
        answer = super()._store(write)
        for name, topic in self.topics.items():
            if before.get(name) is not topic.state:
                self.topic_stored(name, before.get(name), topic.state)
        return answer

    def _store_partition(self, partition: TopicPartition, stored: StoredPartition) -> None:
        super()._store_partition(partition, stored)
        self.partition_stored(partition, self.topics[partition.topic].state.topic_id, stored)
