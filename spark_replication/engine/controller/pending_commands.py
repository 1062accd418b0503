"""Commands that wait for one broker: the latest of each partition, so their number is bounded. Pure.

They are sent in this order: lead or follow, stop, metadata, questions. For each partition only the latest of lead,
follow and stop counts; likewise only the latest of its metadata, be it a state or a removal.

A broker carries out one command at a time, and opens a log for each new partition: 10,000 of them took it 14 s on a
busy machine. So partitions to lead or follow go in pieces. All brokers are at about the same piece, so a leader's
followers ask it soon after it has begun to lead, and not when they have opened everything else. Only an INIT is whole:
what it does not name is not assigned to its broker.
"""

from __future__ import annotations

from typing import assert_never

from spark_replication.messages.commands import (
    LOG_INFO_PARTITIONS_MAX,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, Scalar, TopicConfig, TopicPartition

LEADER_AND_ISR_PARTITIONS_MAX = 2_000  # in one LeaderAndIsr that is no INIT

# All commands but questions.
State = LeaderAndIsr | StopReplica | UpdateMetadata


class PendingCommands:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._replicas: dict[TopicPartition, PartitionCommand | StopPartition] = {}
        self._metadata: dict[TopicPartition, PartitionCommand] = {}
        self._removed: dict[TopicPartition, None] = {}
        self._unmade: dict[TopicPartition, None] = {}
        self._deleted: dict[str, None] = {}
        self._configured: dict[str, None] = {}  # the topics whose settings go with the metadata
        self._topics: dict[str, TopicConfig] = {}
        self._brokers: dict[BrokerId, Registration] = {}
        self._controller_epoch = 0
        self._init = False
        self._has_metadata = False
        self._complete = False
        self._settings: dict[str, Scalar] | None = None
        self._unreadable: tuple[tuple[str, ...], tuple[TopicPartition, ...]] = (), ()

    def add(self, command: State) -> None:
        self._controller_epoch = max(self._controller_epoch, command.controller_epoch)
        match command:
            case LeaderAndIsr():
                self._replicas.update({found.topic_partition: found for found in command.partitions})
                self._init = self._init or command.init
                self._topics.update(command.topics)
                self._brokers = command.brokers
            case StopReplica():
                self._replicas.update({found.topic_partition: found for found in command.partitions})
            case UpdateMetadata():
                self._add_metadata(command)
            case _:
                assert_never(command)

    def _add_metadata(self, command: UpdateMetadata) -> None:
        self._has_metadata = True
        self._brokers = command.brokers
        if command.complete:  # it names everything: metadata that waited is part of it, or over
            self._complete = True
            self._metadata, self._removed, self._deleted, self._configured = {}, {}, {}, {}
            self._unmade = {}
        for topic in command.deleted:
            self._deleted[topic] = None
            self._configured.pop(topic, None)
            self._metadata = {found: known for found, known in self._metadata.items() if found.topic != topic}
            self._removed = {found: None for found in self._removed if found.topic != topic}
            self._unmade = {found: None for found in self._unmade if found.topic != topic}
        for partition in command.removed:
            self._removed[partition] = None
            self._metadata.pop(partition, None)
            self._unmade.pop(partition, None)
        for known in command.partitions:
            self._metadata[known.topic_partition] = known
            self._removed.pop(known.topic_partition, None)
            self._unmade.pop(known.topic_partition, None)
        for partition in command.unmade:
            self._unmade[partition] = None
            self._removed.pop(partition, None)
        self._unreadable = command.unreadable_topics, command.unreadable_partitions
        if command.settings is not None:
            self._settings = command.settings
        self._topics.update(command.topics)
        self._configured.update(dict.fromkeys(command.topics))

    def put_back(self, command: LeaderAndIsr) -> None:
        """Add what was not carried out, except for partitions of which something newer has come."""
        self._controller_epoch = max(self._controller_epoch, command.controller_epoch)
        newer, self._replicas = self._replicas, {found.topic_partition: found for found in command.partitions}
        self._replicas.update(newer)
        self._topics = command.topics | self._topics
        self._brokers = self._brokers or command.brokers

    def commands(self) -> list[State]:
        return [*self._leader_and_isr(), *self._stop_replica(), *self._update_metadata()]

    def _leader_and_isr(self) -> list[State]:
        partitions = tuple(found for found in self._replicas.values() if isinstance(found, PartitionCommand))
        if self._init:
            return [self._piece(partitions)]
        size = LEADER_AND_ISR_PARTITIONS_MAX
        return [self._piece(partitions[first : first + size]) for first in range(0, len(partitions), size)]

    def _piece(self, partitions: tuple[PartitionCommand, ...]) -> LeaderAndIsr:
        names = {partition.topic for partition in partitions}
        return LeaderAndIsr(
            controller_epoch=self._controller_epoch,
            partitions=partitions,
            topics={name: config for name, config in self._topics.items() if name in names},
            brokers=self._brokers,
            init=self._init,
        )

    def _stop_replica(self) -> list[State]:
        stops = tuple(found for found in self._replicas.values() if isinstance(found, StopPartition))
        return [StopReplica(controller_epoch=self._controller_epoch, partitions=stops)] if stops else []

    def _update_metadata(self) -> list[State]:
        """One command; two for a topic that was deleted and made again, first the deletion: within one command a broker
        learns what is new before it forgets what is gone."""
        if not self._has_metadata:
            return []
        again = self._deleted.keys() & (self._configured.keys() | {found.topic for found in self._metadata})
        gone = UpdateMetadata(
            controller_epoch=self._controller_epoch, partitions=(), brokers=self._brokers, deleted=tuple(sorted(again))
        )
        news = UpdateMetadata(
            controller_epoch=self._controller_epoch,
            partitions=tuple(self._metadata.values()),
            topics={name: config for name, config in self._topics.items() if name in self._configured},
            brokers=self._brokers,
            deleted=tuple(topic for topic in self._deleted if topic not in again),
            removed=tuple(self._removed),
            complete=self._complete,
            settings=self._settings,
            unreadable_topics=self._unreadable[0],
            unreadable_partitions=self._unreadable[1],
            unmade=tuple(self._unmade),
        )
        return [gone, news] if again else [news]


class PendingQuestions:
    """Not thread-safe."""

    def __init__(self, pause_ms: int) -> None:
        """pause_ms: before the same partition is asked again, since an answer that says nothing leads to the same
        question at once."""
        self._pause_ms = pause_ms
        self._controller_epoch = 0
        self._wanted: dict[TopicPartition, LogInfoWanted] = {}
        self._asked_ms: dict[TopicPartition, int] = {}

    def add(self, command: GetReplicaLogInfo) -> None:
        self._controller_epoch = max(self._controller_epoch, command.controller_epoch)
        self._wanted.update({wanted.topic_partition: wanted for wanted in command.partitions})

    def due_ms(self, now_ms: int) -> int | None:
        """When the next question is due; None if none waits."""
        return min((self._due_ms(partition, now_ms) for partition in self._wanted), default=None)

    def take(self, now_ms: int) -> list[GetReplicaLogInfo]:
        """The questions that are due, in requests of at most LOG_INFO_PARTITIONS_MAX partitions."""
        due = [wanted for partition, wanted in self._wanted.items() if self._due_ms(partition, now_ms) <= now_ms]
        self._asked_ms = {partition: at for partition, at in self._asked_ms.items() if at + self._pause_ms > now_ms}
        for wanted in due:
            del self._wanted[wanted.topic_partition]
            self._asked_ms[wanted.topic_partition] = now_ms
        return [
            GetReplicaLogInfo(
                controller_epoch=self._controller_epoch,
                partitions=tuple(due[start : start + LOG_INFO_PARTITIONS_MAX]),
            )
            for start in range(0, len(due), LOG_INFO_PARTITIONS_MAX)
        ]

    def _due_ms(self, partition: TopicPartition, now_ms: int) -> int:
        asked_ms = self._asked_ms.get(partition)
        return now_ms if asked_ms is None else asked_ms + self._pause_ms
