"""What requests and late commands meet: other writes, earlier lives, what was removed meanwhile."""

from __future__ import annotations

from spark_replication.core.controller.events import PartitionsRead, Requested, TookOver
from spark_replication.core.controller.requests import plan_request
from spark_replication.core.law.writes import StoredPartition
from spark_replication.messages.requests import (
    AddPartitions,
    CancelReassignment,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
)
from spark_replication.model import TopicPartition
from spark_replication.zk import paths
from spark_replication.zk.operations import Create
from tests.unit.core.stories import FOO, cluster_of, state, topic
from tests.unit.engine import test_broker_loop as broker
from tests.unit.engine.test_controller_loop import LED, Story


def test_a_reassignment_that_relies_on_an_earlier_life_does_not_spin() -> None:
    story = Story(
        1, 2, 3, foo=topic((2, 3, 1), (1, 2), adding={0: (3,)}, removing={0: (1,)}), foo_0=state(2, [1, 2, 3])
    )
    story.happens(PartitionsRead({FOO: StoredPartition(state(2, [1, 2, 3]), 8, zxid=80)}))
    story.leader_writes(FOO, state(2, [1, 2, 3]))
    story.store.register(3, clean=True, rack=None)  # not heard of yet
    for _ in range(5):
        if story.asked():
            story.held.answer()
    assert story.asked() == []


def test_what_was_to_be_stored_together_with_a_partition_that_had_changed_is_tried_again() -> None:
    both = topic((2, 3, 1), (2, 3, 1), adding={0: (3,), 1: (3,)}, removing={0: (1,), 1: (1,)})
    story = Story(1, 2, 3, foo=both, foo_0=state(2, [1, 2, 3]), foo_1=state(2, [1, 2, 3]))
    story.happens(TookOver())
    story.leader_writes(FOO, state(2, [1, 2]))  # the replica that was added is not in sync any more
    story.answered("foo@1", "foo-0@7", "foo-1@7")
    story.happens(PartitionsRead({FOO: story.store.partitions[FOO]}))
    assert story.asked() == []
    story.loop.tick(1)
    story.answered("foo@1", "foo-1@7")
    assert story.store.topics["foo"].state == topic((2, 3, 1), (2, 3), adding={0: (3,)}, removing={0: (1,)})
    story.loop.tick(2)
    assert story.asked() == []


def test_a_request_lets_what_was_read_meanwhile_in_before_it_is_asked_again() -> None:
    story = Story(foo=topic((2, 1), (1, 2)))
    story.store.register(2, clean=True, rack=None)
    story.asks(ElectLeaders(kind="preferred", partitions=("foo-0",)))
    story.happens(story.store.brokers_read())  # waits behind
    for _ in range(25):
        if story.asked():
            story.held.answer()
    assert story.answers.given == [(9, "NONE")]


def test_a_request_below_admin_is_there_until_all_of_it_is_done() -> None:
    story = Story(foo=topic((2, 1), (1, 2)))
    story.leader_writes(FOO, LED)
    story.asks(ElectLeaders(kind="preferred", partitions=("foo-0",)), None, path="/a")
    story.answered("foo-0@7")
    assert story.asked() == [["foo-0@8"]]  # and not yet "/a"


def test_a_cancelled_reassignment_below_admin_does_not_come_back() -> None:
    story = Story(1, 2, 3)
    path = f"{paths.REASSIGNED}/foo/0"
    story.store.multi([Create(f"{paths.REASSIGNED}/foo"), Create(path, b"[1, 3]")])
    story.happens(Requested(asked=Reassign(targets={"foo-0": (1, 3)}), path=path))
    story.held.answer()
    story.asks(CancelReassignment(partitions=("foo-0",)))
    story.held.answer()  # back; and the controller dies before the request is removed
    story.takes_over(fast=True)
    story.happens(TookOver())
    assert story.store.topics["foo"].state == topic((1, 2), (1, 2))


def test_a_partition_added_again_where_the_disk_had_failed_is_refused_and_not_an_assertion() -> None:
    known = cluster_of(1, 2, topics={"foo": topic((2,))}, states={"foo-0": state(2, [2]), "foo-1": state(1, [1])})
    known.apply_failed(1, [TopicPartition("foo", 1)])

    refusal = plan_request(known, AddPartitions(assignments={"foo": {1: (1,)}})).reply.errors["foo"]

    assert refusal.code == "INVALID_REPLICA_ASSIGNMENT"


def test_of_a_removed_partition_a_late_command_brings_nothing_back() -> None:
    story = broker.Story()
    story.registered(broker.LED)
    story.loop.stop_replica(broker.stop())
    story.loop.update_metadata(broker.update(removed=(FOO,)))
    story.loop.leader_and_isr(broker.leader_and_isr(broker.LED))
    assert story.parts() == {}


def test_of_a_deleted_topic_a_late_command_brings_nothing_back() -> None:
    story = broker.Story()
    story.registered(broker.LED)
    story.loop.stop_replica(broker.stop())
    story.loop.update_metadata(broker.update(deleted=("foo",)))
    story.loop.leader_and_isr(broker.leader_and_isr(broker.LED))
    assert story.parts() == {}


def test_an_election_of_all_that_meets_others_in_many_topics_goes_on() -> None:
    story = Story()
    for n in range(21):
        story.store.place(f"t{n}", topic((2, 1), name=f"t{n}"), {0: (LED, 7)}, version=1)
    story.takes_over(fast=False)
    for n in range(21):
        story.leader_writes(TopicPartition(f"t{n}", 0), LED)
    story.asks(ElectLeaders(kind="preferred"))
    story.held.answer()
    while story.asked():
        story.held.answer()
    assert story.answers.given == [(9, "NONE")]


def test_a_replica_that_is_stopped_and_kept_is_flushed() -> None:
    story = broker.Story()
    story.registered(broker.LED)
    log = story.log()
    log.failing = frozenset({"flush"})

    answer = story.loop.stop_replica(broker.stop(delete=False))

    assert answer.errors == {"foo-0": "KAFKA_STORAGE_ERROR"}  # it was tried, and what is not flushed stays open
    assert FOO in story.loop.replicas


def test_a_reading_of_brokers_that_says_nothing_new_is_told_nobody() -> None:
    story = Story()
    story.happens(story.store.brokers_read())
    assert story.kinds() == []


def test_an_election_of_all_says_nothing_of_what_nobody_asked_about() -> None:
    known = cluster_of(
        1, topics={"foo": topic((3,)), "bar": topic((2,), name="bar")}, states={"bar-0": state(None, [])}
    )
    known.deleting.add("bar")
    found = plan_request(known, ElectLeaders(kind="unclean"))
    assert found.reply.errors == {}


def test_a_mark_that_is_heard_of_late_does_not_delete_the_next_topic_of_that_name() -> None:
    story = Story()
    story.asks(DeleteTopic(topic="foo"), 1)
    story.asks(DeleteTopic(topic="foo"), None, path="/admin/delete_topics/foo")  # the very mark of that deletion
    story.asks(CreateTopic(name="foo", assignment={0: (1, 2)}), 2)
    while story.asked():
        story.held.answer()

    assert story.answers.given == [(1, "NONE"), (2, "NONE")]
    assert "foo" in story.store.topics
