"""A writer of a topic's table: what it does next, whatever comes of the step before."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replication.core.tables.flushing import FlushRules, LogTold, PlannedRange
from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.engine.client.table_writing import (
    FAILED_REST_MS,
    REST_MS_MAX,
    AskLeaders,
    CommitRows,
    ConfirmRows,
    Doing,
    LoadTable,
    ReadPlanned,
    Rest,
    TableWriting,
    TellEnds,
    ends_of,
    told_by,
    wanted_of,
)
from spark_replication.messages.ranges import FoundRange, Piece, WantedRange

RULES = FlushRules(flush_ms=1_000, file_bytes=100)
VERSION = TableVersion(number=3, ends={0: 10}, epochs={0: 4})
AFTER = TableVersion(number=4, ends={0: 12, 1: 3}, epochs={0: 5, 1: 5})
READ_0 = PlannedRange(partition=0, start=10, end=12, bytes=40)
READ_1 = PlannedRange(partition=1, start=0, end=3, bytes=40)
ADDED_0 = RowRange(partition=0, start=10, end=12, last_epoch=4, confirmed_epoch=5)
ADDED_1 = RowRange(partition=1, start=0, end=3, last_epoch=5, confirmed_epoch=5)


def leader(end: int, **others: Any) -> LogTold:
    return LogTold(**{"leader_epoch": 5, "log_start": 0, "high_watermark": end} | others)


def asked(now_ms: int = 2_000) -> tuple[TableWriting, Doing]:
    writing = TableWriting(RULES)
    assert writing.begin() == LoadTable()
    assert writing.loaded(VERSION) == AskLeaders({0: 10})
    news = {0: leader(10)}
    assert writing.told(news, mine=[0], now_ms=0) == TellEnds({0: (5, 10)})
    assert writing.ends_told(()) == Rest(REST_MS_MAX)
    assert writing.rested() == AskLeaders({0: 10})
    news = {0: leader(12, bytes=40, first_ms=500), 1: leader(3, bytes=40, first_ms=600)}
    return writing, writing.told(news, mine=[0, 1], now_ms=now_ms)


def reading() -> TableWriting:
    writing, doing = asked()
    assert doing == ReadPlanned((READ_0, READ_1))
    return writing


def confirming() -> TableWriting:
    writing = reading()
    assert writing.read({0: 4, 1: 5}) == ConfirmRows({0: (12, 4), 1: (3, 5)})
    return writing


def committing() -> TableWriting:
    writing = confirming()
    told = {0: leader(12, epoch_before=4), 1: leader(3, epoch_before=5)}
    assert writing.vouched(told) == CommitRows(VERSION, (ADDED_0, ADDED_1))
    return writing


def test_after_a_commit_it_asks_about_the_version_that_it_has_made() -> None:
    writing = committing()
    assert writing.committed(AFTER) == AskLeaders({0: 12, 1: 3})
    assert writing.version == AFTER


def test_after_a_refusal_only_the_table_tells() -> None:
    writing = committing()
    assert (writing.changed(), writing.version) == (LoadTable(), None)


def test_after_no_answer_it_rests_longer_each_time_and_loads_the_table() -> None:
    writing = committing()
    least_ms, most_ms = FAILED_REST_MS
    rests = []
    for _ in range(9):
        doing = writing.failed()
        assert isinstance(doing, Rest)
        rests.append(doing.ms)
        assert writing.rested() == LoadTable()
    assert (rests[:3], rests[-1]) == ([least_ms, 2 * least_ms, 4 * least_ms], most_ms)
    writing.loaded(VERSION)
    writing.committed(AFTER)
    assert writing.failed() == Rest(least_ms), "what went well since counts"


def retried(writing: TableWriting, doing: Doing) -> Doing:
    """What it does next, once it has rested and asked again."""
    assert doing == Rest(FAILED_REST_MS[0])
    assert writing.rested() == LoadTable()
    writing.loaded(VERSION)
    news = {0: leader(12, bytes=40, first_ms=500), 1: leader(3, bytes=40, first_ms=600)}
    return writing.told(news, mine=[0, 1], now_ms=2_000)


def test_what_cannot_be_read_holds_up_no_other_partition() -> None:
    writing = reading()
    assert retried(writing, writing.read({1: 5})) == ReadPlanned((READ_1,))
    writing.read({1: 5})
    assert writing.vouched({1: leader(3, epoch_before=5)}) == CommitRows(VERSION, (ADDED_1,))


@pytest.mark.parametrize("told", [{}, {0: leader(12, epoch_before=3)}, {0: leader(12)}])
def test_nor_does_what_no_leader_vouches_for(told: dict[int, LogTold]) -> None:
    writing = confirming()
    doing = writing.vouched({**told, 1: leader(3, epoch_before=5)})
    assert retried(writing, doing) == ReadPlanned((READ_1,))


def test_once_all_others_are_there_it_is_tried_again() -> None:
    writing = reading()
    writing.read({1: 5})
    writing.rested()
    writing.loaded(AFTER)
    news = {0: leader(14, bytes=40, first_ms=500), 1: leader(3)}
    assert writing.told(news, mine=[0, 1], now_ms=2_000) == TellEnds({0: (5, 12), 1: (5, 3)})
    assert writing.ends_told(()) == Rest(REST_MS_MAX)
    found = writing.told(news, mine=[0, 1], now_ms=2_000)
    assert found == ReadPlanned((PlannedRange(partition=0, start=12, end=14, bytes=40),))


def test_it_rests_until_rows_are_due_and_no_longer_than_it_should_look() -> None:
    assert asked(now_ms=1_400)[1] == Rest(100)
    assert asked(now_ms=100)[1] == Rest(REST_MS_MAX)
    writing = TableWriting(RULES)
    writing.loaded(VERSION)
    assert writing.told({}, mine=[], now_ms=0) == Rest(REST_MS_MAX)
    assert writing.rested() == AskLeaders({0: 10})


def test_where_a_leader_does_not_fit_the_table_it_loads_that_again() -> None:
    writing = TableWriting(RULES)
    writing.loaded(VERSION)
    assert writing.told({0: leader(9)}, mine=[0], now_ms=0) == Rest(REST_MS_MAX)
    assert writing.rested() == LoadTable()


def test_it_asks_for_pieces_and_times_from_the_ends_on() -> None:
    assert wanted_of("foo", {0: 10}, [1, 0], RULES) == [
        WantedRange(topic="foo", partition=0, start=10, piece_bytes=100, timed=True),
        WantedRange(topic="foo", partition=1, start="earliest", piece_bytes=100, timed=True),
    ]
    assert ends_of("foo", {1: (12, 4)}) == [WantedRange(topic="foo", partition=1, start=12, to=12)]


def test_only_a_leader_counts() -> None:
    found = FoundRange(
        topic="foo",
        partition=0,
        leader_epoch=5,
        log_start=2,
        high_watermark=12,
        start_epoch=4,
        start_ms=500,
        bytes=40,
        pieces=(Piece(end=12, bytes=40),),
    )
    assert told_by(found) == LogTold(
        leader_epoch=5, log_start=2, high_watermark=12, bytes=40, first_ms=500, pieces=((12, 40),), epoch_before=4
    )
    assert told_by(FoundRange(topic="foo", partition=0, high_watermark=12)) is None
    assert told_by(FoundRange(topic="foo", partition=0, leader_epoch=5, error="NOT_LEADER_OR_FOLLOWER")) is None


def test_leaders_are_told_how_far_the_table_has_their_partitions_once_an_epoch() -> None:
    writing = TableWriting(RULES)
    writing.loaded(TableVersion(number=3, ends={0: 10, 2: 7}, epochs={0: 4, 2: 9}))
    news = {0: leader(10), 1: leader(0), 2: leader(9)}  # the last one leads no longer
    assert writing.told(news, mine=[0], now_ms=0) == TellEnds({0: (5, 10)})
    assert writing.ends_told(()) == Rest(REST_MS_MAX)
    writing.rested()
    writing.loaded(VERSION)
    assert writing.told({0: leader(10)}, mine=[0], now_ms=0) == Rest(REST_MS_MAX)
    assert writing.told({0: leader(10, leader_epoch=6)}, mine=[0], now_ms=0) == TellEnds({0: (6, 10)})


def test_what_a_leader_did_not_take_is_told_again() -> None:
    writing = TableWriting(RULES)
    writing.loaded(VERSION)
    told = TellEnds({0: (5, 10)})
    assert writing.told({0: leader(10)}, mine=[0], now_ms=0) == told
    writing.ends_told([0])
    assert writing.told({0: leader(10)}, mine=[0], now_ms=0) == told


def test_a_leader_hears_of_a_commit_with_the_next_question() -> None:
    writing = committing()
    writing.committed(AFTER)
    found = writing.told({0: leader(12), 1: leader(3)}, mine=[0, 1], now_ms=0)
    assert found == TellEnds({0: (5, 12), 1: (5, 3)})


@pytest.mark.parametrize(
    ("ends", "has"),
    [({}, True), ({0: 10}, True), ({0: 9}, True), ({0: 11}, False), ({0: 10, 1: 1}, False), ({1: 0}, True)],
)
def test_what_it_has_is_told_by_the_version_it_goes_by(ends: dict[int, int], has: bool) -> None:
    writing = TableWriting(RULES)
    assert not writing.has(ends), "the table was not loaded"
    writing.loaded(VERSION)
    assert writing.has(ends) is has
    writing.failed()
    assert not writing.has(ends)
