"""A replica and consumers: what they may see, and where a read begins."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.core.replica.replica import Me
from spark_replication.errors import NotLeader, OffsetNotAvailable, OffsetOutOfRange
from spark_replication.model import AtTime
from tests.unit.core.stories import command, state
from tests.unit.engine.replica.story import LED, ME, Story, fetched, follower


def test_a_consumer_reads_below_the_high_watermark_only() -> None:
    story = Story().told()
    story.produce(3)
    assert story.loop.read(0, bytes_max=9, to=None) is None
    story.fetch(2, 2)
    found = story.loop.read(0, bytes_max=9, to=None)
    assert found is not None
    assert (found.first_offset, found.next_offset) == (0, 2)
    assert story.loop.read(1, bytes_max=9, to=1) is None
    assert story.loop.read(2, bytes_max=9, to=None) is None
    with pytest.raises(OffsetOutOfRange):
        story.loop.read(4, bytes_max=9, to=None)


def test_a_consumer_is_woken_once_when_the_high_watermark_moves() -> None:
    story = Story().told()
    story.produce(2)
    story.on_progress()
    story.fetch(2, 0)
    assert story.progress == 0
    story.fetch(2, 1)
    story.fetch(2, 2)
    assert story.progress == 1


def test_a_consumer_that_waits_no_longer_is_not_called() -> None:
    story = Story().told()
    called: list[str] = []
    waiting, gone = (lambda: called.append("waiting")), (lambda: called.append("gone"))
    story.loop.progress.await_next(waiting)
    story.loop.progress.await_next(gone)
    story.loop.progress.leave(gone)
    story.produce()
    story.fetch(2, 1)
    story.loop.progress.leave(waiting)
    assert called == ["waiting"]


def test_a_follower_serves_what_it_knows_to_be_committed_to_whom_any_replica_will_do() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)  # its leader has not seen its log
    story.on_progress()
    fetched(story, leader, high_watermark=4)
    assert story.progress == 1
    found = story.loop.read(1, bytes_max=9, to=None, any_replica=True)
    assert found is not None
    assert (found.first_offset, found.next_offset) == (1, 4)
    assert story.loop.read(4, bytes_max=9, to=None, any_replica=True) is None
    with pytest.raises(NotLeader):
        Story().loop.read(0, bytes_max=9, to=None, any_replica=True)


def test_a_follower_serves_nothing_before_its_leader_has_found_its_whole_log() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 6, 3))
    fetched(story, leader, high_watermark=4)
    assert (story.log.log_end, story.loop.high_watermark) == (5, 4)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)
    fetched(story, leader)
    assert story.loop.read(0, bytes_max=9, to=None, any_replica=True) is not None
    # It stays so while this leader leads, whatever else changes, and has to be found again by the next one.
    story.loop.command(command(LED, 8), Me(2, 0, 0), 0)
    assert story.loop.read(0, bytes_max=9, to=None, any_replica=True) is not None
    story.loop.command(command(state(1, [1, 2], leader_epoch=6), 9), Me(2, 0, 0), 0)
    with pytest.raises(NotLeader):
        story.loop.read(0, bytes_max=9, to=None, any_replica=True)


def test_a_follower_of_an_idle_partition_serves_after_one_answer_of_its_leader() -> None:
    leader, story = Story((0, 4, 3)).told(), Story((0, 4, 3))
    story.log.checkpoint(5)
    story.loop.command(command(LED, 7), Me(2, 0, 0), 0)
    assert story.loop.high_watermark == 5, "it knew so much of the leader before"
    fetched_when_told(story, leader)
    assert story.loop.read(0, bytes_max=9, to=None, any_replica=True) is not None
    waits = story.loop.next_fetch()
    assert waits is not None
    leader.loop.fetch(waits, by=2, broker_epoch=0, now_ms=0)
    leader.loop.tell_high_watermark()
    assert leader.links.take() == [], "an idle partition costs no second answer"


def test_a_follower_serves_what_its_leader_commits_though_it_knew_more_of_an_earlier_one() -> None:
    led = state(1, [1, 2, 3])
    leader, story = Story((0, 4, 3)).told(led), Story((0, 4, 3))
    story.log.checkpoint(5)
    story.loop.command(command(led, 7), Me(2, 0, 0), 0)
    leader.fetch(2, 5)
    for end in (3, 4):
        leader.fetch(3, end)
        assert leader.loop.high_watermark == end
        fetched_when_told(story, leader)
        assert story.loop.start_of("latest", any_replica=True) == end


def fetched_when_told(story: Story, leader: Story) -> None:
    """The follower's next fetch at the log end, answered because of the leader's high watermark alone."""
    leader.links.take()
    fetch = story.loop.next_fetch()
    assert fetch is not None
    leader.loop.fetch(fetch, by=2, broker_epoch=0, now_ms=0)
    assert leader.links.take() == []
    leader.loop.tell_high_watermark()
    assert leader.links.take() == [2]
    story.loop.fetch_answered(fetch, leader.answer(2), None)


def test_a_read_begins_within_what_a_consumer_may_see() -> None:
    story = Story().told()
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [0, 0, 0]
    for now_ms in (10, 30, 20, 40):
        story.produce(now_ms=now_ms)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [0, 0, 0]
    story.fetch(2, 3)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", 7)] == [0, 3, 7]
    assert [story.loop.start_of(AtTime(at)) for at in (0, 10, 11, 30, 31, 40, 41)] == [0, 0, 1, 1, 3, 3, 3]
    story.fetch(2, 4)
    assert [story.loop.start_of(AtTime(at)) for at in (31, 41)] == [3, 4]


def test_a_read_begins_where_retention_has_left_something() -> None:
    story = Story((5, 9, 3)).told()
    story.fetch(2, 10)
    assert [story.loop.start_of(start) for start in ("earliest", "latest", AtTime(0))] == [5, 10, 5]


def test_a_read_from_a_follower_begins_within_what_that_one_serves() -> None:
    leader, story = Story((0, 4, 3)).told(), follower((0, 1, 3))
    for any_replica in (False, True):
        with pytest.raises(NotLeader):
            story.loop.start_of("latest", any_replica=any_replica)
    fetched(story, leader, high_watermark=4)
    assert [story.loop.start_of(start, any_replica=True) for start in ("earliest", "latest", AtTime(1))] == [0, 4, 4]
    with pytest.raises(NotLeader):
        story.loop.start_of("earliest")
    with pytest.raises(NotLeader):
        Story().loop.start_of("earliest", any_replica=True)


def test_a_new_leader_knows_the_end_once_its_followers_have_shown_theirs() -> None:
    """KIP-207: before, its high watermark may be below what others have called committed."""
    story = Story((0, 4, 3))
    story.log.checkpoint(2)
    story.told()
    assert story.loop.read(0, bytes_max=9, to=None) is not None, "what it knows to be committed is served"
    for start in ("latest", AtTime(0)):
        with pytest.raises(OffsetNotAvailable):
            story.loop.start_of(start)
    assert [story.loop.start_of(start) for start in ("earliest", 3)] == [0, 3]
    story.fetch(2, 4)
    with pytest.raises(OffsetNotAvailable):
        story.loop.committed_end()
    story.fetch(2, 5)
    assert (story.loop.committed_end(), story.loop.start_of("latest")) == (5, 5)


def test_a_leader_that_goes_on_at_a_later_epoch_knows_what_it_has_called_committed() -> None:
    story = Story().told()
    story.produce(3)
    story.fetch(2, 2)
    story.loop.command(command(state(1, [1, 2], leader_epoch=5), 8), ME, 0)
    assert (story.leading.epoch_start, story.loop.committed_end()) == (3, 2)
    begun = Story((0, 4, 3)).told()
    begun.loop.command(command(state(1, [1, 2], leader_epoch=5), 8), ME, 0)
    with pytest.raises(OffsetNotAvailable):
        begun.loop.committed_end()


def test_a_follower_says_nothing_of_a_place_beyond_its_log() -> None:
    """It may only be behind. Its leader knows whether the log was cut."""
    leader, story = Story((0, 4, 3)).told(), follower((0, 3, 3))
    fetched(story, leader)
    assert story.log.log_end == 5
    assert story.loop.cut_below(ReadPlace(6, 3)) is None
    assert story.loop.cut_below(ReadPlace(5, 2)) == 0
    assert leader.loop.cut_below(ReadPlace(6, 3)) == 5
