"""What is told of a topic's table, from what leaders tell of its partitions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.messages.descriptions import TableLag
from spark_replication.view.table_lags import TopicTableLag, topic_table_lag

BEHIND = TableLag(end=6, rows=3, ms=4_500, held_back_bytes=10)
WHOLE = TableLag(end=9, rows=0, ms=0, held_back_bytes=5)
UNKNOWN = TableLag(end=None, rows=None, ms=None, held_back_bytes=7)


@pytest.mark.parametrize(
    ("lags", "not_known", "rows", "ms", "held_back"),
    [
        ([WHOLE], 0, 0, 0, 5),
        ([BEHIND, WHOLE, BEHIND], 0, 6, 4_500, 25),
        # a leader that was not told where the table ends: what it holds back is known all the same
        ([UNKNOWN], 1, None, None, 7),
        ([BEHIND, UNKNOWN, WHOLE], 1, None, None, 22),
        # a leader that does not answer
        ([None], 1, None, None, None),
        ([BEHIND, None, UNKNOWN], 2, None, None, None),
        # a disk that does not say how old a row is
        ([replace(BEHIND, ms=None), WHOLE], 0, 3, None, 15),
        ([], 0, 0, 0, 0),
    ],
)
def test_what_is_not_known_of_one_partition_is_not_known_of_the_table(
    lags: list[TableLag | None], not_known: int, rows: int | None, ms: int | None, held_back: int | None
) -> None:
    assert topic_table_lag(lags) == TopicTableLag(
        not_known=not_known, rows_behind=rows, ms_behind=ms, held_back_bytes=held_back
    )


def test_seconds_are_told_where_they_are_known() -> None:
    assert topic_table_lag([BEHIND]).seconds_behind == 4.5
    assert topic_table_lag([UNKNOWN]).seconds_behind is None
