"""Which rows a writer adds next, and which of them it may commit (TB1, TB2, TB3)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.tables.flushing import (
    TAKEN_OVER_MS,
    FlushPlan,
    FlushRules,
    LogTold,
    PlannedRange,
    Trouble,
    confirmed,
    plan_flush,
    trouble_of,
)
from spark_replication.core.tables.table import RowRange, TableVersion

RULES = FlushRules(flush_ms=1_000, file_bytes=100)
VERSION = TableVersion(number=3, ends={0: 10, 1: 5}, epochs={0: 4, 1: 4})
EVERYBODY = frozenset(range(9))


def told(end: int, **others: Any) -> LogTold:
    """A leader at epoch 4, whose first row beyond the table is from time 500."""
    return LogTold(**{"leader_epoch": 4, "log_start": 0, "high_watermark": end, "bytes": 40, "first_ms": 500} | others)


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (told(10), None),
        (told(12), None),
        (told(12, leader_epoch=5), None),
        (told(12, leader_epoch=3), Trouble.STALE),
        (told(12, log_start=10), None),
        (told(12, log_start=11), Trouble.GAP),
        (told(9), Trouble.BEHIND),
    ],
)
def test_what_a_leader_says_is_compared_with_the_table(answer: LogTold, trouble: Trouble | None) -> None:
    assert trouble_of(VERSION, 0, answer) == trouble


@pytest.mark.parametrize("answer", [told(0), told(30, log_start=20)])
def test_a_partition_of_which_the_table_has_nothing_begins_anywhere(answer: LogTold) -> None:
    assert trouble_of(VERSION, 2, answer) is None


def plan(now_ms: int, mine: frozenset[int] = EVERYBODY, /, **answers: LogTold) -> FlushPlan:
    by_number = {int(name[1:]): answer for name, answer in answers.items()}
    return plan_flush(VERSION, by_number, RULES, mine=mine, now_ms=now_ms)


def planned(partition: int, start: int, end: int, size: int = 40) -> PlannedRange:
    return PlannedRange(partition=partition, start=start, end=end, bytes=size)


@pytest.mark.parametrize(
    ("now_ms", "mine", "found"),
    [
        (1_499, EVERYBODY, FlushPlan(due_ms=1_500)),
        (1_500, EVERYBODY, FlushPlan(ranges=(planned(0, 10, 12),))),
        (1_500, frozenset(), FlushPlan(due_ms=1_500 + TAKEN_OVER_MS)),
        (1_500 + TAKEN_OVER_MS, frozenset(), FlushPlan(ranges=(planned(0, 10, 12),))),
    ],
)
def test_rows_are_added_once_they_are_old_enough(now_ms: int, mine: frozenset[int], found: FlushPlan) -> None:
    assert plan(now_ms, mine, p0=told(12)) == found


def test_or_once_there_are_many_in_one_partition_or_in_all_of_ones_own() -> None:
    assert plan(0, p0=told(12, bytes=100)) == FlushPlan(ranges=(planned(0, 10, 12, 100),))
    both = {"p0": told(12, bytes=50), "p1": told(6, bytes=50)}
    assert plan(0, EVERYBODY, **both) == FlushPlan(ranges=(planned(0, 10, 12, 50), planned(1, 5, 6, 50)))
    assert plan(0, frozenset({0}), **both) == FlushPlan(due_ms=1_500), "those of others are theirs"


def test_nothing_to_add_is_never_due() -> None:
    assert plan(10_000, p0=told(10), p1=told(5)) == FlushPlan()


def test_who_is_due_comes_first_and_ones_own_fill_the_file() -> None:
    found = plan(1_500, p0=told(12, first_ms=900), p1=told(6))
    assert found.ranges == (planned(1, 5, 6), planned(0, 10, 12))


def test_what_does_not_fit_waits_for_the_next_commit() -> None:
    pieces = {"p0": told(30, bytes=180, pieces=((12, 60), (20, 60), (30, 60)))}
    assert plan(1_500, EVERYBODY, **pieces).ranges == (planned(0, 10, 12, 60),)
    small = {"p0": told(30, bytes=90, pieces=((12, 45), (20, 45))), "p1": told(6)}
    assert plan(1_500, EVERYBODY, **small).ranges == (planned(0, 10, 20, 90),), (
        "it has room for 10 bytes more, p1 has 40"
    )
    large = {"p0": told(30, bytes=900, pieces=((20, 500), (30, 400)))}
    assert plan(1_500, EVERYBODY, **large).ranges == (planned(0, 10, 20, 500),), "one piece at least"


def test_a_piece_that_is_not_committed_is_left() -> None:
    found = plan(1_500, p0=told(15, bytes=40, pieces=((12, 20), (20, 20))))
    assert found.ranges == (planned(0, 10, 12, 20),)


def test_trouble_with_one_partition_holds_up_no_other() -> None:
    found = plan(1_500, p0=told(12, log_start=11), p1=told(6))
    assert found == FlushPlan(ranges=(planned(1, 5, 6),), troubles={0: Trouble.GAP})


READ = planned(0, 10, 12)
VOUCHED = LogTold(leader_epoch=5, log_start=10, high_watermark=12, epoch_before=4)


def test_the_epoch_of_the_leader_that_vouches_for_rows_goes_into_the_commit() -> None:
    added = RowRange(partition=0, start=10, end=12, last_epoch=4, confirmed_epoch=5)
    assert confirmed(VERSION, READ, 4, VOUCHED) == added


@pytest.mark.parametrize(
    ("last_epoch", "answer"),
    [
        (3, VOUCHED),  # the leader has another row there
        (4, replace(VOUCHED, epoch_before=3)),
        (4, replace(VOUCHED, epoch_before=-1)),
        (4, replace(VOUCHED, log_start=11)),  # it cannot know all of it
        (4, replace(VOUCHED, leader_epoch=3)),  # it leads no longer
    ],
)
def test_rows_that_no_leader_vouches_for_are_dropped(last_epoch: int, answer: LogTold) -> None:
    assert confirmed(VERSION, READ, last_epoch, answer) is None
