"""Which offsets are read, and by which tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.messages.ranges import FoundRange, Piece
from spark_replication.spark.datasource.planning import (
    PIECE_BYTES,
    Range,
    in_tasks,
    limited,
    limited_by_bytes,
    piece_bytes,
    pieces_of,
)


@pytest.mark.parametrize(
    ("total", "tasks", "expected"),
    [(10, None, PIECE_BYTES), (100, 4, 25), (101, 4, 26), (0, 4, 1), (1 << 50, 2, PIECE_BYTES)],
)
def test_pieces_are_small_enough_for_as_many_tasks_as_are_wanted(total: int, tasks: int | None, expected: int) -> None:
    assert piece_bytes(total, tasks) == expected


def test_a_range_ends_and_begins_with_the_epochs_of_its_records() -> None:
    start, middle, end = ReadPlace(5, 1), ReadPlace(7, 2), ReadPlace(9, 4)
    pieces = [Piece(end=7, bytes=10, last_epoch=2), Piece(end=9, bytes=20, last_epoch=4)]
    assert pieces_of(1, start, pieces) == [Range(1, start, middle, 10), Range(1, middle, end, 20)]
    assert pieces_of(1, start, []) == []


def test_small_ranges_are_read_by_one_task_as_long_as_they_are_small_together() -> None:
    start, end = ReadPlace(0), ReadPlace(9, 3)
    large, *small = Range(0, start, end, 100), *(Range(number, start, end, 40) for number in (1, 2, 3))
    assert in_tasks([small[0], large, *small[1:]], together_bytes=90) == [(large,), tuple(small[:2]), (small[2],)]
    assert in_tasks([]) == []


@pytest.mark.parametrize(
    ("behind", "rows_max", "expected"),
    [
        ({0: 10, 1: 10}, 100, {0: 10, 1: 10}),
        ({0: 10, 1: 10}, 20, {0: 10, 1: 10}),
        ({0: 10, 1: 30}, 20, {0: 5, 1: 15}),
        ({0: 1, 1: 1_000}, 10, {0: 1, 1: 9}),  # its share is less than a row
        ({0: 5, 1: 5, 2: 5}, 2, {0: 1, 1: 1, 2: 0}),
        ({0: 0, 1: 7}, 3, {0: 0, 1: 3}),
        ({0: 0, 1: 5, 2: 5}, 3, {0: 0, 1: 2, 2: 1}),  # no share of nothing, though a row is left
    ],
)
def test_a_limit_is_shared_out_by_what_there_is(
    behind: dict[int, int], rows_max: int, expected: dict[int, int]
) -> None:
    starts = dict.fromkeys(behind, 100)
    ends = {number: 100 + rows for number, rows in behind.items()}
    assert limited(starts, ends, rows_max) == {number: 100 + rows for number, rows in expected.items()}


@given(some.dictionaries(some.integers(0, 9), some.integers(0, 1_000), min_size=1), some.integers(1, 500))
def test_a_limit_is_used_up_and_never_passed(behind: dict[int, int], rows_max: int) -> None:
    taken = limited(dict.fromkeys(behind, 0), behind, rows_max)
    assert sum(taken.values()) == min(rows_max, sum(behind.values()))
    assert all(0 <= rows <= behind[number] for number, rows in taken.items())


def test_bytes_are_shared_out_by_what_there_is() -> None:
    found = {
        number: FoundRange(topic="t", partition=number, bytes=size) for number, size in {0: 0, 1: 10, 2: 30}.items()
    }
    assert limited_by_bytes(found, 40) == {}
    assert limited_by_bytes(found, 20) == {1: 5, 2: 15}
    assert limited_by_bytes(found, 1) == {1: 1, 2: 1}, "a batch at least of each"
