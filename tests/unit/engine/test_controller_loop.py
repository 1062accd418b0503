"""C1, C2: persist, apply, tell, answer; and what happens where ZooKeeper says no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.cluster import (
    BrokerDeathReported,
    LoadedCluster,
    PartitionsRead,
    StoredTopic,
    TookOver,
    TopicRequested,
)
from spark_replication.core.writes import Group, PartitionWrite, StoredPartition, TopicWrite
from spark_replication.engine import controller_loop
from spark_replication.engine.controller_loop import ControllerLoop
from spark_replication.errors import ReplicationError
from spark_replication.messages import CreateTopic, LeaderAndIsr, UpdateMetadata
from spark_replication.model import TopicConfig, TopicPartition, TopicState
from tests.unit.core.stories import FOO, FOO_ID, state, store_of
from tests.unit.engine.ports_in_memory import Answers, HeldStore, Mirrored, Sent

FOO_1 = TopicPartition("foo", 1)
CREATION = CreateTopic(name="baz", assignment={0: (1, 2)})
BAZ = TopicPartition("baz", 0)


class Story:
    """A controller that has loaded foo-0 and foo-1, both led by 1, of brokers 1 and 2; its store waits to be told."""

    def __init__(self) -> None:
        self.store = store_of(1, 2)
        topic = TopicState(topic_id=FOO_ID, partitions={0: (1, 2), 1: (1, 2)})
        self.store.topics["foo"] = StoredTopic(topic, 0, TopicConfig())
        for partition in (FOO, FOO_1):
            self.store.partitions[partition] = StoredPartition(state(1, [1, 2]), 7, zxid=70)
        self.loaded: LoadedCluster = self.store.load()
        self.held = HeldStore(self.store, self.loaded.controller_epoch)
        self.sent, self.mirror, self.answers = Sent(), Mirrored(), Answers()
        self.deposed = 0
        self.loop = self.controller(self.held)

    def controller(self, store: Any) -> ControllerLoop:
        return ControllerLoop(
            self.loaded,
            store=store,
            sender=self.sent,
            mirror=self.mirror,
            answer=self.answers,
            deposed=self._on_deposed,
        )

    def _on_deposed(self) -> None:
        self.deposed += 1

    def broker_down(self, broker: int) -> None:
        del self.store.registered[broker]
        self.loop.handle(self.store.brokers_read())

    def asked(self) -> list[list[str]]:
        """The writes that ZooKeeper was asked for and has not answered."""
        return [_names(groups) for groups, _ in self.held.asked]

    def kinds(self) -> list[tuple[int, str]]:
        return [(broker, type(command).__name__) for broker, command in self.sent.take()]


def _names(groups: Sequence[Group]) -> list[str]:
    names = []
    for group in groups:
        for write in group:
            match write:
                case PartitionWrite(partition=partition, version=version):
                    names.append(f"{partition}@{version}")
                case TopicWrite(topic=topic):
                    names.append(topic)
                case _:
                    names.append(f"broker {write.broker}")
    return names


def test_no_command_leaves_before_its_state_is_stored() -> None:
    story = Story()
    story.broker_down(1)
    assert story.asked() == [["foo-0@7", "foo-1@7"]]
    assert (story.sent.commands, story.mirror.told) == ([], [])
    assert story.loop.cluster.partitions[FOO].version == 7

    story.held.answer()
    after = replace(state(2, [2], elr=[1], leader_epoch=5), controller_epoch=1)
    assert story.loop.cluster.partitions[FOO] == story.store.partitions[FOO] == StoredPartition(after, 8, zxid=1)
    (to, command), (other, metadata) = story.sent.take()
    assert (to, other) == (2, 2)
    assert isinstance(command, LeaderAndIsr)
    assert isinstance(metadata, UpdateMetadata)
    assert [each.state for each in command.partitions] == [after, after]
    assert story.mirror.told == [(FOO, 1), (FOO_1, 2)]


def test_the_sender_hears_of_a_life_that_ended() -> None:
    story = Story()
    story.broker_down(1)
    assert story.sent.dead == [1]
    story.held.answer()
    story.store.register(2, clean=True, rack=None)
    story.loop.handle(story.store.brokers_read())
    assert story.sent.dead == [1, 2], "another life of it has begun"


def test_a_second_commit_waits_for_the_answer_to_the_first_and_sees_what_it_stored() -> None:
    story = Story()
    story.broker_down(2)
    story.broker_down(1)
    assert story.asked() == [["foo-0@7", "foo-1@7"]]
    story.held.answer()
    assert story.asked() == [["foo-0@8", "foo-1@8"]]
    story.held.answer()
    # Of 1, which is gone by now, nobody is told but the mirror.
    assert story.kinds() == [(1, "LeaderAndIsr"), (1, "UpdateMetadata")]
    assert story.store.partitions[FOO].state == replace(
        state(None, [], elr=[1, 2], leader_epoch=5, last_known_leader=1), controller_epoch=1
    )


def test_what_a_refused_group_met_is_settled_again_before_anything_newer() -> None:
    story = Story()
    leaders_own = StoredPartition(state(1, [1], elr=[2], min_isr=2), 8, zxid=80)
    story.store.partitions[FOO] = leaders_own
    story.broker_down(1)
    story.loop.handle(TopicRequested(9, CREATION, "id-baz"))
    story.held.answer()
    # foo-1 is stored and told; foo-0 was read again, and is decided anew, on top of what was met.
    assert story.loop.cluster.partitions[FOO] == leaders_own
    assert story.loop.cluster.partitions[FOO_1].version == 8
    assert story.asked() == [["foo-0@8"]]
    assert story.mirror.told == [(FOO, 80), (FOO_1, 1)]
    story.held.answer()
    assert story.store.partitions[FOO].state == replace(state(2, [2], elr=[1], leader_epoch=5), controller_epoch=1)
    assert story.asked() == [["baz"]]
    assert story.answers.given == []


def test_a_deposed_controller_tells_nobody_and_answers_every_request_that_it_owes() -> None:
    story = Story()
    story.broker_down(1)
    story.loop.handle(TopicRequested(8, CREATION, "id-baz"))
    story.loop.handle(TopicRequested(9, CREATION, "id-bay"))
    story.store.load()  # another one took over
    story.held.answer()

    assert (story.sent.commands, story.mirror.told, story.deposed) == ([], [], 1)
    assert story.answers.given == [(8, "NOT_CONTROLLER"), (9, "NOT_CONTROLLER")]
    assert (story.store.partitions[FOO].version, sorted(story.store.topics)) == (7, ["foo"])

    story.loop.handle(TopicRequested(10, CREATION, "id-baz"))
    story.loop.handle(TookOver())
    assert story.answers.given[2:] == [(10, "NOT_CONTROLLER")]
    assert (story.asked(), story.deposed) == ([], 1)


def test_the_request_in_mid_commit_is_answered_first_and_may_have_been_carried_out() -> None:
    story = Story()
    errors: list[ReplicationError | None] = []
    story.loop = ControllerLoop(
        story.loaded,
        store=story.held,
        sender=story.sent,
        mirror=story.mirror,
        answer=lambda request, error: errors.append(error),
        deposed=lambda: None,
    )
    story.loop.handle(TopicRequested(8, CREATION, "id-baz"))
    story.held.answer()
    assert story.store.topics.keys() == {"foo", "baz"}
    story.store.load()
    story.held.answer()  # of its partitions' creation
    (error,) = errors
    assert error is not None
    assert (error.code, error.maybe_written) == ("NOT_CONTROLLER", True)


def test_a_new_topic_is_stored_then_led_then_answered() -> None:
    story = Story()
    story.loop.handle(TopicRequested(9, CREATION, "id-baz"))
    story.loop.handle(TopicRequested(10, CREATION, "id-bay"))
    story.held.answer()
    assert (story.asked(), story.answers.given, story.sent.commands) == ([["baz-0@-1"]], [], [])
    story.held.answer()
    assert story.kinds() == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr"), (1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.store.partitions[BAZ].state == replace(state(1, [1, 2], leader_epoch=0), controller_epoch=1)
    # The second asks for what exists by now: refused before anything is asked of ZooKeeper.
    assert (story.answers.given, story.asked()) == ([(9, "NONE"), (10, "TOPIC_ALREADY_EXISTS")], [])


def test_a_topic_that_zookeeper_refuses_exists_already() -> None:
    story = Story()
    story.store.topics["baz"] = StoredTopic(TopicState(topic_id="other", partitions={0: (1,)}), 0, TopicConfig())
    story.loop.handle(TopicRequested(9, CREATION, "id-baz"))
    story.held.answer()
    assert (story.answers.given, story.asked(), story.sent.commands) == ([(9, "TOPIC_ALREADY_EXISTS")], [], [])


def test_a_new_controller_mirrors_all_it_loaded() -> None:
    story = Story()
    story.loop.handle(TookOver())
    assert story.mirror.told == [(FOO, 70), (FOO_1, 70)]
    assert story.kinds() == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr"), (1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.asked() == []


def test_what_a_leader_wrote_is_taken_in_once() -> None:
    story = Story()
    read = PartitionsRead({FOO: StoredPartition(state(1, [1], elr=[2]), 8, zxid=80)})
    story.loop.handle(read)
    assert story.kinds() == [(1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert story.mirror.told == [(FOO, 80)]
    story.loop.handle(read)
    story.loop.handle(PartitionsRead({BAZ: StoredPartition(state(1, [1]), 3)}))  # of no topic that is known
    assert (story.kinds(), story.mirror.told) == ([], [(FOO, 80)])
    assert sorted(story.loop.cluster.partitions) == [FOO, FOO_1]


def test_a_partition_that_relied_on_an_earlier_life_is_not_made_until_the_next_is_known() -> None:
    story = Story()
    story.loop.handle(TopicRequested(9, CREATION, "id-baz"))
    story.held.answer()
    story.store.register(2, clean=True, rack=None)  # before its replicas are stored
    story.held.answer()
    assert (BAZ in story.store.partitions, story.asked(), story.answers.given) == (False, [], [(9, "NONE")])
    story.loop.handle(story.store.brokers_read())
    assert story.asked() == [["baz-0@-1"]]
    story.held.answer()
    assert story.store.partitions[BAZ].state.epochs == {1: 0, 2: 1}


def test_a_reported_death_removes_the_registration_and_the_watch_tells_of_the_rest() -> None:
    story = Story()
    story.loop.handle(BrokerDeathReported(1, 0))
    story.loop.handle(BrokerDeathReported(1, 0))
    assert story.asked() == [["broker 1"]]
    story.held.answer()
    assert story.store.registered.keys() == {2}
    story.held.answer()  # the same, from another witness: refused
    assert (story.sent.commands, story.asked(), sorted(story.loop.cluster.registered)) == ([], [], [1, 2])


def test_past_the_limit_a_request_is_refused_and_what_was_read_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_loop, "EVENTS_MAX", 2)
    story = Story()
    story.broker_down(1)
    for request in (7, 8, 9):
        story.loop.handle(TopicRequested(request, CREATION, f"id-{request}"))
    assert story.answers.given == [(9, "THROTTLING_QUOTA_EXCEEDED")]
    story.loop.handle(story.store.brokers_read())
    for _ in range(3):
        story.held.answer()
    assert story.answers.given == [
        (9, "THROTTLING_QUOTA_EXCEEDED"),
        (7, "NONE"),
        (8, "TOPIC_ALREADY_EXISTS"),
    ]


def test_a_store_that_answers_at_once_ends_in_the_same_place() -> None:
    slow, fast = Story(), Story()
    slow.broker_down(1)
    slow.held.answer()
    fast.loop = fast.controller(fast.store.session(fast.loaded.controller_epoch))
    fast.broker_down(1)
    assert (fast.store.partitions, fast.kinds()) == (slow.store.partitions, slow.kinds())
