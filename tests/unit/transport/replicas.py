"""Replicas with real logs and real replication, but no ZooKeeper: commands are given by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spark_replication.config import Settings
from spark_replication.core.law.writes import IsrAnswer, IsrWrite
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker.known_topics import NO_TOPICS
from spark_replication.engine.groups.coordinators import KnownPartitions
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.partition import FindPartition, Partition, Turns
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import BrokerId, PartitionState, TopicPartition
from spark_replication.storage.disk.flush_threads import FlushAtOnce
from spark_replication.transport.frames.replication import Address, Replication, ServedBroker
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY, Security
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.unit.engine.ports_in_memory import Failures
from tests.unit.storage.storage_stories import TOPIC, files_of, log_in, prepared

CLUSTER = "cluster"
TIMEOUT_S = 20.0


def served(find: FindPartition, replicas: dict[TopicPartition, Partition]) -> ServedBroker:
    """A broker that tells clients of no topic."""
    known = KnownPartitions(lambda: NO_TOPICS, dict, clock_ms=lambda: 0, now_ms=lambda: 0)
    return ServedBroker(find, lambda _topic: TOPIC, lambda: replicas, known)


class NoIsrStore:
    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """No answer ever comes."""


class Brokers:
    """Some in this process; `addresses` is what each is told of the others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses: dict[BrokerId, Address] = {}
        self.settings = Settings()
        self.quotas = ""
        self.brokers: list[Broker] = []

    def start(
        self, broker: BrokerId, *, epoch: int = 0, cluster_id: str = CLUSTER, security: Security = NO_SECURITY
    ) -> Broker:
        started = Broker(self, broker, epoch, cluster_id, security)
        self.brokers.append(started)
        self.addresses[broker] = ("127.0.0.1", started.replication.port)
        return started

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


class Broker:
    def __init__(self, brokers: Brokers, broker: BrokerId, epoch: int, cluster_id: str, security: Security) -> None:
        self.me = Me(broker, epoch, 0)
        self.settings = brokers.settings
        self.partitions: dict[TopicPartition, Partition] = {}
        self.sockets = SocketLoop("broker-loop")
        self.sockets.start()
        self._directory = brokers.directory / f"broker-{broker}"
        self.replication = Replication(
            "127.0.0.1",
            self.sockets,
            served(self.partition, self.partitions),
            cluster_id=cluster_id,
            broker=broker,
            settings=self.settings,
            rights=Rights(security, quotas=lambda: brokers.quotas),
            address_of=brokers.addresses.get,
            now_ms=lambda: 0,
        )
        self.replication.start()
        self.replication.registered(epoch)

    def partition(self, name: TopicPartition) -> Partition:
        found = self.partitions.get(name)
        if found is None:
            raise UnknownTopicOrPartition(f"{name} is not here")
        return found

    def replica(self, name: TopicPartition) -> ReplicaLoop:
        """Whoever else has it."""
        return self.partitions[name].unguarded

    def folder(self, partition: TopicPartition) -> Path:
        return self._directory / str(partition)

    def open(self, name: TopicPartition, topic_id: str = "id") -> Partition:
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        log = log_in(folder, segment_bytes=1 << 16)
        turns = Turns(threading.Lock(), self.sockets.post)
        replica = ReplicaLoop(
            name,
            topic_id,
            log,
            settings=self.settings,
            isr_store=NoIsrStore(),
            links=self.replication,
            flusher=FlushAtOnce(),
            failures=Failures(),
            throttle=CopyThrottle(self.replication, threading.Lock()),
            post=turns.post,
        )
        partition = self.partitions[name] = Partition(replica, turns)
        return partition

    def command(
        self, name: TopicPartition, leader: BrokerId, replicas: tuple[BrokerId, ...], *, epoch: int = 0
    ) -> None:
        partition = self.partitions.get(name) or self.open(name)
        state = PartitionState(
            leader=leader,
            leader_epoch=epoch,
            isr=frozenset(replicas),
            min_isr=1,
            epochs=dict.fromkeys(replicas, 0),
        )
        command = PartitionCommand(
            topic=name.topic,
            partition=name.partition,
            topic_id=partition.topic_id,
            replicas=replicas,
            state=state,
            partition_epoch=epoch,
        )
        with partition as replica:
            replica.command(command, self.me, 0)

    def produce(self, partition: TopicPartition, count: int) -> list[OffsetSpan | ReplicationError]:
        """Acks=all; the answers, as they come."""
        answers: list[OffsetSpan | ReplicationError] = []
        for _ in range(count):
            with self.partitions[partition] as replica:
                batch = prepared(replica.log.log_end)
                replica.produce(batch, acks="all", now_ms=0, acknowledge=answers.append)
        return answers

    def files(self, partition: TopicPartition) -> dict[str, bytes]:
        """The segments' files at one moment: a cut may remove one between the look for names and that into a file."""
        while True:
            with suppress(FileNotFoundError):
                return files_of(self.folder(partition))

    def close(self) -> None:
        self.replication.close()
        self.sockets.stop(TIMEOUT_S)
        for partition in self.partitions.values():
            partition.unguarded.log.close()
