"""A4: a plan has one goal, and knows what it speaks of."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from spark_replication.core.moves.moves import Move, Plan
from spark_replication.core.moves.planning import Goal, plan_for
from spark_replication.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import TopicConfig, TopicPartition
from tests.unit.core.stories import command, registration, state


def metadata() -> Metadata:
    """foo-0 on 1, 2 and bar-0 on 2, 1; broker 3 has nothing."""
    return Metadata(
        cluster_id="cluster",
        brokers={broker: registration(broker) for broker in (1, 2, 3)},
        topics=tuple(
            TopicMetadata(
                name=name,
                topic_id=f"id-{name}",
                config=TopicConfig(),
                partitions=(
                    command(
                        state(1, [1, 2]),
                        replicas=replicas,
                        partition=TopicPartition(name, 0),
                        topic_id=f"id-{name}",
                    ),
                ),
            )
            for name, replicas in (("foo", (1, 2)), ("bar", (2, 1)))
        ),
    )


def moved(topic: str, present: tuple[int, ...], target: tuple[int, ...], size: int | None = None) -> Move:
    return Move(partition=f"{topic}-0", topic_id=f"id-{topic}", present=present, target=target, bytes=size, leader=1)


@pytest.mark.parametrize(
    ("goal", "moves"),
    [
        (Goal(targets={"foo-0": (3, 2), "bar-0": (2, 1)}), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(without=(1,)), (moved("bar", (2, 1), (2, 3)), moved("foo", (1, 2), (3, 2), 5))),
        (Goal(without=(1,), topics=("foo",)), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(over=(2, 3)), (moved("bar", (2, 1), (2, 3)), moved("foo", (1, 2), (3, 2), 5))),
        (Goal(over=(2, 3), topics=("bar",)), (moved("bar", (2, 1), (2, 3)),)),
        (Goal(over=(1, 2), topics=()), ()),
        (Goal(add=(3,)), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(add=(3,), topics=("bar",)), ()),
        (Goal(replace={1: 3}), (moved("bar", (2, 1), (2, 3)), moved("foo", (1, 2), (3, 2), 5))),
        (Goal(replace={1: 3}, topics=("foo",)), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(replace={9: 3}), ()),
        (Goal(replication_factor=3), (moved("bar", (2, 1), (2, 1, 3)), moved("foo", (1, 2), (1, 2, 3), 5))),
        (Goal(replication_factor=2), ()),
        (Goal(replication_factor=1, topics=("foo",)), (moved("foo", (1, 2), (1,), 5),)),
        (Goal(balance_leaders=True), ()),
    ],
)
def test_each_goal_has_its_plan(goal: Goal, moves: tuple[Move, ...]) -> None:
    assert plan_for(goal, metadata(), {TopicPartition("foo", 0): 5}) == Plan(moves=moves)


@pytest.mark.parametrize(
    ("goal", "error", "why"),
    [
        (Goal(), InvalidRequest, "one goal"),
        (Goal(over=(1, 2), without=(1,)), InvalidRequest, "over, without is given"),
        (Goal(replace={1: 2}), InvalidReplicaAssignment, "one replica of it at most"),
        (Goal(replace={1: 9}), InvalidReplicaAssignment, "broker 9 is not live"),
        (Goal(replace={1: 1}), InvalidRequest, "its own place"),
        (Goal(replication_factor=4), InvalidReplicationFactor, "there are 3"),
        (Goal(replication_factor=0), InvalidReplicationFactor, "0 replicas"),
        (Goal(targets={}, over=(1, 2)), InvalidRequest, "one goal"),
        (Goal(targets={"foo-0": (1,)}, topics=("foo",)), InvalidRequest, "one goal"),
        (Goal(targets={"foo": (1,)}), InvalidRequest, "'foo' is not of the form"),
        (Goal(targets={"foo-1": (1,)}), UnknownTopicOrPartition, "no partition foo-1"),
        (
            Goal(targets={"bar-0": (1, 9)}),
            InvalidReplicaAssignment,
            r"bar-0: broker 9 is not live.*\[1, 2, 3\] are live",
        ),
        (Goal(over=(1, 2), topics=("foo", "baz")), UnknownTopicOrPartition, "no topic baz"),
    ],
)
def test_what_has_no_goal_or_another_than_there_is_has_no_plan(
    goal: Goal, error: type[ReplicationError], why: str
) -> None:
    with pytest.raises(error, match=why):
        plan_for(goal, metadata(), {})


def test_a_replica_may_stay_on_a_broker_that_is_away() -> None:
    known = foo((1, 9))
    assert targets(Goal(targets={"foo-0": (9, 1)}), known) == {"foo-0": (9, 1)}
    with pytest.raises(InvalidReplicaAssignment, match="broker 8 is not live"):
        plan_for(Goal(targets={"foo-0": (9, 8)}), known, {})


def foo(*replicas: tuple[int, ...], isr: tuple[int, ...] = ()) -> Metadata:
    """foo on these replicas, by partition, on brokers 1 to 3; isr: of each, where it is not all of them."""
    partitions = tuple(
        command(
            state(each[0], [broker for broker in each if broker in (isr or each)]),
            replicas=each,
            partition=TopicPartition("foo", number),
            topic_id="id-foo",
        )
        for number, each in enumerate(replicas)
    )
    topic = TopicMetadata(name="foo", topic_id="id-foo", config=TopicConfig(), partitions=partitions)
    return replace(metadata(), topics=(topic,))


def targets(goal: Goal, known: Metadata) -> dict[str, tuple[int, ...]]:
    return {move.partition: move.target for move in plan_for(goal, known, {}).moves}


def test_who_is_not_in_sync_goes_before_the_last_of_the_order() -> None:
    assert targets(Goal(replication_factor=2), foo((1, 2, 3), isr=(1, 3))) == {"foo-0": (1, 3)}
    assert targets(Goal(replication_factor=2), foo((1, 2, 3))) == {"foo-0": (1, 2)}


def test_leaders_are_balanced_by_the_order_of_replicas_alone() -> None:
    found = targets(Goal(balance_leaders=True), foo((1, 2), (1, 3), (1, 2), (1, 2)))
    assert [sorted(target) for target in found.values()] == [[1, 2] if n != "foo-1" else [1, 3] for n in found]
    preferred = Counter([*(target[0] for target in found.values()), *[1] * (4 - len(found))])
    assert max(preferred.values()) - min(preferred[broker] for broker in (1, 2)) <= 1


def test_no_broker_takes_over_that_leaves_itself() -> None:
    known = foo((1, 2))
    leaving = replace(known, brokers={**known.brokers, 3: replace(known.brokers[3], shutting_down=True)})
    with pytest.raises(InvalidReplicaAssignment, match="broker 3 is not live, or is shutting down"):
        plan_for(Goal(replace={1: 3}), leaving, {})
    with pytest.raises(InvalidReplicationFactor, match="there are 2"):
        plan_for(Goal(replication_factor=3), leaving, {})


@pytest.mark.parametrize(
    ("moves", "seconds"),
    [
        ((), 0.0),
        ((moved("foo", (1, 2), (2, 1)),), 0.0),
        ((moved("foo", (1, 2), (1, 3), 500), moved("bar", (1, 2), (3, 4), 250)), 10.0),
        ((moved("foo", (1, 2), (1, 3), 500), replace(moved("bar", (2, 1), (2, 3), 700), leader=2)), 7.0),
        ((moved("foo", (1, 2), (1, 3)),), None),
        ((replace(moved("foo", (1, 2), (1, 3), 500), leader=None),), None),
        ((replace(moved("foo", (1, 2), (2, 1), 500), leader=None),), 0.0),
    ],
)
def test_it_takes_as_long_as_the_broker_that_sends_most(moves: tuple[Move, ...], seconds: float | None) -> None:
    assert Plan(moves=moves).estimate_s(100) == seconds
