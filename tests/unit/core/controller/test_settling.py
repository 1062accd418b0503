"""What the state of brokers, settings and logs calls for, whatever happened before."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller import settling
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import Decision, Step, Stop
from spark_replication.core.controller.reassignment import CompleteMove
from spark_replication.core.controller.settling import (
    advance,
    complete_together,
    creating_write,
    recover,
    settle,
    stops_of,
    waiting,
)
from spark_replication.core.law.election import Waiting
from spark_replication.core.law.unclean_recovery import LogEnd, UncleanRecovery
from spark_replication.core.law.writes import PartitionWrite, StoredPartition, TopicWrite
from spark_replication.messages.commands import StopPartition
from spark_replication.model import BrokerId, PartitionState, TopicConfig, TopicPartition
from tests.unit.core.stories import FOO, cluster_of, loss, state, topic

NEW, MOVING = TopicPartition("foo", 1), TopicPartition("foo", 1)
NOW_MS, TIMEOUT_MS = 9_000, 5_000


def write(
    after: PartitionState, *, partition: TopicPartition = FOO, version: int = 7, relies_on: tuple[BrokerId, ...] = ()
) -> PartitionWrite:
    """By the first controller; relies on registrations at epoch 0."""
    written = replace(after, controller_epoch=1)
    return PartitionWrite(
        partition=partition, state=written, version=version, relies_on=dict.fromkeys(relies_on or sorted(after.isr), 0)
    )


def cluster(*live: BrokerId, foo: PartitionState | None = None, **others: Any) -> ClusterState:
    """foo-0 on 1, 2, 3."""
    states = {} if foo is None else {"foo-0": foo}
    return cluster_of(*live, topics={"foo": topic((1, 2, 3))}, states=states, now_ms=NOW_MS, **others)


# Settling


@pytest.mark.parametrize(
    ("known", "writes"),
    [
        (cluster(1, 2, 3, foo=state(1, [1, 2, 3])), []),
        (cluster(2, 3, foo=state(1, [1, 2, 3])), [write(state(2, [2, 3], leader_epoch=5, elected="isr"))]),
        (cluster(2, 4), [write(state(2, [2], leader_epoch=0), version=-1)]),  # not made yet
        (cluster(4), []),  # not made yet, and no replica lives
        # The setting is in leaderAndISR with the next decision.
        (
            cluster(1, 2, 3, foo=state(1, [1, 2], elr=[3], min_isr=3)),
            [write(state(1, [1, 2], min_isr=2))],
        ),
        # The topic's own policy.
        (
            cluster(
                3,
                foo=state(None, [], last_known_leader=1),
                unclean_recovery_enabled=False,
                configs={"foo": TopicConfig(settings={"unclean.leader.election.enable": True})},
            ),
            [write(state(3, [3], leader_epoch=5, recovering=True, loss=loss(since_ms=NOW_MS), elected="unclean"))],
        ),
    ],
)
def test_a_partition_is_brought_to_what_its_state_calls_for(known: ClusterState, writes: list[PartitionWrite]) -> None:
    assert settle(known, [FOO]) == writes


def test_tombstones_and_topics_on_their_way_out_are_left_alone() -> None:
    known = cluster_of(2, 3, topics={"foo": topic((1, 2, 3))}, states={"foo-0": state(1, [1]), "foo-1": state(1, [1])})
    assert [each.partition for each in settle(known, [FOO, NEW])] == [FOO]
    known.deleting.add("foo")
    assert settle(known, [FOO, NEW]) == []


def test_a_replica_on_a_failed_disk_counts_as_dead() -> None:
    known = cluster(1, 2, 3, foo=state(1, [1, 2, 3]))
    known.apply_failed(1, [FOO])
    assert settle(known, [FOO]) == [write(state(2, [2, 3], leader_epoch=5, elected="isr"))]


@pytest.mark.parametrize(
    ("live", "tombstone", "made"),
    [
        ((1, 3), None, write(state(1, [1, 3], leader_epoch=0), version=-1)),
        ((1, 3), StoredPartition(state(2, [2]), 9), write(state(1, [1, 3], leader_epoch=5, created=5), version=9)),
        ((4,), StoredPartition(state(2, [2]), 9), None),
    ],
)
def test_a_partition_is_made_or_made_again(
    live: tuple[BrokerId, ...], tombstone: StoredPartition | None, made: PartitionWrite | None
) -> None:
    assert creating_write(cluster(*live), FOO, (1, 2, 3), tombstone) == made


# Leaderless partitions

GONE = state(None, [], last_known_elr=[1, 2], last_known_leader=1)
FENCED = state(None, [], elr=[3])


def recovery(*required: BrokerId, **others: Any) -> UncleanRecovery:
    return UncleanRecovery(leader_epoch=4, required=frozenset(required), started_ms=NOW_MS, asked_ms=NOW_MS, **others)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (cluster(1, foo=state(1, [1])), None),
        (cluster(1), None),  # not made yet
        (cluster(3, foo=FENCED), None),  # about to be led
        (cluster(2, foo=FENCED), Waiting("fenced_elr")),
        (cluster(1, foo=GONE), Waiting("last_known_elr")),
        (cluster(1, 2, foo=GONE), Waiting("log_info", frozenset({1, 2}))),
    ],
)
def test_why_a_partition_waits(known: ClusterState, reason: Waiting | None) -> None:
    assert waiting(known, FOO) == reason


def test_one_that_is_recovered_by_hand_waits_for_logs() -> None:
    known = cluster(2, foo=FENCED)
    known.apply_recoveries({FOO: recovery(2, by_hand=True)})
    assert waiting(known, FOO) == Waiting("log_info", frozenset({2}))


@pytest.mark.parametrize(
    ("known", "before", "planned"),
    [
        # Not one to recover: led, not made yet, another's.
        (cluster(1, foo=state(1, [1])), None, Decision()),
        (cluster(1), None, Decision()),
        # Nothing is to be asked: what was under way is over.
        (cluster(1, foo=FENCED), recovery(), Decision(recoveries={FOO: None})),
        (cluster(3, foo=FENCED), recovery(), Decision(recoveries={FOO: None})),
        (cluster(1, foo=GONE), None, Decision(recoveries={FOO: None})),
        # It begins: the live replicas are asked.
        (
            cluster(1, 2, foo=GONE),
            None,
            Decision(recoveries={FOO: recovery(1, 2, asked={1: 0, 2: 0})}, asks={1: (FOO,), 2: (FOO,)}),
        ),
        # Nobody who was asked lives: the clock stands still until somebody is asked, and what was answered is void.
        (
            cluster(foo=FENCED),
            recovery(by_hand=True, asked={1: 0}, answers={1: LogEnd(3, 8)}),
            Decision(recoveries={FOO: replace(recovery(by_hand=True), started_ms=None)}),
        ),
        (
            cluster(2, foo=FENCED),
            replace(recovery(by_hand=True, asked={1: 0}), started_ms=0),
            Decision(recoveries={FOO: recovery(by_hand=True, asked={2: 0})}, asks={2: (FOO,)}),
        ),
        # It goes on: who came to live is asked, and what is required is what is known now.
        (
            cluster(1, 2, 3, foo=GONE),
            recovery(2, asked={1: 0, 2: 0}),
            Decision(recoveries={FOO: recovery(1, 2, asked={1: 0, 2: 0, 3: 0})}, asks={3: (FOO,)}),
        ),
        (
            cluster(1, 2, foo=GONE),
            recovery(1, 2, asked={1: 0, 2: 0}),
            Decision(recoveries={FOO: recovery(1, 2, asked={1: 0, 2: 0})}),
        ),
        # Of an earlier leader epoch: it begins again.
        (
            cluster(1, 2, foo=GONE),
            replace(recovery(1, asked={1: 0}), leader_epoch=3, by_hand=True),
            Decision(recoveries={FOO: recovery(1, 2, asked={1: 0, 2: 0})}, asks={1: (FOO,), 2: (FOO,)}),
        ),
        # By hand: whatever the state says.
        (
            cluster(1, foo=FENCED),
            recovery(by_hand=True),
            Decision(recoveries={FOO: recovery(by_hand=True, asked={1: 0})}, asks={1: (FOO,)}),
        ),
        # Enough have answered.
        (
            cluster(1, 2, foo=GONE),
            replace(
                recovery(asked={1: 0, 2: 0}, answers={1: LogEnd(3, 8), 2: LogEnd(3, 9)}),
                started_ms=NOW_MS - TIMEOUT_MS,
            ),
            Decision(
                steps=(
                    Step(
                        (
                            write(
                                state(
                                    2,
                                    [2],
                                    leader_epoch=5,
                                    recovering=True,
                                    loss=loss(since_ms=NOW_MS, from_offset=9),
                                    elected="unclean_recovery",
                                )
                            ),
                        )
                    ),
                )
            ),
        ),
    ],
)
def test_a_recovery_asks_and_then_elects(
    known: ClusterState, before: UncleanRecovery | None, planned: Decision
) -> None:
    known.apply_recoveries({FOO: before})
    assert recover(known, [FOO]) == planned


def test_a_topic_on_its_way_out_is_not_recovered() -> None:
    known = cluster(1, 2, foo=GONE)
    known.deleting.add("foo")
    assert recover(known, [FOO]) == Decision()


# Reassignments

TO_34 = topic((3, 4, 1), (3, 2), adding={0: (4,)}, removing={0: (1,)}, origin={0: (1, 3)})


def moving(*live: BrokerId, foo: PartitionState, **states: PartitionState) -> ClusterState:
    """foo-0 goes from 1, 3 to 3, 4."""
    return cluster_of(*live, topics={"foo": TO_34}, states={"foo-0": foo} | states)


def stop(broker: BrokerId, *, leader_epoch: int, partition_epoch: int | None = None, delete: bool = True) -> Stop:
    return Stop(
        broker,
        StopPartition(
            topic="foo",
            partition=0,
            topic_id="id-foo",
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            delete=delete,
        ),
    )


DONE = topic((3, 4), (3, 2))


@pytest.mark.parametrize(
    ("known", "steps"),
    [
        (moving(1, 3, 4, foo=state(1, [1, 3])), ()),
        (
            moving(1, 3, 4, foo=state(1, [1, 3, 4])),
            (Step((write(state(3, [1, 3, 4], leader_epoch=5, elected="isr")),)),),
        ),
        (
            moving(1, 3, 4, foo=state(3, [1, 3, 4])),
            (
                Step(
                    (
                        TopicWrite(topic="foo", state=DONE, version=1),
                        write(state(3, [3, 4], leader_epoch=5)),
                    ),
                    (stop(1, leader_epoch=5, partition_epoch=8),),
                    ("foo-0",),
                ),
            ),
        ),
        # One that is down finds out when it starts.
        (
            moving(3, 4, foo=state(3, [3, 4])),
            (
                Step(
                    (TopicWrite(topic="foo", state=DONE, version=1), write(state(3, [3, 4], leader_epoch=5))),
                    names=("foo-0",),
                ),
            ),
        ),
    ],
)
def test_a_reassignment_takes_its_next_step(known: ClusterState, steps: tuple[Step, ...]) -> None:
    assert advance(known, [FOO]) == steps


def test_what_is_not_moving_not_made_yet_or_on_its_way_out_takes_none() -> None:
    known = moving(1, 2, 3, 4, foo=state(3, [1, 3, 4]), **{"foo-1": state(3, [2, 3])})
    assert advance(known, [TopicPartition("foo", 1), TopicPartition("bar", 0)]) == ()
    known.deleting.add("foo")
    assert advance(known, [FOO]) == ()


def test_a_smaller_target_asks_for_fewer_in_sync_replicas() -> None:
    known = cluster_of(
        1, 2, topics={"foo": topic((1, 2), removing={0: (2,)})}, states={"foo-0": state(1, [1, 2], min_isr=2)}
    )
    (step,) = advance(known, [FOO])
    assert step.writes[1] == write(state(1, [1], leader_epoch=5, min_isr=1))


def test_those_of_a_topic_complete_together_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "COMPLETED_TOGETHER_MAX", 2)
    partitions = [TopicPartition("foo", number) for number in range(3)]
    known = cluster_of(
        1,
        2,
        topics={"foo": topic((1, 2), (1, 2), (1, 2), removing={0: (2,), 1: (2,), 2: (2,)})},
        states={str(each): state(1, [1, 2]) for each in partitions},
    )
    steps = complete_together(known, "foo", {each: CompleteMove((1,), 1) for each in reversed(partitions)})
    first, second = steps
    assert (first.names, second.names) == (("foo-0", "foo-1"), ("foo-2",))
    assert first.writes[0] == TopicWrite(topic="foo", state=topic((1,), (1,), (1, 2), removing={2: (2,)}), version=1)
    assert second.writes[0] == TopicWrite(topic="foo", state=topic((1,), (1,), (1,)), version=2)
    assert [stopped.partition.partition for step in (first, second) for stopped in step.stops] == [0, 1, 2]


def test_who_lives_is_stopped() -> None:
    known = cluster(1, 3)
    assert stops_of(known, FOO, (3, 2, 1), 4, delete=False) == [
        stop(1, leader_epoch=4, delete=False),
        stop(3, leader_epoch=4, delete=False),
    ]
