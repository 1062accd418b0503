"""A4: a plan has one goal, and knows what it speaks of."""

from __future__ import annotations

import pytest

from spark_replication.core.moves.moves import Move, Plan
from spark_replication.core.moves.planning import Goal, plan_for
from spark_replication.errors import InvalidRequest, ReplicationError, UnknownTopicOrPartition
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
    return Move(partition=f"{topic}-0", topic_id=f"id-{topic}", present=present, target=target, bytes=size)


@pytest.mark.parametrize(
    ("goal", "moves"),
    [
        (Goal(targets={"foo-0": (3, 2), "bar-0": (2, 1)}), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(without=(1,)), (moved("bar", (2, 1), (2, 3)), moved("foo", (1, 2), (3, 2), 5))),
        (Goal(without=(1,), topics=("foo",)), (moved("foo", (1, 2), (3, 2), 5),)),
        (Goal(over=(2, 3)), (moved("bar", (2, 1), (2, 3)), moved("foo", (1, 2), (3, 2), 5))),
        (Goal(over=(2, 3), topics=("bar",)), (moved("bar", (2, 1), (2, 3)),)),
        (Goal(over=(1, 2), topics=()), ()),
    ],
)
def test_each_goal_has_its_plan(goal: Goal, moves: tuple[Move, ...]) -> None:
    assert plan_for(goal, metadata(), {TopicPartition("foo", 0): 5}) == Plan(moves=moves)


@pytest.mark.parametrize(
    ("goal", "error", "why"),
    [
        (Goal(), InvalidRequest, "one goal"),
        (Goal(over=(1, 2), without=(1,)), InvalidRequest, "one goal"),
        (Goal(targets={}, over=(1, 2)), InvalidRequest, "one goal"),
        (Goal(targets={"foo-0": (1,)}, topics=("foo",)), InvalidRequest, "one goal"),
        (Goal(targets={"foo": (1,)}), InvalidRequest, "'foo' is not of the form"),
        (Goal(targets={"foo-1": (1,)}), UnknownTopicOrPartition, "no partition foo-1"),
        (Goal(over=(1, 2), topics=("foo", "baz")), UnknownTopicOrPartition, "no topic baz"),
    ],
)
def test_what_has_no_goal_or_another_than_there_is_has_no_plan(
    goal: Goal, error: type[ReplicationError], why: str
) -> None:
    with pytest.raises(error, match=why):
        plan_for(goal, metadata(), {})
