"""A replica and the controller's commands: lead, follow, or neither."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Follower, Following, Me
from spark_replication.errors import NotLeader, StorageFailed
from tests.unit.core.stories import FOO, command, state
from tests.unit.engine.replica.story import LED, ME, Story


def test_it_leads_where_it_is_told_to_and_its_epoch_is_on_disk_first() -> None:
    story = Story((0, 4, 3)).told()
    assert story.log.epochs == EpochHistory.of([(3, 0), (4, 5)])
    assert (story.leading.epoch_start, story.leading.end_at_start, story.loop.order) == (5, 5, (4, 7))


def test_who_lost_its_log_since_it_joined_leads_nobody_though_it_is_named() -> None:
    story = Story((0, 4, 3)).told(me=Me(1, 1, 1))
    assert (story.loop.part, story.links.following) == (None, {})
    with pytest.raises(NotLeader, match="does not lead foo-0, nobody does"):
        story.produce()


@pytest.mark.parametrize("partition_epoch", [6, 7])
def test_an_older_or_equal_command_changes_nothing(partition_epoch: int) -> None:
    story = Story().told()
    story.told(state(2, [2]), partition_epoch)
    assert story.leading.state == LED


def test_a_command_that_the_disk_stopped_is_carried_out_when_it_comes_again() -> None:
    story = Story()
    story.log.failing = frozenset({"begin_epoch"})
    for _ in range(2):
        with pytest.raises(StorageFailed):
            story.told()
    assert (story.loop.part, story.loop.order) == (None, (-1, -1))
    story.log.failing = frozenset()
    assert story.told().leading.state == LED


def test_a_later_leader_epoch_goes_before_a_higher_partition_epoch() -> None:
    story = Story().told(state(2, [2], leader_epoch=5), 3)
    story.told(LED, 9)
    assert (story.loop.order, story.links.following) == ((5, 3), {FOO: 2})
    story.told(LED, 9).told(state(1, [1, 2], leader_epoch=6), 1)
    assert (story.loop.order, story.leading.state.leader_epoch) == ((6, 1), 6)


def test_in_the_same_leadership_replicas_are_added_and_dropped() -> None:
    story = Story().told()
    story.fetch(2, 0)
    two = story.leading.followers[2]
    story.loop.command(command(LED, 8, replicas=(1, 2, 4)), ME, 50)
    assert story.leading.replicas == (1, 2, 4)
    assert story.leading.followers == {2: two, 4: Follower(-1, -1, caught_up_ms=50)}
    # A member of the ISR is followed whatever the assignment says.
    story.loop.command(command(LED, 9, replicas=(1,)), ME, 60)
    assert story.leading.followers == {2: two}


def test_a_newer_state_of_the_same_leadership_is_taken_over() -> None:
    story = Story().told()
    before = story.leading
    story.told(state(1, [1], elr=[2]), 8)
    assert story.leading == replace(before, state=state(1, [1], elr=[2]), partition_epoch=8)


def test_a_command_that_drops_who_was_waited_for_acknowledges() -> None:
    """Those who are left may have nothing to fetch any more."""
    story = Story().told(state(1, [1, 2, 3]))
    story.produce()
    story.fetch(2, 1)
    assert story.answers == []
    story.told(LED, 8)
    assert story.answers == [OffsetSpan(0, 0)]


def test_it_follows_a_new_leader_once_and_nobody_where_nobody_leads() -> None:
    story = Story((0, 4, 3)).told(state(2, [2]))
    assert story.loop.part == Following(leader=2, leader_epoch=4, partition_epoch=7, high_watermark=0)
    assert story.links.following == {FOO: 2}
    story.links.following.clear()
    story.told(state(2, [2, 3]), 8)
    assert story.links.following == {}  # it follows already
    story.told(state(None, [3], leader_epoch=5), 9)
    assert (story.loop.next_fetch(), story.links.following) == (None, {})
    story.told(state(2, [2], leader_epoch=6), 10)
    assert story.links.following == {FOO: 2}
    with pytest.raises(NotLeader, match="broker 2 does"):
        story.produce()


def test_a_new_epoch_of_its_own_begins_anew() -> None:
    story = Story().told()
    story.fetch(2, 0)
    assert story.links.take() == []
    story.told(state(1, [1, 2], leader_epoch=5), 8)
    assert story.links.take() == [2]  # its fetch is of an earlier epoch
    assert story.answer(2).error == "FENCED_LEADER_EPOCH"
    assert story.leading.followers[2].end == -1
