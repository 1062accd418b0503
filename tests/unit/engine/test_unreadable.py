"""Z1 in the controller: nobody decides about what cannot be read, and all else is decided as ever."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.controller.describing import described
from spark_replication.core.controller.events import (
    BrokersRead,
    NodesUnreadable,
    PartitionsRead,
    ReplicasFailed,
    TookOver,
)
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.messages.commands import LeaderAndIsr, UpdateMetadata
from spark_replication.messages.requests import (
    AddPartitions,
    CancelReassignment,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import ReplicaOf, TopicPartition
from spark_replication.sim.world.stored import GARBAGE
from spark_replication.view.health import problems
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Create, Operation, SetData
from tests.unit.core.stories import FOO, FOO_ID, state, topic
from tests.unit.engine.test_controller_loop import FOO_1, Story

HIDDEN = Unreadable(reasons={"/x": "garbage"}, partitions=frozenset({FOO_1}))


def told(story: Story) -> set[TopicPartition]:
    """Who is led as somebody was told."""
    return {
        each.topic_partition
        for _, command in story.sent.commands
        if isinstance(command, LeaderAndIsr)
        for each in command.partitions
    }


def taken_over(*spoils: Operation) -> Story:
    """A controller that loads foo-0 and foo-1, the second of which nobody can read, unless it is something else."""
    story = Story(fast=True)
    story.store.tree.multi(spoils or [SetData(paths.leader_and_isr(FOO_1), GARBAGE, EXISTS)])
    story.takes_over(fast=True)
    story.happens(TookOver())
    return story


def test_what_cannot_be_loaded_is_not_created_elected_or_told() -> None:
    story = taken_over()
    before = story.store.partitions[FOO_1]
    assert told(story) == {FOO}
    updates = [command for _, command in story.sent.commands if isinstance(command, UpdateMetadata)]
    assert {command.unreadable_partitions for command in updates} == {(FOO_1,)}
    story.broker_down(1)
    assert story.store.partitions[FOO].state.leader == 2
    assert story.store.partitions[FOO_1] == before
    assert story.loop.cluster.leaderless == set()
    story.loop.tick(1_000_000)
    assert story.store.partitions[FOO_1] == before


def test_a_disk_that_fails_below_it_moves_the_other_partitions_only() -> None:
    story = taken_over()
    asked_at = len(story.sent.commands)
    story.happens(ReplicasFailed(1, 0, tuple(ReplicaOf(partition, FOO_ID) for partition in (FOO, FOO_1))))
    assert story.store.partitions[FOO].state.leader == 2
    story.happens(ReplicasFailed(1, 0, (ReplicaOf(FOO_1, FOO_ID),)))
    updates = [command for _, command in story.sent.commands[asked_at:] if isinstance(command, UpdateMetadata)]
    assert {each.topic_partition for command in updates for each in command.partitions} == {FOO}


@pytest.mark.parametrize(
    "asked",
    [
        DeleteTopic(topic="foo"),
        RemovePartitions(partitions={"foo": (1,)}),
        Reassign(targets={"foo-1": (2, 1)}),
        CancelReassignment(partitions=("foo-1",)),
        ElectLeaders(kind="preferred", partitions=("foo-1",)),
        ElectLeaders(kind="unclean", partitions=("foo-1",)),
    ],
)
def test_a_request_about_it_is_refused_and_changes_nothing(asked: Request) -> None:
    story = taken_over()
    before = dict(story.store.partitions), dict(story.store.topics)
    story.asks(asked)
    (reply,) = story.replies
    (error,) = [each for each in (reply.error, *reply.errors.values()) if each is not None]
    assert error.code == "CORRUPT_STATE"
    assert (dict(story.store.partitions), dict(story.store.topics)) == before


@pytest.mark.parametrize("asked", [DeleteTopic(topic="foo"), Reassign(targets={"foo-1": (2, 1)})])
def test_a_request_below_admin_about_it_waits_there(asked: Request) -> None:
    story = taken_over()
    asked_at = len(story.held.asked)
    story.asks(asked, path="/admin/x")
    (reply,) = story.replies
    assert reply.error is not None
    assert story.store.deleting == set()
    assert len(story.held.asked) == asked_at


def test_all_else_of_its_topic_goes_on() -> None:
    story = taken_over()
    story.asks(Configure(topic="foo", settings={"min.insync.replicas": 1}))
    assert story.store.partitions[FOO].state.min_isr == 1
    story.asks(ElectLeaders(kind="preferred"))
    story.asks(AddPartitions(counts={"foo": 3}))
    assert story.store.partitions[TopicPartition("foo", 2)].state.leader in (1, 2)
    assert [reply.error for reply in story.replies] == [None] * 3
    assert story.store.partitions[FOO_1].state.min_isr == state(1, [1, 2]).min_isr


def test_a_topic_that_cannot_be_read_is_not_made_again() -> None:
    story = taken_over(SetData(paths.topic("foo"), GARBAGE, EXISTS))
    assert story.loop.cluster.topics == {}
    for name in ("foo", "f.oo"):
        story.asks(CreateTopic(name=name, assignment={0: (1, 2)}))
    first, second = story.replies
    assert first.error is not None
    assert first.error.code == "CORRUPT_STATE"
    assert second.error is None
    story.asks(DeleteTopic(topic="foo"))
    assert story.replies[-1].error is not None
    assert story.replies[-1].error.code == "CORRUPT_STATE"


def test_settings_that_cannot_be_read_lower_no_min_isr_and_lose_no_record() -> None:
    story = taken_over(Create(paths.CLUSTER_CONFIG, GARBAGE))
    before = dict(story.store.partitions)
    story.loop.tick(1_000)
    assert dict(story.store.partitions) == before
    assert story.loop.cluster.settings.unclean_recovery_strategy == "manual"
    assert {c.settings for _, c in story.sent.commands if isinstance(c, UpdateMetadata)} == {None}
    for asked in (
        CreateTopic(name="bar", assignment={0: (1, 2)}),
        AddPartitions(counts={"foo": 3}),
        Configure(settings={"min.insync.replicas": 2}),
    ):
        story.asks(asked)
        errors = (story.replies[-1].error, *story.replies[-1].errors.values())
        assert {error.code for error in errors if error is not None} == {"CORRUPT_STATE"}
    story.broker_down(1)
    assert story.store.partitions[FOO].state.leader == 2


def test_what_becomes_unreadable_is_out_of_every_decision_from_then_on() -> None:
    story = Story(fast=True)
    story.happens(TookOver())
    story.store.spoil(FOO_1)
    story.happens(PartitionsRead({}, HIDDEN))
    before = story.store.partitions[FOO_1]
    story.broker_down(1)
    assert story.store.partitions[FOO_1] == before
    assert story.store.partitions[FOO].state.leader == 2
    assert story.loop.cluster.partitions[FOO_1].state.leader == 1, "as it was known, for who asks"


def test_a_registration_that_becomes_unreadable_is_what_it_was_in_the_same_life() -> None:
    story = Story(fast=True)
    known = story.loop.cluster
    hidden = Unreadable(brokers=frozenset({2}), epochs=frozenset({2}), reasons={"/brokers/ids/2": "garbage"})
    read = story.store.brokers_read()
    others = BrokersRead(brokers={1: read.brokers[1]}, broker_epochs={1: read.broker_epochs[1]}, unreadable=hidden)
    story.happens(others)
    assert known.brokers.live == {1, 2}
    assert "/brokers/ids/2" in known.reasons
    later = {**read.broker_epochs, 2: replace(read.broker_epochs[2], epoch=read.broker_epochs[2].epoch + 1)}
    story.happens(
        BrokersRead(brokers={1: read.brokers[1]}, broker_epochs=later, unreadable=Unreadable(brokers=frozenset({2})))
    )
    assert known.brokers.live == {1}, "another life, of which nothing is known: absent, and fenced by its epochs"


def test_one_whose_clean_chain_cannot_be_read_is_absent() -> None:
    story = taken_over(SetData(paths.broker_epoch(2), GARBAGE, EXISTS))
    assert story.loop.cluster.brokers.live == {1}
    assert story.store.partitions[FOO].state.isr == {1}


def test_problems_name_what_cannot_be_read() -> None:
    story = taken_over()
    story.happens(NodesUnreadable("/admin", {"/admin/\x1b[31m" + "x" * 1_000: "no number " * 1_000}))
    metadata = described(story.loop.cluster, None, None)
    first, second = map(str, problems(metadata, frozenset({1, 2}))[:2])
    assert first.startswith(r"'/admin/\x1b[31mxxx")
    assert len(first) < 1_000
    assert second.startswith("'/brokers/topics/foo/1/leaderAndISR' cannot be read: ")
    assert "is left as it is" in second
    story.happens(NodesUnreadable("/admin", {}))
    assert len(described(story.loop.cluster, None, None).unreadable) == 1


def test_a_partition_that_cannot_be_read_is_told_of_as_one_of_its_topic() -> None:
    found = {each.name: each for each in described(taken_over().loop.cluster, None, None).topics}
    assert (found["foo"].numbers, found["foo"].hidden) == ((0, 1), (1,))


def test_a_deletion_under_way_waits_for_what_cannot_be_read() -> None:
    story = taken_over(Create(paths.deletion_mark("foo")), SetData(paths.leader_and_isr(FOO_1), GARBAGE, EXISTS))
    assert FOO_1 in story.store.partitions
    assert "foo" in story.store.topics
    assert topic((1, 2), (1, 2)).partitions == story.store.topics["foo"].state.partitions
