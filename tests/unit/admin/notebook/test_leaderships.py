"""Who led when, as events tell it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.admin.notebook import leaderships
from spark_replication.admin.notebook.leaderships import QUIET_MS, SHOWN_MS_MIN, timeline_of
from spark_replication.messages.mirroring import ToldEvent
from tests.unit.admin.notebook.described import event, partition, topic

NOW_MS = 100_000
CREATED = event(1, 10_000, None, (1, 0), kind="created")
LOST = event(2, 50_000, (1, 0), (None, 1), kind="leaderless")
ELECTED = event(3, 60_000, (None, 1), (2, 2))
SHRUNK = event(4, 70_000, (2, 2), (2, 2), kind="isr")


def bars(*events: ToldEvent, since_ms: int | None = None, now_ms: int = NOW_MS) -> list[tuple[Any, ...]]:
    found = timeline_of(topic(partition(leader=2, leader_epoch=2)), events, now_ms, since_ms)
    assert all(each.partition == 0 for each in found.leaderships)
    return [(each.leader, each.leader_epoch, each.since_ms, each.until_ms) for each in found.leaderships]


def test_a_story_from_its_beginning() -> None:
    assert bars(CREATED, LOST, ELECTED, SHRUNK) == [
        (1, 0, 10_000, 50_000),
        (None, 1, 50_000, 60_000),
        (2, 2, 60_000, NOW_MS),
    ]


def test_what_led_before_the_first_event_is_known_by_it() -> None:
    found = timeline_of(topic(partition()), [event(9, 5_000, None, None, partition=1), LOST], NOW_MS)
    first, second = found.leaderships
    assert (first.leader, first.since_ms, first.until_ms, first.event) == (1, 5_000, 50_000, None)
    assert second.event == LOST


def test_without_events_who_leads_has_led() -> None:
    assert bars(now_ms=QUIET_MS + 5) == [(2, 2, 5, QUIET_MS + 5)]


def test_what_began_earlier_is_cut() -> None:
    assert bars(CREATED, LOST, ELECTED, since_ms=55_000) == [(None, 1, 55_000, 60_000), (2, 2, 60_000, NOW_MS)]
    assert timeline_of(topic(partition()), [SHRUNK], NOW_MS, 71_000).others == ()
    assert timeline_of(topic(partition()), [SHRUNK], NOW_MS, 70_000).others == (SHRUNK,)


def test_nobody_leads_a_partition_that_is_removed() -> None:
    assert bars(CREATED, event(2, 20_000, (1, 0), None), event(3, 30_000, None, (3, 4))) == [
        (1, 0, 10_000, 20_000),
        (3, 4, 30_000, NOW_MS),
    ]


def test_events_of_other_topics_and_of_the_topic_itself_are_no_bars() -> None:
    assert bars(CREATED, event(2, 1, None, (9, 9), topic="other"), event(3, 2, None, None, partition=None)) == [
        (1, 0, 10_000, NOW_MS)
    ]


def test_a_clock_that_is_behind_cuts_nothing() -> None:
    assert bars(CREATED, now_ms=5_000) == [(1, 0, 10_000, 10_000)]
    late = event(2, 8_000, (1, 0), (2, 1))  # told later, by a clock that went back
    assert bars(CREATED, late) == [(1, 0, 10_000, 10_000), (2, 1, 8_000, NOW_MS)]


def test_some_time_is_shown_at_least() -> None:
    found = timeline_of(topic(partition()), [CREATED], NOW_MS, since_ms=NOW_MS + 1)
    assert found.until_ms - found.since_ms == SHOWN_MS_MIN


def test_the_partitions_that_changed_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderships, "PARTITIONS_MAX", 2)
    told = [event(place, 1, None, (1, 0), partition=number) for place, number in enumerate((3, 1), 1)]
    found = timeline_of(topic(*map(partition, range(4))), told, NOW_MS)
    assert (found.partitions, found.of) == ((1, 3), 4)
    assert timeline_of(topic(*map(partition, range(4))), told[:1], NOW_MS).partitions == (0, 3)
    assert {each.partition for each in found.leaderships} == {1, 3}
