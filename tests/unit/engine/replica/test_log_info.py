"""What a replica tells of its log before a recovery chooses a leader."""

from __future__ import annotations

from spark_replication.messages.commands import ReplicaLogInfo
from tests.unit.core.stories import FOO, FOO_ID, state
from tests.unit.engine.replica.story import LED, Story


def test_who_follows_tells_of_its_log_and_follows_no_longer_until_something_newer() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    info = ReplicaLogInfo(topic="foo", partition=0, topic_id=FOO_ID, last_epoch=3, current_epoch=4, end=5)
    assert story.loop.log_info(4) == info
    assert (story.loop.next_fetch(), story.links.following) == (None, {})
    assert story.loop.log_info(4) == info  # again: it is the same
    story.told(state(2, [2, 3]), 8)
    assert story.links.following == {FOO: 2}


def test_a_late_question_stops_nobody_who_follows_a_leader_elected_since() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    assert story.loop.log_info(3).current_epoch == 4
    assert story.links.following == {FOO: 2}


def test_who_leads_tells_of_its_log_and_leads_on() -> None:
    story = Story((0, 4, 3)).told()
    story.produce()
    assert (story.loop.log_info(4).last_epoch, story.loop.log_info(4).end) == (4, 6)
    assert story.leading.state == LED


def test_who_was_told_nothing_knows_no_epoch() -> None:
    info = ReplicaLogInfo(topic="foo", partition=0, topic_id=FOO_ID, last_epoch=-1, current_epoch=-1, end=0)
    assert Story().loop.log_info(4) == info
