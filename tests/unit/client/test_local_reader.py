"""What a reader of a broker's files promises: what the broker would give, and no harm from what is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.errors import CorruptLog, CorruptState, InvalidRequest, OffsetOutOfRange, StorageFailed
from spark_replication.storage.directory.stored_log import StoredSegment
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import TopicSchema, prepare
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.storage_stories import WIDENED, WIDER, log_in, prepared, rows

TIMES_MS = (1_000, 3_000, 2_000, 4_000, 4_000, 5_000)  # of six batches of three rows; the third's clock was behind
END = 18
COMMITTED = 15


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's folder in a broker's directory."""
    made = tmp_path / "broker-1" / "orders-0.id"
    made.mkdir(parents=True)
    (made.parent / "meta.json").write_text("{}")
    return made


@pytest.fixture
def log(folder: Path) -> Iterator[PartitionLog]:
    """Two batches to a segment, epoch 2 from the fourth batch on, and the last batch not yet known to be committed."""
    opened = log_in(folder, directory=folder.parent, segment_bytes=2 * len(prepared(0, 3).message))
    for number, time_ms in enumerate(TIMES_MS):
        epoch = 1 if number < 3 else 2
        opened.begin_epoch(epoch)
        opened.append(prepared(3 * number, 3), leader_epoch=epoch, timestamp_ms=time_ms)
    opened.checkpoint(COMMITTED)
    assert len(opened.segments()) == 3
    yield opened
    opened.close()


def read(folder: Path, **asked: Any) -> list[int]:
    """The rows, of batches that go on one after the other."""
    found: list[int] = []
    for each in sr.LocalReader(folder).read(**asked):
        numbers = each.batch.column("row").to_pylist()
        assert numbers == list(range(each.base_offset, each.last_offset + 1))
        assert each.base_offset == (found[-1] + 1 if found else each.base_offset)
        found += numbers
    return found


def test_it_gives_what_a_reader_gives(log: PartitionLog, folder: Path) -> None:
    assert list(sr.LocalReader(str(folder)).read()) == [
        LogBatch(
            topic="orders",
            partition=0,
            batch=rows(3 * number, 3),
            base_offset=3 * number,
            last_offset=3 * number + 2,
            leader_epoch=1 if number < 3 else 2,
            timestamp=TIMES_MS[number],
            high_watermark=COMMITTED,
        )
        for number in range(5)
    ]


def test_batches_are_views_of_the_files_and_outlive_them(log: PartitionLog, folder: Path) -> None:
    (first, *_) = sr.LocalReader(folder).read()
    address = first.batch.column("row").buffers()[1].address
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (path,) = {
        line[5]
        for line in mapped
        if len(line) > 5 and int(line[0].split("-")[0], 16) <= address < int(line[0].split("-")[1], 16)
    }
    assert path == str(folder / f"{0:020}.arrow")
    log.forget(6)
    assert not Path(path).exists()
    assert first.batch == rows(0, 3)


