"""Which commands come too late: of a topic that another of its name has followed, of a partition that was removed, or
of a replica that was stopped since. Carried out, one would open an empty log, and lead again.

A command is late by what is on its way at one time. So of each kind only the newest ENTRIES_MAX are remembered.
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
        # Both begin with what was told longest ago.
        self._ended: dict[TopicPartition, tuple[str, Order]] = {}  # up to which topic id and order
        self._topic_ids: dict[str, str] = {}  # the newest of each name, of deleted topics too: they are in order (E4)

    def told_of(self, topic: str, topic_id: str) -> None:
        if topic_id > self._topic_ids.get(topic, ""):
            self._topic_ids.pop(topic, None)
            self._topic_ids[topic] = topic_id
            if len(self._topic_ids) > self._entries_max:
                del self._topic_ids[next(iter(self._topic_ids))]

    def is_new(self, topic: str, topic_id: str) -> bool:
        """Nobody has told of it, nor of a later topic of its name."""
        return topic_id > self._topic_ids.get(topic, "")

    def end(self, partition: TopicPartition, topic_id: str, order: Order) -> None:
        """What was told of it up to there is over."""
        self._ended[partition] = max(self._ended.pop(partition, _NOTHING), (topic_id, order))
        if len(self._ended) > self._entries_max:
            del self._ended[next(iter(self._ended))]

    def is_late(self, command: PartitionCommand) -> bool:
        ended = self._ended.get(command.topic_partition, _NOTHING)
        return (command.topic_id, command.order) <= ended or self._topic_ids.get(command.topic, "") > command.topic_id

    def keep_only(self, unreadable: Unreadable) -> None:
        """What is told next replaces what can be read."""
        self._topic_ids = {topic: known for topic, known in self._topic_ids.items() if unreadable.hides_of(topic)}
        self._ended = {partition: known for partition, known in self._ended.items() if unreadable.hides(partition)}
