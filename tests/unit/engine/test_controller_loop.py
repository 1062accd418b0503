"""C1, C2: persist, apply, tell, answer; and what happens where ZooKeeper says no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller import controller
from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokerNoted,
    LogInfoRead,
    PartitionsRead,
    ReplicasDamaged,
    ReplicasFailed,
    Requested,
    TookOver,
)
from spark_replication.core.controller.news import EverythingTold
from spark_replication.core.controller.plan import Decision, Reconsider, Reply
from spark_replication.core.controller.widening import SchemaChange
from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Group,
    GroupAnswer,
    Made,
    PartitionRemoval,
    PartitionWrite,
    Refused,
    RequestRemoval,
    Stored,
    StoredPartition,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
    Write,
)
from spark_replication.engine.controller import controller_loop
from spark_replication.engine.controller.controller_loop import ControllerLoop
from spark_replication.errors import InvalidRequest
from spark_replication.messages.commands import (
    BrokerNotes,
    GetReplicaLogInfo,
    LeaderAndIsr,
    ReplicaLogInfo,
    ReplicaLogInfos,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.mending import DiskDamage
from spark_replication.messages.requests import (
    AddPartitions,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    WidenTopic,
)
from spark_replication.model import PartitionState, ReplicaOf, TopicConfig, TopicPartition, TopicState, encode
from spark_replication.sim.world.topic_tables import anything_fits
from spark_replication.zk import paths
from tests.unit.core.stories import FOO, FOO_ID, state, topic, zookeeper
from tests.unit.engine.ports_in_memory import Answers, HeldStore, Mirrored, Seals, Sent

FOO_1, BAR = TopicPartition("foo", 1), TopicPartition("bar", 0)


def compare(before: str, after: str) -> SchemaChange:
    """Schemas of these stories name a column by each letter."""
    difference = "" if after.startswith(before) else f"{after} does not go on from {before}"
    return SchemaChange(columns_before=len(before), columns_after=len(after), difference=difference)


CREATION = CreateTopic(name="baz", assignment={0: (1, 2)})
BAZ = TopicPartition("baz", 0)
LED = state(1, [1, 2])


class Story:
    """A controller that has loaded foo-0 and foo-1, both led by 1, of brokers 1 and 2; its store waits to be told.

    `fast`: its store answers at once.
    """

    def __init__(self, *live: int, foo: TopicState | None = None, fast: bool = False, **states: PartitionState) -> None:
        self.store = zookeeper(
            *(live or (1, 2)),
            topics={"foo": foo or topic((1, 2), (1, 2))},
            states={"foo-0": LED, "foo-1": LED} | {name.replace("_", "-"): found for name, found in states.items()},
        )
        self.sent, self.answers = Sent(), Answers()
        self.mirror = Mirrored(self.sent)
        self.deposed = 0
        self.replies: list[Reply] = []
        self.now_ms = 0
        self.takes_over(fast=fast)

    def takes_over(self, *, fast: bool) -> None:
        loaded = self.store.load()
        self.held = HeldStore(self.store)
        self.seals = Seals()
        self.loop = ControllerLoop(
            loaded,
            store=self.store.session() if fast else self.held,
            sender=self.sent,
            mirror=self.mirror,
            sealer=self.seals,
            answer=self._on_answer,
            deposed=self._on_deposed,
            now_ms=self.now_ms,
            compare_schemas=compare,
            fits_table=anything_fits,
        )

    def _on_deposed(self) -> None:
        self.deposed += 1

    def _on_answer(self, request: int, reply: Reply) -> None:
        self.replies.append(reply)
        self.answers(request, reply)

    def happens(self, event: Any) -> None:
        self.loop.handle(event, self.now_ms)

    def asks(self, asked: Request, request: int | None = 9, *, path: str | None = None) -> None:
        self.happens(Requested(asked=asked, request=request, path=path))

    def broker_down(self, broker: int) -> None:
        self.store.remove_registration(broker)
        self.happens(self.store.brokers_read())

    def asked(self) -> list[list[str]]:
        """The writes that ZooKeeper was asked for and has not answered."""
        return [_names(groups) for groups, _ in self.held.asked]

    def answered(self, *writes: str) -> None:
        """ZooKeeper answers what it was asked, which is this."""
        assert self.asked() == [list(writes)]
        self.held.answer()

    def leader_writes(self, partition: TopicPartition, after: PartitionState) -> None:
        self.store.put(paths.leader_and_isr(partition), encode(after))

    @property
    def zxid(self) -> int:
        """Of what was stored last."""
        return self.store.tree.zxid

    def writes_by_hand(self, foo: TopicState) -> None:
        """Somebody writes an assignment."""
        self.store.put(paths.topic("foo"), encode(foo))

    def kinds(self) -> list[tuple[int, str]]:
        return [(broker, type(command).__name__) for broker, command in self.sent.take()]


def _names(groups: Sequence[Group]) -> list[str]:
    return [_name(write) for group in groups for write in group]


def _name(write: Write) -> str:
    match write:
        case PartitionWrite(partition=partition, version=version):
            return f"{partition}@{version}"
        case TopicWrite(topic=name, version=version):
            return f"{name}@{version}"
        case BrokerRemoval(broker=broker):
            return f"broker {broker}"
        case DeletionMark(topic=name) | TopicRemoval(topic=name):
            return f"{type(write).__name__} {name}"
        case PartitionRemoval(partition=partition):
            return f"without {partition}"
        case TopicConfigWrite(topic=name):
            return f"config of {name}"
        case ClusterConfigWrite():
            return "config"
        case RequestRemoval(path=path):
            return path


def test_no_command_leaves_before_its_state_is_stored() -> None:
    story = Story()
    story.broker_down(1)
    assert story.asked() == [["foo-0@7", "foo-1@7"]]
    assert (story.sent.commands, story.mirror.told) == ([], [])
    assert story.loop.cluster.partitions[FOO].version == 7

    story.held.answer()
    after = state(2, [2], elr=[1], leader_epoch=5, elected="isr", controller_epoch=1)
    assert story.loop.cluster.partitions[FOO] == story.store.partitions[FOO] == StoredPartition(after, 8, story.zxid)
    (to, command), (other, metadata) = story.sent.take()
    assert (to, other) == (2, 2)
    assert isinstance(command, LeaderAndIsr)
    assert isinstance(metadata, UpdateMetadata)
    assert [each.state for each in command.partitions] == [after, after]
    assert story.mirror.told == [(FOO, story.zxid), (FOO_1, story.zxid)]


def test_the_sender_hears_of_a_life_that_ended() -> None:
    story = Story()
    story.broker_down(1)
    assert story.sent.dead == [1]
    story.held.answer()
    story.store.register(2, clean=True, rack=None)
    story.happens(story.store.brokers_read())
    assert story.sent.dead == [1, 2], "another life of it has begun"


def test_a_second_commit_waits_for_the_answer_to_the_first_and_sees_what_it_stored() -> None:
    story = Story()
    story.broker_down(2)
    story.broker_down(1)
    story.answered("foo-0@7", "foo-1@7")
    story.answered("foo-0@8", "foo-1@8")
    # Of 1, which is gone by now, nobody is told but the mirror.
    assert story.kinds() == [(1, "LeaderAndIsr"), (1, "UpdateMetadata")]
    assert story.store.partitions[FOO].state == state(
        None, [], elr=[1, 2], leader_epoch=5, last_known_leader=1, controller_epoch=1
    )


def test_what_a_refused_step_met_is_settled_again_before_anything_newer() -> None:
    story = Story()
    leaders_own = state(1, [1], elr=[2])
    story.leader_writes(FOO, leaders_own)
    leaders_zxid = story.zxid
    story.broker_down(1)
    story.asks(CREATION)
    story.held.answer()
    # foo-1 is stored and told; foo-0 was read again, and is decided anew, on top of what was met.
    assert story.loop.cluster.partitions[FOO].state == leaders_own
    assert story.loop.cluster.partitions[FOO_1].version == 8
    assert story.mirror.told == [(FOO, leaders_zxid), (FOO_1, story.zxid)]
    story.answered("foo-0@8")
    assert story.store.partitions[FOO].state == state(
        2, [2], elr=[1], leader_epoch=5, elected="elr", controller_epoch=1
    )
    assert (story.asked(), story.answers.given) == ([["baz@-1"]], [])


def test_the_replicas_are_told_of_what_a_refused_step_met() -> None:
    """An election of ours may be stored, its answer lost, and its leader have written since."""
    story = Story(1, 2, 3)
    story.broker_down(1)
    for partition in (FOO, FOO_1):
        story.leader_writes(partition, state(2, [2], leader_epoch=5, elected="isr"))
    story.held.answer()
    told = [command for broker, command in story.sent.take() if broker == 2 and isinstance(command, LeaderAndIsr)]
    assert [[(each.topic_partition, each.state.leader_epoch) for each in command.partitions] for command in told] == [
        [(FOO, 5), (FOO_1, 5)]
    ]


def test_a_deposed_controller_tells_nobody_and_answers_every_request_that_it_owes() -> None:
    story = Story()
    story.broker_down(1)
    story.asks(CREATION, 8)
    story.asks(CREATION, 9)
    story.store.load()  # another one took over
    story.held.answer()

    assert (story.sent.commands, story.mirror.told, story.deposed) == ([], [], 1)
    assert story.answers.given == [(8, "NOT_CONTROLLER"), (9, "NOT_CONTROLLER")]
    assert (story.store.partitions[FOO].version, sorted(story.store.topics)) == (7, ["foo"])

    story.asks(CREATION, 10)
    story.happens(TookOver())
    assert story.answers.given[2:] == [(10, "NOT_CONTROLLER")]
    assert (story.asked(), story.deposed) == ([], 1)


def test_the_request_in_mid_commit_is_answered_first_and_may_have_been_carried_out() -> None:
    story = Story()
    story.asks(CREATION)
    story.answered("baz@-1")
    assert story.store.topics.keys() == {"foo", "baz"}
    story.store.load()
    story.answered("baz-0@-1")
    (reply,) = story.replies
    assert reply.error is not None
    assert (reply.error.code, reply.error.maybe_written) == ("NOT_CONTROLLER", True)


# Requests


def test_a_new_topic_is_stored_then_led_then_answered() -> None:
    story = Story()
    story.asks(CREATION, 9)
    story.asks(CREATION, 10)
    story.answered("baz@-1")
    assert (story.answers.given, story.sent.commands) == ([], [])
    story.answered("baz-0@-1")
    assert story.kinds() == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr"), (1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.store.partitions[BAZ].state == state(1, [1, 2], leader_epoch=0, controller_epoch=1)
    # The second asks for what exists by now: refused before anything is asked of ZooKeeper.
    assert (story.answers.given, story.asked()) == ([(9, "NONE"), (10, "TOPIC_ALREADY_EXISTS")], [])


def test_of_two_topics_the_later_has_the_higher_id_whoever_is_controller() -> None:
    story = Story(fast=True)
    ids = []
    for name in ("a", "b", "c"):
        story.asks(CreateTopic(name=name, assignment={0: (1,)}))
        ids.append(story.store.topics[name].state.topic_id)
        if name == "b":
            story.takes_over(fast=True)
    assert ids == sorted(set(ids))


def test_what_can_never_be_stored_is_refused_and_the_controller_goes_on() -> None:
    story, too_large = Story(), InvalidRequest("it is too large")
    story.asks(CREATION, 7)
    story.held.refuse(Refused({}, unstorable=too_large))
    story.asks(AddPartitions(counts={"foo": 3}), 8)
    story.held.refuse(Refused({}, unstorable=too_large))
    assert story.replies == [Reply(too_large), Reply(errors={"foo": too_large})]
    story.asks(AddPartitions(counts={"foo": 3}), 9)
    story.answered("foo@1")


@pytest.mark.parametrize("asked", [CREATION, Reassign(targets={"foo-0": (2, 1)}), DeleteTopic(topic="foo")])
def test_a_request_that_cannot_even_be_decided_is_refused_and_goes(
    asked: Request, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_given: object) -> Decision:
        raise ZeroDivisionError("a bug")

    story = Story()
    with monkeypatch.context() as patched:
        patched.setattr(controller, "plan_request", fails)
        story.asks(asked, 7)
        story.asks(asked, 8, path="/admin/somewhere")
    story.answered("/admin/somewhere")
    assert story.answers.given == [(7, "UNKNOWN_SERVER_ERROR"), (8, "UNKNOWN_SERVER_ERROR")]
    assert "/admin/somewhere met an error that nobody expected" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    story.asks(CREATION, 9)
    story.answered("baz@-1")


def test_an_error_in_anything_else_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object) -> Decision:
        raise ZeroDivisionError("a bug")

    story = Story()
    monkeypatch.setattr(controller, "settle", fails)
    with pytest.raises(ZeroDivisionError):
        story.broker_down(1)


def test_a_topic_that_zookeeper_refuses_exists_already() -> None:
    story = Story()
    story.store.place("baz", TopicState(topic_id="other", partitions={0: (1,)}), {})
    story.asks(CREATION)
    story.held.answer()
    assert (story.answers.given, story.asked(), story.sent.commands) == ([(9, "TOPIC_ALREADY_EXISTS")], [], [])


def test_a_reassignment_whose_answer_was_lost_and_whose_partition_moved_on_goes_on() -> None:
    story = Story(1, 2, 3)
    story.asks(Reassign(targets={"foo-0": (1, 3)}))
    assert story.asked() == [["foo@1", "foo-0@7"]]
    shrunk = StoredPartition(state(1, [1], elr=[2]), 9, zxid=80)

    def seen(answer: GroupAnswer) -> GroupAnswer:
        assert isinstance(answer, Stored)
        story.leader_writes(FOO, shrunk.state)
        return replace(answer, newer={FOO: shrunk})

    story.held.answer(seen)
    assert story.loop.cluster.topics["foo"].version == 2
    assert story.loop.cluster.partitions[FOO] == shrunk
    told = [command for broker, command in story.sent.take() if broker == 3 and isinstance(command, LeaderAndIsr)]
    assert [command.partitions[0].state for command in told] == [shrunk.state]
    assert story.answers.given == [(9, "NONE")]


def test_an_assignment_that_was_written_by_hand_is_taken_in_and_the_request_carried_out() -> None:
    story = Story(1, 2, 3)
    story.writes_by_hand(topic((1, 2), (1, 2), (1, 2)))
    story.asks(AddPartitions(counts={"foo": 4}))
    story.answered("foo@1")
    story.answered("foo-2@-1")
    story.answered("foo@2")
    assert set(story.store.topics["foo"].state.partitions) == {0, 1, 2, 3}


@pytest.mark.parametrize("times", [1, 4])
def test_a_topic_that_was_made_again_by_hand_is_left_to_the_next_controller(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_loop, "ATTEMPTS_MAX", 2)
    story = Story(1, 2, 3, fast=True)
    for _ in range(times):
        story.writes_by_hand(topic((1, 2), name="other"))
    story.asks(AddPartitions(counts={"foo": 4}))
    assert story.answers.given == [(9, "INVALID_UPDATE_VERSION")]
    assert story.loop.cluster.topics["foo"].version == 1


def test_what_of_a_request_met_another_write_is_asked_again_and_the_rest_is_done() -> None:
    story = Story(foo=topic((2, 1), (2, 1)))
    story.leader_writes(FOO_1, LED)
    story.asks(ElectLeaders(kind="preferred", partitions=("foo-0", "foo-9", "foo-1")))
    story.answered("foo-0@7", "foo-1@7")
    assert story.answers.given == []
    story.answered("foo-1@8")
    assert (story.answers.given, story.answers.parts) == ([(9, "NONE")], {9: {"foo-9": "UNKNOWN_TOPIC_OR_PARTITION"}})
    assert [story.store.partitions[each].state.leader for each in (FOO, FOO_1)] == [2, 2]


def test_what_was_stored_of_it_is_followed_up_all_the_same() -> None:
    story = Story()
    story.store.place("bar", topic((1,), name="bar"), {0: (state(1, [1], min_isr=1), 7)}, version=1)
    story.takes_over(fast=False)
    story.writes_by_hand(topic((1, 2), (1, 2)))
    story.asks(AddPartitions(assignments={"foo": {2: (1, 2)}, "bar": {1: (2,)}}))
    story.answered("foo@1", "bar@1")
    story.answered("bar-1@-1")
    assert (story.asked(), story.answers.given) == ([["foo@2"]], [])


def test_a_request_that_meets_others_again_and_again_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_loop, "ATTEMPTS_MAX", 2)
    story = Story(foo=topic((2, 1), (1, 2)))
    story.asks(ElectLeaders(kind="preferred", partitions=("foo-0",)))
    for version in (7, 8):
        story.leader_writes(FOO, LED)
        story.answered(f"foo-0@{version}")
    assert (story.answers.given, story.asked()) == ([(9, "INVALID_UPDATE_VERSION")], [])


def test_one_below_admin_is_tried_once_a_tick_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_loop, "ATTEMPTS_MAX", 2)
    path = "/admin/preferred_replica_election"
    story = Story(foo=topic((2, 1), (1, 2)))
    story.asks(ElectLeaders(kind="preferred"), None, path=path)
    for version in (7, 8):
        story.leader_writes(FOO, LED)
        story.answered(f"foo-0@{version}")
    assert (story.answers.given, story.asked()) == ([], [])
    story.loop.tick(0)
    story.leader_writes(FOO, LED)
    story.answered("foo-0@9")
    assert story.asked() == []
    story.loop.tick(0)
    story.answered("foo-0@10")
    story.answered(path)
    story.loop.tick(0)
    assert (story.store.partitions[FOO].state.leader, story.asked()) == (2, [])


def test_a_topic_is_marked_emptied_and_removed_and_only_then_answered() -> None:
    story = Story()
    story.asks(DeleteTopic(topic="foo"))
    story.answered("DeletionMark foo")
    assert (story.loop.cluster.deleting, story.sent.commands) == ({"foo"}, [])
    story.answered("without foo-0", "without foo-1")
    (one, first), (two, second) = story.sent.take()
    assert (one, two, type(first), first == second) == (1, 2, StopReplica, True)
    story.answered("TopicRemoval foo")
    (told, _) = story.sent.take()
    assert (told[0], told[1]) == (1, replace(told[1], deleted=("foo",)))
    assert (story.mirror.gone, story.answers.given) == ([("foo", story.zxid)], [(9, "NONE")])
    assert (story.loop.cluster.topics, story.loop.cluster.partitions) == ({}, {})


def test_partitions_that_are_removed_are_stopped_and_gone_from_the_mirror() -> None:
    story = Story()
    story.asks(RemovePartitions(partitions={"foo": (1,)}))
    story.answered("foo@1")
    assert (story.mirror.gone, story.answers.given) == ([("foo-1", story.zxid)], [(9, "NONE")])
    assert story.kinds() == [(1, "StopReplica"), (2, "StopReplica"), (1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.loop.cluster.all_partitions() == [FOO]


def test_settings_hold_from_the_step_that_stored_them() -> None:
    story = Story()
    story.asks(Configure(topic="foo", settings={"min.insync.replicas": 1}), 8)
    story.answered("config of foo", "foo-0@7", "foo-1@7")
    story.asks(Configure(settings={"unclean.recovery.enabled": False}), 9)
    story.answered("config")
    assert story.answers.given == [(8, "NONE"), (9, "NONE")]
    assert story.store.partitions[FOO].state.min_isr == 1
    assert story.loop.cluster.settings_of("foo").min_insync_replicas == 1
    assert not story.loop.cluster.settings.unclean_recovery_enabled


def test_a_widened_topic_is_stored_and_then_told() -> None:
    story = Story(1, 2, 3)
    story.loop.cluster.apply_topic_config("foo", TopicConfig(schema="ab"), Made())
    story.asks(WidenTopic(topic="foo", schema="abc"), 8)
    assert story.sent.commands == []
    story.answered("config of foo")
    after = TopicConfig(schema="abc", earlier_columns=(2,))
    assert story.store.topics["foo"].config == story.loop.cluster.topics["foo"].config == after
    told = [command.topics for _, command in story.sent.commands if isinstance(command, UpdateMetadata)]
    assert told == [{"foo": after}] * 3
    story.asks(WidenTopic(topic="foo", schema="abc"), 9)
    story.asks(WidenTopic(topic="foo", schema="b"), 10)
    assert story.answers.given == [(8, "NONE"), (9, "NONE"), (10, "INVALID_SCHEMA")]
    assert story.store.topics["foo"].config == after


def test_a_reassignment_below_admin_is_removed_once_it_is_complete() -> None:
    story = Story(1, 2, 3)
    story.asks(Reassign(targets={"foo-0": (2, 3)}), None, path="/a")
    story.answered("foo@1", "foo-0@7")
    assert (story.asked(), story.loop.cluster.open_requests) == ([], {"/a": frozenset({FOO})})
    story.leader_writes(FOO, state(1, [1, 2, 3]))
    story.happens(PartitionsRead({FOO: story.store.partitions[FOO]}))
    story.answered("foo-0@9")  # one of the target leads
    story.answered("foo@2", "foo-0@10")
    story.answered("/a")
    assert (story.asked(), story.loop.cluster.open_requests) == ([], {})
    assert story.store.topics["foo"].state == topic((2, 3), (1, 2))


@pytest.mark.parametrize(
    ("ends", "stored"),
    [
        (RemovePartitions(partitions={"foo": (1,)}), [["foo@2", "/a"]]),
        (
            DeleteTopic(topic="foo"),
            [["DeletionMark foo"], ["without foo-0", "without foo-1"], ["TopicRemoval foo"], ["/a"]],
        ),
    ],
)
def test_a_reassignment_below_admin_goes_with_what_was_to_move(ends: Request, stored: list[list[str]]) -> None:
    """Left behind, it would begin again on a partition of that number that somebody adds later."""
    story = Story(1, 2, 3)
    story.asks(Reassign(targets={"foo-1": (2, 3)}), None, path="/a")
    story.answered("foo@1", "foo-1@7")
    story.asks(ends)
    for together in stored:
        story.answered(*together)
    assert (story.asked(), story.loop.cluster.open_requests) == ([], {})


def test_a_reassignment_that_met_an_earlier_life_goes_on_once_the_next_is_known() -> None:
    to_23 = topic((2, 3, 1), (1, 2), adding={0: (3,)}, removing={0: (1,)})
    story = Story(1, 2, 3, foo=to_23, foo_0=state(2, [1, 2]))
    story.leader_writes(FOO, state(2, [1, 2, 3]))
    story.store.register(3, clean=True, rack=None)
    story.happens(PartitionsRead({FOO: story.store.partitions[FOO]}))
    story.answered("foo@1", "foo-0@8")
    assert story.asked() == []
    story.happens(story.store.brokers_read())
    story.answered("foo@1", "foo-0@8")
    assert story.store.topics["foo"].state == topic((2, 3), (1, 2))


def test_a_request_below_admin_is_removed_and_nobody_is_answered() -> None:
    story = Story()
    story.asks(ElectLeaders(kind="preferred"), None, path="/a")
    story.answered("/a")
    assert (story.answers.given, story.asked()) == ([], [])


# What was read


def test_a_new_controller_mirrors_all_it_loaded() -> None:
    story = Story()
    story.happens(TookOver())
    assert story.mirror.told == [(each, story.store.partitions[each].zxid) for each in (FOO, FOO_1)]
    assert story.mirror.complete == [EverythingTold(story.zxid, ALL_READ)]
    assert story.mirror.commands_before == [4]  # who waits for a table does not wait for a leader (M4)
    assert story.kinds() == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr"), (1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.asked() == []


def test_a_mirror_that_may_have_missed_something_is_told_all_with_the_next_tick() -> None:
    story = Story(fast=True)
    story.happens(TookOver())
    story.asks(RemovePartitions(partitions={"foo": (1,)}))
    told_at = len(story.mirror.told)
    story.loop.tick(100)
    assert story.mirror.told[told_at:] == []
    story.mirror.wants_all = True
    story.loop.tick(200)
    assert [partition for partition, _ in story.mirror.told[told_at:]] == [FOO]
    # Up to the last that was stored by this controller, the removal among it.
    assert story.mirror.complete[-1] == EverythingTold(story.mirror.gone[-1][1], ALL_READ)
    story.loop.tick(300)
    assert len(story.mirror.complete) == 2


def test_all_that_something_set_off_follows_from_it() -> None:
    """Elections, and what is decided again, from the death; a request's topic and partitions from the request."""
    story = Story()
    story.leader_writes(FOO, state(1, [1], elr=[2]))
    story.broker_down(1)
    story.asks(CREATION)
    story.held.answer()
    story.answered("foo-0@8")
    story.held.answer()
    story.held.answer()
    died, again, created, elected = story.mirror.origins
    assert died == ("brokers", "1.1", ("foo-0", "foo-1"), False)
    assert again == ("brokers", "1.1", ("foo-0",), False)
    assert (created[:2], created[3]) == (("request", "1.2"), True)
    assert (elected[:2], elected[3]) == (("request", "1.2"), False)


