"""A disk that gives back other bytes than were written: nobody reads them, they are mended, and people hear of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.errors import StorageFailed
from spark_replication.live.broker.lease import LEASE_FILE, LeaseFile
from spark_replication.messages.actions import SHUTDOWN
from spark_replication.messages.guarding import Shutdown
from spark_replication.storage.format.index import ENTRY_BYTES, entry_at
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY
from tests.live.cluster.faults import full_disk
from tests.live.cluster.history import SCHEMA
from tests.live.cluster.replica_folders import replica_folders
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

BROKERS = 4
PARTITIONS = 1
ROWS, BATCHES = 200, 40
DEADLINE_S = 60.0
SMALL_SEGMENTS = {"segment.bytes": 8 << 10}
CONFIG = {"zookeeper.session.ms": 6_000, "replica.lag.time.ms": 5_000, "disk.retry.ms": 2_000}


@pytest.fixture
def topic(cluster: sr.LocalCluster, name: str) -> str:
    """Of many segments."""
    cluster.admin.create_topic(name, SCHEMA, partitions=1, config=SMALL_SEGMENTS)
    with sr.Producer(cluster.bootstrap) as producer:
        for number in range(BATCHES):
            batch = pa.record_batch([pa.array(range(number * ROWS, (number + 1) * ROWS))], schema=SCHEMA)
            producer.send(name, batch, partition=0).result(DEADLINE_S)
    return name


def described(cluster: sr.LocalCluster, topic: str) -> PartitionDescription:
    (found,) = cluster.admin.describe_topics([topic])
    return found.partitions[0]


def segments(cluster: sr.LocalCluster, topic: str, broker: int) -> list[Path]:
    (folder,) = [each for each in replica_folders(cluster, f"{topic}-0.*") if each.parent.name == f"broker-{broker}"]
    return sorted(folder.glob("*.arrow"))


def flip(segment: Path) -> None:
    """A bit of the segment's first batch."""
    entry = entry_at(segment.with_suffix(".index").read_bytes()[:ENTRY_BYTES], 0)
    with segment.open("r+b") as file:
        file.seek(entry.position + entry.bytes // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


def rows(cluster: sr.LocalCluster, topic: str) -> list[int]:
    with sr.Reader(cluster.bootstrap) as reader:
        batches = reader.read(topic, 0, stop=ROWS * BATCHES)
        return [row for each in batches for row in each.batch.column(0).to_pylist()]


def reasons(cluster: sr.LocalCluster, topic: str) -> list[str]:
    return [str(each) for each in cluster.admin.health().reasons if f"{topic}-0 " in str(each)]


def said_by(cluster: sr.LocalCluster, broker: int) -> str:
    return (Path(cluster.brokers[broker].log_dir) / "broker.log").read_text()


def restart_cleanly(cluster: sr.LocalCluster, broker: int) -> None:
    found = cluster.brokers[broker]
    lease = msgspec.json.decode((Path(found.log_dir) / LEASE_FILE).read_bytes(), type=LeaseFile)
    with NO_SECURITY.client(f"{found.host}:{found.port}") as client:
        call(client, SHUTDOWN, Shutdown(controller_epoch=lease.controller_epoch, attempt=lease.attempt), 5_000)

    def is_another() -> bool:
        again = cluster.brokers.get(broker)
        return again is not None and again.pid not in (None, found.pid)

    eventually(is_another, "it was started again")


def test_a_reader_of_a_damaged_leader_gets_every_row_and_health_names_the_disk(
    cluster: sr.LocalCluster, topic: str
) -> None:
    leader = described(cluster, topic).leader
    assert leader is not None
    segment = segments(cluster, topic, leader)[2]
    before = segment.read_bytes()
    flip(segment)
    assert rows(cluster, topic) == list(range(ROWS * BATCHES))
    assert segment.read_bytes() == before
    assert described(cluster, topic).leader == leader, "nothing was decided"
    eventually(lambda: bool(reasons(cluster, topic)), "people hear of it")
    (reason,) = reasons(cluster, topic)
    assert f"was damaged on the disk of broker {leader}, and is whole again" in reason
    assert str(segment) in reason
    said = said_by(cluster, leader)
    assert said.count(f"{topic}-0 is damaged on this disk") == 1
    assert str(segment) in said


def test_a_reassignment_from_a_damaged_leader_ends(cluster: sr.LocalCluster, topic: str) -> None:
    before = described(cluster, topic)
    assert before.leader is not None
    flip(segments(cluster, topic, before.leader)[2])
    (new,) = {1, 2, 3, 4} - {*before.replicas}
    partition = f"{topic}-0"
    cluster.admin.reassign({partition: [before.leader, new]})
    cluster.admin.wait_reassigned([partition], DEADLINE_S)
    copies = [[each.read_bytes() for each in segments(cluster, topic, broker)] for broker in (before.leader, new)]
    assert copies[0] == copies[1]
    assert rows(cluster, topic) == list(range(ROWS * BATCHES))


def test_the_scrub_finds_what_nobody_reads(cluster: sr.LocalCluster, topic: str) -> None:
    """A process begins to scrub as it starts. Its recovery does not look at what was on the disk."""
    broker = described(cluster, topic).replicas[-1]
    segment = segments(cluster, topic, broker)[2]
    before = segment.read_bytes()
    flip(segment)
    restart_cleanly(cluster, broker)
    eventually(lambda: segment.read_bytes() == before, "the follower has mended it")
    eventually(
        lambda: any(f"was damaged on the disk of broker {broker}" in each for each in reasons(cluster, topic)),
        "it is told",
    )


def test_what_no_other_replica_has_stays_damaged_and_is_told(cluster: sr.LocalCluster, topic: str) -> None:
    leader = described(cluster, topic).leader
    for broker in described(cluster, topic).replicas:
        flip(segments(cluster, topic, broker)[2])
    with (
        pytest.raises(StorageFailed, match="is damaged on this broker's disk"),
        sr.Reader(cluster.bootstrap, deadline_ms=5_000) as reader,
    ):
        list(reader.read(topic, 0, stop=ROWS * BATCHES))
    eventually(lambda: len(reasons(cluster, topic)) > 0, "people hear of it")
    assert any(f"is damaged on the disk of broker {leader}, its leader" in each for each in reasons(cluster, topic))
    cluster.admin.delete_topic(topic)
    eventually(lambda: not reasons(cluster, topic), "what is gone is not damaged")


def test_a_full_disk_of_the_only_replica_is_named(cluster: sr.LocalCluster, name: str) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=1)
    leader = described(cluster, name).leader
    assert leader is not None
    with sr.Producer(cluster.bootstrap) as producer:
        with full_disk(cluster.brokers[leader].pid, 0):
            sent = producer.send(name, pa.record_batch([pa.array([1])], schema=SCHEMA), partition=0)
            told = f"is refused by the disk of broker {leader}"
            eventually(lambda: any(told in each for each in reasons(cluster, name)), "people hear of it")
            assert cluster.admin.health().verdict == "critical"
        sent.result(DEADLINE_S)
    eventually(lambda: not reasons(cluster, name), "it is well again")
