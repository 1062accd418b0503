"""T1 to T3, A1: which topics may be. What is wrong is said, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.topics import (
    NAME_LENGTH_MAX,
    PARTITIONS_MAX,
    added,
    assignment_for,
    check_name,
    check_removed,
    existing,
)
from spark_replication.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    ReplicationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.messages.requests import CreateTopic
from spark_replication.model import BrokerId, TopicState
from tests.unit.core.stories import cluster_of, topic


def cluster() -> ClusterState:
    """1 to 3 live, 4 has been registered; a topic is on 1."""
    old = TopicState(topic_id="id", partitions={0: (1,)})
    return cluster_of(1, 2, 3, topics={"old.one": old}, default_replication_factor=2)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "..x", "x" * NAME_LENGTH_MAX, "old-one"])
def test_a_name_is_allowed(name: str) -> None:
    check_name(name, ["old.one"])


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("", InvalidTopic, "no topic name"),
        (".", InvalidTopic, "no topic name"),
        ("..", InvalidTopic, "no topic name"),
        ("a/b", InvalidTopic, "no topic name"),
        ("a\n", InvalidTopic, "no topic name"),
        ("ä", InvalidTopic, "no topic name"),
        ("x" * (NAME_LENGTH_MAX + 1), InvalidTopic, "at most 249"),
        ("old.one", TopicAlreadyExists, "exists already"),
        ("old_one", InvalidTopic, "differs from old.one only by"),
    ],
)
def test_a_name_is_refused(name: str, error: type[ReplicationError], text: str) -> None:
    with pytest.raises(error, match=text):
        check_name(name, ["another", "old.one"])


@pytest.mark.parametrize(
    ("asked", "assignment"),
    [
        ({}, {0: (2, 3)}),  # one partition, the cluster's factor; 1 leads another already
        ({"partitions": 2, "replication_factor": 1}, {0: (2,), 1: (3,)}),
        ({"partitions": PARTITIONS_MAX, "replication_factor": 1}, None),
        ({"assignment": {1: (3, 1), 0: (1, 2)}}, {0: (1, 2), 1: (3, 1)}),
        ({"assignment": {0: (4, 1)}}, {0: (4, 1)}),  # one that is down is waited for
        ({"config": {"min.insync.replicas": 1}}, {0: (2, 3)}),
    ],
)
def test_a_topic_is_placed(asked: dict[str, Any], assignment: dict[int, tuple[BrokerId, ...]] | None) -> None:
    found = assignment_for(CreateTopic(name="foo", **asked), cluster())
    assert found == assignment or (assignment is None and len(found) == PARTITIONS_MAX)
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"name": "a b"}, InvalidTopic, "no topic name"),
        ({"config": {"min.insync.replica": 1}}, InvalidConfig, "did you mean min.insync.replicas"),
        ({"partitions": 0}, InvalidPartitions, "0 partitions"),
        ({"partitions": PARTITIONS_MAX + 1}, InvalidPartitions, "from 1 to 10000"),
        ({"replication_factor": 4}, InvalidReplicationFactor, "there are 3"),
        ({"assignment": {0: (1,)}, "partitions": 1}, InvalidReplicaAssignment, "not both"),
        ({"assignment": {0: (1,)}, "replication_factor": 1}, InvalidReplicaAssignment, "not both"),
        ({"assignment": {}}, InvalidPartitions, "numbered from 0"),
        ({"assignment": {1: (1,)}}, InvalidPartitions, "numbered from 0"),
        ({"assignment": {0: (1,), 2: (1,)}}, InvalidPartitions, "without a gap"),
        ({"assignment": dict.fromkeys(range(PARTITIONS_MAX + 1), (1,))}, InvalidPartitions, "up to 10000"),
        ({"assignment": {0: (1, 2), 1: (1,)}}, InvalidReplicaAssignment, "equally many replicas"),
        ({"assignment": {0: ()}}, InvalidReplicaAssignment, "at least one"),
        ({"assignment": {0: (1,), 1: ()}}, InvalidReplicaAssignment, "equally many replicas"),
        ({"assignment": {0: (1, 1)}}, InvalidReplicaAssignment, "names a broker twice"),
        ({"assignment": {0: (1, 9)}}, InvalidReplicaAssignment, r"unknown brokers \[9\]"),
        ({"assignment": {0: (4,)}}, InvalidReplicaAssignment, "no broker of partition 0 is alive"),
    ],
)
def test_a_topic_is_refused(asked: dict[str, Any], error: type[ReplicationError], text: str) -> None:
    with pytest.raises(error, match=text):
        assignment_for(CreateTopic(**{"name": "foo"} | asked), cluster())


def moving() -> ClusterState:
    """foo has two partitions of two replicas each, of which one is being given a third; 1 to 3 live, 4 and 5 did."""
    known = cluster_of(1, 2, 3, topics={"foo": topic((1, 2), (2, 3, 1), adding={1: (1,)})})
    known.topics["bar"] = known.topics["foo"]
    known.deleting.add("bar")
    return known


@pytest.mark.parametrize("name", ["bar", "baz"])
def test_a_topic_that_is_not_there_or_on_its_way_out_is_unknown(name: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"there is no topic '{name}'"):
        existing(name, moving())
    with pytest.raises(UnknownTopicOrPartition):
        added(name, 3, None, moving())
    with pytest.raises(UnknownTopicOrPartition):
        check_removed(name, [1], moving())
    assert existing("foo", moving()) == topic((1, 2), (2, 3, 1), adding={1: (1,)})


@pytest.mark.parametrize(
    ("count", "assignment", "replicas"),
    [
        (3, None, {2: (3, 1)}),
        (4, None, {2: (3, 1), 3: (3, 2)}),
        (None, {3: (3, 1), 2: (1, 4)}, {2: (1, 4), 3: (3, 1)}),  # one that is down is waited for
    ],
)
def test_partitions_are_added_at_the_end_with_as_many_replicas(
    count: int | None, assignment: dict[int, tuple[BrokerId, ...]] | None, replicas: dict[int, tuple[BrokerId, ...]]
) -> None:
    assert added("foo", count, assignment, moving()) == replicas


@pytest.mark.parametrize(
    ("count", "assignment", "error", "text"),
    [
        (None, None, InvalidPartitions, "foo has 2 partitions and is to have None"),
        (2, None, InvalidPartitions, "ask for more, up to 10000"),
        (PARTITIONS_MAX + 1, None, InvalidPartitions, "up to 10000"),
        (None, {}, InvalidPartitions, "numbered from 2 on"),
        (None, {3: (1, 2)}, InvalidPartitions, "without a gap"),
        (
            None,
            dict.fromkeys(range(2, PARTITIONS_MAX + 1), (1, 2)),
            InvalidPartitions,
            "10001 partitions: 10000 at most",
        ),
        (
            None,
            {2: (1, 2), 3: (1,)},
            InvalidReplicaAssignment,
            "foo-3 has 1 replicas, and the partitions of foo have 2",
        ),
        (None, {2: ()}, InvalidReplicaAssignment, "foo-2 is given no replicas"),
        (None, {2: (1, 1)}, InvalidReplicaAssignment, "foo-2 names a broker twice"),
        (None, {2: (1, 9)}, InvalidReplicaAssignment, "unknown brokers"),
        (None, {2: (4, 5)}, InvalidReplicaAssignment, "no broker of foo-2 is alive"),
    ],
)
def test_partitions_that_may_not_be_added(
    count: int | None,
    assignment: dict[int, tuple[BrokerId, ...]] | None,
    error: type[ReplicationError],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        added("foo", count, assignment, moving())


def test_partitions_are_removed_from_the_tail() -> None:
    check_removed("foo", (1,), moving())
    three = cluster_of(topics={"foo": topic((1,), (1,), (1,))})
    check_removed("foo", (2, 1), three)


@pytest.mark.parametrize(
    ("partitions", "error", "text"),
    [
        ((0,), InvalidPartitions, r"partitions \[0\] of foo are not its last ones"),
        ((), InvalidPartitions, r"partitions \[\] of foo are not its last ones"),
        ((0, 1), InvalidPartitions, "no partitions left: delete the topic"),
        ((1, 2), UnknownTopicOrPartition, r"foo has no partitions \[2\], it has 2"),
    ],
)
def test_others_are_not(partitions: tuple[int, ...], error: type[ReplicationError], text: str) -> None:
    with pytest.raises(error, match=text):
        check_removed("foo", partitions, moving())
