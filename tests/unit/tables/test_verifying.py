"""Which rows a table lacks, has twice, or has behind its end: tables, and any runs of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.core.tables.table import TableVersion
from spark_replication.tables import verifying
from spark_replication.tables.verifying import Run, TableFault, faults, runs_in


def fault(what: str, start: int, end: int, partition: int = 0) -> TableFault:
    return TableFault(partition=partition, what=what, start=start, end=end)


@pytest.mark.parametrize(
    ("runs", "ends", "found"),
    [
        pytest.param([], {}, [], id="nothing"),
        pytest.param([], {0: 5}, [], id="all was removed"),
        pytest.param([(0, 0, 5)], {0: 5}, [], id="whole"),
        pytest.param([(0, 7, 9), (0, 5, 7)], {0: 9}, [], id="it may begin anywhere, in any order"),
        pytest.param([(0, 0, 5)], {0: 6}, [fault("missing", 5, 6)], id="less than the transaction says"),
        pytest.param([(0, 0, 5)], {0: 4}, [fault("behind the end", 4, 5)], id="more than the transaction says"),
        pytest.param([(1, 0, 5)], {}, [fault("behind the end", 0, 5, 1)], id="rows without a transaction"),
        pytest.param([(0, 0, 5), (0, 6, 8)], {0: 8}, [fault("missing", 5, 6)], id="a gap"),
        pytest.param([(0, 0, 5), (0, 4, 8)], {0: 8}, [fault("double", 4, 5)], id="doubles"),
        pytest.param(
            [(0, 0, 9), (0, 2, 4), (0, 5, 6)], {0: 9}, [fault("double", 2, 4), fault("double", 5, 6)], id="in"
        ),
        pytest.param([(0, 0, 5), (0, 0, 5)], {0: 5}, [fault("double", 0, 5)], id="all of it twice"),
        pytest.param([(0, 0, 5), (1, 5, 6)], {0: 5, 1: 6}, [], id="partitions apart"),
    ],
)
def test_what_is_wrong(runs: list[Run], ends: dict[int, int], found: list[TableFault]) -> None:
    assert faults(runs, TableVersion(number=1, ends=ends)) == found


@pytest.mark.parametrize(
    ("runs", "start", "found"),
    [
        pytest.param([(0, 3, 5)], 3, [], id="whole"),
        pytest.param([], 5, [], id="all was given up"),
        pytest.param([], 3, [fault("missing", 3, 5)], id="all is missing"),
        pytest.param([(0, 4, 5)], 3, [fault("missing", 3, 4)], id="the first are missing"),
        pytest.param([(0, 2, 5)], 3, [fault("before the start", 2, 3)], id="more than the transaction says"),
        pytest.param(
            [(0, 1, 2), (0, 3, 5)],
            3,
            [fault("before the start", 1, 3), fault("missing", 2, 3)],
            id="more than the transaction says, with a gap",
        ),
    ],
)
def test_a_table_that_says_where_it_begins(runs: list[Run], start: int, found: list[TableFault]) -> None:
    assert faults(runs, TableVersion(number=1, ends={0: 5}, starts={0: start})) == found


def test_no_more_faults_are_told_than_somebody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "FAULTS_MAX", 2)
    assert len(faults([(0, at, at + 1) for at in range(0, 20, 2)], TableVersion(number=1, ends={0: 19}))) == 2


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9))))
def test_runs_are_the_rows(rows: list[tuple[int, int]]) -> None:
    partitions, offsets = np.array([r[0] for r in rows], np.int32), np.array([r[1] for r in rows], np.int64)
    runs = runs_in(partitions, offsets)
    assert [(partition, at) for partition, start, end in runs for at in range(start, end)] == rows
