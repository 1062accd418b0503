"""A group that nobody uses is forgotten, but not because a cluster was down, or a clock was set."""

from __future__ import annotations

import pytest

from spark_replication.core.groups.group import ConsumerGroup, MemberLeft, Placed, PositionsCommitted
from spark_replication.core.groups.idle import FOR_EVER_MS, GRACE_MS, LOOK_MS, STEP_MS, IdleGroups
from tests.unit.core.groups.test_deciding import joined, position

DAY_MS = 24 * 3_600_000
RETENTION_MS = 30 * DAY_MS
NOW_MS = 1_700_000_000_000


class IdleStory:
    """A coordinator that has begun a while ago, and has one group."""

    def __init__(self, retention_ms: int = RETENTION_MS) -> None:
        self.clock_ms, self.now_ms = 1_000.0, NOW_MS
        self.group = ConsumerGroup("etl")
        self.idle = IdleGroups(retention_ms, clock_ms=self.clock_ms, now_ms=self.now_ms)

    def later(self, ms: float) -> IdleStory:
        self.clock_ms += ms
        self.now_ms += round(ms)
        return self

    def committed(self, ago_ms: int) -> IdleStory:
        placed = Placed("a", 0, position(7, 2, 1, committed_ms=self.now_ms - ago_ms))
        self.group.apply(PositionsCommitted(group="etl", positions=(placed,)))
        return self

    def left(self, ago_ms: int) -> IdleStory:
        self.group.apply(joined())
        self.group.apply(MemberLeft(group="etl", epoch=2, member="x", why="it left", left_ms=self.now_ms - ago_ms))
        return self

    @property
    def is_over(self) -> bool:
        return self.group in self.idle.over([self.group], clock_ms=self.clock_ms, now_ms=self.now_ms)


def test_a_group_that_nobody_uses_is_forgotten() -> None:
    story = IdleStory().later(GRACE_MS)
    assert story.committed(RETENTION_MS).is_over


def test_who_has_committed_since_uses_it() -> None:
    story = IdleStory().later(GRACE_MS)
    assert not story.committed(RETENTION_MS - 1).is_over


def test_who_had_members_since_was_used() -> None:
    story = IdleStory().later(GRACE_MS)
    assert not story.committed(2 * RETENTION_MS).left(RETENTION_MS - 1).is_over
    assert not story.later(0).is_over, "the next look is a while away"
    assert story.later(LOOK_MS).is_over


def test_who_has_a_member_is_used() -> None:
    story = IdleStory().later(GRACE_MS).committed(2 * RETENTION_MS)
    story.group.apply(joined())
    assert not story.is_over


def test_a_group_of_which_nothing_is_known_is_forgotten() -> None:
    assert IdleStory().later(GRACE_MS).is_over


def test_who_has_just_begun_to_coordinate_forgets_nothing() -> None:
    story = IdleStory().committed(10 * RETENTION_MS)
    assert not story.later(GRACE_MS - 1).is_over
    assert story.later(1).is_over


@pytest.mark.parametrize("by_ms", [2 * RETENTION_MS, -2 * RETENTION_MS, round(STEP_MS)])
def test_who_had_its_clock_set_forgets_nothing_for_a_while(by_ms: int) -> None:
    story = IdleStory().later(GRACE_MS)
    story.committed(RETENTION_MS - 1 if by_ms > 0 else RETENTION_MS + 3 * round(GRACE_MS))
    story.now_ms += by_ms
    assert not story.is_over
    story.now_ms -= by_ms
    assert not story.is_over, "it was set right"
    assert not story.later(GRACE_MS - 1).is_over
    assert story.committed(RETENTION_MS).later(1).is_over


def test_a_clock_that_is_set_right_a_little_at_a_time_was_not_set() -> None:
    story = IdleStory().later(GRACE_MS)
    for _ in range(3):
        assert not story.committed(0).later(LOOK_MS).is_over
        story.now_ms += round(STEP_MS) - 1
    assert story.committed(RETENTION_MS).later(LOOK_MS).is_over


def test_they_may_be_kept_for_ever() -> None:
    assert not IdleStory(FOR_EVER_MS).later(GRACE_MS).committed(100 * RETENTION_MS).is_over


def test_what_is_kept_for_less_than_the_grace_is_forgotten_sooner() -> None:
    story = IdleStory(4_000)
    assert not story.committed(8_000).later(3_999).is_over
    assert story.later(1).is_over
    assert not story.later(999).is_over
    assert story.later(1).is_over