@pytest.mark.parametrize(
    ("asked", "first", "beyond"),
    [
        ({}, 0, 15),
        ({"start": 4}, 4, 15),
        ({"start": 6}, 6, 15),
        ({"start": 4, "stop": 5}, 4, 5),
        ({"start": 2, "stop": 13}, 2, 13),
        ({"start": 5, "stop": 5}, 0, 0),
        ({"start": 14}, 14, 15),
        ({"start": 15}, 0, 0),
        ({"start": 18}, 0, 0),
        ({"stop": 100}, 0, 15),
        ({"start": "earliest", "stop": 4}, 0, 4),
        ({"start": "latest"}, 0, 0),
        ({"uncommitted": True}, 0, 18),
        ({"uncommitted": True, "start": 16, "stop": 17}, 16, 17),
        ({"uncommitted": True, "start": "latest"}, 0, 0),
        ({"start_time": 0}, 0, 15),
        ({"start_time": 1_000}, 0, 15),
        ({"start_time": 1_001}, 3, 15),
        ({"start_time": 2_000}, 3, 15),
        ({"start_time": 3_001}, 9, 15),
        ({"start_time": 4_000}, 9, 15),
        ({"start_time": 4_001}, 0, 0),
        ({"start_time": 4_001, "uncommitted": True}, 15, 18),
        ({"start_time": 5_001, "uncommitted": True}, 0, 0),
        ({"start_time": datetime.fromtimestamp(0, UTC) + timedelta(seconds=3), "stop": 4}, 3, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("verify", [False, True])
def test_it_reads_a_range(
    log: PartitionLog, folder: Path, asked: dict[str, Any], first: int, beyond: int, *, verify: bool
) -> None:
    assert read(folder, verify=verify, **asked) == list(range(first, beyond))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"start": -1}, "no range"),
        ({"start": 2, "stop": 1}, "no range"),
        ({"start": "newest"}, "it is an offset"),
        ({"start_time": datetime(2026, 11, 21)}, "no time zone"),
    ],
)
def test_what_names_no_range_is_refused(log: PartitionLog, folder: Path, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        sr.LocalReader(folder).read(**asked)


def test_what_is_outside_the_log_is_refused(log: PartitionLog, folder: Path) -> None:
    log.forget(6)
    for start in (5, 19):
        with pytest.raises(OffsetOutOfRange, match="from 6 on"):
            sr.LocalReader(folder).read(start)
    assert read(folder, start="earliest") == read(folder, start_time=0) == list(range(6, 15))


def test_a_log_without_records(folder: Path) -> None:
    with pytest.raises(StorageFailed, match="Name the folder of a partition"):
        sr.LocalReader(folder.parent / "orders-0.gone").read()
    log = log_in(folder, directory=folder.parent)
    for start in (0, "earliest", "latest"):
        assert read(folder, start=start) == read(folder, start=start, uncommitted=True) == []
    assert read(folder, start_time=0, columns=["row"]) == []
    log.begin_anew(7)
    assert read(folder, start="earliest") == read(folder, start=7) == []
    for start in (0, 8):
        with pytest.raises(OffsetOutOfRange):
            sr.LocalReader(folder).read(start)
    log.close()


def test_where_no_broker_says_what_is_committed_only_the_uncommitted_is_read(
    log: PartitionLog, folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    with pytest.raises(InvalidRequest, match=r"is in no broker's directory.*uncommitted=True"):
        sr.LocalReader(copied).read(start="earliest")
    assert read(copied, start="earliest", uncommitted=True) == list(range(log.log_start, log.log_end))


def test_a_log_that_is_written_meanwhile_is_read_to_where_it_was_committed(log: PartitionLog, folder: Path) -> None:
    reader = sr.LocalReader(folder)
    reading = reader.read(start=6)
    assert next(reading).base_offset == 6
    log.append(prepared(18, 3), leader_epoch=2, timestamp_ms=6_000)
    log.checkpoint(21)
    (folder / f"{30:020}.index").touch()  # of a segment that is being made
    assert [each.base_offset for each in reading] == [9, 12]
    assert [each.base_offset for each in reader.read(start=15)] == [15, 18]
    assert [each.batch.num_columns for each in reader.read(start=15, columns=["row"])] == [1, 1]


def test_what_retention_takes_before_it_is_read_is_said_so(log: PartitionLog, folder: Path) -> None:
    reading = sr.LocalReader(folder).read()
    assert [next(reading).base_offset for _ in range(2)] == [0, 3]
    log.forget(12)
    with pytest.raises(OffsetOutOfRange, match="retention took the log below 12 before 6 was read"):
        next(reading)


def test_columns_are_chosen_in_the_order_asked_for(log: PartitionLog, folder: Path) -> None:
    assert next(sr.LocalReader(folder).read(start=1, columns=["text", "row"])).batch == rows(1, 2).select([1, 0])
    assert next(sr.LocalReader(folder).read(start=1, columns=[])).batch.num_rows == 2
    with pytest.raises(InvalidRequest, match="column 'amount' is not in the topic"):
        next(sr.LocalReader(folder).read(columns=["amount"]))


def test_batches_have_their_segments_schema_and_nulls_for_what_came_later_if_it_is_asked_for(folder: Path) -> None:
    late = pa.record_batch([*rows(2, 2).columns, pa.array([7, 8], pa.int8())], schema=WIDER)
    log_of_two_schemas(folder, late, WIDENED)
    assert [each.batch for each in sr.LocalReader(folder).read()] == [rows(0, 2), late]
    chosen = [each.batch for each in sr.LocalReader(folder).read(columns=["late", "row"])]
    schema = pa.schema([WIDER.field("late"), WIDER.field("row")])
    assert [batch.schema for batch in chosen] == [schema, schema]
    assert [batch.to_pydict() for batch in chosen] == [
        {"late": [None, None], "row": [0, 1]},
        {"late": [7, 8], "row": [2, 3]},
    ]


def test_what_would_take_much_comes_in_pieces_each_at_its_offset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of_two_schemas(
        folder, pa.record_batch([*rows(2, 2).columns, pa.array([7, 8], pa.int8())], schema=WIDER), WIDENED
    )
    monkeypatch.setattr(batches, "PIECE_BYTES_MAX", 1)
    found = [*sr.LocalReader(folder).read(columns=["late", "row"])]
    assert [(each.base_offset, each.last_offset) for each in found] == [(0, 0), (1, 1), (2, 3)]
    assert [row for each in found for row in each.batch.column("row").to_pylist()] == [0, 1, 2, 3]
    found = [*sr.LocalReader(folder).read(start=1, columns=["late", "row"])]
    assert [(each.base_offset, each.last_offset) for each in found] == [(1, 1), (2, 3)]


def log_of_two_schemas(folder: Path, batch: pa.RecordBatch, topic: TopicSchema) -> None:
    """Two rows of SCHEMA, then this batch."""
    log = log_in(folder, directory=folder.parent)
    log.begin_epoch(0)
    log.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    log.append(prepare(batch, topic, batch_bytes_max=1 << 20), leader_epoch=0, timestamp_ms=0)
    log.checkpoint(4)
    log.close()


@pytest.mark.parametrize("field", [pa.field("row", pa.int32()), pa.field("late", pa.int8(), nullable=False)])
def test_segments_whose_schemas_do_not_continue_are_no_log(folder: Path, field: pa.Field) -> None:
    other = pa.schema([field])
    batch = pa.record_batch([pa.array([1, 2], field.type)], schema=other)
    log_of_two_schemas(folder, batch, TopicSchema(other))
    with pytest.raises(CorruptLog, match="its schema is no earlier version of the newest one"):
        next(sr.LocalReader(folder).read(columns=[field.name]))


# Damage


def test_only_who_verifies_notices_that_rows_are_damaged(log: PartitionLog, folder: Path) -> None:
    path = folder / f"{6:020}.arrow"
    content = bytearray(path.read_bytes())
    place = content.rindex((11).to_bytes(8, "little"))
    content[place] = 99
    path.write_bytes(content)
    assert next(sr.LocalReader(folder).read(9)).batch.column("row").to_pylist() == [9, 10, 99]
    assert read(folder, verify=True, stop=9) == list(range(9))
    with pytest.raises(CorruptLog, match=f"segment {6:020}: the batch at offset 9 does not have its CRC-32C"):
        read(folder, verify=True)


@pytest.mark.parametrize("suffix", ["index", "arrow"])
@pytest.mark.parametrize("base", [0, 6, 12])
def test_a_missing_file_is_a_corrupt_log(log: PartitionLog, folder: Path, base: int, suffix: str) -> None:
    (folder / f"{base:020}.{suffix}").unlink()
    with pytest.raises(CorruptLog, match="one of its two files is missing"):
        read(folder)


@pytest.mark.parametrize("base", [0, 6, 12])
def test_a_missing_segment_is_a_corrupt_log(log: PartitionLog, folder: Path, base: int) -> None:
    for suffix in ("index", "arrow"):
        (folder / f"{base:020}.{suffix}").unlink()
    with pytest.raises(CorruptLog, match=r"it starts at offset|ends at 12, before 15"):
        read(folder)
    with pytest.raises(CorruptLog):
        read(folder, start_time=4_001 if base != 12 else 4_000)


def test_a_file_that_cannot_be_read_is_said_so(log: PartitionLog, folder: Path) -> None:
    for suffix in ("index", "arrow"):
        path = folder / f"{6:020}.{suffix}"
        path.unlink()
        path.mkdir()
        with pytest.raises((StorageFailed, CorruptLog)):
            read(folder)
    (folder / "log_start.json").mkdir()
    with pytest.raises(StorageFailed, match="Check its owner, or the disk"):
        read(folder)


def test_data_that_is_cut_after_it_was_looked_at_is_not_mapped(log: PartitionLog, folder: Path) -> None:
    for mapped in (True, False):
        segment = StoredSegment(folder, 0 if mapped else 6, epoch=NO_EPOCH, mapped=mapped)
        path = folder / f"{segment.base:020}.arrow"
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(CorruptLog, match="its data has been cut"):
            list(segment.batches(verify=False))


@pytest.mark.slow
def test_whatever_is_damaged_is_told_and_never_handed_out_by_who_verifies(folder: Path) -> None:
    """Each byte of each file flipped, and each file cut anywhere; but for the data of the last segment."""
    log = log_in(folder, directory=folder.parent, segment_bytes=1)
    log.begin_epoch(0)
    for number in range(2):
        log.append(prepared(2 * number), leader_epoch=0, timestamp_ms=number)
    log.forget(2)
    log.append(prepared(4), leader_epoch=0, timestamp_ms=2)
    log.checkpoint(6)
    log.close()
    expected = [rows(2, 2), rows(4, 2)]
    asked: list[dict[str, Any]] = [{"start_time": 1}, {"start": 2, "columns": ["row"]}, {"start": 2, "verify": True}]
    files = [path for path in sorted(folder.iterdir()) if path.name != f"{4:020}.arrow"]
    for path in [*files, folder.parent / "high_watermarks.jsonl"]:
        sound = path.read_bytes()
        flipped = [sound[:place] + bytes([sound[place] ^ 0x94]) + sound[place + 1 :] for place in range(len(sound))]
        for content in [*flipped, *(sound[:size] for size in range(len(sound)))]:
            path.write_bytes(content)
            *_, found = [read_damaged(folder, **each) for each in asked]
            assert found in ([], expected), (path.name, content)
        path.write_bytes(sound)
    assert read_damaged(folder, start=2, verify=True) == expected


def read_damaged(folder: Path, **asked: Any) -> list[pa.RecordBatch]:
    """None, where it is refused."""
    try:
        return [each.batch for each in sr.LocalReader(folder).read(**asked)]
    except (CorruptLog, CorruptState, OffsetOutOfRange):
        return []
