"""The Parquet files of a commit: which rows are in which, and what is in memory meanwhile."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_replication.errors import StorageFailed
from spark_replication.tables import parquet_files
from spark_replication.tables.delta_table import TableLayout
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.parquet_files import StoredRows, TableFiles
from spark_replication.tables.types import table_schema
from tests.small_disk import fill, small_disk
from tests.unit.tables.table_stories import data_files

TOPIC = pa.schema([("number", pa.uint32())])
WRITTEN_MS = 5_000
DAY_MS = 86_400_000


@pytest.fixture
def folder(tmp_path: Path) -> TableFolder:
    return TableFolder(str(tmp_path / "orders"))


def files_in(folder: TableFolder, schema: pa.Schema = TOPIC, *by: str, file_bytes: int = 1 << 20) -> TableFiles:
    layout = TableLayout(table_schema(schema, by), by)
    return TableFiles(folder, layout, file_bytes=file_bytes, now_ms=lambda: WRITTEN_MS)


def stored(partition: int, first: int, count: int, *, time_ms: int = 1, epoch: int = 2) -> StoredRows:
    batch = pa.record_batch([pa.array(range(first, first + count), pa.uint32())], TOPIC)
    return StoredRows(partition, first, time_ms, epoch, batch)


def read(folder: TableFolder, path: str) -> pa.Table:
    return pq.read_table(Path(folder.uri) / path)


def test_rows_lie_in_one_file_as_they_came_with_our_columns(folder: TableFolder) -> None:
    files = files_in(folder)
    for each in (stored(0, 5, 2), stored(0, 7, 1, time_ms=3, epoch=4), stored(0, 100, 1), stored(2, 0, 2)):
        files.add(each)
    (file,) = files.close()
    found = read(folder, file.path)
    assert found.schema.equals(table_schema(TOPIC))
    assert found["number"].to_pylist() == found["_offset"].to_pylist() == [5, 6, 7, 100, 0, 1]
    assert found["_partition"].to_pylist() == [0, 0, 0, 0, 2, 2]
    assert found["_timestamp"].cast(pa.int64()).to_pylist() == [1000, 1000, 3000, 1000, 1000, 1000]
    assert found["_leader_epoch"].to_pylist() == [2, 2, 4, 2, 2, 2]
    assert (file.row_count, file.written_ms, file.partition_values) == (6, WRITTEN_MS, {})
    assert file.bytes == (Path(folder.uri) / file.path).stat().st_size
    told = json.loads(file.statistics)
    assert (told["numRecords"], told["minValues"]["_offset"], told["maxValues"]["_offset"]) == (6, 0, 100)
    assert (told["minValues"]["_partition"], told["maxValues"]["_partition"]) == (0, 2)


def test_nothing_makes_no_file(folder: TableFolder) -> None:
    assert files_in(folder).close() == []
    assert not Path(folder.uri).exists()


@pytest.mark.parametrize("after", [stored(0, 6, 1), stored(0, 0, 1)])
def test_rows_out_of_their_order_are_a_mistake(folder: TableFolder, after: StoredRows) -> None:
    files = files_in(folder)
    files.add(stored(0, 5, 2))
    with pytest.raises(ValueError, match=r"partition 0 from . comes after \(0, 7\)"):
        files.add(after)


def test_a_file_that_is_large_enough_is_closed(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 4 * 100)
    files = files_in(folder, file_bytes=1)
    for number in range(5):
        files.add(stored(0, 100 * number, 100))
    found = [read(folder, file.path)["_offset"].to_pylist() for file in files.close()]
    assert found == [[*range(start, start + 100)] for start in range(0, 500, 100)]


def test_a_group_of_rows_is_all_that_waits_in_memory(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 4 * 250)
    files = files_in(folder)
    allocated = pa.total_allocated_bytes()
    for number in range(40):
        files.add(stored(0, 100 * number, 100))
        assert len(files._group) <= 2
    (file,) = files.close()
    assert pq.read_metadata(Path(folder.uri) / file.path).num_row_groups == 14
    del files
    assert pa.total_allocated_bytes() <= allocated


def test_batches_of_an_earlier_schema_lie_beside_later_ones(folder: TableFolder) -> None:
    wide = pa.schema([*TOPIC, ("more", pa.string_view())])
    files = files_in(folder, wide)
    files.add(stored(0, 0, 2))
    files.add(
        StoredRows(0, 2, 1, 0, pa.record_batch([pa.array([2], pa.uint32()), pa.array(["x"], pa.string_view())], wide))
    )
    files.add(stored(0, 3, 1))
    (file,) = files.close()
    assert read(folder, file.path)["more"].to_pylist() == [None, None, "x", None]
    assert read(folder, file.path)["number"].to_pylist() == [0, 1, 2, 3]


def test_nan_anywhere_leaves_a_column_without_bounds(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 1)
    schema = pa.schema([("a", pa.float64()), ("b", pa.float32())])
    files = files_in(folder, schema)
    for offset, value in enumerate((1.0, math.nan, 2.0)):
        batch = pa.record_batch([pa.array([value]), pa.array([1.0], pa.float32())], schema)
        files.add(StoredRows(0, offset, 1, 0, batch))
    (file,) = files.close()
    group = pq.read_metadata(Path(folder.uri) / file.path).row_group(0)
    assert [group.column(place).is_stats_set for place in range(3)] == [False, False, True], "Arrow leaves NaN out"
    assert "a" not in json.loads(file.statistics)["minValues"]
    assert json.loads(file.statistics)["minValues"]["b"] == 1


def test_a_partitioned_table_has_a_file_of_each_value(folder: TableFolder) -> None:
    schema = pa.schema([("kind", pa.uint8()), ("old", pa.bool_()), ("number", pa.uint32())])
    columns = [
        pa.array([1, 2, 1, None], pa.uint8()),
        pa.array([True, True, True, None]),
        pa.array([0, 1, 2, 3], pa.uint32()),
    ]
    files = files_in(folder, schema, "kind", "old")
    files.add(StoredRows(0, 0, 1, 0, pa.record_batch(columns, schema)))
    files.add(StoredRows(1, 9, 1, 0, pa.record_batch(columns, schema)))
    found = {tuple(file.partition_values.values()): read(folder, file.path) for file in files.close()}
    assert {key: table["number"].to_pylist() for key, table in found.items()} == {
        ("1", "true"): [0, 2, 0, 2],
        ("2", "true"): [1, 1],
        (None, None): [3, 3],
    }
    assert found["1", "true"]["_offset"].to_pylist() == [0, 2, 9, 11]
    assert "kind" not in found["1", "true"].schema.names


def test_the_day_of_a_batch_is_its_leaders(folder: TableFolder) -> None:
    files = files_in(folder, TOPIC, "_day")
    for offset, time_ms in enumerate((DAY_MS - 1, DAY_MS, -1)):
        files.add(stored(0, offset, 1, time_ms=time_ms))
    days = sorted(file.partition_values["_day"] or "" for file in files.close())
    assert days == ["1969-12-31", "1970-01-01", "1970-01-02"]


def test_only_so_many_files_are_open(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "FILES_OPEN_MAX", 2)
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 1)
    files = files_in(folder, TOPIC, "number")
    for partition in range(2):
        files.add(stored(partition, 0, 5))
        assert len(files._open) == 2
    found = files.close()
    assert len(found) == 10, "a file that was closed is not opened again"
    assert sum(file.row_count for file in found) == 10


def test_files_of_a_commit_that_was_refused_are_removed(folder: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 1)
    files = files_in(folder, file_bytes=1)
    files.add(stored(0, 0, 5))
    half = files_in(folder)
    half.add(stored(0, 0, 5))
    (whole,) = files.close()
    assert whole.path in data_files(folder.uri)
    assert len(data_files(folder.uri)) == 2
    files.drop()
    half.drop()
    assert data_files(folder.uri) == set()
    files.drop()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_files_are_dropped_as_far_as_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who drops them has another failure to tell already. What stays is swept later."""
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 1)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = TableFolder(str(disk / "orders"))
        files = files_in(folder, file_bytes=1)
        files.add(stored(0, 0, 5))
        (path,) = data_files(folder.uri)
        (disk / "orders" / path).unlink()
        (disk / "orders" / path).mkdir()
        fill(disk)
        with pytest.raises(StorageFailed, match=r"did not store a file: .*No space left"):
            files.add(stored(0, 5, 5_000))
        files.drop()
        del files
        gc.collect()
        assert data_files(folder.uri) == {path}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = files_in(TableFolder(str(tmp_path / "file" / "orders")))
    files.add(stored(0, 0, 5))
    with pytest.raises(StorageFailed, match="did not store a file"):
        files.close()
