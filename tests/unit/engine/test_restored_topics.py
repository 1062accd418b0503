"""A controller that makes a topic of a table which another cluster has left (TB7)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from spark_replication.core.controller.events import TableAnswered
from spark_replication.core.controller.settling import waiting
from spark_replication.core.law.election import Waiting
from spark_replication.core.tables.sealing import TableEnd
from spark_replication.messages.requests import AddPartitions, Configure, CreateTopic, RestoredTable
from spark_replication.model import TableOrigin, TopicPartition
from tests.unit.core.stories import FOO_ID
from tests.unit.engine.test_controller_loop import BAZ, Story

ORIGIN = TableOrigin(cluster_id="theirs", topic_id="t1")
BAZ_1 = TopicPartition("baz", 1)


def creation(
    origin: TableOrigin = ORIGIN, *, name: str = "baz", earlier: tuple[int, ...] = (1,), **config: Any
) -> CreateTopic:
    return CreateTopic(
        name=name,
        schema="abc",
        partitions=2,
        replication_factor=2,
        config={"table": True, **config},
        restores=RestoredTable(origin=origin, earlier_columns=earlier),
    )


def begun() -> Story:
    story = Story(fast=True)
    story.asks(creation())
    return story


def told(story: Story, **ends: tuple[int, int]) -> None:
    """The table says this of partitions: its epoch, and its end."""
    found = {int(number[1:]): TableEnd(epoch=epoch, end=end) for number, (epoch, end) in ends.items()}
    topic_id = story.store.topics["baz"].state.topic_id
    story.happens(TableAnswered(topic="baz", topic_id=topic_id, told=found))


def asked(story: Story) -> list[dict[int, int]]:
    return [dict(epochs) for topic, _, epochs in story.seals.take() if topic == "baz"]


def test_no_partition_is_made_before_the_table_is_taken_over_and_sealed_above_all_that_it_names() -> None:
    story = begun()
    assert story.store.topics["baz"].state.restores == ORIGIN
    assert story.store.topics["baz"].config.earlier_columns == (1,)
    assert (asked(story), story.seals.restored) == ([{0: 0, 1: 0}], {"baz": ORIGIN})
    assert not {BAZ, BAZ_1} & story.store.partitions.keys()
    assert waiting(story.loop.cluster, BAZ) == Waiting("table")
    told(story, p0=(7, 12), p1=(0, 0))
    assert asked(story) == [{0: 8}]
    assert (BAZ in story.store.partitions, BAZ_1 in story.store.partitions) == (False, True)
    told(story, p0=(8, 12))
    made = story.store.partitions[BAZ].state
    assert (sorted(made.isr), made.leader_epoch, made.created, made.start_at) == ([1, 2], 8, 8, 12)
    fresh = story.store.partitions[BAZ_1].state
    assert (fresh.leader_epoch, fresh.start_at) == (0, UNSET)
    assert (asked(story), waiting(story.loop.cluster, BAZ)) == ([], None)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_controller_that_takes_over_in_between_goes_on(answers: int) -> None:
    story = begun()
    if answers:
        told(story, p0=(7, 12), p1=(7, 3))
    story.takes_over(fast=True)
    story.broker_down(2)
    assert (asked(story), story.seals.restored) == ([{0: 0, 1: 0}], {"baz": ORIGIN})
    told(story, p0=(8, 12), p1=(7, 3))
    assert asked(story) == [{0: 9, 1: 8}]
    told(story, p0=(9, 12), p1=(8, 3))
    assert [story.store.partitions[each].state.start_at for each in (BAZ, BAZ_1)] == [12, 3]


def test_a_table_that_cannot_be_taken_over_is_asked_again_and_says_why() -> None:
    story = begun()
    story.seals.take()
    topic_id = story.store.topics["baz"].state.topic_id
    story.happens(TableAnswered(topic="baz", topic_id=topic_id, failed=(0, 1), why="it is away"))
    assert {each.why for each in story.loop.cluster.seals.values()} == {"it is away"}
    story.loop.tick(60_000)
    assert asked(story) == [{0: 0, 1: 0}]


def test_the_same_request_again_makes_nothing_anew() -> None:
    story = begun()
    state = story.store.topics["baz"].state
    story.asks(creation())
    story.asks(creation(TableOrigin(cluster_id=story.loop.cluster.cluster_id, topic_id=state.topic_id)))
    assert (story.store.topics["baz"].state, [reply.error for reply in story.replies]) == (state, [None] * 3)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (creation(name="foo"), "topic foo exists, and goes on with no table of topic t1 of cluster theirs"),
        (creation(table=False), "give it a schema, and table=true"),
        (creation(earlier=(2, 1)), "versions of a schema only gain columns"),
        (creation(earlier=(3,)), "versions of a schema only gain columns"),
    ],
)
def test_what_cannot_go_on_with_a_table_is_refused(request_: CreateTopic, says: str) -> None:
    story = Story(fast=True)
    story.asks(request_)
    (reply,) = story.replies
    assert says in str(reply.error)
    assert "baz" not in story.store.topics
    assert asked(story) == []


def test_another_table_is_refused_by_the_topic_that_goes_on_with_one() -> None:
    story = begun()
    story.asks(creation(TableOrigin(cluster_id="theirs", topic_id="t2")))
    assert "topics delete baz, and restore again" in str(story.replies[-1].error)


def test_a_topic_that_is_being_deleted_goes_on_with_no_table() -> None:
    story = begun()
    story.loop.cluster.deleting.add("baz")
    story.asks(creation())
    assert "topic baz exists" in str(story.replies[-1].error)


def test_the_table_of_a_topic_that_exists_is_given_to_no_other() -> None:
    story = Story(fast=True)
    story.asks(creation(TableOrigin(cluster_id=story.loop.cluster.cluster_id, topic_id=FOO_ID)))
    assert "the table is that of topic foo, which exists" in str(story.replies[-1].error)


def test_a_partition_that_is_added_later_waits_for_the_table_too() -> None:
    story = begun()
    told(story, p0=(0, 12), p1=(0, 3))
    assert {BAZ, BAZ_1} <= story.store.partitions.keys()
    story.seals.take()
    story.asks(AddPartitions(counts={"baz": 3}))
    assert asked(story) == [{2: 0}]
    told(story, p2=(0, 40))
    assert story.store.partitions[TopicPartition("baz", 2)].state.start_at == 40


def test_a_topic_that_a_person_says_is_no_table_waits_for_none() -> None:
    story = begun()
    story.asks(Configure(topic="baz", settings={"table": False}))
    story.broker_down(2)
    assert {BAZ, BAZ_1} <= story.store.partitions.keys()
