"""What a disk refused to open, or to lead with, is tried again: no command for it comes a second time (B4)."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.replica import Leading, Me
from spark_replication.messages.envelope import NONE
from tests.unit.core.stories import FOO, command, settings, state
from tests.unit.engine.test_broker_loop import FOLLOWED, FOO_1, LED, LIVE, ME, Story, leader_and_isr, stop, update

RETRY_MS = settings().disk_retry_ms
SICK = "KAFKA_STORAGE_ERROR"


def refused(now_ms: int = 0) -> Story:
    """Told to lead foo-0 and to follow foo-1, by a controller that commands it once."""
    story = Story()
    story.registered()
    story.logs.sick = frozenset({FOO, FOO_1})
    story.now_ms = now_ms
    answer = story.loop.leader_and_isr(leader_and_isr(LED, FOLLOWED))
    assert answer.errors == {"foo-0": SICK, "foo-1": SICK}
    assert (story.parts(), story.failures.told) == ({}, [FOO, FOO_1])
    return story


def try_refused(story: Story, now_ms: int) -> None:
    story.now_ms = now_ms
    story.loop.try_refused()


def test_a_log_that_could_not_be_opened_is_opened_once_the_disk_may_do_again() -> None:
    story = refused(now_ms=5)
    story.logs.sick = frozenset()
    try_refused(story, 5 + RETRY_MS - 1)
    assert story.parts() == {}, "its disk has its time"
    try_refused(story, 5 + RETRY_MS)
    assert (story.parts(), story.links.following) == ({FOO: "Leading", FOO_1: "Following"}, {FOO_1: 2})
    assert story.failures.told == [FOO, FOO_1], "what goes well is not reported"


def test_a_disk_that_refuses_again_is_reported_again_and_tried_again() -> None:
    story = refused()
    story.logs.sick = frozenset({FOO})
    try_refused(story, RETRY_MS)
    assert (story.parts(), story.failures.told) == ({FOO_1: "Following"}, [FOO, FOO_1, FOO])
    story.logs.sick = frozenset()
    try_refused(story, 2 * RETRY_MS - 1)
    assert story.parts() == {FOO_1: "Following"}
    try_refused(story, 2 * RETRY_MS)
    assert story.parts() == {FOO_1: "Following", FOO: "Leading"}


def test_a_log_without_room_for_its_leaders_epoch_leads_once_there_is() -> None:
    """Alone in the ISR it stays the leader in ZooKeeper: the controller has nothing new to tell it."""
    story = Story()
    story.registered(FOLLOWED)
    story.log(FOO_1).failing = frozenset({"begin_epoch"})
    alone = command(state(1, [1], leader_epoch=5), 8, partition=FOO_1)
    assert story.loop.leader_and_isr(leader_and_isr(alone)).errors == {"foo-1": SICK}
    story.log(FOO_1).failing = frozenset()
    try_refused(story, RETRY_MS)
    part = story.loop.partition(FOO_1).part
    assert isinstance(part, Leading)
    assert part.state.leader_epoch == 5


def test_a_log_that_could_not_start_where_it_is_to_does_so_once_the_disk_may_do_again() -> None:
    story = Story()
    story.registered(LED)
    story.log().failing = frozenset({"begin_anew"})
    alone = command(state(1, [1], min_isr=1, leader_epoch=5, start_at=9), 8)
    assert story.loop.leader_and_isr(leader_and_isr(alone)).errors == {"foo-0": SICK}
    assert (story.parts(), story.failures.told) == ({FOO: "NoneType"}, [FOO])
    story.log().failing = frozenset()
    try_refused(story, RETRY_MS)
    assert (story.parts(), story.log().log_start) == ({FOO: "Leading"}, 9)


def test_what_is_tried_again_is_the_newest_that_is_known() -> None:
    story = refused()
    story.loop.update_metadata(update(command(state(2, [2], leader_epoch=5), 8)))
    story.logs.sick = frozenset()
    try_refused(story, RETRY_MS)
    assert (story.parts()[FOO], story.loop.partition(FOO).order) == ("Following", (5, 8))


def test_what_a_later_command_carried_out_stays_as_it_is() -> None:
    story = refused()
    story.logs.sick = frozenset()
    later = command(state(2, [2], leader_epoch=5), 8)
    assert story.loop.leader_and_isr(leader_and_isr(later)).errors == {"foo-0": NONE}
    asked = story.links.asked
    try_refused(story, RETRY_MS)
    assert (story.parts()[FOO], story.links.following[FOO]) == ("Following", 2)
    assert story.links.asked == asked + 1, "of foo-1 alone"


@pytest.mark.parametrize("elsewhere", [(2, 3), None])
def test_what_is_no_longer_assigned_to_this_broker_is_not_opened(elsewhere: tuple[int, ...] | None) -> None:
    story = refused()
    if elsewhere is None:
        story.loop.stop_replica(stop(leader_epoch=5))
    else:
        story.loop.update_metadata(update(command(state(2, [2], leader_epoch=5), 8, replicas=elsewhere)))
    story.logs.sick = frozenset()
    try_refused(story, RETRY_MS)
    assert story.parts() == {FOO_1: "Following"}


def test_what_was_deleted_meanwhile_is_not_opened() -> None:
    story = refused()
    story.loop.update_metadata(update(topics={}, deleted=("foo",)))
    story.logs.sick = frozenset()
    try_refused(story, RETRY_MS)
    assert story.parts() == {}


def test_without_a_session_nothing_is_tried_and_the_next_registration_tells_it_all() -> None:
    story = refused()
    story.loop.session_lost()
    story.logs.sick = frozenset()
    try_refused(story, RETRY_MS)
    assert story.parts() == {}, "nobody commands it"
    story.registered(me=Me(1, 1, 0))
    try_refused(story, 2 * RETRY_MS)
    assert story.parts() == {}, "ZooKeeper knows of no such partition by then"


def test_what_could_not_be_opened_at_the_registration_is_tried_again_too() -> None:
    story = Story()
    story.logs.sick = frozenset({FOO})
    assert story.registered(LED) == {"foo-0": SICK}
    story.logs.sick = frozenset()
    try_refused(story, RETRY_MS)
    assert story.parts() == {FOO: "Leading"}
    assert (story.loop.me, dict(story.loop.brokers)) == (ME, LIVE)
