"""Which marks below /admin/delete_topics are this controller's own."""

from __future__ import annotations

from spark_replication.core.law.writes import DeletionMark, Made, Refused, RequestRemoval, Stored, TopicRemoval
from spark_replication.zk.controller.request_looking import Deletions

MARK = (DeletionMark(topic="foo"),)
REMOVAL = (TopicRemoval(topic="foo", topic_id="id"),)


def test_from_the_mark_to_the_removal_every_mark_of_the_topic_is_covered() -> None:
    deletions = Deletions()
    assert not deletions.covers("foo", 1)
    assert not deletions.sent([MARK])
    assert deletions.covers("foo", 1_000_000), "it is on its way: nobody knows its zxid"
    assert not deletions.covers("bar", 1)
    assert deletions.over() == set()


def test_after_the_removal_a_later_mark_is_a_request() -> None:
    deletions = Deletions()
    deletions.sent([MARK])
    assert deletions.sent([(RequestRemoval(path="/admin/x"),), REMOVAL])
    deletions.answered([REMOVAL], [Stored((Made(0, 50),))])
    assert (deletions.covers("foo", 50), deletions.covers("foo", 51)) == (True, False)
    assert deletions.over() == {"foo"}


def test_what_was_not_removed_stays_covered() -> None:
    deletions = Deletions()
    deletions.begin(["foo"])
    deletions.answered([REMOVAL], [Refused({})])
    assert deletions.covers("foo", 1_000_000)


def test_only_what_is_over_is_forgotten() -> None:
    deletions = Deletions()
    deletions.sent([MARK])
    deletions.answered([REMOVAL], [Stored((Made(0, 50),))])
    over = deletions.over()
    deletions.forget(over)
    assert not deletions.covers("foo", 40)
    deletions.sent([MARK])
    deletions.forget(over)
    assert deletions.covers("foo", 1_000_000), "it has begun again"
