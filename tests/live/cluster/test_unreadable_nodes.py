"""Garbage, newer versions and closed doors in ZooKeeper are the trouble of what they are about (Z1): producers, readers
and elections of all else go on, whoever restarts meanwhile; nothing is deleted for it, and problems name it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

import spark_replication as sr
from spark_replication.errors import CorruptState, ReplicationError, RequestTimedOut
from spark_replication.mirror.asking.load import read_status
from spark_replication.model import TopicPartition
from spark_replication.zk import paths
from spark_replication.zk.session import Session
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.replica_folders import replica_folders
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CONFIG = {"zookeeper.session.ms": 6_000, "log.delete.delay.ms": 1_000}
PARTITIONS = 2
HELD = TopicPartition("held", 0)
DIGITS = "9" * 5_000
HIDDEN = [ACL(Permissions.ALL & ~Permissions.READ, ANYONE_ID_UNSAFE)]
STRAYS = {
    f"{paths.BROKER_IDS}/note": b"a note",
    f"{paths.TOPICS}/x": b"not JSON",
    f"{paths.ADDED}/orders/{DIGITS}": b"[1]",
    f"{paths.REASSIGNED}/orders/0": b"\xff",
}


@pytest.fixture
def person(cluster: sr.LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.removeprefix("zk://"))
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def test_all_else_goes_on(cluster: sr.LocalCluster, person: KazooClient, truth: Session) -> None:
    cluster.admin.create_topic("orders", SCHEMA, partitions=PARTITIONS)
    cluster.admin.create_topic("held", SCHEMA, partitions=1)
    cluster.wait_healthy()
    with Load(cluster.zookeeper, "held", 1) as held:
        held.wait_for_more(10)
    folders = replica_folders(cluster, "held-0.*")
    assert len(folders) == 3
    with Load(cluster.zookeeper, "orders", PARTITIONS) as load:
        load.wait_for_more(5)
        sound = _spoil(person)
        _restart_controller(cluster, truth)
        load.wait_for_more(5)
        _stands_in_problems(cluster)
        for broker in sorted(cluster.brokers):
            _restart(cluster, broker)
            load.wait_for_more(5)
        _restart_controller(cluster, truth)
        load.wait_for_more(5)
    cluster.admin.create_topic("later", SCHEMA, partitions=1)
    for refused in ("x", "held"):
        with pytest.raises(ReplicationError, match=r"exists already|cannot be read"):
            cluster.admin.create_topic(refused, SCHEMA, partitions=1)
    with pytest.raises(CorruptState, match="cannot be read"):
        cluster.admin.delete_topic("held")
    assert replica_folders(cluster, "held-0.*") == folders
    _is_left(person)
    _mend(person, sound)
    cluster.wait_healthy()
    assert replica_folders(cluster, "held-0.*") == folders
    _all_read(cluster, "held", held)
    for partition in range(PARTITIONS):
        _all_read(cluster, "orders", load, partition)


def _spoil(person: KazooClient) -> bytes:
    for path, data in STRAYS.items():
        person.create(path, data, makepath=True)
    # Hidden from birth: a request that can be read is answered, and gone.
    person.create(f"{paths.DELETE_TOPICS}/nothing", b"", acl=HIDDEN, makepath=True)
    sound, _ = person.get(paths.leader_and_isr(HELD))
    person.set(paths.leader_and_isr(HELD), sound.replace(b'"v":1', b'"v":2'))
    return bytes(sound)


def _mend(person: KazooClient, sound: bytes) -> None:
    person.set_acls(f"{paths.DELETE_TOPICS}/nothing", [ACL(Permissions.ALL, ANYONE_ID_UNSAFE)])
    for path in STRAYS:
        person.delete(path, recursive=True)
    if person.exists(f"{paths.DELETE_TOPICS}/nothing"):  # once it may be read, it is a request
        person.delete(f"{paths.DELETE_TOPICS}/nothing", recursive=True)
    person.set(paths.leader_and_isr(HELD), sound)


def _is_left(person: KazooClient) -> None:
    for path, data in STRAYS.items():
        found, _ = person.get(path)
        assert found == data, path
    assert msgspec.json.decode(person.get(paths.leader_and_isr(HELD))[0])["v"] == 2


def _stands_in_problems(cluster: sr.LocalCluster) -> None:
    wanted = (
        "/brokers/ids/note",
        "/brokers/topics/x",
        "/admin/partitions_add/orders/999",
        "/admin/delete_topics/nothing",
        "/admin/partitions_reassigned/orders/0",
        paths.leader_and_isr(HELD),
    )

    def told() -> bool:
        told = cluster.admin.describe_cluster().unreadable
        return all(any(path in each for each in told) for path in wanted)

    def shown() -> bool:
        (status,) = read_status(cluster.mirror_path).to_pylist()
        return all(any(path in each for each in status["problems"]) for path in wanted)

    eventually(told, "every one of them is told", 60)
    eventually(shown, "and who has only the tables reads of it", 60)
    with pytest.raises(RequestTimedOut, match="cannot be read"):
        cluster.wait_healthy(2)


def _restart_controller(cluster: sr.LocalCluster, truth: Session) -> None:
    pid, before = cluster.controller_pid, truth.read_now(paths.CONTROLLER_EPOCH)
    assert pid is not None
    assert before is not None
    kill(pid)

    def raised() -> bool:
        now = truth.read_now(paths.CONTROLLER_EPOCH)
        return now is not None and now.version > before.version and truth.read_now(paths.CONTROLLER) is not None

    eventually(raised, "another controller", 60)


def _restart(cluster: sr.LocalCluster, broker: int) -> None:
    before = cluster.brokers[broker]
    kill(before.pid)

    def back() -> bool:
        now = cluster.brokers.get(broker)
        described = cluster.admin.describe_topics(["orders"])[0].partitions
        in_sync = all(broker in partition.isr for partition in described)
        return now is not None and now.epoch > before.epoch and in_sync

    eventually(back, f"broker {broker} is back and in sync", 60)


def _all_read(cluster: sr.LocalCluster, topic: str, load: Load, partition: int = 0) -> None:
    expected = {found.offset: found.number for found in load.acknowledged if found.partition == partition}
    read: dict[int, int] = {}
    with sr.Reader(cluster.zookeeper) as reader:
        for found in reader.read(topic, partition=partition, start=0):
            numbers = found.batch["number"].to_pylist()
            read.update(zip(range(found.base_offset, found.last_offset + 1), numbers, strict=True))
    assert expected.items() <= read.items()
