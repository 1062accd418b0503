"""Small files become larger ones, and the table stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures

from spark_replication.process.threads import now_ms
from spark_replication.tables import joining, replacing
from spark_replication.tables.delta_table import UPLOAD_AGE_MS_MAX, DeltaTopicTable, TableOwner, open_table
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.joining import JOINED_MIN, _small, _together, join
from spark_replication.tables.parquet_files import StoredRows
from spark_replication.tables.replacing import TableFile
from spark_replication.tables.verifying import faults_of
from tests.unit.tables.table_stories import commit, contents, data_files, files_of, opened, rows, uploads

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
TOPIC = pa.schema([("number", pa.int64())])
FILE_BYTES = 1 << 20
DAY_MS = 86_400_000


@pytest.fixture
def table(tmp_path: Path) -> DeltaTopicTable:
    return DeltaTopicTable(str(tmp_path / "orders"), OWNER, TOPIC, now_ms=now_ms)


def joined(table: DeltaTopicTable, at_least: int = 2, clock: Callable[[], int] = now_ms) -> int:
    return join(table.folder, OWNER, FILE_BYTES, clock, at_least)


def of_file(table: DeltaTopicTable, path: str, column: str) -> list[int]:
    found: list[int] = pq.read_table(Path(table.folder.uri) / path)[column].to_pylist()
    return found


def test_joined_files_have_the_same_rows_and_leave_the_transactions(table: DeltaTopicTable) -> None:
    before = commit(table, TOPIC, rows(0, 0, 2, epoch=4), rows(1, 0, 1))
    for start in range(1, JOINED_MIN):
        before = commit(table, TOPIC, rows(1, start, start + 1))
    kept = contents(table)
    assert join(table.folder, OWNER, FILE_BYTES, now_ms) == JOINED_MIN
    after = table.load()
    assert (after.ends, after.epochs) == (before.ends, before.epochs)
    assert contents(table) == kept
    (path,) = files_of(table)
    assert of_file(table, path, "_partition") == [0, 0, *[1] * JOINED_MIN]
    assert of_file(table, path, "_offset") == [0, 1, *range(JOINED_MIN)], "within a partition they rise"
    assert joined(table) == 0, "there is one file"
    commit(table, TOPIC, rows(1, JOINED_MIN, JOINED_MIN + 1))
    assert faults_of(opened(table), table.load()) == []


def test_few_files_are_left_alone(table: DeltaTopicTable) -> None:
    assert joined(table) == 0
    for start in range(3):
        commit(table, TOPIC, rows(0, start, start + 1))
    assert joined(table, at_least=4) == 0
    assert joined(table, at_least=3) == 3


def file(number: int, size: int, key: str = "", folder: str = "") -> TableFile:
    return TableFile(f"{folder}{number}", size, number, (key,))


@pytest.mark.parametrize(
    ("found", "together"),
    [
        pytest.param([file(1, 10)], [], id="one alone"),
        pytest.param([file(1, 10), file(2, 49)], [[1, 2]], id="two"),
        pytest.param([file(1, 10), file(2, 50), file(3, 10)], [[1, 3]], id="one is large"),
        pytest.param([file(n, 40) for n in range(5)], [[0, 1, 2], [3, 4]], id="no larger than a file is to be"),
        pytest.param([file(n, 40) for n in range(4)], [[0, 1, 2]], id="the last waits for others"),
        pytest.param([file(1, 1, "a"), file(2, 1, "b"), file(3, 1, "a")], [[1, 3]], id="of one partition value"),
        pytest.param([file(1, 1), file(2, 1, folder="k=1/"), file(3, 1)], [[1, 3]], id="in folders others' work"),
    ],
)
def test_which_files_become_one(found: list[TableFile], together: list[list[int]]) -> None:
    assert [[each.written_ms for each in files] for files in _together(_small(found, 100), 100)] == together


def test_files_of_before_the_topic_was_widened_are_joined_too(table: DeltaTopicTable) -> None:
    wide = pa.schema([*TOPIC, ("more", pa.uint16())])
    commit(table, TOPIC, rows(0, 0, 2))
    commit(DeltaTopicTable(table.folder.uri, OWNER, wide, now_ms=now_ms), wide, rows(0, 2, 3))
    kept = contents(table)
    assert joined(table) == 2
    assert contents(table) == kept
    assert [row["more"] for row in kept] == [None, None, 2]


def test_a_partitioned_table_has_one_file_of_each_value(tmp_path: Path) -> None:
    table = DeltaTopicTable(str(tmp_path / "orders"), OWNER, TOPIC, now_ms=now_ms, partition_by=["_day", "number"])
    for start in range(0, 12, 4):
        batch = pa.record_batch([pa.array([1, 1, None, 2])], TOPIC)
        files = uploads(table, [StoredRows(0, start, DAY_MS, 0, batch)])
        table.commit(table.load(), [rows(0, start, start + 4)], files)
    kept = contents(table)
    assert joined(table) == 9
    assert contents(table) == kept
    assert len(files_of(table)) == 3


def test_a_table_with_features_of_others_is_left_alone(table: DeltaTopicTable) -> None:
    for start in range(2):
        commit(table, TOPIC, rows(0, start, start + 1))
    opened(table).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    assert joined(table) == 0


def test_more_rows_than_memory_is_to_hold_are_joined(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "GROUP_BYTES", 1_000)
    monkeypatch.setattr(joining, "BATCH_ROWS", 10)
    for start in range(0, 600, 200):
        commit(table, TOPIC, rows(0, start, start + 200))
    assert joined(table) == 3
    (path,) = files_of(table)
    assert of_file(table, path, "number") == [*range(600)]
    assert pq.read_metadata(Path(table.folder.uri) / path).num_row_groups > 10


def interrupted(monkeypatch: pytest.MonkeyPatch, meanwhile: list[Callable[[], object]]) -> None:
    """Something happens each time between the files that were written and the commit."""

    def opened_and_more(folder: TableFolder, owner: TableOwner) -> DeltaTable | None:
        found = open_table(folder, owner)
        if meanwhile and found is not None:
            meanwhile.pop(0)()
        return found

    for module in (joining, replacing):
        monkeypatch.setattr(module, "open_table", opened_and_more)


def test_a_commit_meanwhile_is_no_hindrance(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(2):
        commit(table, TOPIC, rows(0, start, start + 1))
    interrupted(monkeypatch, [lambda n=n: commit(table, TOPIC, rows(0, n, n + 1)) for n in range(2, 5)])  # type: ignore[misc]
    assert joined(table) == 2
    assert [row["_offset"] for row in contents(table)] == [*range(5)]
    assert faults_of(opened(table), table.load()) == []


def test_of_two_that_join_the_same_files_one_does(table: DeltaTopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(3):
        commit(table, TOPIC, rows(0, start, start + 1))
    kept = contents(table)
    found: list[int] = []
    interrupted(monkeypatch, [lambda: None, lambda: found.append(joined(table))])
    assert joined(table) == 0
    assert found == [3]
    assert contents(table) == kept
    assert len(data_files(table.folder.uri)) == 5, "what was written for nothing is swept later: nobody removes it here"


def test_a_joined_file_that_waited_too_long_is_not_committed(table: DeltaTopicTable) -> None:
    for start in range(3):
        commit(table, TOPIC, rows(0, start, start + 1))
    clock = iter([now_ms(), now_ms() + UPLOAD_AGE_MS_MAX + 60_000])
    assert joined(table, clock=lambda: next(clock)) == 0
    assert len(files_of(table)) == 3
