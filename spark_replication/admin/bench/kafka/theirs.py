"""Kafka as a side of a comparison: three nodes, and programs that use its own clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_replication.admin.bench.kafka import performance
from spark_replication.admin.bench.kafka.nodes import KafkaCluster
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

    def producer(self, topic: str, of: Rows, *, warm_up: int, batches: int) -> list[str]:
        return performance.producing(
            self._cluster,
            topic,
            row_bytes=of.row_bytes,
            batch_bytes=of.batch_bytes,
            warm_up_rows=warm_up * of.rows_a_batch,
            rows=batches * of.rows_a_batch,
        )

    def produced_mb_per_s(self, printed: str, of: Rows) -> float:
        return performance.produced_mb_per_s(printed, of.row_bytes)

    def consumer(self, topic: str, of: Rows, *, warm_up: int, rows: int) -> list[str]:
        return performance.consuming(self._cluster, topic, rows=rows)

    def consumed_mb_per_s(self, printed: str, of: Rows, *, warm_up: int) -> float:
        return performance.consumed_mb_per_s(printed, of.row_bytes, warm_up)

    def paced(self, topic: str, of: Paced, *, warm_up: int, rows: int) -> list[str]:
        numbers = (of.partitions, of.row_bytes, of.rows_per_s, warm_up, rows)
        return self._cluster.own_program("Paced", self.bootstrap, topic, *map(str, numbers))

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
