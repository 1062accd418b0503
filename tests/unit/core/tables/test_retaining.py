"""Which files a table gives up: whatever lies in which of them, what remains of each partition has no gap."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.tables.retaining import (
    AgedFile,
    RowsOfPartition,
    TableRetention,
    beyond_limits,
    given_up,
)

NOW = 10_000
AGED = [AgedFile("b", 10, 7_000), AgedFile("a", 10, 7_000), AgedFile("c", 20, 9_000), AgedFile("d", 5, None)]


@pytest.mark.parametrize(
    ("ms", "limit", "found"),
    [
        pytest.param(-1, -1, "", id="without limits all stays"),
        pytest.param(3_000, -1, "", id="as old as is kept"),
        pytest.param(2_999, -1, "ab", id="older"),
        pytest.param(0, -1, "abc", id="all of which one knows how old they are"),
        pytest.param(-1, 45, "", id="as much as is kept"),
        pytest.param(-1, 36, "", id="without the oldest there were less than is kept"),
        pytest.param(-1, 35, "a", id="the oldest"),
        pytest.param(-1, 0, "abc", id="no bytes are kept"),
        pytest.param(2_999, 20, "ab", id="old, and then not too much"),
        pytest.param(2_999, 5, "abc", id="old, and too much"),
    ],
)
def test_what_is_too_old_or_too_much(ms: int, limit: int, found: str) -> None:
    retention = TableRetention(ms=ms, bytes=limit)
    assert "".join(file.path for file in beyond_limits(AGED, retention, NOW)) == found
    assert retention.is_on is ((ms, limit) != (-1, -1))


Files = dict[str, dict[int, RowsOfPartition]]


def files_of(rows: dict[str, list[tuple[int, int]]]) -> Files:
    """rows: the (partition, offset) of each, by the file that has it."""
    return {
        path: {
            partition: RowsOfPartition(
                sum(each == partition for each, _ in found),
                1 + max(offset for each, offset in found if each == partition),
            )
            for partition in {each for each, _ in found}
        }
        for path, found in rows.items()
    }


def test_files_go_up_to_the_first_row_that_stays() -> None:
    found = files_of({"one": [(0, 5), (0, 6), (1, 0)], "two": [(0, 7)], "four": [(0, 9)], "other": [(1, 2)]})
    assert given_up(found, {0: 5, 1: 0}) == (("one", "two"), {0: 8, 1: 1})


def test_a_file_with_a_row_behind_one_that_stays_keeps_what_lies_behind_its_own() -> None:
    """Partition 1 holds back `mixed`, and that holds back `later`."""
    found = files_of({"early": [(0, 0)], "mixed": [(0, 1), (1, 5)], "later": [(0, 2), (2, 0)]})
    assert given_up(found, {0: 0, 1: 4, 2: 0}) == (("early",), {0: 1})


def test_a_partition_of_which_nobody_knows_where_it_begins_stays() -> None:
    assert given_up(files_of({"one": [(0, 0)]}), {1: 0}) == ((), {})


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, list[tuple[int, int]]], dict[int, int]]:
    """All rows of a table, in files as they may come."""
    starts = {partition: draw(st.integers(0, 2)) for partition in range(draw(st.integers(1, 3)))}
    rows = [
        (partition, offset)
        for partition, start in starts.items()
        for offset in range(start, start + draw(st.integers(0, 4)))
    ]
    files: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        files.setdefault(draw(st.sampled_from("abcdef")), []).append(row)
    return files, starts


def is_whole(remaining: list[tuple[int, int]], ends: dict[int, int]) -> bool:
    """Whether what remains of each partition are its last rows."""
    return all(
        sorted(offset for each, offset in remaining if each == partition)
        == list(range(end - sum(each == partition for each, _ in remaining), end))
        for partition, end in ends.items()
    )


@given(tables(), st.sets(st.sampled_from("abcdef")))
def test_as_much_goes_as_can(
    table: tuple[dict[str, list[tuple[int, int]]], dict[int, int]], candidates: set[str]
) -> None:
    rows, starts = table
    ends = {
        partition: max([start, *(offset + 1 for found in rows.values() for each, offset in found if each == partition)])
        for partition, start in starts.items()
    }

    def remaining(going: set[str]) -> list[tuple[int, int]]:
        return [row for path, found in rows.items() if path not in going for row in found]

    due = sorted(candidates & rows.keys())
    found = given_up({path: each for path, each in files_of(rows).items() if path in due}, starts)
    going = set(found.paths)
    assert is_whole(remaining(going), ends)
    for partition, start in found.starts.items():
        left = [offset for each, offset in remaining(going) if each == partition]
        assert start == min(left, default=ends[partition])
    possible = [
        set(some)
        for size in range(len(due) + 1)
        for some in combinations(due, size)
        if is_whole(remaining({*some}), ends)
    ]
    assert going == set().union(*possible)
