"""Deletions, settings and removals of requests, as multi()s of a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import (
    ClusterConfigWrite,
    DeletionMark,
    Deposed,
    Group,
    Made,
    PartitionRemoval,
    Refused,
    RequestRemoval,
    Stored,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.model import ClusterSettings, TopicConfig, TopicPartition, TopicState, decode, encode
from spark_replication.zk import paths
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.operations import Create, Delete, SetData

from .helpers import Heard, Proxy, commit, committed, partition_write, state, topic_write

if TYPE_CHECKING:
    from .conftest import Cluster

pytestmark = pytest.mark.live

FOO = TopicPartition("foo", 0)
MARK: Group = (DeletionMark(topic="foo"),)
REMOVAL: Group = (TopicRemoval(topic="foo", topic_id="id-foo"),)
CONFIG = TopicConfig(settings={"min.insync.replicas": 2})
ALL_OF_FOO = (
    paths.topic("foo"),
    paths.topic_id("id-foo"),
    paths.topic_config("foo"),
    paths.deletion_mark("foo"),
)


def won(cluster: Cluster, address: str | None = None) -> ZooKeeperControllerStore:
    store = cluster.controller(session=cluster.session(address, session_timeout_ms=15_000))
    assert store.campaign("a", "127.0.0.1", 1)
    return store


def removals(count: int) -> list[Group]:
    return [(PartitionRemoval(partition=TopicPartition("foo", number)),) for number in range(count)]


def pzxid(cluster: Cluster, path: str) -> int:
    (node,) = cluster.session().read_many([path])
    assert node is not None
    return node.children_zxid


def test_a_topic_is_marked_emptied_and_removed(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo", 3),), *((partition_write("foo", number),) for number in range(3))])
    committed(store, [(topic_write("bar"),)])
    (marked,) = committed(store, [MARK])
    mark = session.read_now(paths.deletion_mark("foo"))
    assert mark is not None
    assert marked == Stored((mark.made,))
    assert all(isinstance(answer, Stored) for answer in committed(store, removals(3)))
    assert session.children_now(paths.topic("foo")) == []
    (removed,) = committed(store, [REMOVAL])
    assert removed == Stored((Made(zxid=pzxid(cluster, paths.TOPICS)),))
    assert session.read_many(ALL_OF_FOO) == [None] * 4
    assert session.children_now(paths.TOPICS) == ["bar"]


def test_what_is_done_already_is_done(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), MARK])
    assert isinstance(committed(store, [MARK])[0], Stored)
    session.commit_now((Delete(paths.leader_and_isr(FOO), -1),))
    answers = committed(store, [*removals(2), (RequestRemoval(path="/admin/partitions_add/foo/9"),)])
    assert all(isinstance(answer, Stored) for answer in answers)
    assert session.children_now(paths.topic("foo")) == []
    session.commit_now((Delete(paths.topic_config("foo"), -1),))
    (first,) = committed(store, [REMOVAL])
    (second,) = committed(store, [REMOVAL])
    assert first == second == Stored((Made(zxid=pzxid(cluster, paths.TOPICS)),))
    assert session.read_many(ALL_OF_FOO) == [None] * 4


def test_what_people_left_below_goes_too(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    for path in ("/0/note", "/7", "/7/leaderAndISR", "/x", "/x/y", "/x/y/z"):
        session.commit_now((Create(paths.topic("foo") + path, b"by hand"),))
    assert all(isinstance(answer, Stored) for answer in committed(store, removals(2)))
    assert session.children_now(paths.topic("foo")) == ["7", "x"]
    assert isinstance(committed(store, [REMOVAL])[0], Stored)
    assert session.read_many(ALL_OF_FOO) == [None] * 4


def test_more_strays_than_one_multi_removes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_replication.zk.controller.committing.STRAYS_MAX", 4)
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo", 2),)])
    for number in range(5):
        session.commit_now((Create(f"{paths.topic('foo')}/{number}"), Create(f"{paths.topic('foo')}/{number}/x")))
    assert isinstance(committed(store, [REMOVAL])[0], Stored)
    assert session.read_many(ALL_OF_FOO) == [None] * 4


def test_settings_are_set_or_made(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo"),)])
    for number in (1, 2):
        settings = ClusterSettings(settings={"replica.lag.time.ms": number})
        config = TopicConfig(settings={"min.insync.replicas": number})
        group: Group = (ClusterConfigWrite(config=settings), TopicConfigWrite(topic="foo", config=config))
        (answer,) = committed(store, [group])
        of_cluster, of_topic = session.read_many([paths.CLUSTER_CONFIG, paths.topic_config("foo")])
        assert of_cluster is not None
        assert of_topic is not None
        assert answer == Stored((of_cluster.made, of_topic.made))
        assert decode(of_cluster.data, ClusterSettings, "") == settings
        assert decode(of_topic.data, TopicConfig, "") == config
    session.commit_now((Delete(paths.topic_config("foo"), -1),))
    assert isinstance(committed(store, [(TopicConfigWrite(topic="foo", config=CONFIG),)])[0], Stored)
    made = session.read_now(paths.topic_config("foo"))
    assert made is not None
    assert made.data == encode(CONFIG)


@pytest.mark.parametrize("moved", ["topic", "partition"])
def test_an_assignment_and_its_states_are_stored_or_refused_together(cluster: Cluster, moved: str) -> None:
    store, session = won(cluster), cluster.session()
    created = topic_write("foo", 2)
    committed(store, [(created,), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    grown = replace(created.state, adding={0: (4,), 1: (4,)})
    group: Group = (
        TopicWrite(topic="foo", state=grown, version=0),
        partition_write("foo", 0, 0, state(leader_epoch=1)),
        partition_write("foo", 1, 0, state(leader_epoch=1)),
    )
    meanwhile = paths.topic("foo") if moved == "topic" else paths.leader_and_isr(TopicPartition("foo", 1))
    node = session.read_now(meanwhile)
    assert node is not None
    session.commit_now((SetData(meanwhile, node.data, 0),))
    (refused,) = committed(store, [group])
    assert isinstance(refused, Refused)
    versions = {partition: stored and stored.version for partition, stored in refused.current.items()}
    assert versions == {FOO: 0, TopicPartition("foo", 1): 1 if moved == "partition" else 0}
    unmoved = session.read_many([paths.topic("foo"), paths.leader_and_isr(FOO)])
    assert [node is not None and node.data for node in unmoved] == [encode(created.state), encode(state())]
    fresh: Group = (
        replace(group[0], version=1 if moved == "topic" else 0),
        group[1],
        replace(group[2], version=1 if moved == "partition" else 0),
    )
    assert isinstance(committed(store, [fresh])[0], Stored)


def test_a_setting_that_meets_a_newer_state_is_refused_with_it(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo"),), (partition_write("foo", 0),)])
    group: Group = (TopicConfigWrite(topic="foo", config=CONFIG), partition_write("foo", 0, 3))
    (refused,) = committed(store, [group])
    assert isinstance(refused, Refused)
    assert set(refused.current) == {FOO}
    kept = session.read_now(paths.topic_config("foo"))
    assert kept is not None
    assert kept.data == encode(TopicConfig())


def test_a_deposed_controller_deletes_nothing(cluster: Cluster) -> None:
    store, session = won(cluster), cluster.session()
    committed(store, [(topic_write("foo"),), (partition_write("foo", 0),)])
    node = session.read_now(paths.CONTROLLER_EPOCH)
    assert node is not None
    session.commit_now((SetData(paths.CONTROLLER_EPOCH, node.data, node.version),))
    assert committed(store, [MARK, *removals(1), REMOVAL]) == [Deposed()] * 3
    assert session.read_now(paths.leader_and_isr(FOO)) is not None
    assert session.read_now(paths.deletion_mark("foo")) is None


def test_a_lost_answer_of_a_deletion_is_found_out(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    store, session = won(cluster, proxy.address), cluster.session()
    committed(store, [(topic_write("foo", 2),), (partition_write("foo", 0),), (partition_write("foo", 1),)])
    committed(store, [(topic_write("bar"),), (ClusterConfigWrite(config=ClusterSettings()),)])
    steps: list[list[Group]] = [
        [MARK, (TopicConfigWrite(topic="bar", config=CONFIG),), (ClusterConfigWrite(config=ClusterSettings()),)],
        removals(2),
        [REMOVAL],
    ]
    for groups in steps:
        answers = Heard()
        proxy.swallow()
        commit(store, groups, answers)
        proxy.wait_swallowed()
        proxy.cut()
        assert all(isinstance(answer, Stored) for answer in answers.take())
    assert session.read_many(ALL_OF_FOO) == [None] * 4
    config = session.read_now(paths.topic_config("bar"))
    assert config is not None
    assert config.version == 1, "stored once"
    proxy.close()


def test_a_topic_made_again_is_newer_than_its_removal(cluster: Cluster) -> None:
    store = won(cluster)
    committed(store, [(topic_write("foo"),), (partition_write("foo", 0),)])
    committed(store, removals(1))
    (removed,) = committed(store, [REMOVAL])
    committed(store, [(topic_write("foo", topic_id="second"),)])
    (made,) = committed(store, [(partition_write("foo", 0),)])
    assert isinstance(removed, Stored)
    assert isinstance(made, Stored)
    assert removed.made[0].zxid < made.made[0].zxid


def test_ten_thousand_partitions_are_removed_and_those_of_a_topic_that_lives_loaded(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    store, session = won(cluster), cluster.session()
    count = 10_000
    committed(store, [(topic_write("foo", count),), *((partition_write("foo", n),) for n in range(count))], 60)
    shrunk = TopicState(topic_id="id-foo", partitions=dict.fromkeys(range(count - 10), (1, 2, 3)))
    committed(store, [(TopicWrite(topic="foo", state=shrunk, version=0),)])
    store.resign()
    second = cluster.controller()
    loading = time.monotonic()
    loaded = second.campaign("b", "127.0.0.1", 2)
    load_s = time.monotonic() - loading
    assert loaded is not None
    assert len(loaded.partitions) == count
    removing = time.monotonic()
    answers = committed(second, removals(count), 60)
    record_property("seconds to load with tombstones, to remove all", (load_s, time.monotonic() - removing))
    assert all(isinstance(answer, Stored) for answer in answers)
    assert session.children_now(paths.topic("foo")) == []
