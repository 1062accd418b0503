"""C2: who is told what, once it is stored; in which order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.controller import announcing
from spark_replication.core.controller.announcing import announce, ask
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import BrokerDeathReported, Requested, TookOver
from spark_replication.core.controller.plan import BrokersMoved, Cause, DeletePartitions, Elect, PartitionsChanged, Stop
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import StoredPartition
from spark_replication.messages.commands import (
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.requests import ChangeAcls, Configure, SetQuota
from spark_replication.model import BrokerId, ClusterSettings, Scalar, TopicConfig, TopicPartition
from tests.unit.core.stories import FOO, FOO_ID, cluster_of, command, state, topic

BAR, NEW = TopicPartition("bar", 0), TopicPartition("foo", 1)
CONFIGS = {"foo": TopicConfig(), "bar": TopicConfig(settings={"min.insync.replicas": 1})}
FOO_0 = command(state(1, [1, 2, 3]), 7)
BAR_0 = command(state(2, [2, 3]), 7, replicas=(2, 3), partition=BAR, topic_id="id-bar")
NOBODY: frozenset[BrokerId] = frozenset()


def well(*live: BrokerId) -> ClusterState:
    """foo-0 on 1, 2, 3 and foo-1, not made yet, on 3, 2; bar-0 on 2, 3; a tombstone of bar-1."""
    return cluster_of(
        *live,
        topics={"foo": topic((1, 2, 3), (3, 2)), "bar": topic((2, 3), name="bar")},
        states={"foo-0": FOO_0.state, "bar-0": BAR_0.state, "bar-1": state(1, [1])},
        configs=CONFIGS,
    )


def leader_and_isr(known: ClusterState, *partitions: PartitionCommand, init: bool = False) -> LeaderAndIsr:
    topics = {each.topic: CONFIGS[each.topic] for each in partitions}
    return LeaderAndIsr(controller_epoch=1, partitions=partitions, topics=topics, brokers=known.registered, init=init)


def metadata(known: ClusterState, *partitions: PartitionCommand, complete: bool = False) -> UpdateMetadata:
    """Whoever is told of foo is told that it has another partition, which is not made yet."""
    topics = {each.topic: CONFIGS[each.topic] for each in partitions}
    return UpdateMetadata(
        controller_epoch=1,
        partitions=partitions,
        topics=topics,
        brokers=known.registered,
        complete=complete,
        settings=known.stored_settings.settings if complete else None,
        unmade=(NEW,) if "foo" in topics else (),
    )


def moved(*, lost: tuple[int, ...] = (), started: tuple[int, ...] = (), stopping: tuple[int, ...] = ()) -> BrokersMoved:
    return BrokersMoved(frozenset(lost), frozenset(started), frozenset(stopping))


def test_a_new_controller_tells_every_broker_everything_and_its_own_partitions_first() -> None:
    known = well(1, 2, 4)
    assert announce(known, TookOver(), []) == [
        (1, leader_and_isr(known, FOO_0, init=True)),
        (2, leader_and_isr(known, BAR_0, FOO_0, init=True)),
        (4, leader_and_isr(known, init=True)),
        (1, metadata(known, BAR_0, FOO_0, complete=True)),
        (2, metadata(known, BAR_0, FOO_0, complete=True)),
        (4, metadata(known, BAR_0, FOO_0, complete=True)),
    ]


def test_what_was_elected_goes_to_its_live_replicas_and_as_metadata_to_all() -> None:
    known = well(2, 4)
    assert announce(known, Elect(), [BAR]) == [
        (2, leader_and_isr(known, BAR_0)),
        (2, metadata(known, BAR_0)),
        (4, metadata(known, BAR_0)),
    ]


@pytest.mark.parametrize(
    "cause",
    [
        Elect(),
        PartitionsChanged(()),
        BrokerDeathReported(1, "1-0"),
        DeletePartitions("foo"),
        Requested(asked=Configure(topic="baz", settings={})),
    ],
)
def test_where_nothing_changed_nobody_is_told(cause: Cause) -> None:
    assert announce(well(1, 2), cause, []) == []


def test_what_was_never_made_has_no_state_to_tell_and_is_there() -> None:
    """Else keys of the topic would go elsewhere until it is made, and who reads all of it would miss its rows."""
    known = well(1)
    assert announce(known, PartitionsChanged((FOO, NEW)), []) == [(1, metadata(known, FOO_0))]
    known.apply_partition(NEW, StoredPartition(state(3, [2, 3]), 0, 0))
    made = command(state(3, [2, 3]), 0, replicas=(3, 2), partition=NEW)
    assert announce(known, Elect(), [NEW]) == [(1, replace(metadata(known, made), unmade=()))]


def test_whose_state_somebody_has_removed_is_there() -> None:
    known = well(1)
    assert known.apply_gone(FOO)
    *_, (broker, told) = announce(known, TookOver(), [])
    everything = replace(metadata(known, BAR_0, complete=True), topics=CONFIGS, unmade=(FOO, NEW))
    assert (broker, told) == (1, everything), "though nothing else is told of its topic"
    known = well(1)
    assert known.apply_gone(BAR)
    *_, (_, told) = announce(known, TookOver(), [])
    assert told == replace(metadata(known, FOO_0, complete=True), topics=CONFIGS, unmade=(BAR, NEW))


@pytest.mark.parametrize("hidden", [Unreadable(partitions=frozenset({FOO})), Unreadable(topics=frozenset({"foo"}))])
def test_what_cannot_be_read_is_not_told_with_what_changed(hidden: Unreadable) -> None:
    known = well(1)
    known.apply_unreadable(hidden)
    ((broker, told),) = announce(known, PartitionsChanged((FOO, BAR)), [])
    assert isinstance(told, UpdateMetadata)
    assert (broker, told.partitions) == (1, (BAR_0,))


def test_a_loss_is_told_to_all_even_where_no_partition_changed() -> None:
    known = well(1, 2)
    assert announce(known, moved(lost=(4,)), []) == [(1, metadata(known)), (2, metadata(known))]


def test_a_broker_that_started_is_told_everything_and_the_others_what_changed() -> None:
    known = well(1, 2)
    assert announce(known, moved(started=(2, 3)), [FOO]) == [
        (1, leader_and_isr(known, FOO_0)),
        (2, leader_and_isr(known, BAR_0, FOO_0)),
        (1, metadata(known, FOO_0)),
        (2, metadata(known, BAR_0, FOO_0, complete=True)),
    ]


def test_what_leaders_changed_is_metadata_for_all_and_a_command_only_where_it_was_changed_again() -> None:
    known = well(1, 2)
    gone = TopicPartition("bar", 1)
    assert announce(known, PartitionsChanged((BAR, FOO, gone)), [BAR]) == [
        (2, leader_and_isr(known, BAR_0)),
        (1, metadata(known, BAR_0, FOO_0)),
        (2, metadata(known, BAR_0, FOO_0)),
    ]


def stopped(partition: TopicPartition) -> StopPartition:
    topic_id = f"id-{partition.topic}"
    number = partition.partition
    return StopPartition(topic=partition.topic, partition=number, topic_id=topic_id, leader_epoch=4, delete=True)


def test_who_stops_hears_of_nothing_else_of_that_partition() -> None:
    known = well(1, 2, 3)
    stops = [Stop(3, stopped(FOO)), Stop(2, stopped(BAR)), Stop(3, stopped(BAR)), Stop(5, stopped(FOO))]
    assert announce(known, moved(stopping=(3,)), [FOO, BAR], stops) == [
        (1, leader_and_isr(known, FOO_0)),
        (2, leader_and_isr(known, FOO_0)),
        (2, StopReplica(controller_epoch=1, partitions=(stopped(BAR),))),
        (3, StopReplica(controller_epoch=1, partitions=(stopped(FOO), stopped(BAR)))),
        (1, metadata(known, FOO_0, BAR_0)),
        (2, metadata(known, FOO_0, BAR_0)),
        (3, metadata(known, FOO_0, BAR_0)),
    ]


def test_what_was_removed_is_news_to_all() -> None:
    known = well(1, 2)
    removed = [TopicPartition("bar", 1)]
    told = replace(metadata(known), removed=tuple(removed))
    assert announce(known, Elect(), [TopicPartition("bar", 1)], removed=removed) == [(1, told), (2, told)]


def test_so_is_a_topic_that_is_no_more() -> None:
    known = well(1)
    known.apply_removed_topic("foo")
    assert announce(known, DeletePartitions("foo", last=True), []) == [(1, replace(metadata(known), deleted=("foo",)))]


@pytest.mark.parametrize(
    ("asked", "topics", "of_cluster"),
    [
        (Configure(topic="bar", settings={}), {"bar": CONFIGS["bar"]}, None),
        (Configure(settings={}), CONFIGS, {"retention.ms": 5}),
        (ChangeAcls(), {}, {"retention.ms": 5}),
        (SetQuota(principal="alice", kind="streams"), {}, {"retention.ms": 5}),
    ],
)
def test_settings_are_news_though_no_partition_changed(
    asked: Configure | ChangeAcls | SetQuota, topics: dict[str, TopicConfig], of_cluster: dict[str, Scalar] | None
) -> None:
    known = well(1)
    known.apply_settings(ClusterSettings(settings={"retention.ms": 5}))
    told = replace(metadata(known), topics=topics, settings=of_cluster, unmade=(NEW,) if "foo" in topics else ())
    assert announce(known, Requested(asked=asked), []) == [(1, told)]


def test_the_settings_of_a_cluster_without_topics_are_news_too() -> None:
    known = cluster_of(1, topics={}, states={})
    told = replace(metadata(known), settings={})
    assert announce(known, Requested(asked=Configure(settings={})), []) == [(1, told)]


def test_logs_are_asked_for_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "LOG_INFO_PARTITIONS_MAX", 2)
    known = well(1)
    wanted = {
        partition: LogInfoWanted(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=f"id-{partition.topic}",
            leader_epoch=known.leader_epoch(partition),
        )
        for partition in (FOO, BAR, TopicPartition("foo", 1))
    }
    foo, bar, last = wanted.values()
    assert foo.topic_id == FOO_ID
    assert ask(known, 1, list(wanted)) == [
        GetReplicaLogInfo(controller_epoch=1, partitions=(foo, bar)),
        GetReplicaLogInfo(controller_epoch=1, partitions=(last,)),
    ]
    assert ask(known, 1, []) == []
