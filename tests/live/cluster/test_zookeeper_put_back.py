"""ZooKeeper's data is put back to an earlier time, under brokers and a controller that live on (Z2)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.model import TopicPartition
from tests.live.cluster.history import SCHEMA, Load
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CONFIG = {"zookeeper.session.ms": 3_000}
PARTITIONS = 2
ELECTIONS = 3


def test_who_has_seen_a_later_zookeeper_comes_back_by_itself_and_loses_nothing(
    cluster: sr.LocalCluster, tmp_path: Path
) -> None:
    cluster.admin.create_topic("orders", SCHEMA, partitions=PARTITIONS)
    cluster.wait_healthy()
    data, backup = cluster.directory / "zookeeper", tmp_path / "backup"
    cluster.kill_zookeeper()
    shutil.copytree(data, backup)
    cluster.restart_zookeeper()
    cluster.wait_healthy()
    pids = {broker: known.pid for broker, known in cluster.brokers.items()}
    with Load(cluster.zookeeper, "orders", PARTITIONS) as load:
        load.wait_for_more(20)
        for number in range(ELECTIONS):
            _elect_others(cluster, f"election {number}")
            load.wait_for_more(20)
    cluster.wait_healthy()
    before = _epochs(cluster)
    cluster.kill_zookeeper()
    data.rename(tmp_path / "later")  # at once: the server's watchdog ends a moment later, and may still write there
    shutil.copytree(backup, data)
    cluster.restart_zookeeper()
    eventually(lambda: _leads_above(cluster, before), "every partition is led, above all of its epochs", 90)
    cluster.wait_healthy()
    assert {broker: known.pid for broker, known in cluster.brokers.items()} == pids, "no process has ended"
    with Load(cluster.zookeeper, "orders", PARTITIONS) as later:
        later.wait_for_more(20)
    _all_read(cluster, load, later)


def _elect_others(cluster: sr.LocalCluster, what: str) -> None:
    """Let the last replica in the order of each partition lead."""
    found = _partitions(cluster)
    targets = {f"orders-{each.partition}": [*each.replicas[1:], each.replicas[0]] for each in found}
    cluster.admin.reassign(targets)
    cluster.admin.wait_reassigned(list(targets), 60)
    cluster.admin.elect_leaders("preferred")
    wanted = {TopicPartition.parse(name).partition: target[0] for name, target in targets.items()}
    eventually(lambda: _leaders(cluster) == wanted, what)


def _partitions(cluster: sr.LocalCluster) -> Sequence[PartitionDescription]:
    (found,) = cluster.admin.describe_topics(["orders"])
    return found.partitions


def _leaders(cluster: sr.LocalCluster) -> dict[int, int | None]:
    return {each.partition: each.leader for each in _partitions(cluster)}


def _epochs(cluster: sr.LocalCluster) -> dict[int, int]:
    return {each.partition: each.leader_epoch for each in _partitions(cluster)}


def _leads_above(cluster: sr.LocalCluster, before: dict[int, int]) -> bool:
    try:
        found = _partitions(cluster)
    except sr.errors.ReplicationError:
        return False
    return len(found) == PARTITIONS and all(
        each.leader is not None and each.leader_epoch > before[each.partition] for each in found
    )


def _all_read(cluster: sr.LocalCluster, *loads: Load) -> None:
    with sr.Reader(cluster.bootstrap) as reader:
        for partition in range(PARTITIONS):
            batches = list(reader.read("orders", partition=partition))
            read = [number for each in batches for number in each.batch.column("number").to_pylist()]
            for load in loads:
                sent = [each.number for each in load.acknowledged if each.partition == partition]
                assert set(sent) <= set(read), f"acknowledged rows of orders-{partition} are missing"
