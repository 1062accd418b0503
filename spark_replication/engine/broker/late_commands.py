"""Which commands come too late. Carried out, such a command would open an empty log, and lead again.

A command is late if its topic was made again under the same name, if its partition was removed, or if its replica was
stopped since. It can be late only by as much as is on its way at one time, so only the newest ENTRIES_MAX of each kind
are remembered.
"""

from __future__ import annotations

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition

ENTRIES_MAX = 100_000
Order = tuple[int, float]
_NOTHING: tuple[str, Order] = ("", (-1, -1))


class LateCommands:
    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        # Both are ordered from the oldest entry to the newest.
        self._ended: dict[TopicPartition, tuple[str, Order]] = {}  # up to which topic id and order commands are late
        self._topic_ids: dict[str, str] = {}  # the newest of each name, also of deleted topics: ids are in order (E4)

    def told_of(self, topic: str, topic_id: str) -> None:
        if topic_id > self._topic_ids.get(topic, ""):
            self._topic_ids.pop(topic, None)
            self._topic_ids[topic] = topic_id
            if len(self._topic_ids) > self._entries_max:
                del self._topic_ids[next(iter(self._topic_ids))]

    def is_new(self, topic: str, topic_id: str) -> bool:
        """No command has named this topic, nor a later one of its name."""
        return topic_id > self._topic_ids.get(topic, "")

    def end(self, partition: TopicPartition, topic_id: str, order: Order) -> None:
        """Commands for this partition up to this topic id and order are late from now on."""
        self._ended[partition] = max(self._ended.pop(partition, _NOTHING), (topic_id, order))
        if len(self._ended) > self._entries_max:
            del self._ended[next(iter(self._ended))]

    def is_late(self, command: PartitionCommand) -> bool:
        ended = self._ended.get(command.topic_partition, _NOTHING)
        return (command.topic_id, command.order) <= ended or self._topic_ids.get(command.topic, "") > command.topic_id

    def keep_only(self, unreadable: Unreadable) -> None:
        """Forget everything that can be read: what is read next replaces it."""
        self._topic_ids = {topic: known for topic, known in self._topic_ids.items() if unreadable.hides_of(topic)}
        self._ended = {partition: known for partition, known in self._ended.items() if unreadable.hides(partition)}
