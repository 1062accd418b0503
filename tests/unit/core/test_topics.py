"""T1, T2, A1: which topics may be. What is wrong is said, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.cluster import ClusterState, StoredTopic
from spark_replication.core.topics import NAME_LENGTH_MAX, PARTITIONS_MAX, assignment_for, check_name
from spark_replication.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    ReplicationError,
    TopicAlreadyExists,
)
from spark_replication.messages import CreateTopic
from spark_replication.model import BrokerId, TopicConfig, TopicState
from tests.unit.core.stories import store_of


def cluster() -> ClusterState:
    """1 to 3 live, 4 has been registered; a topic is on 1."""
    store = store_of(1, 2, 3, 4, default_replication_factor=2)
    del store.registered[4]
    store.topics["old.one"] = StoredTopic(TopicState(topic_id="id", partitions={0: (1,)}), 0, TopicConfig())
    return ClusterState(store.load())


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
        ({"assignment": {0: ()}}, InvalidReplicationFactor, "at least one replica"),
        ({"assignment": {0: (1, 1)}}, InvalidReplicaAssignment, "names a broker twice"),
        ({"assignment": {0: (1, 9)}}, InvalidReplicaAssignment, r"unknown brokers \[9\]"),
        ({"assignment": {0: (4,)}}, InvalidReplicaAssignment, "no broker of partition 0 is alive"),
    ],
)
def test_a_topic_is_refused(asked: dict[str, Any], error: type[ReplicationError], text: str) -> None:
    with pytest.raises(error, match=text):
        assignment_for(CreateTopic(**{"name": "foo"} | asked), cluster())
