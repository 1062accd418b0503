"""Requests below /admin, by any ZooKeeper client: loaded by the next controller, heard of by the present one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, Requested
from spark_replication.core.law.writes import DeletionMark, RequestRemoval, Stored, TopicRemoval, TopicWrite
from spark_replication.messages.requests import AddPartitions, DeleteTopic, ElectLeaders, Reassign, RemovePartitions
from spark_replication.model import TopicPartition, TopicState, encode
from spark_replication.zk import paths
from spark_replication.zk.controller.store import ZooKeeperControllerStore

from .helpers import Heard, committed, partition_write, topic_write

if TYPE_CHECKING:
    from .conftest import Cluster

pytestmark = pytest.mark.live

FOO_MOVES = Requested(asked=Reassign(targets={"foo-0": (4, 5)}), path="/admin/partitions_reassigned/foo/0")
LAST = Requested(asked=ElectLeaders(kind="preferred"), path=paths.PREFERRED_ELECTION)


@pytest.fixture
def person(cluster: Cluster) -> Iterator[KazooClient]:
    cluster.session()  # makes the chroot
    client = KazooClient(hosts=cluster.address + cluster.chroot)
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def won(cluster: Cluster, name: str = "a") -> ZooKeeperControllerStore:
    store = cluster.controller()
    assert store.campaign(name, "127.0.0.1", 1)
    return store


class Requests(Heard):
    """What the watch tells of requests; brokers, and what is none, are other stories."""

    def __call__(self, *told: object) -> None:
        if not isinstance(told[0], (BrokersRead, NodesUnreadable)):
            super().__call__(*told)


def test_what_lies_below_admin_is_loaded_in_an_order_that_can_be_done(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo", 12),), (topic_write("gone", 1),)])
    for number in (8, 10, 9):
        person.create(f"/admin/partitions_add/foo/{number}", b"[1]", makepath=True)
        person.create(f"/admin/partitions_remove/foo/{number}", makepath=True)
    person.create("/admin/partitions_add/foo/x", b"[1]")
    person.create("/admin/partitions_reassigned/foo/0", b"[4,5]", makepath=True)
    person.create("/admin/partitions_reassigned/foo/1", b"nonsense")
    person.create("/admin/delete_topics/gone")
    person.create("/admin/delete_topics/never")
    person.create("/admin/preferred_replica_election")
    store.resign()
    loaded = cluster.controller().campaign("b", "127.0.0.1", 2)
    assert loaded is not None
    assert loaded.deleting == {"gone"}
    assert [found for found in loaded.requests if not isinstance(found.asked, (AddPartitions, RemovePartitions))] == [
        Requested(asked=DeleteTopic(topic="never"), path="/admin/delete_topics/never"),
        FOO_MOVES,
        LAST,
    ]
    assert [found.asked for found in loaded.requests if isinstance(found.asked, AddPartitions)] == [
        AddPartitions(assignments={"foo": {number: (1,)}}) for number in (8, 9, 10)
    ]
    assert [found.asked for found in loaded.requests if isinstance(found.asked, RemovePartitions)] == [
        RemovePartitions(partitions={"foo": (number,)}) for number in (10, 9, 8)
    ]
    assert person.exists("/admin/partitions_reassigned/foo/1"), "its writer may correct it"


def test_tombstones_of_a_topic_that_lives_are_loaded(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo", 3),), *((partition_write("foo", number),) for number in range(3))])
    committed(store, [(topic_write("bar", 3),), (partition_write("bar", 0),)])
    shrunk = TopicState(topic_id="id-foo", partitions={0: (1, 2, 3)})
    person.set("/brokers/topics/foo", encode(shrunk))
    person.delete("/brokers/topics/foo/2/leaderAndISR")
    person.create("/brokers/topics/foo/note", b"by hand")
    store.resign()
    loaded = cluster.controller().campaign("b", "127.0.0.1", 2)
    assert loaded is not None
    assert set(loaded.topics["foo"].state.partitions) == {0}
    assert set(loaded.partitions) == {TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)}


def test_brokers_read_no_tombstones(cluster: Cluster) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    shrunk = TopicState(topic_id="id-foo", partitions={0: (1, 2)}, adding={0: (1,)}, removing={0: (2,)})
    committed(store, [(TopicWrite(topic="foo", state=shrunk, version=0),)])
    broker = cluster.broker()
    mine, _ = broker.read_assigned(1)
    assert mine == broker.read_all().partitions
    (only,) = mine
    assert (only.topic_partition, only.adding, only.removing) == (TopicPartition("foo", 0), (1,), (2,))


def test_each_request_is_told_once(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo", 3),)])
    person.create("/admin/partitions_reassigned/foo/1", b"[7]", makepath=True)
    store.resign()
    second = won(cluster, "b")
    told = Requests()
    second.watch(told)
    person.create("/admin/partitions_reassigned/foo/0", b"[4,5]")
    assert told.take() == FOO_MOVES, "and not of what was loaded"
    person.create("/admin/partitions_add/foo/3", b"[1]", makepath=True)
    assert told.take().asked == AddPartitions(assignments={"foo": {3: (1,)}})
    person.create("/admin/partitions_remove/bar/3", makepath=True)
    assert told.take().asked == RemovePartitions(partitions={"bar": (3,)})
    assert isinstance(committed(second, [(RequestRemoval(path=FOO_MOVES.path or ""),)])[0], Stored)
    person.create("/admin/partitions_reassigned/foo/0", b"[4,5]")
    assert told.take() == FOO_MOVES, "it was removed, and asked for again"
    person.create(paths.PREFERRED_ELECTION)
    assert told.take() == LAST
    assert told.count == 0


def test_what_is_no_request_is_left_until_it_is_corrected(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    person.create("/admin/partitions_reassigned/foo/0", b"[4", makepath=True)
    told = Requests()
    store.watch(told)
    person.create("/admin/partitions_reassigned/foo/later", b"[4]")
    person.create(paths.PREFERRED_ELECTION)
    assert told.take() == LAST
    person.set("/admin/partitions_reassigned/foo/0", b"[4,5")
    person.set("/admin/partitions_reassigned/foo/0", b"[4,5]")
    assert told.take() == FOO_MOVES
    assert person.exists("/admin/partitions_reassigned/foo/later")
    assert told.count == 0


def test_a_deletion_of_its_own_is_no_request(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo"),), (topic_write("bar"),)])
    told = Requests()
    store.watch(told)
    committed(store, [(DeletionMark(topic="foo"),)])
    person.create("/admin/delete_topics/bar")
    assert told.take() == Requested(asked=DeleteTopic(topic="bar"), path="/admin/delete_topics/bar")
    committed(store, [(TopicRemoval(topic="foo", topic_id="id-foo"),)])
    committed(store, [(topic_write("foo", topic_id="second"),)])
    person.create(paths.PREFERRED_ELECTION)
    assert told.take() == LAST
    person.create("/admin/delete_topics/foo")
    assert told.take() == Requested(asked=DeleteTopic(topic="foo"), path="/admin/delete_topics/foo")
    assert told.count == 0


def test_a_deletion_that_was_loaded_is_no_request(cluster: Cluster, person: KazooClient) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo"),), (DeletionMark(topic="foo"),)])
    store.resign()
    second = won(cluster, "b")
    told = Requests()
    second.watch(told)
    person.create(paths.PREFERRED_ELECTION)
    assert told.take() == LAST
    committed(second, [(TopicRemoval(topic="foo", topic_id="id-foo"),)])
    person.create("/admin/partitions_reassigned/foo/0", b"[4,5]", makepath=True)
    assert told.take() == FOO_MOVES
    assert told.count == 0
