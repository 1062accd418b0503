"""What a controller does about an event: whole plans, and whole announcements."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.cluster import (
    BrokerDeathReported,
    BrokersRead,
    ClusterState,
    StoredTopic,
    TookOver,
    TopicRequested,
)
from spark_replication.core.controller import (
    BrokersMoved,
    Cause,
    Elect,
    PartitionsChanged,
    Plan,
    announce,
    plan,
    waiting,
)
from spark_replication.core.election import Waiting
from spark_replication.core.writes import BrokerRemoval, PartitionWrite, StoredPartition, TopicWrite
from spark_replication.errors import InvalidTopic
from spark_replication.messages import CreateTopic, LeaderAndIsr, PartitionCommand, UpdateMetadata
from spark_replication.model import ABSENT, BrokerId, PartitionState, TopicConfig, TopicPartition, TopicState
from tests.unit.core.stories import FOO, FOO_ID, command, state, store_of

BAR, NEW = TopicPartition("bar", 0), TopicPartition("foo", 1)
TOPICS = {"foo": TopicConfig(), "bar": TopicConfig(settings={"min.insync.replicas": 1})}


def cluster(*live: BrokerId, **partitions: PartitionState) -> ClusterState:
    """foo-0 on 1, 2, 3 and foo-1, not made yet, on 3, 2; bar-0 on 2, 3. Brokers 1 to 4 have been registered."""
    store = store_of(1, 2, 3, 4)
    store.registered = {broker: found for broker, found in store.registered.items() if broker in live}
    store.topics = {
        "foo": StoredTopic(TopicState(topic_id=FOO_ID, partitions={0: (1, 2, 3), 1: (3, 2)}), 1, TOPICS["foo"]),
        "bar": StoredTopic(TopicState(topic_id="id-bar", partitions={0: (2, 3)}), 1, TOPICS["bar"]),
    }
    stored = {"foo": FOO, "bar": BAR}
    store.partitions = {stored[name]: StoredPartition(found, 7, zxid=70) for name, found in partitions.items()}
    return ClusterState(store.load())


def write(
    partition: TopicPartition, after: PartitionState, *, version: int = 7, relies_on: tuple[BrokerId, ...] = ()
) -> tuple[PartitionWrite]:
    written = replace(after, controller_epoch=1)
    return (PartitionWrite(partition=partition, state=written, version=version, relies_on=dict.fromkeys(relies_on, 0)),)


CREATED = state(3, [2, 3], leader_epoch=0)


@pytest.mark.parametrize(
    ("known", "cause", "planned"),
    [
        # Those that are led and hold the dead, in one change each; the leaderless ones come with the elections.
        (
            cluster(2, 3, 4, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3], min_isr=1)),
            TookOver(),
            Plan(groups=(write(FOO, state(2, [2, 3], leader_epoch=5), relies_on=(2, 3)),), then=Elect()),
        ),
        (cluster(1, 2, 3, foo=state(1, [1, 2, 3]), bar=state(2, [2])), TookOver(), Plan(then=Elect())),
        (
            cluster(2, 3, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3])),
            Elect(),
            Plan(
                groups=(
                    write(BAR, state(3, [3], leader_epoch=5), relies_on=(3,)),
                    write(NEW, CREATED, version=ABSENT, relies_on=(2, 3)),
                )
            ),
        ),
        (
            cluster(2, 3, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3])),
            Elect("foo"),
            Plan(groups=(write(NEW, CREATED, version=ABSENT, relies_on=(2, 3)),)),
        ),
        (cluster(1, 4, foo=state(1, [1])), Elect("foo"), Plan()),  # no replica of foo-1 lives
        (
            cluster(2, 3, foo=state(1, [1, 2]), bar=state(2, [2, 3])),
            BrokersMoved(lost=frozenset({1}), started=frozenset()),
            Plan(groups=(write(FOO, state(2, [2], elr=[1], leader_epoch=5), relies_on=(2,)),)),
        ),
        (
            cluster(1, 2, 3, foo=state(None, [], elr=[1]), bar=state(2, [2, 3])),
            BrokersMoved(lost=frozenset(), started=frozenset({1})),
            Plan(groups=(write(FOO, state(1, [1], leader_epoch=5), relies_on=(1,)),)),
        ),
        (
            cluster(1, 2, foo=state(1, [1, 2, 3]), bar=state(2, [2, 3])),
            PartitionsChanged((FOO,)),
            Plan(groups=(write(FOO, state(1, [1, 2]), relies_on=(1, 2)),)),
        ),
        (
            cluster(1, foo=state(1, [1])),
            BrokerDeathReported(1, 0),
            Plan(groups=((BrokerRemoval(broker=1, epoch=0),),)),
        ),
        (cluster(1), BrokerDeathReported(1, 1), Plan()),  # another life
        (cluster(1), BrokerDeathReported(2, 0), Plan()),  # known to have ended
        (
            cluster(1, 2),
            TopicRequested(
                5,
                CreateTopic(name="baz", schema="s", assignment={0: (2, 1)}, config={"min.insync.replicas": 1}),
                "id-baz",
            ),
            Plan(
                groups=(
                    (
                        TopicWrite(
                            topic="baz",
                            state=TopicState(topic_id="id-baz", partitions={0: (2, 1)}),
                            config=TopicConfig(settings={"min.insync.replicas": 1}, schema="s"),
                            version=ABSENT,
                        ),
                    ),
                ),
                then=Elect("baz"),
            ),
        ),
    ],
)
def test_the_controller_plans(known: ClusterState, cause: Cause, planned: Plan) -> None:
    assert plan(known, cause) == planned


def test_a_topic_that_may_not_be_is_refused_and_nothing_is_written() -> None:
    planned = plan(cluster(1), TopicRequested(5, CreateTopic(name="a b"), "id"))
    assert isinstance(planned.refusal, InvalidTopic)
    assert planned == Plan(refusal=planned.refusal)


FOO_0 = command(state(1, [1, 2, 3]), 7)
BAR_0 = command(state(2, [2, 3]), 7, replicas=(2, 3), partition=BAR, topic_id="id-bar")


def well(*live: BrokerId) -> ClusterState:
    return cluster(*live, foo=state(1, [1, 2, 3]), bar=state(2, [2, 3]))


def leader_and_isr(known: ClusterState, *partitions: PartitionCommand, init: bool = False) -> LeaderAndIsr:
    topics = {each.topic: TOPICS[each.topic] for each in partitions}
    return LeaderAndIsr(controller_epoch=1, partitions=partitions, topics=topics, brokers=known.registered, init=init)


def metadata(known: ClusterState, *partitions: PartitionCommand) -> UpdateMetadata:
    topics = {each.topic: TOPICS[each.topic] for each in partitions}
    return UpdateMetadata(controller_epoch=1, partitions=partitions, topics=topics, brokers=known.registered)


def test_a_new_controller_tells_every_broker_everything_and_its_own_partitions_first() -> None:
    known = well(1, 2, 4)
    assert announce(known, TookOver(), []) == [
        (1, leader_and_isr(known, FOO_0, init=True)),
        (2, leader_and_isr(known, BAR_0, FOO_0, init=True)),
        (4, leader_and_isr(known, init=True)),
        (1, metadata(known, BAR_0, FOO_0)),
        (2, metadata(known, BAR_0, FOO_0)),
        (4, metadata(known, BAR_0, FOO_0)),
    ]


def test_what_was_elected_goes_to_its_live_replicas_and_as_metadata_to_all() -> None:
    known = well(2, 4)
    assert announce(known, Elect(), [BAR]) == [
        (2, leader_and_isr(known, BAR_0)),
        (2, metadata(known, BAR_0)),
        (4, metadata(known, BAR_0)),
    ]


@pytest.mark.parametrize("cause", [Elect(), PartitionsChanged(()), BrokerDeathReported(1, 0)])
def test_where_nothing_changed_nobody_is_told(cause: Cause) -> None:
    assert announce(well(1, 2), cause, []) == []


def test_a_loss_is_told_to_all_even_where_no_partition_changed() -> None:
    known = well(1, 2)
    assert announce(known, BrokersMoved(lost=frozenset({4}), started=frozenset()), []) == [
        (1, metadata(known)),
        (2, metadata(known)),
    ]


def test_a_broker_that_started_is_told_everything_and_the_others_what_changed() -> None:
    known = well(1, 2)
    assert announce(known, BrokersMoved(lost=frozenset(), started=frozenset({2, 3})), [FOO]) == [
        (1, leader_and_isr(known, FOO_0)),
        (2, leader_and_isr(known, BAR_0, FOO_0)),
        (1, metadata(known, FOO_0)),
        (2, metadata(known, BAR_0, FOO_0)),
    ]


def test_what_leaders_changed_is_metadata_for_all_and_a_command_only_where_it_was_changed_again() -> None:
    known = well(1, 2)
    assert announce(known, PartitionsChanged((BAR, FOO)), [BAR]) == [
        (2, leader_and_isr(known, BAR_0)),
        (1, metadata(known, BAR_0, FOO_0)),
        (2, metadata(known, BAR_0, FOO_0)),
    ]


@pytest.mark.parametrize(
    ("known", "partition", "reason"),
    [
        (cluster(1, foo=state(1, [1])), FOO, None),
        (cluster(1), NEW, None),  # not made yet
        (cluster(1, foo=state(None, [], elr=[1])), FOO, None),  # about to be led
        (cluster(2, foo=state(None, [], elr=[1])), FOO, Waiting("fenced_elr")),
    ],
)
def test_why_a_partition_waits(known: ClusterState, partition: TopicPartition, reason: Waiting | None) -> None:
    assert waiting(known, partition) == reason


def test_what_is_known_is_replaced_by_what_is_newer_only() -> None:
    known = well(1, 2)
    assert not known.apply_partition(FOO, StoredPartition(state(2, [2]), 7))
    assert not known.apply_partition(FOO, StoredPartition(state(2, [2]), 6))
    assert known.partitions[FOO] == StoredPartition(state(1, [1, 2, 3]), 7, zxid=70)
    assert known.apply_partition(FOO, StoredPartition(state(2, [2]), 8))
    assert known.partitions[FOO] == StoredPartition(state(2, [2]), 8)


def test_a_broker_that_came_back_before_its_loss_was_seen_has_ended_and_begun() -> None:
    store = store_of(1, 2, 3)
    known = ClusterState(store.load())
    store.register(1, clean=True, rack=None)
    del store.registered[2]
    store.register(4, clean=False, rack=None)
    assert known.apply_brokers(store.brokers_read()) == (frozenset({1, 2}), frozenset({1, 4}))
    assert known.brokers.live == {1, 3, 4}
    assert known.apply_brokers(store.brokers_read()) == (frozenset(), frozenset())


def test_a_broker_that_is_shutting_down_is_live_and_may_not_be_elected() -> None:
    known = well(1, 2)
    stopping = replace(known.registered[2], shutting_down=True)
    known.apply_brokers(BrokersRead(brokers=known.registered | {2: stopping}, broker_epochs=known.broker_epochs))
    assert (known.brokers.live, known.brokers.electable) == (frozenset({1, 2}), frozenset({1}))


def test_a_topic_has_the_clusters_settings_but_its_own() -> None:
    known = well(1)
    assert (known.settings_of("foo").min_insync_replicas, known.settings_of("bar").min_insync_replicas) == (2, 1)
    again = replace(known.topics["foo"], config=TopicConfig(settings={"min.insync.replicas": 3}))
    known.apply_topic("foo", again)
    assert known.settings_of("foo").min_insync_replicas == 3
