"""What a controller's watches lead to: what is read, told, deleted, and when it is looked at again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from spark_replication.core.controller.events import BrokersRead, NodesUnreadable, PartitionsRead
from spark_replication.core.law.unreadable import Unreadable
from spark_replication.model import PartitionState, Registration, TopicPartition, encode
from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.controller import looking
from spark_replication.zk.controller.looking import CandidacyOver, Looking, Told, looked
from spark_replication.zk.isr_change import IsrChange
from spark_replication.zk.operations import (
    EXISTS,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Rejected,
    SetData,
    UnreadNode,
)

ORDERS = [TopicPartition("orders", number) for number in range(3)]
STATE = PartitionState(leader=1, leader_epoch=0, isr=frozenset({1}), min_isr=1, epochs={1: 0})
EPOCH_CHECK = Check(paths.CONTROLLER_EPOCH, 0)
LOOK_S = 5.0


class GuardedZnodes(Znodes):
    """Some of them may not be read."""

    def __init__(self) -> None:
        super().__init__(paths.BASE)
        self.guarded: set[str] = set()

    def read_each(self, paths: Sequence[str], watch: object = None) -> list[Node | UnreadNode | None]:
        return [UnreadNode("not yours") if path in self.guarded else self.read(path) for path in paths]


class Story:
    def __init__(self, unreadable: Unreadable = Unreadable()) -> None:  # noqa: B008 (frozen)
        self.now_s = 100.0
        self.tree = GuardedZnodes()
        self.does(Create(paths.CONTROLLER_EPOCH, b"{}"), Create(paths.topic("orders"), b"{}"))
        for partition in ORDERS:
            self.does(Create(paths.partition(partition)), Create(paths.leader_and_isr(partition), encode(STATE)))
        self.of = Looking(EPOCH_CHECK, unreadable, self.now_s, LOOK_S)

    def does(self, *operations: Operation) -> None:
        assert isinstance(self.tree.multi(operations), Committed)

    def notify(self, *partitions: TopicPartition) -> None:
        change = IsrChange(partitions=tuple(map(str, partitions)))
        self.does(Create(paths.ISR_CHANGE_PREFIX, encode(change), sequence=True))

    def looks(self) -> list[Told | CandidacyOver]:
        """All that comes of a look, if one is due."""
        if self.of.due_s > self.now_s:
            return []
        found = looked(self.of.taken(self.now_s), self.tree)
        told = list(self.of.found(found))
        for multi in self.of.writes(found):
            deposed = self.of.written(self.tree.multi(multi))
            told += [] if deposed is None else [deposed]
        return told

    @property
    def notifications(self) -> list[str]:
        return self.tree.children_now(paths.ISR_CHANGES)


def kinds(told: Sequence[object]) -> list[str]:
    return [type(each).__name__ for each in told]


def test_everything_is_read_a_first_time_and_then_what_is_marked() -> None:
    story = Story()
    story.notify(ORDERS[0])
    assert kinds(story.looks()) == ["BrokersRead", "PartitionsRead"]
    assert (story.of.due_s, story.looks()) == (math.inf, [])
    story.of.mark(brokers=True)
    assert kinds(story.looks()) == ["BrokersRead"]
    story.notify(ORDERS[1])
    story.of.mark(changes=True)
    (told,) = story.looks()
    assert isinstance(told, PartitionsRead)
    assert list(told.partitions) == [ORDERS[1]]


def test_a_burst_of_changes_is_one_event_and_its_notifications_are_deleted() -> None:
    story = Story()
    story.looks()
    for partition in (ORDERS[2], ORDERS[0], ORDERS[2]):
        story.notify(partition)
        story.of.mark(changes=True)
    (told,) = story.looks()
    assert isinstance(told, PartitionsRead)
    assert list(told.partitions) == [ORDERS[0], ORDERS[2]]
    assert story.notifications == []
    assert story.looks() == []


def test_what_is_marked_during_a_reading_is_read_after_it() -> None:
    story = Story()
    marks = story.of.taken(story.now_s)
    found = looked(marks, story.tree)
    story.of.mark(brokers=True)
    list(story.of.found(found))
    assert kinds(story.looks()) == ["BrokersRead"]


def test_no_partition_is_told_of_if_none_has_changed() -> None:
    story = Story()
    assert kinds(story.looks()) == ["BrokersRead"]
    story.does(Delete(paths.leader_and_isr(ORDERS[0]), EXISTS))
    story.notify(ORDERS[0])
    story.of.mark(changes=True)
    assert story.looks() == [], "it is gone"
    assert story.notifications == []


def test_what_could_not_be_read_is_marked_still_and_read_later_and_later() -> None:
    story = Story()
    pauses = []
    for _ in range(8):
        marks = story.of.taken(story.now_s)
        assert (marks.brokers, marks.changes) == (True, True)
        pauses.append(story.of.failed(marks, story.now_s))
        assert story.of.due_s == story.now_s + pauses[-1]
        assert story.looks() == [], "not yet"
        story.now_s = story.of.due_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, looking.PAUSE_S_MAX, looking.PAUSE_S_MAX]
    assert kinds(story.looks()) == ["BrokersRead"]
    assert story.of.failed(story.of.taken(story.now_s), story.now_s) == looking.PAUSE_S_MIN


def test_a_deposed_controller_deletes_nothing_and_learns_of_it() -> None:
    story = Story()
    story.notify(ORDERS[0])
    story.does(SetData(paths.CONTROLLER_EPOCH, b"{}", EXISTS))
    told = story.looks()
    assert kinds(told) == ["BrokersRead", "PartitionsRead", "CandidacyOver"]
    assert len(story.notifications) == 1, "its successor has not seen it"


def test_a_notification_that_somebody_deleted_has_the_others_looked_at_again() -> None:
    story = Story()
    story.notify(ORDERS[0])
    story.notify(ORDERS[1])
    found = looked(story.of.taken(story.now_s), story.tree)
    list(story.of.found(found))
    story.does(Delete(paths.isr_change(story.notifications[0]), EXISTS))
    (multi,) = story.of.writes(found)
    outcome = story.tree.multi(multi)
    assert isinstance(outcome, Rejected)
    assert story.of.written(outcome) is None
    assert kinds(story.looks()) == ["PartitionsRead"]
    assert story.notifications == []


def test_where_somebody_removed_the_folder_it_is_made_again_and_all_is_loaded_anew() -> None:
    """Of what leaders have changed meanwhile nobody was told."""
    story = Story()
    story.looks()
    story.does(Delete(paths.ISR_CHANGES, EXISTS))
    story.of.mark(changes=True)
    (over,) = story.looks()
    assert isinstance(over, CandidacyOver)
    assert "removed by somebody" in over.why
    assert story.tree.read(paths.ISR_CHANGES) is not None


def test_so_it_is_where_the_answer_was_lost_and_where_somebody_put_it_back() -> None:
    story = Story()
    story.does(Delete(paths.ISR_CHANGES, EXISTS))
    marks = story.of.taken(story.now_s)
    found = looked(marks, story.tree)
    assert kinds(list(story.of.found(found))) == ["BrokersRead"]
    story.does(*next(story.of.writes(found)))
    story.of.failed(marks, story.now_s)
    story.now_s += 1
    assert kinds(story.looks()) == ["BrokersRead", "CandidacyOver"]


def test_a_deposed_controller_makes_no_folder() -> None:
    story = Story()
    story.does(Delete(paths.ISR_CHANGES, EXISTS), SetData(paths.CONTROLLER_EPOCH, b"later", EXISTS))
    assert kinds(story.looks()) == ["BrokersRead", "CandidacyOver"]
    assert story.tree.read(paths.ISR_CHANGES) is None


def test_many_notifications_are_deleted_in_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "DELETIONS_IN_MULTI_MAX", 2)
    story = Story()
    for _ in range(5):
        story.notify(ORDERS[0])
    multis = list(story.of.writes(looked(story.of.taken(story.now_s), story.tree)))
    assert [len(multi) - 1 for multi in multis] == [2, 2, 1]
    assert all(multi[0] == EPOCH_CHECK for multi in multis)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_notification_that_cannot_be_read_stays_and_is_named_once(guarded: bool) -> None:
    story = Story()
    story.notify(ORDERS[0])
    story.does(Create(paths.ISR_CHANGE_PREFIX, b"garbage", sequence=True))
    path = paths.isr_change(story.notifications[1])
    if guarded:
        story.tree.guarded.add(path)
    told = story.looks()
    assert kinds(told) == ["BrokersRead", "NodesUnreadable", "PartitionsRead"]
    assert isinstance(told[1], NodesUnreadable)
    assert list(told[1].reasons) == [path]
    assert [paths.isr_change(name) for name in story.notifications] == [path]
    story.of.mark(changes=True)
    assert story.looks() == []
    story.does(Delete(path, EXISTS))
    story.of.mark(changes=True)
    assert story.looks() == [NodesUnreadable(paths.ISR_CHANGES, {})]


def test_a_state_that_cannot_be_read_is_told_of_and_looked_at_until_it_can_be() -> None:
    story = Story()
    story.does(SetData(paths.leader_and_isr(ORDERS[0]), b"garbage", EXISTS))
    story.notify(ORDERS[0])
    told = story.looks()[1]
    assert isinstance(told, PartitionsRead)
    assert told.unreadable.partitions == {ORDERS[0]}
    assert story.of.due_s == 100.0 + LOOK_S
    story.now_s += LOOK_S
    assert story.looks() == []
    story.does(SetData(paths.leader_and_isr(ORDERS[0]), encode(STATE), EXISTS))
    assert story.looks() == [], "not before its time"
    story.now_s += LOOK_S
    assert kinds(story.looks()) == ["CandidacyOver"]


def test_what_could_not_be_loaded_ends_the_candidacy_once_it_is_gone() -> None:
    path = paths.leader_and_isr(ORDERS[0])
    story = Story(Unreadable(reasons={path: "garbage", "/admin/x": "of no controller's loading"}))
    story.tree.guarded.add(path)
    story.looks()
    story.now_s += LOOK_S
    assert story.looks() == []
    story.tree.guarded.clear()
    story.does(Delete(path, EXISTS))
    story.now_s += LOOK_S
    assert kinds(story.looks()) == ["CandidacyOver"]


def test_a_look_at_what_is_held_that_fails_is_repeated_as_soon() -> None:
    story = Story(Unreadable(reasons={paths.leader_and_isr(ORDERS[0]): "garbage"}))
    story.looks()
    story.now_s += LOOK_S
    marks = story.of.taken(story.now_s)
    assert marks.held
    assert story.of.failed(marks, story.now_s) == looking.PAUSE_S_MIN
    assert story.of.due_s == story.now_s + looking.PAUSE_S_MIN


def test_a_registration_that_cannot_be_read_is_read_again_from_time_to_time() -> None:
    """No event comes when an ACL is corrected."""
    story = Story()
    registration = Registration(host="h", port=1, replication_port=2, epoch=0, incarnation="one")
    story.does(Create(paths.broker_id(1), encode(registration)))
    story.tree.guarded.add(paths.broker_id(1))
    (told,) = story.looks()
    assert isinstance(told, BrokersRead)
    assert told.unreadable.brokers == {1}
    story.now_s += LOOK_S
    story.tree.guarded.clear()
    (told,) = story.looks()
    assert isinstance(told, BrokersRead)
    assert list(told.brokers) == [1]
    assert story.of.due_s == math.inf
