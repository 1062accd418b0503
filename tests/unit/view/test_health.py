"""What the state of a cluster means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described, is_described_alike
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.election import Reason
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import Made, StoredPartition
from spark_replication.messages.commands import BrokerNotes, PutAside, TableBehind
from spark_replication.messages.descriptions import Awaited, Metadata, TopicMetadata
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.mending import DiskDamage
from spark_replication.model import (
    ClusterSettings,
    PartitionState,
    PossibleLoss,
    ReplicaOf,
    TopicConfig,
    TopicPartition,
    TopicState,
)
from spark_replication.view import health
from spark_replication.view.cluster_metrics import metrics
from spark_replication.view.health import LOSSES_TOLD_MAX
from spark_replication.view.problem import Problem
from spark_replication.view.verdict import grouped, incidents
from tests.unit.core.stories import FOO, FOO_ID, cluster_of, command, loss, registration, state, topic

BAR = TopicPartition("bar", 0)


def cluster() -> ClusterState:
    """foo-0 is well, foo-1 has no leader, foo-2 is not made yet, bar-0 is below its min ISR; broker 3 is gone."""
    return cluster_of(
        1,
        2,
        topics={
            "foo": TopicState(topic_id=FOO_ID, partitions={0: (1, 2), 1: (3, 1), 2: (3,)}),
            "bar": TopicState(topic_id="id-bar", partitions={0: (1, 3)}),
        },
        configs={"bar": TopicConfig(schema="x")},
        states={
            "foo-0": state(1, [1, 2]),
            "foo-1": state(None, [], elr=[3]),
            "bar-0": state(1, [1], elr=[3]),
        },
    )


NOTHING = metrics(cluster_of(1, topics={}, states={}))


def test_of_nothing_every_count_is_there_and_zero() -> None:
    found = to_builtins(NOTHING)
    assert set(found.pop("waiting")) == set(get_args(Reason))
    assert set(found.pop("elections").values()) == set(found.values()) == {0}


def test_the_gauges() -> None:
    assert metrics(cluster()) == replace(
        NOTHING,
        partitions=3,
        offline_partitions=1,
        under_replicated_partitions=2,
        under_min_isr_partitions=2,
        electable_leaders=5,
        waiting={**NOTHING.waiting, "fenced_elr": 1},
    )


def test_the_gauges_tell_of_what_is_under_way_and_what_waits_for_a_person() -> None:
    manual = TopicConfig(settings={"unclean.recovery.strategy": "manual"})
    known = cluster_of(
        1,
        2,
        topics={"foo": topic((1, 2), (1, 2), (1,), adding={0: (2,)}), "bar": topic((1,), name="bar")},
        states={"foo-0": state(1, [1]), "foo-1": state(None, []), "foo-3": state(1, [1, 2]), "bar-0": state(None, [])},
        configs={"bar": manual},
    )
    under_way = UncleanRecovery(leader_epoch=4, required=frozenset({1, 2}), started_ms=0, asked_ms=0)
    known.apply_recoveries({TopicPartition("foo", 1): under_way})
    known.apply_partition(FOO, StoredPartition(state(2, [2], leader_epoch=5, elected="unclean"), 8, 80))
    assert metrics(known) == replace(
        NOTHING,
        partitions=3,
        offline_partitions=2,
        under_replicated_partitions=3,
        under_min_isr_partitions=3,
        electable_leaders=1,
        reassigning_partitions=1,
        waiting={**NOTHING.waiting, "log_info": 1, "manual": 1},
        unclean_recovery_partitions=1,
        manual_leader_election_required_partitions=1,
        unclean_elections=1,
        elections={**NOTHING.elections, "unclean": 1},
        isr_shrinks=1,
        isr_expands=1,
    )


@pytest.mark.parametrize(
    ("stored", "enabled", "reason", "recovering"),
    [
        (state(None, [], last_known_elr=[1, 2]), True, "last_known_elr", 1),
        (state(None, [], last_known_leader=2), True, "last_known_leader", 1),
        (state(None, [], last_known_leader=2), False, "last_known_leader", 0),
        (state(None, [], elr=[2]), True, "fenced_elr", 0),
        (state(None, []), False, "last_known_leader", 0),
    ],
)
def test_who_waits_for_the_longest_log_is_under_unclean_recovery_as_kip_966_counts(
    stored: PartitionState, enabled: bool, reason: str, recovering: int
) -> None:
    known = cluster_of(1, topics={"foo": topic((1, 2))}, states={"foo-0": stored}, unclean_recovery_enabled=enabled)
    found = metrics(known)
    assert (found.waiting[reason], found.unclean_recovery_partitions) == (1, recovering)  # type: ignore[index]


def test_an_unclean_recovery_is_finished_once_it_has_elected() -> None:
    known = cluster_of(1, topics={"foo": topic((1, 2))}, states={"foo-0": state(None, [])})
    before = metrics(known)
    known.apply_partition(
        FOO, StoredPartition(state(1, [1], leader_epoch=9, elected="unclean_recovery", recovering=True), 99, 990)
    )
    after = metrics(known)
    assert (before.unclean_recoveries_finished, after.unclean_recoveries_finished) == (0, 1)
    assert (after.unclean_elections, after.elections["unclean_recovery"], after.isr_expands) == (1, 1, 1)


def test_a_copy_stays_as_it_was() -> None:
    known = cluster()
    before, copied = metrics(known), known.snapshot()
    known.apply_partition(FOO, StoredPartition(state(2, [2], leader_epoch=5, elected="elr"), 8, 80))
    known.apply_failed(1, [FOO])
    known.apply_removed_topic("bar")
    assert metrics(known) != before
    assert metrics(copied) == before
    assert copied.reasons == known.reasons


def test_replicas_that_a_disk_refuses_are_counted_until_they_are_in_sync_again() -> None:
    known = cluster()
    known.apply_failed(2, [FOO, BAR])
    assert metrics(known).failed_replicas == 2
    known.apply_partition(FOO, StoredPartition(state(1, [1]), 8, 80))
    known.apply_partition(FOO, StoredPartition(state(1, [1, 2]), 9, 90))
    assert metrics(known).failed_replicas == 1


def test_a_replica_that_leads_again_is_refused_by_no_disk_until_its_broker_says_so_again() -> None:
    known = cluster()
    known.apply_failed(1, [FOO])
    known.apply_partition(FOO, StoredPartition(state(1, [1], min_isr=1), 8, 80))
    assert metrics(known).failed_replicas == 1, "its ISR alone has changed"
    known.apply_partition(FOO, StoredPartition(state(1, [1], min_isr=1, leader_epoch=5), 9, 90))
    assert metrics(known).failed_replicas == 0


def test_disks_that_refuse_a_replica_are_named_with_what_to_do() -> None:
    known = cluster()
    known.apply_failed(2, [FOO])
    known.apply_failed(4, [FOO])  # it has no replica there (any longer)
    (found,) = of_disks(known)
    assert (found.severity, str(found)) == (
        "warning",
        "foo-0 is refused by the disk of broker 2, which is full or failing",
    )
    assert found.mend.startswith("free space in log.dir of broker 2")
    known.apply_partition(FOO, StoredPartition(state(1, [1]), 8, 80))
    known.apply_partition(FOO, StoredPartition(state(1, [1, 2]), 9, 90))
    assert of_disks(known) == []


def test_a_leader_that_nobody_could_take_over_from_is_named_too() -> None:
    """It reports no failure to the controller: nothing would follow but a partition that nobody leads."""
    known = cluster()
    known.apply_damaged(1, {ReplicaOf(FOO, FOO_ID): DiskDamage(batches=0, mended=0, words="", refuses=True)})
    (found,) = of_disks(known)
    assert (found.severity, str(found)) == (
        "critical",
        "foo-0 is refused by the disk of broker 1, which is full or failing",
    )
    known.apply_failed(1, [FOO])
    assert len(of_disks(known)) == 1
    known.apply_damaged(1, {})
    assert len(of_disks(known)) == 1


LOST = DiskDamage(batches=2, mended=1, words="offsets 9 to 9, at byte 7 of a.arrow: why")


def of_disks(known: ClusterState) -> list[Problem]:
    return [each for each in health.problems(described(known, ["foo"], None), frozenset()) if "disk" in each.what]


@pytest.mark.parametrize(
    ("broker", "severity", "text"),
    [
        (
            1,
            "critical",
            "foo-0 is damaged on the disk of broker 1, its leader: 2 batches cannot be read",
        ),
        (
            2,
            "warning",
            "foo-0 is damaged on the disk of broker 2: 2 batches cannot be read, the first offsets 9",
        ),
    ],
)
def test_damage_is_named_with_broker_file_and_what_to_do(broker: int, severity: str, text: str) -> None:
    known = cluster()
    known.apply_damaged(broker, {ReplicaOf(FOO, FOO_ID): LOST, ReplicaOf(FOO, "another"): LOST})
    (found,) = of_disks(known)
    assert (found.severity, found.about) == (severity, None)
    assert str(found).startswith(text)
    assert "a.arrow" in str(found)
    assert f"broker {broker} copies them from there" in found.mend
    assert f"see to the disk of broker {broker}" in found.mend
    assert metrics(known).damaged_replicas == 1
    known.apply_damaged(broker, {})
    assert of_disks(known) == []


def test_damage_that_no_other_replica_can_mend_says_so() -> None:
    known = cluster_of(1, topics={"foo": topic((1,))}, states={"foo-0": state(1, [1])})
    known.apply_damaged(1, {ReplicaOf(FOO, FOO_ID): LOST})
    (found,) = of_disks(known)
    assert found.mend.startswith("there is no other replica to copy these records from")


def test_what_was_mended_is_told_and_nobody_waits_for_its_end() -> None:
    known = cluster()
    known.apply_damaged(1, {ReplicaOf(FOO, FOO_ID): replace(LOST, batches=0)})
    (found,) = of_disks(known)
    assert (found.severity, metrics(known).damaged_replicas) == ("warning", 0)
    assert "was damaged on the disk of broker 1, and is whole again: 1 batches were lost" in str(found)
    seen = described(known, None, None)
    left = health.problems(health.without_what_waits_for_people(seen), frozenset())
    assert [each for each in left if "damaged" in each.what] == []
    known.apply_damaged(1, {ReplicaOf(FOO, FOO_ID): LOST})
    seen = described(known, None, None)
    left = health.problems(health.without_what_waits_for_people(seen), frozenset())
    assert len([each for each in left if "damaged" in each.what]) == 1


def test_a_cluster_starts_and_serves_in_spite_of_its_disks() -> None:
    known = cluster()
    known.apply_damaged(1, {ReplicaOf(FOO, FOO_ID): LOST})
    known.apply_failed(2, [FOO])
    seen = health.without_what_it_outlives(described(known, None, None))
    assert [each.what for each in health.problems(seen, frozenset()) if "disk" in each.what] == []


def test_damage_is_of_one_life_of_a_broker_and_of_replicas_that_it_has() -> None:
    known = cluster()
    known.apply_damaged(2, {ReplicaOf(FOO, FOO_ID): LOST})
    known.apply_damaged(4, {ReplicaOf(FOO, FOO_ID): LOST})  # it has no replica there (any longer)
    assert len(of_disks(known)) == 1
    copied = known.snapshot()
    known.apply_brokers(BrokersRead(brokers={1: registration(1)}, broker_epochs={}))
    assert of_disks(known) == []
    assert len(of_disks(copied)) == 1


def of_notes(known: ClusterState) -> list[Problem]:
    return [each for each in health.problems(described(known, None, None), frozenset()) if "broker 1" in each.subject]


@pytest.mark.parametrize(("ahead_ms", "text"), [(600_000, "600 s ahead of"), (-301_000, "301 s behind")])
def test_a_clock_that_is_not_believed_is_named(ahead_ms: int, text: str) -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(clock_ahead_ms=ahead_ms))
    (found,) = of_notes(known)
    assert str(found).startswith(f"broker 1 has a clock that is {text} ZooKeeper's: it removes nothing")
    assert found.mend == "set the wrong clock right, then restart that broker"
    assert of_notes_outlived(known) == []
    seen = health.without_what_waits_for_people(described(known, None, None))
    assert "broker 1" not in {each.subject for each in health.problems(seen, frozenset())}
    known.apply_noted(1, BrokerNotes())
    assert of_notes(known) == []


def of_notes_outlived(known: ClusterState) -> list[Problem]:
    seen = health.without_what_it_outlives(described(known, None, None))
    return [each for each in health.problems(seen, frozenset()) if "broker 1" in each.subject]


def put_aside(topic_id: str = "gone", until_ms: int = 3_600_000, number: int = 7) -> PutAside:
    replica = ReplicaOf(TopicPartition("foo", number), topic_id)
    return PutAside(replica=replica, folder=f"quarantine/foo-{number}.{topic_id}.1.unassigned-5", until_ms=until_ms)


@pytest.mark.parametrize(("partitions", "text"), [(1, "a partition that"), (3, "3 partitions that")])
def test_a_table_that_is_behind_is_named(partitions: int, text: str) -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(tables_behind=(TableBehind(topic="foo", partitions=partitions, since_ms=0),)))
    (found,) = [each for each in health.problems(described(known, None, None), frozenset()) if "table" in each.subject]
    assert str(found).startswith(f"table of foo lacks rows of {text} broker 1 leads, the first of them from 1970-01-01")
    assert (found.severity, "table status foo" in found.mend) == ("warning", True)
    known.apply_noted(1, BrokerNotes())
    assert not [each for each in health.problems(described(known, None, None), frozenset()) if "table" in each.subject]


def test_files_of_secrets_that_are_not_used_are_critical() -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(secrets="token is open to every user: whom it let in before is refused"))
    seen = replace(described(known, None, None), secrets="broker-token is empty: what was read before holds on")
    found = [each for each in health.problems(seen, frozenset()) if "secrets" in each.what]
    assert [(each.severity, str(each)) for each in found] == [
        (
            "critical",
            "the controller cannot use its files of secrets as they are: broker-token is empty: what was read before "
            "holds on",
        ),
        (
            "critical",
            "broker 1 cannot use its files of secrets as they are: token is open to every user: whom it let in before "
            "is refused",
        ),
    ]
    assert "chmod 600" in found[0].mend
    assert not [
        each for each in health.problems(health.without_what_it_outlives(seen), frozenset()) if "secrets" in each.what
    ], "it starts all the same"


def test_logs_that_nobody_asked_to_delete_are_named_with_their_day() -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(put_aside=(put_aside(until_ms=7_200_000, number=8), put_aside())))
    (found,) = of_notes(known)
    assert found.severity == "warning"
    assert str(found) == (
        "broker 1 has put aside logs that no topic has, and that nobody asked it to delete: foo-8 (topic gone), "
        "foo-7 (topic gone). From 1970-01-01 01:00:00 UTC on it deletes them"
    )
    assert "quarantine/foo-7.gone.1.unassigned-5 below its log.dir" in found.mend
    assert of_notes_outlived(known) == []


def test_of_many_logs_that_were_put_aside_some_are_named() -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(put_aside=tuple(put_aside(number=number) for number in range(12))))
    (found,) = of_notes(known)
    assert "foo-9 (topic gone) and 2 more" in str(found)


def test_a_log_that_a_topic_still_has_or_that_is_deleted_by_now_is_not_told_of() -> None:
    known = cluster()
    known.now_ms = 9
    known.apply_noted(1, BrokerNotes(put_aside=(put_aside(topic_id=FOO_ID, number=0), put_aside(until_ms=9))))
    assert of_notes(known) == []
    known.now_ms = 8
    assert len(of_notes(known)) == 1


def test_what_there_is_to_know_of_a_broker_is_of_one_life() -> None:
    known = cluster()
    known.apply_noted(1, BrokerNotes(put_aside=(put_aside(),)))
    known.apply_brokers(BrokersRead(brokers={2: registration(2)}, broker_epochs={}))
    known.apply_brokers(BrokersRead(brokers={1: registration(1), 2: registration(2)}, broker_epochs={}))
    assert of_notes(known) == []


def test_what_keeps_it_from_being_healthy_the_worst_first() -> None:
    assert told(health.problems(described(cluster(), None, None), frozenset({1, 2, 3}))) == [
        "broker 3 is not registered",
        "foo-1 has no leader: start one of the brokers [3], which hold every acknowledged record",
        "bar-0 has 1 of 2 replicas in sync, and needs 2 for acks=all",
    ]


def test_a_controller_without_zookeeper_is_the_worst() -> None:
    metadata = replace(described(cluster(), (), None), zookeeper_silent_ms=4_600)
    assert told(health.problems(metadata, frozenset({3}))) == [
        "the controller has had no connection to ZooKeeper for 5 s: until it has one, no leader is elected and no "
        "topic changed. See that ZooKeeper runs",
        "broker 3 is not registered",
    ]
    assert told(health.problems(replace(metadata, zookeeper_silent_ms=0), frozenset({3}))) == [
        "broker 3 is not registered"
    ]


def told(problems: list[Problem]) -> list[str]:
    return [str(each) for each in problems]


WHOLE = (1, 2, 3)


@pytest.mark.parametrize(
    ("stored", "live", "settings", "why"),
    [
        # Elected uncleanly, and gone before its first ISR write.
        (
            state(None, [], elr=[2], recovering=True, min_isr=1),
            (1,),
            {},
            "start one of the brokers [2], which hold every acknowledged record",
        ),
        (
            state(None, [], last_known_elr=[1, 2]),
            (1,),
            {},
            "start all of the brokers [1, 2], of which one may hold every acknowledged record, or elect by hand",
        ),
        (state(None, [], last_known_leader=2), (1,), {}, "start broker 2, its last known leader, or elect by hand"),
        (state(None, []), WHOLE, {}, "the longest log is looked for, of its replicas [1, 2, 3]"),
        (
            state(None, [], last_known_elr=[1, 2]),
            (1, 2),
            {},
            "the longest log is looked for, of its replicas [1, 2]",
        ),
        (
            state(None, [], last_known_elr=[1, 2]),
            (1,),
            {"unclean_recovery_strategy": "proactive"},
            "the longest log is looked for, of its replicas [1, 2, 3]: start [2, 3]",
        ),
        (
            state(None, []),
            WHOLE,
            {"unclean_recovery_strategy": "manual"},
            "no broker is known to hold every acknowledged record: elect by hand",
        ),
        (
            state(None, []),
            WHOLE,
            {"unclean_recovery_enabled": False},
            "it waits for last_known_leader: start [1, 2, 3], or elect by hand",
        ),
        (state(None, [], elr=[2]), (2,), {}, "the controller is about to elect one, or cannot be asked"),
    ],
)
def test_why_there_is_no_leader_is_what_core_waits_for(
    stored: PartitionState, live: tuple[int, ...], settings: dict[str, Any], why: str
) -> None:
    known = cluster_of(*live, topics={"foo": topic(WHOLE)}, states={"foo-0": stored}, **settings)
    heard = from_json(to_json(described(known, None, None)), Metadata)
    assert told(health.problems(heard, frozenset())) == [f"foo-0 has no leader: {why}"]


def test_a_recovery_that_was_asked_for_by_hand_is_told() -> None:
    known = cluster_of(1, topics={"foo": topic(WHOLE)}, states={"foo-0": state(None, [], elr=[3])})
    known.apply_recoveries({FOO: UncleanRecovery(leader_epoch=4, required=frozenset(), by_hand=True)})
    assert told(health.problems(described(known, None, None), frozenset())) == [
        "foo-0 has no leader: the longest log is looked for, of its replicas [1, 2, 3]: start [2, 3]"
    ]


def test_what_waits_for_nothing_is_told_as_it_was_before_anything_could_wait() -> None:
    known = described(cluster(), ["bar"], None).topics[0]
    assert "waiting" not in to_builtins(known)
    assert from_json(to_json(known), TopicMetadata) == known


@pytest.mark.parametrize(
    ("live", "mend"),
    [
        (
            (1, 2),
            "start broker 3; if all of its replicas are lost for good, its records are, and it begins anew, empty: "
            "spark-replication reassign plan foo-0=1 --save anew.json; spark-replication reassign apply anew.json; "
            "spark-replication leader elect --kind unclean foo-0",
        ),
        ((), "start broker 3"),
        ((1, 3), "start broker 3; if they are lost: spark-replication leader elect --kind longest_log_proactive foo-0"),
    ],
)
def test_where_no_replica_lives_nobody_is_to_be_elected_before_others_are_there(
    live: tuple[int, ...], mend: str
) -> None:
    known = cluster_of(*live, topics={"foo": topic((3,))}, states={"foo-0": state(None, [], elr=[3])})
    if 3 in live:
        known.apply_failed(3, [FOO])
    found, *others = health.problems(described(known, None, None), frozenset())
    assert found.mend_of(["foo-0"]) == mend
    assert [each.what.split(",")[0] for each in others] == ["is refused by the disk of broker 3"] * (3 in live)


def dead_among(*live: int, replicas: tuple[int, ...], **states: Any) -> list[tuple[str, list[str], list[str]]]:
    """What is told of the dead brokers of 1, 2 and 3: the cause, what follows from it, and all commands."""
    named = {f"foo-{number}": stored for number, stored in enumerate(states.values())}
    known = cluster_of(*live, topics={"foo": topic(*[replicas] * len(states))}, states=named)
    found = incidents(grouped(health.problems(described(known, None, None), frozenset(WHOLE))))
    return [
        (each.what, [*map(str, each.consequences)], [line for mend in each.mends for line in mend.commands])
        for each in found
    ]


BUNDLE = "spark-replication debug bundle"


def test_dead_brokers_are_one_cause_and_all_partitions_follow_from_them() -> None:
    lost = state(None, [], elr=[3])
    assert dead_among(replicas=WHOLE, first=lost, second=lost) == [
        ("3 of 3 brokers are dead: 1, 2, 3", ["2 partitions without a leader (foo-0, foo-1)"], [BUNDLE])
    ]
    assert dead_among(1, replicas=WHOLE, first=state(1, [1]), second=state(1, [1], min_isr=1), third=lost) == [
        (
            "2 of 3 brokers are dead: 2, 3",
            [
                "1 partition without a leader (foo-2)",
                "1 partition with too few replicas in sync for acks=all (foo-0)",
                "1 partition with replicas that are not in sync (foo-1)",
            ],
            [BUNDLE, "spark-replication leader elect --kind longest_log_proactive foo-2"],
        )
    ]


def test_where_enough_brokers_live_commands_take_over_what_the_dead_had() -> None:
    plan = "spark-replication reassign plan --without 3 --save moved.json"
    ((_, _, commands),) = dead_among(1, 2, replicas=(1, 3), first=state(None, [], elr=[3]), second=state(1, [1]))
    assert commands == [
        BUNDLE,
        "spark-replication leader elect --kind longest_log_proactive foo-0",
        plan,
        "spark-replication reassign apply moved.json",
    ]
    ((_, _, commands),) = dead_among(1, 2, replicas=(3,), first=state(None, [], elr=[3]))
    assert commands[1:] == [
        plan,
        "spark-replication reassign apply moved.json",
        "spark-replication leader elect --kind unclean foo-0",
    ]
    ((_, _, commands),) = dead_among(1, 2, replicas=(1, 3), first=state(1, [1]))
    assert commands == [BUNDLE, plan, "spark-replication reassign apply moved.json"]


def test_a_topic_of_more_replicas_than_brokers_live_stays_and_the_others_move() -> None:
    topics = {"foo": topic((3,)), "bar": topic(WHOLE, name="bar")}
    states = {"foo-0": state(None, [], elr=[3]), "bar-0": state(None, [], elr=[3])}
    known = described(cluster_of(1, 2, topics=topics, states=states), None, None)
    (found,) = incidents(grouped(health.problems(known, frozenset(WHOLE))))
    assert found.mends[1].commands == (
        "spark-replication leader elect --kind longest_log_proactive bar-0",
        "spark-replication reassign plan --without 3 --topic foo --save moved.json",
        "spark-replication reassign apply moved.json",
        "spark-replication leader elect --kind unclean foo-0",
    )


def test_where_nothing_can_be_moved_and_nobody_elected_no_command_is_named() -> None:
    known = cluster_of(1, topics={"foo": topic((2, 3))}, states={"foo-0": state(None, [], elr=[3])})
    (found,) = incidents(grouped(health.problems(described(known, None, None), frozenset(WHOLE))))
    assert str(found.mends[1]) == (
        "if brokers 2, 3 are lost for good, start others in their place: those that live are too few to take replicas "
        "over"
    )


def test_of_many_leaderless_partitions_a_command_names_none() -> None:
    many = {f"number_{number}": state(None, [], elr=[3]) for number in range(health.ELECTED_NAMED + 1)}
    ((_, _, commands),) = dead_among(1, 2, replicas=(1, 3), **many)
    assert commands[1] == "spark-replication leader elect --kind longest_log_proactive"


def test_a_broker_without_replicas_that_is_dead_leaves_nothing_to_take_over() -> None:
    ((cause, follows, commands),) = dead_among(1, 2, replicas=(1, 2), first=state(1, [1, 2]))
    assert (cause, follows, commands) == ("1 of 3 brokers is dead: 3", [], [BUNDLE])


def test_without_a_controller_that_has_zookeeper_what_could_be_led_follows_from_that() -> None:
    known = cluster_of(1, 2, 3, topics={"foo": topic(WHOLE)}, states={"foo-0": state(None, [], elr=[2])})
    metadata = replace(described(known, None, None), zookeeper_silent_ms=9_000)
    (found,) = incidents(grouped(health.problems(metadata, frozenset(WHOLE))))
    assert found.what.startswith("the controller has had no connection to ZooKeeper for 9 s")
    assert [each.what for each in found.consequences] == ["without a leader"]


def test_what_a_full_disk_keeps_from_being_in_sync_follows_from_it() -> None:
    known = cluster_of(1, 2, 3, topics={"foo": topic(WHOLE)}, states={"foo-0": state(1, [1, 2])})
    known.apply_failed(3, [FOO])
    (found,) = incidents(grouped(health.problems(described(known, None, None), frozenset(WHOLE))))
    assert found.what == "foo-0 is refused by the disk of broker 3, which is full or failing"
    assert [str(each) for each in found.consequences] == ["1 partition with replicas that are not in sync (foo-0)"]


def test_that_fewer_are_in_sync_than_could_be() -> None:
    states = [state(1, [1, 2]), state(1, [1])]
    commands = tuple(
        command(each, replicas=(1, 2, 3), partition=TopicPartition("foo", number)) for number, each in enumerate(states)
    )
    topics = (TopicMetadata(name="foo", topic_id=FOO_ID, config=TopicConfig(), partitions=commands),)
    assert told(health.problems(Metadata(cluster_id="c", brokers={}, topics=topics), frozenset())) == [
        "foo-1 has 1 of 3 replicas in sync, and needs 2 for acks=all",
        "foo-0 has 2 of 3 replicas in sync",
    ]


def test_a_cluster_of_which_every_broker_lives_and_every_replica_is_in_sync_is_healthy() -> None:
    assert health.problems(described(cluster(), ["foo"], None), frozenset({1, 2}))  # foo-1 leads nobody
    well = cluster_of(1, 2, topics={})
    assert told(health.problems(described(well, None, None), frozenset({1, 2}))) == []


def test_a_topic_that_is_not_known_is_left_out_and_so_is_a_partition_that_is_not_made_yet() -> None:
    assert described(cluster(), ["foo", "baz"], "host:1") == Metadata(
        cluster_id="story",
        brokers={1: registration(1), 2: registration(2)},
        controller="host:1",
        topics=(
            TopicMetadata(
                name="foo",
                topic_id=FOO_ID,
                config=TopicConfig(),
                partitions=(
                    command(state(1, [1, 2]), 7, replicas=(1, 2)),
                    command(state(None, [], elr=[3]), 7, replicas=(3, 1), partition=TopicPartition("foo", 1)),
                ),
                waiting={1: Awaited(reason="fenced_elr")},
            ),
        ),
    )
    assert [topic.name for topic in described(cluster(), None, None).topics] == ["bar", "foo"]


def test_a_description_of_a_snapshot_stays_as_it_is_while_the_cluster_changes() -> None:
    known = cluster()
    before = described(known, None, None)
    seen = known.snapshot()
    known.apply_failed(1, [BAR])
    known.apply_partition(BAR, StoredPartition(state(None, [], elr=[1, 3]), 8, zxid=80))
    known.apply_removed_topic("foo")
    known.apply_reasons("topics", {"/brokers/topics/foo": "no JSON"})
    known.apply_recoveries({BAR: UncleanRecovery(leader_epoch=4, required=frozenset({3}))})
    assert described(known, None, None) != before
    assert described(seen, None, None) == before
    assert (seen.hosted_by([2]), seen.brokers_of(BAR)) == ([FOO], seen.brokers)


@pytest.mark.parametrize(
    "change",
    [
        lambda known: known.apply_failed(1, [BAR]),
        lambda known: known.apply_partition(BAR, StoredPartition(state(None, [], elr=[1, 3]), 8, zxid=80)),
        lambda known: known.apply_removed_topic("foo"),
        lambda known: known.apply_noted(1, BrokerNotes(clock_ahead_ms=600_000)),
        lambda known: known.apply_removed_partition(BAR),
        lambda known: known.apply_reasons("topics", {"/brokers/topics/foo": "no JSON"}),
        lambda known: known.apply_recoveries({BAR: UncleanRecovery(leader_epoch=4, required=frozenset({3}))}),
        lambda known: known.apply_topic_config("foo", TopicConfig(schema="wider"), Made(9, 90, 900)),
        lambda known: known.apply_settings(ClusterSettings(settings={"min.insync.replicas": 3})),
    ],
)
def test_what_has_changed_is_not_described_alike(change: Callable[[ClusterState], object]) -> None:
    known = cluster()
    before = known.snapshot()
    known.now_ms += 1
    described(before, None, None)
    assert is_described_alike(before, known.snapshot())
    change(known)
    assert not is_described_alike(before, known.snapshot())


def test_a_snapshot_shares_nothing_that_changes() -> None:
    """Whatever field the cluster gains."""
    known = cluster()
    known.apply_failed(1, [BAR])
    seen = vars(known.snapshot())
    for name, value in vars(known).items():
        assert not isinstance(value, (dict, set, list)) or seen[name] is not value, name
        for key, inner in value.items() if isinstance(value, dict) else ():
            assert not isinstance(inner, (set, list)) or seen[name][key] is not inner, name
    assert seen["_failed"][1] is not known._failed[1]


def lossy(*states: PartitionState) -> Metadata:
    commands = tuple(
        command(each, replicas=(1, 2), partition=TopicPartition("foo", number)) for number, each in enumerate(states)
    )
    topics = (TopicMetadata(name="foo", topic_id=FOO_ID, config=TopicConfig(), partitions=commands),)
    return Metadata(cluster_id="c", brokers={1: registration(1), 2: registration(2)}, topics=topics)


SINCE_MS = 1_795_878_001_234


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (
            loss(since_ms=SINCE_MS),
            "may have lost acknowledged records from an offset that nobody knows, nobody knows how many: a leader from "
            "outside ISR and ELR was elected at leader epoch 5, 2026-11-28 15:00:01 UTC",
        ),
        (
            loss(3, 5, since_ms=SINCE_MS, from_offset=40, records_max=9),
            "may have lost acknowledged records from offset 40 on, 9 at most: a leader from outside ISR and ELR was "
            "elected at leader epoch 3, 2026-11-28 15:00:01 UTC, and last at leader epoch 5",
        ),
        (
            loss(3, 5, since_ms=SINCE_MS),
            "may have lost acknowledged records from an offset that nobody knows, nobody knows how many: a leader from "
            "outside ISR and ELR was elected at leader epoch 3, 2026-11-28 15:00:01 UTC, and last at leader epoch 5",
        ),
    ],
)
def test_possible_loss_is_told_until_a_person_acknowledges_it(found: PossibleLoss, what: str) -> None:
    heard = from_json(to_json(lossy(state(1, [1, 2], loss=found), state(1, [1, 2]))), Metadata)
    (problem,) = health.problems(heard, frozenset({1, 2}))
    assert (problem.severity, problem.subject, problem.what) == ("warning", "foo-0", what)
    assert problem.mend_of(["foo-0"]) == (
        "once whoever relies on them knows: spark-replication leader acknowledge-loss foo-0"
    )
    assert health.problems(health.without_what_waits_for_people(heard), frozenset({1, 2})) == []
    assert health.problems(health.without_what_it_outlives(heard), frozenset({1, 2})) == []


@pytest.mark.parametrize(("partitions", "reasons"), [(LOSSES_TOLD_MAX, LOSSES_TOLD_MAX), (LOSSES_TOLD_MAX + 1, 1)])
def test_of_many_partitions_with_possible_loss_one_reason_tells(partitions: int, reasons: int) -> None:
    states = [state(1, [1, 2], loss=loss(from_offset=number)) for number in range(partitions)]
    found = grouped(health.problems(lossy(*states), frozenset({1, 2})))
    assert (len(found), sum(each.reason.count for each in found)) == (reasons, partitions)


def test_partitions_with_possible_loss_are_counted() -> None:
    states = {
        "foo-0": state(1, [1, 2], loss=loss()),
        "foo-1": state(None, [], elr=[1], loss=loss()),
        "foo-2": state(1, [1, 2]),
        "foo-9": state(None, [], elr=[1], loss=loss()),  # a tombstone
    }
    known = cluster_of(1, 2, topics={"foo": topic((1, 2), (1, 2), (1, 2))}, states=states)
    assert metrics(known).possible_loss_partitions == 2
