"""Which partitions there are, as a coordinator knows them from what clients are told."""

from __future__ import annotations

import gc
from typing import Any, cast

from spark_replication.core.groups.idle import FOR_EVER_MS
from spark_replication.engine.broker.known_topics import KnownTopics
from spark_replication.engine.groups.coordinators import Coordinators, KnownPartitions
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.model import TopicPartition
from tests.unit.core.stories import FOO, command, registration, state

FOO1 = TopicPartition("foo", 1)
KNOWN = {FOO: command(state(1, [1, 2])), FOO1: command(state(2, [2]), partition=FOO1)}


class TopicsStory:
    def __init__(self) -> None:
        self.told = KnownTopics(KNOWN, {})
        self.known = KnownPartitions(
            lambda: self.told,
            lambda: {1: registration(1, host="one"), 2: registration(2, host="two")},
            clock_ms=lambda: 0,
            now_ms=lambda: 0,
        )


def test_partitions_are_told_with_the_hosts_of_replicas_in_sync() -> None:
    story = TopicsStory()
    assert story.known.hosts(["foo", "none"]) == {FOO: {"one", "two"}, FOO1: {"two"}}
    assert (story.known.numbers("foo"), story.known.numbers(GROUPS_TOPIC)) == ([0, 1], [])


def test_a_partition_that_cannot_be_read_is_there() -> None:
    """Nobody has to hand it over, and no group is looked for elsewhere."""
    story = TopicsStory()
    version = story.known.version
    story.told = KnownTopics({FOO: KNOWN[FOO]}, {}, [FOO1])
    assert story.known.hosts(["foo"]) == {FOO: {"one", "two"}, FOO1: set()}
    assert story.known.numbers("foo") == [0, 1]
    assert story.known.version is version


def test_other_partitions_make_another_version() -> None:
    story = TopicsStory()
    version = story.known.version
    story.told = KnownTopics(KNOWN, {})
    assert story.known.version is version
    story.told = KnownTopics({FOO: KNOWN[FOO]}, {})
    assert story.known.version is not version
    assert story.known.hosts(["foo"]) == {FOO: {"one", "two"}}


def test_replicas_may_come_on_another_thread_while_coordinators_look_for_theirs() -> None:
    """The collector may run at each allocation, and whatever it calls lets other threads run."""
    replicas: dict[TopicPartition, Any] = {TopicPartition("foo", number): object() for number in range(100)}

    def comes(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            replicas[TopicPartition("bar", len(replicas))] = object()

    story = TopicsStory()
    coordinators = Coordinators(
        lambda: replicas,
        story.known,
        cast(Any, None),
        cast(Any, None),
        soon_at=cast(Any, None),
        retention_ms=FOR_EVER_MS,
    )
    threshold = gc.get_threshold()
    gc.callbacks.append(comes)
    gc.set_threshold(1)
    try:
        coordinators.tick()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(comes)
    assert len(replicas) > 100
    assert not coordinators.all
