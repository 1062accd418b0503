"""A person removes the leaderAndISR of a partition that has records: logs decide who leads, and no record goes (Z2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

import spark_replication as sr
from spark_replication.model import TopicPartition
from spark_replication.zk import paths
from spark_replication.zk.session import Session
from tests.live.cluster.faults import kill, stopped
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.replica_folders import replica_folders
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CONFIG = {"zookeeper.session.ms": 6_000}


@pytest.fixture
def person(cluster: sr.LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.removeprefix("zk://"))
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_leader_and_isr_that_somebody_removes_is_made_again_and_no_record_goes(
    cluster: sr.LocalCluster, person: KazooClient, truth: Session, whole_folder: bool
) -> None:
    topic = "folder" if whole_folder else "node"
    partition = TopicPartition(topic, 0)
    cluster.admin.create_topic(topic, SCHEMA, partitions=1)
    cluster.wait_healthy()
    with Load(cluster.zookeeper, topic, 1) as load:
        load.wait_for_more(20)
    kill(cluster.brokers[_leader(cluster, topic) or 1].pid)  # an election: the epoch is above 0
    cluster.wait_healthy()
    with Load(cluster.zookeeper, topic, 1) as more:
        more.wait_for_more(20)
    folders = replica_folders(cluster, f"{topic}-0.*")
    with stopped(cluster.controller_pid):
        person.delete(paths.partition(partition) if whole_folder else paths.leader_and_isr(partition), recursive=True)
        _restart(cluster, 1)  # before a controller has made it again
    _kill_controller(cluster, truth)
    eventually(lambda: _leader(cluster, topic) is not None, "it is led again", 60)
    cluster.wait_healthy()
    for broker in sorted(cluster.brokers):
        kill(cluster.brokers[broker].pid)
    cluster.wait_healthy()
    with Load(cluster.zookeeper, topic, 1) as later:
        later.wait_for_more(5)
    assert replica_folders(cluster, f"{topic}-0.*") == folders, "no log went to quarantine"
    with sr.Reader(cluster.bootstrap) as reader:
        read = [n for each in reader.read(topic, partition=0) for n in each.batch.column("number").to_pylist()]
    sent = [each.number for found in (load, more, later) for each in found.acknowledged]
    assert set(sent) <= set(read)
    assert len(read) >= len(sent)


def _leader(cluster: sr.LocalCluster, topic: str) -> int | None:
    try:
        (found,) = cluster.admin.describe_topics([topic])
    except sr.errors.ReplicationError:
        return None
    return found.partitions[0].leader if found.partitions else None


def _restart(cluster: sr.LocalCluster, broker: int) -> None:
    before = cluster.brokers[broker].pid
    kill(before)

    def has_read() -> bool:
        found = cluster.brokers.get(broker)
        return found is not None and found.pid not in (None, before)

    eventually(has_read, f"broker {broker} has read its state", 60)


def _kill_controller(cluster: sr.LocalCluster, truth: Session) -> None:
    before = truth.read_now(paths.CONTROLLER_EPOCH)
    kill(cluster.controller_pid)
    eventually(lambda: truth.read_now(paths.CONTROLLER_EPOCH) != before, "another controller commands", 60)
