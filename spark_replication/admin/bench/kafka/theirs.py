"""Kafka as a side of a comparison: three nodes, and programs that use its own clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_replication.admin.bench.kafka.nodes import MESSAGE_BYTES_MAX, KafkaCluster
from spark_replication.admin.bench.replicate import BROKERS
from spark_replication.admin.bench.side import Paced, Rows
from spark_replication.model import Scalar


class Theirs:
    name = "Kafka"

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def pids(self) -> tuple[int, ...]:
        return self._cluster.pids

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None:
        self._cluster.create_topic(topic, partitions, replicas, {**config, "file.delete.delay.ms": 0})

    def delete(self, topic: str) -> None:
        self._cluster.delete_topic(topic)

    def producer(self, topic: str, of: Rows) -> list[str]:
        numbers = (of.row_bytes, of.rows_a_batch, of.batch_bytes, MESSAGE_BYTES_MAX)
        return self._cluster.own_program("Producing", self.bootstrap, topic, *map(str, numbers))

    def consumer(self, topic: str, of: Rows, rows: int) -> list[str]:
        return self._cluster.own_program("Consuming", self.bootstrap, topic, str(of.partitions), str(rows))

    def paced(self, topic: str, of: Paced) -> list[str]:
        return self._cluster.own_program("Paced", self.bootstrap, topic, str(of.partitions), str(of.row_bytes))

    def rereading(self, topic: str, of: Rows, mb_per_s: int) -> list[str]:
        numbers = (of.partitions, of.row_bytes, mb_per_s)
        return self._cluster.own_program("Rereading", self.bootstrap, topic, *map(str, numbers))

    def moving(self, topic: str, partition_bytes: int) -> list[str]:
        return self._cluster.own_program("Moving", self.bootstrap, topic, str(partition_bytes))

    def victim(self, topic: str) -> tuple[int, list[int]]:
        described = self._cluster.describe_topic(topic)
        controller = self._cluster.active_controller()
        broker = next(each.leader for each in described if each.leader not in (None, controller))
        assert broker is not None, "it leads"
        return broker, [each.partition for each in described if each.leader == broker]

    def resuming(self, topic: str, partitions: int) -> list[str]:
        return self._cluster.own_program("Resuming", self.bootstrap, topic, str(partitions))

    def kill(self, broker: int) -> None:
        self._cluster.kill(broker)

    def elected_s(self, topic: str, partitions: Collection[int], killed_s: float) -> float:
        stored = self._cluster.elections_s(topic, since_s=killed_s)
        return max(stored[partition] for partition in partitions)

    def restore(self, topic: str, broker: int) -> None:
        self._cluster.restart(broker)
        self._cluster.wait_in_sync(topic)
        self._cluster.elect_preferred(topic)
