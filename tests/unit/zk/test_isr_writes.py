"""A leader's write: under which conditions it is stored, what it is refused by, and what its answers mean (I1, I3)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.law.writes import (
    IsrAnswer,
    IsrCommitted,
    IsrRefused,
    IsrUnanswered,
    IsrWrite,
    StoredPartition,
)
from spark_replication.model import PartitionState, TopicPartition, TopicState, encode
from spark_replication.zk import paths
from spark_replication.zk.broker.isr_writes import IsrWrites
from spark_replication.zk.operations import EXISTS, Create, Delete, Operation, SetData
from spark_replication.zk.session import ConnectionLost
from tests.unit.zk.held_zookeeper import ZooKeeper

ORDERS = TopicPartition("orders", 0)
PATH = paths.leader_and_isr(ORDERS)
TOPIC = TopicState(topic_id="id", partitions={0: (1, 2, 3)})
LOST = ConnectionLost("the connection went")


def state(*isr: int) -> PartitionState:
    return PartitionState(leader=1, leader_epoch=2, isr=frozenset(isr), min_isr=1, epochs=dict.fromkeys(isr, 0))


WRITE = IsrWrite(
    partition=ORDERS,
    topic_id="id",
    broker=1,
    broker_epoch=1,
    state=state(1, 2, 3),
    version=0,
    joining={3: 0},
)


class Story:
    def __init__(self) -> None:
        self.zookeeper = ZooKeeper()
        self.commands = True
        self.writes = IsrWrites(self.zookeeper, lambda: self.commands)
        self.zookeeper.write(
            Create(paths.topic("orders"), encode(TOPIC)),
            Create(paths.topic_id("id")),
            Create(paths.partition(ORDERS)),
            Create(PATH, encode(state(1, 2))),
            Create(paths.CONTROLLER),
        )
        for broker in (1, 2, 3):
            self.zookeeper.write(Create(paths.broker_epoch(broker)), Create(paths.broker_id(broker)))
        self.zookeeper.write(SetData(paths.broker_epoch(1), b"", 0))

    def change(self, write: IsrWrite = WRITE) -> list[IsrAnswer]:
        answers: list[IsrAnswer] = []
        self.writes.change(write, answers.append)
        return answers

    def changed(self, write: IsrWrite = WRITE) -> IsrAnswer:
        answers = self.change(write)
        self.zookeeper.answer_all()
        (answer,) = answers
        return answer

    @property
    def stored(self) -> bytes:
        node = self.zookeeper.tree.read(PATH)
        assert node is not None
        return node.data

    @property
    def notified(self) -> int:
        return len(self.zookeeper.tree.children_now(paths.ISR_CHANGES))


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.mark.parametrize("commands", [True, False])
def test_a_change_whose_conditions_hold_is_stored_and_the_controller_hears_of_it(story: Story, commands: bool) -> None:
    story.commands = commands
    assert story.changed() == IsrCommitted(1)
    assert (story.stored, story.notified) == (encode(WRITE.state), 1)


def test_where_nobody_commands_nobody_is_told(story: Story) -> None:
    story.commands = False
    story.zookeeper.write(Delete(paths.CONTROLLER, EXISTS))
    assert story.changed() == IsrCommitted(1)
    assert story.notified == 0


@pytest.mark.parametrize(
    ("changed", "meanwhile"),
    [
        ({"version": 1}, []),
        ({"broker_epoch": 0}, []),
        ({"broker": 9}, []),
        ({"joining": {3: 1}}, []),
        ({"joining": {9: 0}}, []),
        ({}, [SetData(PATH, encode(state(1)), 0)]),
        ({}, [SetData(paths.broker_epoch(1), b"", EXISTS)]),
        ({}, [SetData(paths.broker_epoch(3), b"", EXISTS)]),
        ({}, [Delete(paths.broker_id(3), EXISTS)]),
        ({}, [SetData(paths.broker_id(3), b"shutting down", 0)]),
    ],
)
def test_a_change_is_refused_with_what_is_there(
    story: Story, changed: dict[str, Any], meanwhile: list[Operation]
) -> None:
    if meanwhile:
        story.zookeeper.write(*meanwhile)
    before = story.stored
    answer = story.changed(replace(WRITE, **changed))
    assert isinstance(answer, IsrRefused)
    assert isinstance(answer.current, StoredPartition)
    assert (encode(answer.current.state), story.stored, story.notified) == (before, before, 0)


def test_a_topic_that_was_made_again_says_nothing_of_this_one(story: Story) -> None:
    story.zookeeper.write(Delete(paths.topic_id("id"), EXISTS), Create(paths.topic_id("other")))
    assert story.changed() == IsrRefused(None)


def test_a_partition_that_is_gone_is_refused_without_a_state(story: Story) -> None:
    story.zookeeper.write(Delete(PATH, EXISTS))
    assert story.changed() == IsrRefused(None)


def test_what_cannot_be_read_is_no_answer(story: Story) -> None:
    story.zookeeper.write(SetData(PATH, b"garbage", EXISTS))
    assert story.changed() == IsrUnanswered()


def test_a_state_that_was_removed_and_made_again_is_not_for_the_leader_of_the_one_before(story: Story) -> None:
    """Both are at version 0 (seed 874: the leader epoch fell)."""
    again = PartitionState(leader=None, leader_epoch=4096, isr=frozenset(), min_isr=1, epochs={})
    story.zookeeper.write(Delete(PATH, EXISTS))
    story.zookeeper.write(Create(PATH, encode(again)))
    answer = story.changed()
    assert isinstance(answer, IsrRefused)
    assert answer.current is not None
    assert answer.current.state == again
    assert story.stored == encode(again)


def test_where_no_state_was_found_none_that_is_made_meanwhile_is_changed(story: Story) -> None:
    """It begins at the version that the leader names."""
    again = PartitionState(leader=None, leader_epoch=4096, isr=frozenset(), min_isr=1, epochs={})
    story.zookeeper.write(Delete(PATH, EXISTS))
    answers = story.change()
    story.zookeeper.answer()
    story.zookeeper.write(Create(PATH, encode(again)))
    story.zookeeper.answer_all()
    (answer,) = answers
    assert isinstance(answer, IsrRefused)
    assert answer.current is not None
    assert (answer.current.state, story.stored) == (again, encode(again))


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_an_answer_that_is_lost_is_none(story: Story, answered: int) -> None:
    answers = story.change(replace(WRITE, version=0 if answered < 2 else 1))
    for _ in range(answered):
        story.zookeeper.answer()
    story.zookeeper.fail(LOST)
    assert answers == [IsrUnanswered()]
    assert not story.zookeeper.sent


def test_without_the_folder_of_notifications_the_change_is_stored_all_the_same(story: Story) -> None:
    story.zookeeper.write(Delete(paths.ISR_CHANGES, EXISTS))
    assert story.changed() == IsrCommitted(1)
    assert story.stored == encode(WRITE.state)
