"""The cost of a broker's failure in the controller before anything leaves it: plan, apply, announce, on a real core."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from spark_replication.admin.bench.harness import Measure, Measured, Row, rows
from spark_replication.config import Settings
from spark_replication.core.controller import controller
from spark_replication.core.controller.announcing import announce
from spark_replication.core.controller.cluster import ClusterState, LoadedCluster, StoredTopic
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.controller.plan import BrokersMoved, Step
from spark_replication.core.controller.topics import PARTITIONS_MAX
from spark_replication.core.law.writes import PartitionWrite, StoredPartition
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import (
    BrokerEpoch,
    BrokerId,
    PartitionState,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
)

BROKERS: tuple[BrokerId, ...] = (1, 2, 3)
REPLICAS = 3
FAILED: BrokerId = 1


DECIDE, APPLY, ANNOUNCE = Measure("decide", "ms"), Measure("apply", "ms"), Measure("announce", "ms")
TOTAL, EACH = Measure("all of it", "ms"), Measure("for each partition", "us")


def decide(partitions: int, rounds: int) -> list[Row]:
    """Each round has a cluster of its own. Bare: making the same states, writes and commands of ready values, which
    nothing that decides can beat."""
    found = [failed(cluster_of(partitions, BROKERS)) for _ in range(rounds)]
    what = f"a broker of {partitions:,} partitions fails"
    return rows(what, {"ours": [ours for ours, _ in found], "bare": [bare for _, bare in found]})


def failed(cluster: ClusterState) -> tuple[Measured, Measured]:
    """What the failure of a broker costs this cluster, and bare."""
    survivors = {broker: found for broker, found in cluster.registered.items() if broker != FAILED}
    read = BrokersRead(brokers=survivors, broker_epochs=cluster.broker_epochs)
    lost, started, stopping = cluster.apply_brokers(read)
    cause = BrokersMoved(lost=lost, started=started, stopping=stopping)
    touched = sum(FAILED in replicas for replicas in _replicas_of_all(cluster))
    gc.collect()
    gc.disable()
    try:
        decided, decide_ms = _timed(lambda: controller.decide(cluster, cause))
        written, apply_ms = _timed(lambda: _apply(cluster, decided.steps))
        _, announce_ms = _timed(lambda: announce(cluster, cause, written))
        _, bare_ms = _timed(lambda: _bare(cluster, written))
    finally:
        gc.enable()
    total_ms = decide_ms + apply_ms + announce_ms
    ours = {DECIDE: decide_ms, APPLY: apply_ms, ANNOUNCE: announce_ms, TOTAL: total_ms}
    return {**ours, EACH: 1_000 * total_ms / touched}, {TOTAL: bare_ms, EACH: 1_000 * bare_ms / touched}


Found = TypeVar("Found")


def _timed(work: Callable[[], Found]) -> tuple[Found, float]:
    start = time.perf_counter()
    found = work()
    return found, 1_000 * (time.perf_counter() - start)


def _apply(cluster: ClusterState, steps: tuple[Step, ...]) -> list[TopicPartition]:
    """Apply what is decided, as the engine does once ZooKeeper has accepted it."""
    written = []
    for step in steps:
        for write in step.writes:
            assert isinstance(write, PartitionWrite)
            cluster.apply_partition(write.partition, StoredPartition(write.state, write.version + 1, 1))
            written.append(write.partition)
    return written


def _bare(cluster: ClusterState, written: list[TopicPartition]) -> list[object]:
    """A state, a write and a command for each partition, made of values that exist already."""
    made: list[object] = []
    for partition in written:
        stored = cluster.partitions[partition]
        topic = cluster.topics[partition.topic].state
        state = msgspec.structs.replace(stored.state, leader_epoch=stored.state.leader_epoch)
        made.append(PartitionWrite(partition=partition, state=state, version=stored.version))
        made.append(
            PartitionCommand(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=topic.topic_id,
                replicas=topic.partitions[partition.partition],
                state=state,
                partition_epoch=stored.version,
            )
        )
    return made


def _replicas_of_all(cluster: ClusterState) -> Iterator[tuple[BrokerId, ...]]:
    for topic in cluster.topics.values():
        yield from topic.state.partitions.values()


def cluster_of(partitions: int, brokers: Sequence[BrokerId]) -> ClusterState:
    """A cluster in which each broker leads as much as any other, and follows twice as much."""
    topics: dict[str, StoredTopic] = {}
    stored: dict[TopicPartition, StoredPartition] = {}
    for first in range(0, partitions, PARTITIONS_MAX):
        name = f"topic-{first // PARTITIONS_MAX}"
        numbers = range(min(PARTITIONS_MAX, partitions - first))
        replicas = {number: _replicas(number, brokers) for number in numbers}
        topics[name] = StoredTopic(TopicState(topic_id=name, partitions=replicas), 0, TopicConfig())
        for number in numbers:
            stored[TopicPartition(name, number)] = StoredPartition(_state(replicas[number]), 0)
    return ClusterState(
        LoadedCluster(
            cluster_id="bench",
            controller_epoch=1,
            settings=Settings(),
            topics=topics,
            partitions=stored,
            brokers={broker: _registration(broker) for broker in brokers},
            broker_epochs={b: BrokerEpoch(epoch=0, incarnation=str(b), clean_since=0) for b in brokers},
        )
    )


def _replicas(number: int, brokers: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(brokers[(number + place) % len(brokers)] for place in range(REPLICAS))


def _state(replicas: tuple[BrokerId, ...]) -> PartitionState:
    return PartitionState(
        leader=replicas[0], leader_epoch=0, isr=frozenset(replicas), min_isr=2, epochs=dict.fromkeys(replicas, 0)
    )


def _registration(broker: BrokerId) -> Registration:
    return Registration(host="localhost", port=1, replication_port=2, epoch=0, incarnation=str(broker))
