"""Which nodes below /admin the controller is told of, how often, and when they are looked at again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_replication.core.controller.events import NodesUnreadable, Requested
from spark_replication.core.law.writes import DeletionMark, Made, Stored, TopicRemoval
from spark_replication.messages.requests import DeleteTopic, ElectLeaders
from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest, read_requests
from spark_replication.zk.controller.request_looking import Deletions, RequestLooking, looked_for
from spark_replication.zk.operations import EXISTS, Committed, Create, Delete, Node, Operation, SetData, UnreadNode

LOOK_S = 5.0
MARK = paths.deletion_mark("orders")
DELETES = Requested(asked=DeleteTopic(topic="orders"), path=MARK)
WRONG = f"{paths.REASSIGNED}/orders"


class Story:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.tree = Znodes(paths.BASE)
        self.deletions = Deletions()
        self.of = RequestLooking((), self.deletions, LOOK_S)

    def loads(self) -> list[FoundRequest]:
        """Another controller begins with what it has loaded."""
        found = read_requests(self.tree)
        self.of = RequestLooking(found, self.deletions, LOOK_S)
        return found

    def does(self, *operations: Operation) -> None:
        assert isinstance(self.tree.multi(operations), Committed)
        self.of.mark()

    def looks(self) -> list[Requested | NodesUnreadable]:
        if self.of.due_s > self.now_s:
            return []
        self.of.taken()
        return list(self.of.found(looked_for(self.tree), self.now_s))


def test_a_request_is_told_of_once_and_again_once_it_was_written_again() -> None:
    story = Story()
    assert (story.looks(), story.of.due_s) == ([], math.inf), "there is none"
    story.does(Create(MARK))
    assert story.looks() == [DELETES]
    story.of.mark()
    assert story.looks() == []
    story.does(Delete(MARK, EXISTS))
    assert story.looks() == []
    story.does(Create(MARK))
    assert story.looks() == [DELETES]
    story.does(SetData(MARK, b"", EXISTS))
    assert story.looks() == [DELETES]


def test_what_was_loaded_is_not_told_of_unless_it_is_written_again() -> None:
    story = Story()
    story.does(Create(MARK))
    story.loads()
    assert story.looks() == []
    story.does(Delete(MARK, EXISTS), Create(MARK))
    assert story.looks() == [DELETES]


def test_the_mark_of_its_own_deletion_is_no_request() -> None:
    story = Story()
    story.looks()
    story.deletions.sent([(DeletionMark(topic="orders"),)])
    story.does(Create(MARK))
    assert story.looks() == []
    removal = (TopicRemoval(topic="orders", topic_id="id"),)
    story.deletions.sent([removal])
    story.does(Delete(MARK, EXISTS))
    story.deletions.answered([removal], [Stored((Made(0, story.tree.zxid),))])
    story.of.taken()
    assert list(story.of.found(read_requests(story.tree), story.now_s)) == []
    assert story.deletions.over() == frozenset(), "its mark was not found any more"
    story.does(Create(MARK))
    assert story.looks() == [DELETES]


def test_a_deletion_that_ended_during_a_reading_is_remembered_until_the_next() -> None:
    story = Story()
    removal = (TopicRemoval(topic="orders", topic_id="id"),)
    story.deletions.begin(["orders"])
    story.of.taken()
    story.deletions.answered([removal], [Stored((Made(0, 50),))])
    assert list(story.of.found([], story.now_s)) == []
    assert story.deletions.over() == {"orders"}, "the reading may have been before it"
    story.of.mark()
    story.looks()
    assert story.deletions.over() == frozenset()


def test_what_is_no_request_is_named_and_looked_at_until_it_is_one() -> None:
    story = Story()
    story.looks()
    story.does(Create(WRONG), Create(f"{WRONG}/zero", b"[1]"))
    (told,) = story.looks()
    assert isinstance(told, NodesUnreadable)
    assert list(told.reasons) == [f"{WRONG}/zero"]
    assert story.looks() == []
    assert story.of.due_s == story.now_s + LOOK_S
    story.does(Delete(f"{WRONG}/zero", EXISTS))
    assert story.of.due_s <= story.now_s, "it is marked"
    assert story.looks() == [NodesUnreadable(paths.ADMIN, {})]
    assert story.of.due_s == math.inf


def test_what_is_marked_while_something_cannot_be_read_is_read_at_once() -> None:
    story = Story()
    story.does(Create(paths.PREFERRED_ELECTION, b"garbage"))
    assert len(story.looks()) == 1
    story.does(Create(MARK))
    assert story.looks() == [DELETES]
    story.does(SetData(paths.PREFERRED_ELECTION, b"", EXISTS))
    (nothing, elects) = story.looks()
    assert nothing == NodesUnreadable(paths.ADMIN, {})
    assert elects == Requested(asked=ElectLeaders(kind="preferred", partitions=None), path=paths.PREFERRED_ELECTION)


def test_what_could_not_be_read_is_read_later_and_later() -> None:
    story = Story()
    pauses = []
    for _ in range(7):
        story.of.taken()
        pauses.append(story.of.failed(story.now_s))
        assert story.looks() == [], "not yet"
        story.now_s = story.of.due_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert story.looks() == []
    story.of.taken()
    assert story.of.failed(story.now_s) == 0.1


def test_a_node_that_was_corrected_while_it_was_read_is_read_again() -> None:
    """Its watch was set after that."""

    class Corrected(Znodes):
        readings = 0

        def read_each(self, paths: Sequence[str], watch: object = None) -> list[Node | UnreadNode | None]:
            self.readings += bool(watch)
            if watch:
                self.multi([SetData(path, b"", EXISTS) for path in paths])
            return super().read_each(paths)

    marks: list[object] = []
    tree = Corrected(paths.BASE)
    tree.multi([Create(paths.PREFERRED_ELECTION, b"garbage")])
    assert [each.asked for each in looked_for(tree, marks.append)] == [None]
    assert (tree.readings, len(marks)) == (1, 1)
    assert [each.asked is None for each in looked_for(tree, marks.append)] == [False]
    assert (tree.readings, len(marks)) == (1, 1)
