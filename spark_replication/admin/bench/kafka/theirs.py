"""Kafka as a side: three nodes, and programs that use its own clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from spark_replication.admin.bench.harness import Measured
from spark_replication.admin.bench.kafka.jars import VERSION
from spark_replication.admin.bench.kafka.nodes import MESSAGE_BYTES_MAX, KafkaCluster
from spark_replication.admin.bench.losses import ELECTED, LED
from spark_replication.admin.bench.side import BROKERS, Door, Led, Rows
from spark_replication.errors import InvalidRequest
from spark_replication.model import Scalar

#: As much as our producer may have unanswered; its default is half of it.
BUFFER_BYTES = 64 << 20


class Theirs:
    name = f"Kafka {VERSION}"

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

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        numbers = (of.partitions, of.row_bytes, of.rows_a_batch)
        sizes = {
            "batch.size": of.batch_bytes,
            "buffer.memory": BUFFER_BYTES,
            "max.request.size": MESSAGE_BYTES_MAX,
        }
        settings = [f"{name}={value}" for name, value in ({"linger.ms": 0} if joins else sizes).items()]
        return self._cluster.own_program("Sending", self.bootstrap, topic, *map(str, numbers), *settings)

    def consumer(self, topic: str, of: Rows, rows: int, door: Door, *, looks: bool) -> list[str]:
        """It has one door, and does not look into rows."""
        numbers = (of.partitions, of.row_bytes, rows)
        return self._cluster.own_program("Consuming", self.bootstrap, topic, *map(str, numbers))

    def mover(self, topic: str) -> list[str]:
        return self._cluster.own_program("Moving", self.bootstrap, topic)

    def leader(self, topic: str) -> Led:
        """One that is not the active controller."""
        described = self._cluster.describe_topic(topic)
        controller = self._cluster.active_controller()
        broker = next(each.leader for each in described if each.leader not in (None, controller))
        assert broker is not None, "it leads"
        return Led(broker, [each.partition for each in described if each.leader == broker])

    def lose(self, topic: str, led: Led, *, silently: bool) -> TheirLoss:
        return TheirLoss(self._cluster, topic, led, silently=silently)

    def restore(self, topic: str, led: Led, *, was_silent: bool) -> None:
        if was_silent:
            self._cluster.kill(led.broker)
        self._cluster.restart(led.broker)
        self._cluster.wait_in_sync(topic)
        self._cluster.elect_preferred(topic)

    def looked_at(self) -> AbstractContextManager[None]:
        return nullcontext()


class TheirLoss:
    def __init__(self, cluster: KafkaCluster, topic: str, led: Led, *, silently: bool) -> None:
        self._cluster = cluster
        self._topic = topic
        self._led = led
        self.at_ns = time.time_ns()
        if silently:
            cluster.stop_answering(led.broker)
        else:
            cluster.kill(led.broker)

    def wait_led(self) -> None:
        raise InvalidRequest("Kafka tells only afterwards when it has elected: measure it with writes from the kill on")

    def measured(self) -> Measured:
        stored = self._cluster.elections_s(self._topic, since_s=self.at_ns / 1e9)
        elected_ms = 1_000 * max(stored[partition] for partition in self._led.partitions) - self.at_ns / 1e6
        return {LED: len(self._led.partitions), ELECTED: elected_ms}