def test_a_request_is_told_of_though_nothing_comes_of_it() -> None:
    story = Story(fast=True)
    story.asks(DeleteTopic(topic="nobody"))
    story.asks(DeleteTopic(topic="nobody"))
    assert story.mirror.origins == [("request", "1.1", (), True), ("request", "1.2", (), True)]
    assert (
        story.mirror.refused == ["refused: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nobody': check its name"] * 2
    )


def test_of_what_a_request_asked_for_it_is_told_how_much_was_refused() -> None:
    story = Story(fast=True)
    story.asks(Reassign(targets={"nobody-0": (1,), "nobody-1": (1,), "foo-0": (2, 1)}))
    assert story.mirror.origins[0] == ("request", "1.1", ("foo-0", "foo"), True)
    assert story.mirror.refused == [
        "refused: UNKNOWN_TOPIC_OR_PARTITION: there is no partition nobody-0: check its name (and 1 others)"
    ]


def test_who_is_elected_by_logs_follows_from_what_began_to_ask_for_them() -> None:
    """The answers, or the time that was over, only end it: who asked for it, or who was lost, is its cause."""
    by_hand = ElectLeaders(kind="longest_log_proactive", partitions=("foo-0",))
    story = Story(foo_0=GONE)
    story.asks(by_hand)
    story.happens(LogInfoRead(1, log_info(0, 5)))
    story.happens(LogInfoRead(2, log_info(0, 6)))
    story.answered("foo-0@7")
    assert story.mirror.origins[0][:2] == ("request", "1.1")
    assert story.mirror.own_origins == [("foo-0", "1.1")]


