"""What the drill's load writes, and who reads it while it is written."""

from __future__ import annotations

import io

from spark_replication.admin.drill.figures import Line
from spark_replication.admin.drill.load import Record, lines_of


def test_what_is_written_is_read() -> None:
    lines = io.StringIO()
    record = Record(lines)
    record.add(1, 2, 3)
    record.add(4, 5, 6)
    first, second = lines_of(lines.getvalue())
    assert (first.partition, first.number, first.offset) == (1, 2, 3)
    assert (second.partition, second.number, second.offset) == (4, 5, 6)
    assert first.at <= second.at


def test_a_line_that_is_not_whole_is_left_out() -> None:
    assert [*lines_of("1 2 3 4.5\n1 2 4 ")] == [Line(1, 2, 3, 4.5)]
