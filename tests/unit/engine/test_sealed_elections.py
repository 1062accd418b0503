"""A controller whose topics are tables: who leads from outside waits until the table is sealed (TB5)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.core.controller.events import TableAnswered
from spark_replication.core.controller.settling import SEAL_RETRY_MS, waiting
from spark_replication.core.law.election import Waiting
from spark_replication.core.tables.sealing import TableEnd
from spark_replication.messages.requests import AddPartitions, ElectLeaders, RemovePartitions
from spark_replication.model import ClusterSettings, TopicConfig, encode
from spark_replication.sim.world.stored import GARBAGE
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Create, SetData
from tests.unit.core.stories import FOO, FOO_ID, state
from tests.unit.engine.test_controller_loop import FOO_1, Story

UNCLEAN: dict[str, Any] = {"unclean.recovery.enabled": False, "unclean.leader.election.enable": True, "table": True}
ALONE = state(1, [1], min_isr=1)


def of_table() -> Story:
    """foo-0 and foo-1 are led by 1, which is alone in their ISR: any other leader comes from outside."""
    story = Story(foo_0=ALONE, foo_1=ALONE)
    story.store.multi([Create(paths.CLUSTER_CONFIG, encode(ClusterSettings(settings=UNCLEAN)))])
    story.takes_over(fast=True)
    return story


def sealed(*ends: int, epoch: int = 6, topic_id: str = FOO_ID) -> TableAnswered:
    told = {number: TableEnd(epoch=epoch, end=end) for number, end in enumerate(ends)}
    return TableAnswered(topic="foo", topic_id=topic_id, told=told)


def leaders(story: Story) -> list[int | None]:
    return [story.store.partitions[each].state.leader for each in (FOO, FOO_1)]


def test_those_who_wait_for_one_table_are_sealed_together_and_elected_by_its_answer() -> None:
    story = of_table()
    story.broker_down(1)
    assert (leaders(story), story.seals.take()) == ([None, None], [("foo", FOO_ID, {0: 6, 1: 6})])
    story.happens(sealed(12, 0))
    assert leaders(story) == [2, 2]
    assert [story.store.partitions[each].state.start_at for each in (FOO, FOO_1)] == [12, UNSET]
    assert (story.seals.take(), story.loop.cluster.seals) == ([], {})


def test_an_answer_about_another_topic_of_that_name_or_another_epoch_elects_nobody() -> None:
    story = of_table()
    story.broker_down(1)
    story.happens(sealed(12, 0, topic_id="another"))
    story.happens(sealed(12, 0, epoch=5))
    story.happens(replace(sealed(12, 0), topic="bar"))
    assert leaders(story) == [None, None]


def test_a_table_that_does_not_answer_is_asked_again_after_a_while() -> None:
    story = of_table()
    story.broker_down(1)
    story.seals.take()
    for now_ms, asked in ((SEAL_RETRY_MS - 1, []), (SEAL_RETRY_MS, [("foo", FOO_ID, {0: 6, 1: 6})])):
        story.loop.tick(now_ms)
        assert story.seals.take() == asked
    story.happens(TableAnswered(topic="foo", topic_id=FOO_ID, failed=(0, 1), why="it is away"))
    assert [waiting(story.loop.cluster, each) for each in (FOO, FOO_1)] == [Waiting("table"), Waiting("table")]
    assert {seal.why for seal in story.loop.cluster.seals.values()} == {"it is away"}


def test_why_it_did_not_answer_is_known_while_it_is_asked_again() -> None:
    story = of_table()
    story.broker_down(1)
    story.happens(TableAnswered(topic="foo", topic_id=FOO_ID, failed=(0,), why="it is away"))
    story.loop.tick(SEAL_RETRY_MS)
    assert [seal.why for seal in story.loop.cluster.seals.values()] == ["it is away", ""]


def test_a_request_below_admin_that_waits_for_a_table_stays_and_is_done_later() -> None:
    story = of_table()
    story.asks(RemovePartitions(partitions={"foo": (1,)}), None)
    path = "/admin/partitions_add/foo/1"
    story.asks(AddPartitions(assignments={"foo": {1: (2, 1)}}), None, path=path)
    assert story.seals.take() == [("foo", FOO_ID, {1: 5})]
    story.loop.tick(1)
    assert (len(story.store.topics["foo"].state.partitions), story.seals.take()) == (1, [])
    story.happens(replace(sealed(), told={1: TableEnd(epoch=5, end=7)}))
    story.loop.tick(2)
    assert len(story.store.topics["foo"].state.partitions) == 2
    assert (leaders(story)[1], story.store.partitions[FOO_1].state.start_at) == (2, 7)
    story.loop.tick(3)
    assert story.seals.take() == []


@pytest.mark.parametrize(("own", "waits"), [({}, True), ({"table": True}, True), ({"table": False}, False)])
def test_while_nobody_can_read_whether_a_topic_is_a_table_it_is_treated_as_one_and_none_is_made(
    own: dict[str, Any], waits: bool
) -> None:
    story = Story(foo_0=ALONE, foo_1=ALONE, fast=True)
    story.store.multi([SetData(paths.topic_config("foo"), encode(TopicConfig(settings=own)), EXISTS)])
    story.store.tree.multi([Create(paths.CLUSTER_CONFIG, GARBAGE)])
    story.takes_over(fast=True)
    story.broker_down(1)
    story.asks(ElectLeaders(kind="unclean", partitions=("foo-0",)))
    assert story.answers.parts == ({9: {"foo-0": "TABLE_NOT_SEALED"}} if waits else {})
    assert leaders(story)[0] == (None if waits else 2)
    assert bool(story.seals.take()) == (own == {"table": True}), "only what is known to be a table is sealed"
    assert story.loop.cluster.is_table("foo") == (own == {"table": True})