def test_who_is_elected_without_logs_after_all_follows_from_what_brought_it_back() -> None:
    story = Story(foo_0=GONE)
    story.asks(ElectLeaders(kind="longest_log_proactive", partitions=("foo-0",)))
    story.happens(PartitionsRead({FOO: StoredPartition(state(2, [2], leader_epoch=5), 8, zxid=80)}))
    assert story.mirror.told[-1][0] == FOO
    assert story.mirror.own_origins == []
    later = state(2, [2, 1], leader_epoch=6, elected="unclean_recovery")
    story.happens(PartitionsRead({FOO: StoredPartition(later, 9, zxid=81)}))
    assert story.mirror.own_origins == [], "that recovery was over"


def test_the_controllers_own_ticks_are_not_told_of() -> None:
    story = Story(fast=True)
    for number in range(5):
        story.loop.tick(number)
    assert story.mirror.origins == []


def test_what_a_leader_wrote_is_taken_in_once() -> None:
    story = Story()
    read = PartitionsRead({FOO: StoredPartition(state(1, [1], elr=[2]), 8, zxid=80)})
    story.happens(read)
    assert story.asked() == []
    assert story.kinds() == [(1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.mirror.told == [(FOO, 80)]
    story.happens(read)
    story.happens(PartitionsRead({BAZ: StoredPartition(state(1, [1]), 3)}))  # of no topic that is known
    assert (story.kinds(), story.mirror.told) == ([], [(FOO, 80)])
    assert sorted(story.loop.cluster.partitions) == [FOO, FOO_1]


def test_what_was_read_before_its_topic_was_made_again_is_nothing_of_the_new_ones() -> None:
    story = Story(fast=True)
    story.leader_writes(FOO, state(2, [2], leader_epoch=5))
    read = story.store.partitions[FOO]
    story.asks(DeleteTopic(topic="foo"))
    story.asks(CreateTopic(name="foo", assignment={0: (1, 2)}))
    told_at = len(story.mirror.told)
    story.sent.take()
    story.happens(PartitionsRead({FOO: read}))
    assert (story.kinds(), story.mirror.told[told_at:]) == ([], [])
    assert story.loop.cluster.partitions == story.store.partitions


def test_a_partition_that_relied_on_an_earlier_life_is_not_made_until_the_next_is_known() -> None:
    story = Story()
    story.asks(CREATION)
    story.answered("baz@-1")
    story.store.register(2, clean=True, rack=None)  # before its replicas are stored
    story.held.answer()
    assert (BAZ in story.store.partitions, story.asked(), story.answers.given) == (False, [], [(9, "NONE")])
    story.happens(story.store.brokers_read())
    story.answered("baz-0@-1")
    assert story.store.partitions[BAZ].state.epochs == {1: 0, 2: 1}


def test_a_reported_death_removes_the_registration_and_the_watch_tells_of_the_rest() -> None:
    story = Story()
    story.happens(BrokerDeathReported(1, "1-0"))
    story.happens(BrokerDeathReported(1, "1-0"))
    story.answered("broker 1")
    assert story.store.registered.keys() == {2}
    story.answered("broker 1")  # the same, from another witness: refused
    assert (story.sent.commands, story.asked(), sorted(story.loop.cluster.registered)) == ([], [], [1, 2])


@pytest.mark.parametrize(
    ("broker", "epoch", "replica", "asked"),
    [
        (1, 0, ReplicaOf(FOO, FOO_ID), [["foo-0@7"]]),
        (1, 1, ReplicaOf(FOO, FOO_ID), []),
        (3, 0, ReplicaOf(FOO, FOO_ID), []),
        (1, 0, ReplicaOf(FOO, "of an earlier topic"), []),
        (1, 0, ReplicaOf(TopicPartition("foo", 9), FOO_ID), []),
        (1, 0, ReplicaOf(TopicPartition("gone", 0), FOO_ID), []),
    ],
)
def test_of_a_disk_that_failed_in_the_present_life_the_replicas_are_given_up(
    broker: int, epoch: int, replica: ReplicaOf, asked: list[list[str]]
) -> None:
    story = Story()
    story.happens(ReplicasFailed(broker, epoch, (replica,)))
    assert story.asked() == asked


@pytest.mark.parametrize(("broker", "epoch", "counted"), [(1, 0, 1), (1, 1, 0), (3, 0, 0)])
def test_damage_of_the_present_life_is_known_and_nothing_is_decided(broker: int, epoch: int, counted: int) -> None:
    story = Story()
    damage = DiskDamage(batches=1, mended=0, words="")
    story.happens(ReplicasDamaged(broker, epoch, {ReplicaOf(FOO, FOO_ID): damage}))
    assert (story.loop.cluster.damaged_replicas, story.asked()) == (counted, [])
    story.happens(ReplicasDamaged(broker, 0, {}))
    assert story.loop.cluster.damaged_replicas == 0


@pytest.mark.parametrize(("broker", "epoch", "known"), [(1, 0, True), (1, 1, False), (3, 0, False)])
def test_what_people_are_to_know_of_the_present_life_is_known_and_nothing_is_decided(
    broker: int, epoch: int, known: bool
) -> None:
    story = Story()
    notes = BrokerNotes(clock_ahead_ms=600_000)
    story.happens(BrokerNoted(broker, epoch, notes))
    assert (story.loop.cluster.notes, story.asked()) == ({broker: notes} if known else {}, [])


# Recovery, time

GONE = state(None, [], last_known_elr=[1, 2])


def log_info(broker_epoch: int, end: int) -> ReplicaLogInfos:
    found = ReplicaLogInfo(topic="foo", partition=0, topic_id=FOO_ID, last_epoch=3, current_epoch=4, end=end)
    return ReplicaLogInfos(broker_epoch=broker_epoch, partitions=(found,))


def test_logs_are_asked_for_and_the_longest_leads() -> None:
    story = Story(foo_0=GONE)
    story.happens(Reconsider(("foo",)))
    asked = [(broker, command) for broker, command in story.sent.take() if isinstance(command, GetReplicaLogInfo)]
    assert [broker for broker, _ in asked] == [1, 2]
    story.happens(LogInfoRead(1, log_info(0, 5)))
    assert story.asked() == []
    story.happens(LogInfoRead(2, log_info(0, 6)))
    story.answered("foo-0@7")
    assert story.store.partitions[FOO].state.leader == 2
    assert story.loop.cluster.recoveries == {}


def test_who_does_not_answer_in_time_is_asked_again() -> None:
    story = Story(foo_0=GONE)
    story.happens(Reconsider(("foo",)))
    story.happens(LogInfoRead(1, log_info(0, 5)))
    story.sent.take()
    story.loop.tick(4_999)
    assert story.sent.take() == []
    story.loop.tick(5_000)
    assert story.kinds() == [(2, "GetReplicaLogInfo")]


def late_answers() -> Story:
    """Brokers 1 and 2 are asked about foo-0, the time to answer is over, and the store has yet to answer a request."""
    story = Story(foo=topic((1, 2, 3), (1, 2)), foo_0=GONE)
    story.store.settings = replace(story.store.settings, unclean_recovery_strategy="proactive")
    story.takes_over(fast=False)
    story.happens(Reconsider(("foo",)))
    story.asks(Configure(topic="foo", settings={"retention.ms": 1}))
    story.now_ms = 6_000
    return story


def test_answers_that_wait_for_the_store_are_all_taken_before_anybody_wins() -> None:
    story = late_answers()
    story.happens(LogInfoRead(2, log_info(0, 5)))
    story.happens(LogInfoRead(1, log_info(0, 6)))
    story.held.answer()
    story.answered("foo-0@7")
    assert story.store.partitions[FOO].state.leader == 1


def test_answers_that_were_taken_and_not_yet_handled_are_known_to_whatever_is_decided_next() -> None:
    story = late_answers()
    story.held.answer()
    story.loop.take(LogInfoRead(2, log_info(0, 5)))
    story.loop.take(LogInfoRead(1, log_info(0, 6)))
    assert story.asked() == []
    story.loop.tick(story.now_ms)
    story.answered("foo-0@7")
    assert story.store.partitions[FOO].state.leader == 1


def test_without_anything_else_to_do_answers_that_were_taken_are_handled_when_it_goes_on() -> None:
    story = late_answers()
    story.held.answer()
    story.loop.take(LogInfoRead(2, log_info(0, 5)))
    story.loop.go_on(story.now_ms)
    story.answered("foo-0@7")
    assert story.store.partitions[FOO].state.leader == 2


def test_a_tick_knows_when_the_one_before_was() -> None:
    story = Story(foo=topic((2, 1), (1, 2)))
    story.store.settings = replace(story.store.settings, leader_imbalance_check_interval_ms=100)
    story.now_ms = 90
    story.takes_over(fast=False)
    story.loop.tick(99)
    assert story.asked() == []
    story.loop.tick(101)
    story.answered("foo-0@7")
    story.loop.tick(199)
    assert story.asked() == []


# Limits


def test_past_the_limit_a_request_is_refused_and_what_was_read_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_loop, "EVENTS_MAX", 2)
    story = Story()
    story.broker_down(1)
    for request in (7, 8, 9):
        story.asks(CREATION, request)
    assert story.answers.given == [(9, "THROTTLING_QUOTA_EXCEEDED")]
    story.happens(story.store.brokers_read())
    for _ in range(3):
        story.held.answer()
    assert story.answers.given == [
        (9, "THROTTLING_QUOTA_EXCEEDED"),
        (7, "NONE"),
        (8, "TOPIC_ALREADY_EXISTS"),
    ]


def test_a_store_that_answers_at_once_ends_in_the_same_place() -> None:
    slow, fast = Story(), Story(fast=True)
    slow.broker_down(1)
    slow.held.answer()
    fast.broker_down(1)
    assert (fast.store.partitions, fast.kinds()) == (slow.store.partitions, slow.kinds())
