"""A broker whose disk is full: it serves what it has, can be emptied, outlives its session, and writes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.messages.actions import DESCRIBE_REPLICAS, STOP_REPLICA
from spark_replication.messages.commands import StopPartition, StopReplica
from spark_replication.messages.descriptions import DescribeReplicas
from spark_replication.storage.directory.broker_directory import read_start_record
from spark_replication.storage.directory.quarantine import QUARANTINE
from spark_replication.transport.flight.actions import call
from tests.live.broker.brokers import Cluster, Put, read, rows
from tests.live.broker.conftest import StartCluster
from tests.small_disk import fill, leave, small_disk
from tests.waiting import eventually

pytestmark = pytest.mark.live

DISK_BYTES = 16 << 20
ROWS = 2_000
SEGMENTS_KEPT = 8 + 1  # and the one that is written
SETTINGS: dict[str, object] = {
    "segment.bytes": 64 << 10,
    "retention.bytes": 512 << 10,
    "log.retention.check.interval.ms": 300,
    "log.delete.delay.ms": 0,
    "replica.lag.time.ms": 1_000,
    "disk.retry.ms": 300,
}


@pytest.fixture
def cluster(start_cluster: StartCluster, tmp_path: Path) -> Iterator[Cluster]:
    """One broker, whose directory is a disk of its own."""
    cluster = start_cluster(brokers=0, settings=SETTINGS)
    with small_disk(cluster.log_dir(1), DISK_BYTES):
        cluster.start(1)
        yield cluster
        cluster.close_processes()


def put_until_refused(cluster: Cluster, topic: str) -> int:
    """How many batches the disk took."""
    put = Put(cluster.client(1), topic)
    taken = 0
    while True:
        put.send(rows(taken * ROWS, ROWS))
        if put.answer().get("error") == "KAFKA_STORAGE_ERROR":
            put.close()
            return taken
        taken += 1


def takes(cluster: Cluster, topic: str) -> bool:
    put = Put(cluster.client(1), topic)
    put.send(rows(0, 1))
    answer = put.answer()
    put.close()
    return "error" not in answer


def ids(cluster: Cluster, topic: str) -> int:
    return sum(batch.num_rows for _, batch in read(cluster.client(1), topic=topic, **{"from": "earliest"}))


def segments(cluster: Cluster, topic: str) -> int:
    return len(list((cluster.log_dir(1) / f"{topic}-0.{topic}Id").glob("*.arrow")))


def delete(cluster: Cluster, topic: str) -> None:
    known = cluster.stored(topic)
    stop = StopPartition(
        topic=topic,
        partition=0,
        topic_id=known.topic_id,
        leader_epoch=known.state.leader_epoch + 1,
        delete=True,
    )
    told = StopReplica(controller_epoch=cluster.controller_epoch, partitions=(stop,))
    answer = call(cluster.client(1), STOP_REPLICA, told, 10_000)
    assert set(answer.errors.values()) == {"NONE"}, answer


def test_a_full_disk_is_read_survives_its_session_and_is_emptied_by_deleting_a_topic(cluster: Cluster) -> None:
    for topic in ("orders", "payments"):
        cluster.create_topic(topic, (1,), min_isr=1)
    assert takes(cluster, "orders")
    assert takes(cluster, "payments")
    directory = cluster.log_dir(1)
    fill(directory)
    put_until_refused(cluster, "orders")
    stored = ids(cluster, "payments")

    epoch = cluster.file(1).epoch
    cluster.remove_registration(1)
    eventually(lambda: cluster.file(1).epoch > epoch, "it registers again on a full disk, and says so")
    record = read_start_record(directory)
    assert record is not None
    assert record.epoch == cluster.file(1).epoch
    eventually(lambda: ids(cluster, "payments") == stored, "what it has can be read")
    assert cluster.processes[1].poll() is None

    delete(cluster, "orders")
    eventually(lambda: not list((directory / QUARANTINE).iterdir()), "the topic's files are gone")
    eventually(lambda: takes(cluster, "payments"), "it takes more without a restart")
    leave(directory)
    assert cluster.processes[1].poll() is None


def test_retention_goes_on_while_the_disk_is_full(cluster: Cluster) -> None:
    cluster.create_topic("orders", (1,), min_isr=1)
    directory = cluster.log_dir(1)
    fill(directory)
    (directory / "filler").open("r+b").truncate((directory / "filler").stat().st_size - (2 << 20))
    put_until_refused(cluster, "orders")
    # The disk is full of what has been put, four times what is to be kept, unless retention has come already.
    eventually(lambda: segments(cluster, "orders") <= SEGMENTS_KEPT, "retention deletes segments")
    eventually(lambda: takes(cluster, "orders"), "there is room again")
    leave(directory)


def test_a_broker_starts_on_a_full_disk(cluster: Cluster) -> None:
    cluster.create_topic("orders", (1,), min_isr=1)
    assert takes(cluster, "orders")
    directory = cluster.log_dir(1)
    fill(directory)
    cluster.kill(1)
    cluster.start(1)
    eventually(lambda: ids(cluster, "orders") == 1, "what it has can be read")
    leave(directory)
    eventually(lambda: takes(cluster, "orders"), "it takes more without a restart")


def test_a_partition_whose_folder_could_not_be_made_is_led_once_it_can(cluster: Cluster) -> None:
    in_the_way = cluster.log_dir(1) / "orders-0.ordersId"
    in_the_way.write_bytes(b"")
    with pytest.raises(AssertionError, match="KAFKA_STORAGE_ERROR"):
        cluster.create_topic("orders", (1,), min_isr=1)
    in_the_way.unlink()
    eventually(lambda: led(cluster) == [True], "it leads, and nobody commanded it again")
    assert takes(cluster, "orders")


def led(cluster: Cluster) -> list[bool]:
    return [
        replica.leads for replica in call(cluster.client(1), DESCRIBE_REPLICAS, DescribeReplicas(), 10_000).replicas
    ]
