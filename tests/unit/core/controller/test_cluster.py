"""What a controller knows: only what is stored, and only by the transitions that there are (S1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState, StoredTopic, commands_of
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.election import Policy
from spark_replication.core.law.states import State
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import Made, StoredPartition
from spark_replication.model import BrokerId, ClusterSettings, PartitionState, TopicConfig, TopicPartition, TopicState
from tests.unit.core.stories import FOO, cluster_of, command, loaded, state, topic, zookeeper

BAR, NEW = TopicPartition("bar", 0), TopicPartition("foo", 1)
WELL = {"foo-0": state(1, [1, 2, 3]), "bar-0": state(2, [2, 3])}
TOPICS = {"foo": topic((1, 2, 3), (3, 2)), "bar": topic((2, 3), name="bar")}
RECOVERY = UncleanRecovery(leader_epoch=4, required=frozenset(), started_ms=0, asked_ms=0)


def well(*live: BrokerId) -> ClusterState:
    """foo-0 on 1, 2, 3; foo-1, not made yet, on 3, 2; bar-0 on 2, 3."""
    return cluster_of(*live, topics=TOPICS, states=WELL)


def now(known: ClusterState, after: TopicState) -> None:
    known.apply_topic("foo", StoredTopic(after, 2, TopicConfig()))


@pytest.mark.parametrize(
    ("live", "wanted", "needed"),
    [
        ((1, 2, 3), 3, [1, 2, 3]),
        ((1, 2), 3, [1, 2, 3]),  # one that holds something is needed, alive or not
        ((1, 2, 3, 4, 5), 4, [1, 2, 3, 4]),
        ((1, 2, 3, 4, 5), 5, [1, 2, 3, 4, 5]),
        ((1, 2, 3, 4, 5), 2, [1, 2, 3]),
        ((1, 2, 9), 3, [1, 2, 3]),
    ],
)
def test_a_broker_that_holds_nothing_and_is_more_than_are_wanted_is_not_needed(
    live: tuple[BrokerId, ...], wanted: int, needed: list[BrokerId]
) -> None:
    known = well(*live)
    found = known.needed_brokers(wanted)
    assert sorted(found) == needed
    assert all((found[broker] is None) is (broker not in live) for broker in found)


def test_what_was_loaded_is_what_is_known() -> None:
    known = well(1, 2)
    assert (known.all_partitions(), known.all_partitions("foo")) == ([BAR, FOO, NEW], [FOO, NEW])
    assert (known.hosted_by([1, 3]), known.hosted_by([5]), known.led_by(2)) == ([BAR, FOO, NEW], [], [BAR])
    assert (known.leaderless, known.reassigning, known.new_replicas) == ({NEW}, set(), set())
    assert (known.is_led(FOO), known.is_led(NEW), known.leader_epoch(FOO), known.leader_epoch(NEW)) == (
        True,
        False,
        4,
        0,
    )
    assert known.command(FOO) == command(WELL["foo-0"], 7)


def test_what_is_known_is_replaced_by_what_is_newer_only() -> None:
    known = well(1, 2)
    assert not known.apply_partition(FOO, StoredPartition(state(2, [2]), 7, 70))
    assert not known.apply_partition(FOO, StoredPartition(state(2, [2]), 6, 60))
    assert known.partitions[FOO] == StoredPartition(state(1, [1, 2, 3]), 7, zxid=70)
    assert known.apply_partition(FOO, StoredPartition(state(2, [2]), 8, 80))
    assert known.partitions[FOO] == StoredPartition(state(2, [2]), 8, 80)


@pytest.mark.parametrize(("zxid", "is_taken"), [(69, False), (70, True), (71, True)])
def test_what_a_topic_that_was_made_again_had_before_is_older_at_any_version(*, zxid: int, is_taken: bool) -> None:
    known = well(1, 2)
    read = StoredPartition(state(2, [2], leader_epoch=9), 12, zxid)
    before = known.partitions[FOO]
    assert known.apply_partition(FOO, read) == is_taken
    assert known.partitions[FOO] == (read if is_taken else before)


def test_a_partition_without_leader_is_remembered_as_one_until_it_has_one() -> None:
    known = well(1, 2)
    known.apply_partition(FOO, StoredPartition(state(None, [], elr=[3]), 8, 80))
    known.apply_partition(FOO, StoredPartition(state(None, [], elr=[2]), 9, 90))
    known.apply_recoveries({FOO: RECOVERY, BAR: None})
    assert (known.leaderless, known.recoveries) == ({FOO, NEW}, {FOO: RECOVERY})
    known.apply_partition(FOO, StoredPartition(state(2, [2], leader_epoch=5), 10, 100))
    assert (known.leaderless, known.recoveries) == ({NEW}, {})


@pytest.mark.parametrize(
    ("after", "counted"),
    [
        (state(2, [2], leader_epoch=5, elected="unclean_recovery"), 1),
        (state(2, [2], leader_epoch=5, elected="designated"), 1),
        (state(2, [2], leader_epoch=5, elected="elr"), 0),
        (state(2, [2], leader_epoch=5), 0),
        (state(None, [], leader_epoch=5, elected="unclean"), 0),
        (state(1, [1], elected="unclean"), 0),  # its leader wrote its ISR: it was elected before
    ],
)
def test_elections_from_outside_are_counted_once(after: PartitionState, counted: int) -> None:
    known = well(1, 2)
    known.apply_partition(FOO, StoredPartition(after, 8, 80))
    assert known.unclean_elections == counted


# Assignments


def test_a_partition_that_is_added_is_new_and_one_that_is_removed_leaves_a_tombstone_alone() -> None:
    known = well(1, 2)
    now(known, topic((1, 2, 3), (3, 2), (4, 1)))
    added = TopicPartition("foo", 2)
    assert (known.partition_state(added), known.leaderless, known.hosted_by([4])) == ("new", {NEW, added}, [added])
    known.apply_recoveries({NEW: RECOVERY})
    now(known, topic((1, 2, 3)))
    assert (known.partition_state(NEW), known.leaderless, known.hosted_by([1, 3, 4])) == (
        "nonexistent",
        set(),
        [BAR, FOO],
    )
    assert known.recoveries == {}


def test_one_that_is_made_again_goes_on_from_its_tombstone() -> None:
    known = cluster_of(1, 2, topics={"foo": topic((1, 2))}, states=WELL | {"foo-1": state(2, [2])})
    assert (known.partition_state(NEW), known.assigned(NEW), known.assigned(BAR)) == ("nonexistent", False, False)
    known.apply_partition(NEW, StoredPartition(state(None, []), 8, 80))  # whoever wrote it
    assert known.leaderless == set()
    now(known, topic((1, 2), (1, 2)))
    assert known.apply_partition(NEW, StoredPartition(state(1, [1, 2], leader_epoch=5), 9, 90))
    assert (known.leaderless, known.partition_state(NEW)) == (set(), "online")


def test_a_replica_that_is_added_is_new_until_the_reassignment_is_complete_or_it_dies() -> None:
    store = zookeeper(1, 2, 3, 4, topics=TOPICS, states=WELL)
    known = ClusterState(store.load())
    now(known, topic((1, 4, 5, 2, 3), (3, 2), adding={0: (4, 5)}, removing={0: (2, 3)}))
    assert known.reassigning == {FOO}
    assert {broker: known.replica_state(FOO, broker) for broker in range(1, 7)} == {
        1: "online",
        2: "online",
        3: "online",
        4: "new",
        5: "offline",
        6: "nonexistent",
    }
    store.remove_registration(4)
    known.apply_brokers(store.brokers_read())
    assert (known.replica_state(FOO, 4), known.new_replicas) == ("offline", set())
    now(known, topic((1, 4, 5), (3, 2)))
    assert (known.reassigning, known.hosted_by([2])) == (set(), [BAR, NEW])


def test_a_reassignment_that_completes_leaves_no_new_replica() -> None:
    known = well(1, 2, 3, 4)
    now(known, topic((1, 4, 3), (3, 2), adding={0: (4,)}))
    assert known.new_replicas == {(FOO, 4)}
    now(known, topic((1, 4), (3, 2)))
    assert (known.new_replicas, known.replica_state(FOO, 4), known.reassigning) == (set(), "online", set())


def test_one_that_goes_back_was_never_there() -> None:
    known = well(1, 2, 3, 4)
    now(known, topic((1, 4), (3, 2), adding={0: (4,)}))
    now(known, topic((1,), (3, 2)))
    assert (known.new_replicas, known.replica_state(FOO, 4)) == (set(), "nonexistent")


def test_one_that_is_removed_while_it_moves_moves_no_longer() -> None:
    known = cluster_of(1, 2, topics={"foo": topic((1,), (1, 2), adding={1: (2,)})}, states={"foo-1": state(1, [1])})
    assert (known.reassigning, known.new_replicas) == ({NEW}, set())
    now(known, topic((1,)))
    assert known.reassigning == set()


def test_a_partition_that_is_not_made_yet_has_new_replicas() -> None:
    known = well(2)
    found: dict[BrokerId, State] = {2: "new", 3: "offline", 1: "nonexistent"}
    assert {broker: known.replica_state(NEW, broker) for broker in found} == found
    assert known.replica_state(TopicPartition("baz", 0), 1) == "nonexistent"


def test_of_a_topic_that_is_gone_nothing_is_left() -> None:
    known = cluster_of(
        1, 2, 3, topics={"foo": topic((1, 2), (2, 1), adding={1: (1,)})}, states={"foo-0": state(1, [1])}
    )
    known.deleting.add("foo")
    known.apply_recoveries({NEW: RECOVERY, FOO: RECOVERY})
    known.apply_removed_partition(FOO)
    assert (known.partitions, known.leaderless, known.recoveries) == ({}, {NEW}, {NEW: RECOVERY})
    known.apply_removed_topic("foo")
    assert (known.topics, known.deleting, known.leaderless, known.reassigning) == ({}, set(), set(), set())
    assert (known.recoveries, known.hosted_by([1, 2]), known.all_partitions()) == ({}, [], [])
    known.apply_removed_topic("foo")  # again: it is done


# Brokers


def test_a_broker_that_came_back_before_its_loss_was_seen_has_ended_and_begun() -> None:
    store = zookeeper(1, 2, 3, topics={})
    known = ClusterState(store.load())
    store.register(1, clean=True, rack=None)
    store.remove_registration(2)
    store.register(4, clean=False, rack=None)
    assert known.apply_brokers(store.brokers_read()) == (frozenset({1, 2}), frozenset({1, 4}), frozenset())
    assert known.brokers.live == {1, 3, 4}
    assert known.apply_brokers(store.brokers_read()) == (frozenset(), frozenset(), frozenset())


def test_one_that_begins_to_shut_down_is_live_and_told_of_once() -> None:
    known = well(1, 2)
    stopping = replace(known.registered[2], shutting_down=True)
    read = BrokersRead(brokers=known.registered | {2: stopping}, broker_epochs=known.broker_epochs)
    assert known.apply_brokers(read) == (frozenset(), frozenset(), frozenset({2}))
    assert (known.brokers.live, known.brokers.electable) == (frozenset({1, 2}), frozenset({1}))
    assert known.apply_brokers(read) == (frozenset(), frozenset(), frozenset())


def test_one_that_registers_and_shuts_down_at_once_has_started() -> None:
    known = well(1)
    starting = replace(known.registered[1], epoch=1, shutting_down=True)
    epochs = {1: replace(known.broker_epochs[1], epoch=1)}
    read = BrokersRead(brokers={1: starting}, broker_epochs=epochs)
    assert known.apply_brokers(read) == (frozenset({1}), frozenset({1}), frozenset())


def test_replicas_on_a_failed_disk_are_offline_until_their_broker_starts_again() -> None:
    store = zookeeper(1, 2, topics=TOPICS, states=WELL)
    known = ClusterState(store.load())
    known.apply_failed(1, [FOO])
    known.apply_failed(1, [NEW])
    assert [known.brokers_of(partition).live for partition in (FOO, NEW, BAR)] == [{2}, {2}, {1, 2}]
    assert known.replica_state(FOO, 1) == "offline"
    store.register(1, clean=False, rack=None)
    known.apply_brokers(store.brokers_read())
    assert known.brokers_of(FOO).live == {1, 2}
    assert known.replica_state(FOO, 1) == "online"


def test_a_disk_that_refused_is_tried_again_and_where_nobody_leads_a_tick_tells_of_it() -> None:
    states = {**WELL, "foo-0": state(None, [], elr=[1])}
    known = cluster_of(1, 2, topics=TOPICS, states=states)
    known.now_ms = 5_000
    known.apply_failed(1, [FOO, BAR])
    retry_ms = known.settings.disk_retry_ms
    known.now_ms = 5_000 + retry_ms - 1
    assert known.brokers_of(FOO).electable == {2}
    assert not known.to_be_tried_again(0)
    known.now_ms += 1
    assert known.brokers_of(FOO).electable == {1, 2}
    assert known.brokers_of(BAR).electable == {1, 2}
    assert known.to_be_tried_again(known.now_ms - 1)
    assert not known.to_be_tried_again(known.now_ms), "once"
    known.apply_failed(1, [FOO])
    assert known.brokers_of(FOO).electable == {2}, "it refused again"


def test_on_a_broker_that_shuts_down_only_what_it_leads_is_online() -> None:
    store = zookeeper(1, 2, 3, shutting_down=[2], topics=TOPICS, states=WELL)
    known = ClusterState(store.load())
    assert {each: known.replica_state(each, 2) for each in (FOO, NEW, BAR)} == {
        FOO: "offline",
        NEW: "offline",
        BAR: "online",
    }


# Settings, requests


def test_a_topic_has_the_clusters_settings_but_its_own() -> None:
    known = cluster_of(topics=TOPICS, configs={"bar": TopicConfig(settings={"min.insync.replicas": 1})})
    assert (known.settings_of("foo").min_insync_replicas, known.settings_of("bar").min_insync_replicas) == (2, 1)
    known.apply_topic_config("foo", TopicConfig(settings={"min.insync.replicas": 3}), Made())
    assert known.settings_of("foo").min_insync_replicas == 3
    again = replace(known.topics["foo"], config=TopicConfig(settings={"min.insync.replicas": 4}))
    known.apply_topic("foo", again)
    assert known.settings_of("foo").min_insync_replicas == 4


def test_what_zookeeper_says_of_settings_goes_before_what_the_process_was_told() -> None:
    stored = ClusterSettings(settings={"unclean.recovery.enabled": False})
    known = cluster_of(topics=TOPICS, stored_settings=stored, min_insync_replicas=3)
    assert known.policy_of("foo") == Policy(recovery_enabled=False)
    assert known.settings_of("foo").min_insync_replicas == 3
    known.apply_settings(ClusterSettings(settings={"min.insync.replicas": 1}))
    assert (known.policy_of("foo"), known.settings_of("foo").min_insync_replicas) == (Policy(), 1)


def test_a_request_is_open_until_it_is_removed() -> None:
    known = well(1)
    known.apply_request("/a", frozenset({FOO}))
    known.apply_request("/a", frozenset({BAR}))  # of what was asked again: the rest still moves
    assert known.open_requests == {"/a": frozenset({FOO, BAR})}
    known.apply_removed_request("/a")
    known.apply_removed_request("/b")
    assert known.open_requests == {}


def test_brokers_are_told_of_what_is_assigned_and_of_no_tombstone() -> None:
    moving = {"foo": topic((2, 1), adding={0: (2,)}, removing={0: (1,)})}
    stored = {
        TopicPartition(name, number): StoredPartition(state(1, [1]), 7, 70)
        for name, number in (("foo", 0), ("foo", 1), ("bar", 0))
    }
    topics = loaded(topics=moving).topics
    told = command(state(1, [1]), 7, replicas=(2, 1))
    assert commands_of(topics, stored) == [replace(told, adding=(2,), removing=(1,))]
