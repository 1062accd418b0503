"""Our cluster as a side of a comparison: a LocalCluster, and programs that use the public clients."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

import msgspec

from spark_replication.admin.bench import consuming, moving, pacing, producing, rereading, resuming
from spark_replication.admin.bench.cluster import HEALTHY_TIMEOUT_S, session_with, stored
from spark_replication.admin.bench.replicate import BROKERS
from spark_replication.admin.bench.side import Paced, Rows
from spark_replication.client.asking.admin import Admin
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import Scalar, TopicPartition


class Ours:
    name = "ours"

    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        """admin: with the time that 10,000 partitions take."""
        self._cluster = cluster
        self._admin = admin

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self._cluster.brokers.values())

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None:
        self._admin.create_topic(
            topic, producing.SCHEMA, partitions=partitions, replication_factor=replicas, config=config
        )
        self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def producer(self, topic: str, of: Rows) -> list[str]:
        work = producing.Work(
            bootstrap=self.bootstrap,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            rows=of.rows_a_batch,
        )
        return _program(producing.__name__, work)

    def consumer(self, topic: str, of: Rows, rows: int) -> list[str]:
        work = consuming.Work(bootstrap=self.bootstrap, topic=topic, partitions=of.partitions, rows=rows)
        return _program(consuming.__name__, work)

    def paced(self, topic: str, of: Paced) -> list[str]:
        work = pacing.Work(bootstrap=self.bootstrap, topic=topic, partitions=of.partitions, row_bytes=of.row_bytes)
        return _program(pacing.__name__, work)

    def rereading(self, topic: str, of: Rows, mb_per_s: int) -> list[str]:
        work = rereading.Work(
            bootstrap=self.bootstrap,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            mb_per_s=mb_per_s,
        )
        return _program(rereading.__name__, work)

    def moving(self, topic: str, partition_bytes: int) -> list[str]:
        return _program(moving.__name__, moving.Work(bootstrap=self.bootstrap, topic=topic, bytes=partition_bytes))

    def victim(self, topic: str) -> tuple[int, list[int]]:
        leaders = self._leaders(topic)
        broker = leaders[0]
        return broker, [partition for partition, leader in leaders.items() if leader == broker]

    def _leaders(self, topic: str) -> dict[int, int]:
        (found,) = self._admin.describe_topics([topic])
        return {each.partition: each.leader for each in found.partitions if each.leader is not None}

    def resuming(self, topic: str, partitions: int) -> list[str]:
        work = resuming.Work(bootstrap=self.bootstrap, topic=topic, partitions=partitions)
        return _program(resuming.__name__, work)

    def kill(self, broker: int) -> None:
        self._cluster.kill_broker(broker)

    def elected_s(self, topic: str, partitions: Collection[int], killed_s: float) -> float:
        with session_with(self._cluster) as session:
            found = stored(session, topic)
        return max(found[TopicPartition(topic, partition)].at_s for partition in partitions)

    def restore(self, topic: str, broker: int) -> None:
        self._cluster.restart_broker(broker)
        self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        self._admin.elect_leaders("preferred")
        self._cluster.wait_healthy(HEALTHY_TIMEOUT_S)


def _program(module: str, work: msgspec.Struct) -> list[str]:
    return [sys.executable, "-m", module, msgspec.json.encode(work).decode()]
