"""The story of one log: written, read, rolled, truncated, reopened, followed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.errors import CorruptLog, OffsetOutOfRange, StorageFailed
from spark_replication.ports import BatchPlace, LogSlice
from spark_replication.storage.format.index import DIGEST
from spark_replication.storage.log.partition_log import PRODUCERS_FILE, PartitionLog
from tests.unit.storage.storage_stories import (
    SCHEMA,
    TOPIC,
    WIDENED,
    WIDER,
    Open,
    files_of,
    prepared,
    read,
    read_rows,
    rows,
)
from tests.unit.storage.test_files import open_files

SMALL_SEGMENT = 1000


def lead(log: PartitionLog, epoch: int, batches: int, *, count: int = 2) -> None:
    log.begin_epoch(epoch)
    for _ in range(batches):
        log.append(prepared(log.log_end, count), leader_epoch=epoch, timestamp_ms=1_000 + log.log_end)


def follow(follower: PartitionLog, leader: PartitionLog, bytes_max: int = 700) -> None:
    while (records := read(leader, follower.log_end, bytes_max=bytes_max, end=leader.log_end)) is not None:
        follower.append_slice(records)


def test_what_is_appended_is_read_and_survives_reopening(open_log: Open) -> None:
    log = open_log()
    assert (log.log_start, log.log_end, read(log, 0, bytes_max=1, end=0)) == (0, 0, None)
    log.begin_epoch(3)
    first, second = prepared(0, 2), prepared(2, 3)
    assert log.append(first, leader_epoch=3, timestamp_ms=5) == BatchPlace(-1, -1, -1, 0, 1, first.crc, 5)
    assert log.append(second, leader_epoch=3, timestamp_ms=6) == BatchPlace(-1, -1, -1, 2, 4, second.crc, 6)
    assert read_rows(log) == [0, 1, 2, 3, 4]
    log.checkpoint(2)
    log.close()
    again = open_log()
    assert (again.log_end, again.high_watermark, again.epochs) == (5, 2, EpochHistory.of([(3, 0)]))
    assert again.recovery.lossless
    assert again.recovery.why == ""
    assert read_rows(again) == [0, 1, 2, 3, 4]


def test_a_read_takes_whole_batches_that_fit_and_at_least_one(open_log: Open) -> None:
    log = open_log()
    lead(log, 0, 5)
    one = read(log, 3, bytes_max=1, end=log.log_end)
    assert one is not None
    assert (one.first_offset, one.next_offset, one.segment_base, one.head) == (2, 4, 0, b"")
    assert one.schema == TOPIC.head, "who reads from here on must know it"
    size = len(one.data)
    two = read(log, 2, bytes_max=2 * size, end=log.log_end)
    almost_three = read(log, 2, bytes_max=3 * size - 1, end=log.log_end)
    assert two is not None
    assert two == almost_three
    assert (two.next_offset, len(two.entries)) == (6, 160)
    first = read(log, 0, bytes_max=1 << 20, end=7)
    assert first is not None
    assert (first.next_offset, first.head) == (6, TOPIC.head), "a batch that ends past `end` stays out"
    assert read(log, 6, bytes_max=1 << 20, end=7) is None


@pytest.mark.parametrize("offset", [-1, 5])
def test_a_read_outside_the_log_is_refused(open_log: Open, offset: int) -> None:
    log = open_log()
    lead(log, 0, 2)
    with pytest.raises(OffsetOutOfRange, match=r"is outside the log, which is \[0, 4\)"):
        read(log, offset, bytes_max=1, end=4)
    assert read(log, 4, bytes_max=1, end=4) is None


def test_a_closed_segment_is_a_plain_arrow_stream(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=SMALL_SEGMENT)
    lead(log, 0, 12)
    streams = sorted((tmp_path / "leader").glob("*.arrow"))
    assert len(streams) > 2
    assert [int(path.stem) for path in streams][:2] == [0, int(streams[1].stem)]
    tables = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in streams]
    assert pa.concat_tables(tables).equals(pa.Table.from_batches([rows(0, 24)]))


def test_a_batch_of_another_schema_begins_a_segment_of_it(open_log: Open, tmp_path: Path) -> None:
    """Of an earlier one too: a leader that has not heard of the newest goes on with what it knows."""
    log = open_log()
    log.begin_epoch(0)
    for place, topic in enumerate((TOPIC, WIDENED, WIDENED, TOPIC)):
        log.append(prepared(place * 2, topic=topic), leader_epoch=0, timestamp_ms=0)
    bases, schemas = (0, 2, 6), (SCHEMA, WIDER, SCHEMA)
    paths = sorted((tmp_path / "leader").glob("*.arrow"))
    assert [path.name for path in paths] == [f"{base:020}.arrow" for base in bases]
    assert tuple(pa.ipc.open_stream(path.read_bytes()).schema for path in paths) == schemas
    for offset, (base, head) in enumerate(
        [(0, TOPIC.head), (0, TOPIC.head), *[(2, WIDENED.head)] * 4, (6, TOPIC.head)]
    ):
        records = read(log, offset, bytes_max=1, end=log.log_end)
        assert records is not None
        assert (records.segment_base, records.schema) == (base, head)
    log.close()
    again = open_log()
    assert read_rows(again) == list(range(8))
    again.append(prepared(8, topic=TOPIC), leader_epoch=0, timestamp_ms=0)
    assert [each.base for each in again.segments()] == list(bases), "the last segment's head was found again"


def test_a_follower_begins_segments_where_its_leader_did(open_log: Open, tmp_path: Path) -> None:
    log, follower = open_log(), open_log("follower")
    log.begin_epoch(0)
    for place, topic in enumerate((TOPIC, TOPIC, WIDENED, WIDENED)):
        log.append(prepared(place * 2, topic=topic), leader_epoch=0, timestamp_ms=0)
    while (records := read(log, follower.log_end, bytes_max=1, end=log.log_end)) is not None:
        over_the_wire = replace(records, schema=memoryview(records.head))
        assert bool(over_the_wire.schema) == (records.first_offset in (0, 4))
        follower.append_slice(over_the_wire)
    assert files_of(tmp_path / "leader") == files_of(tmp_path / "follower")
    assert read_rows(follower) == list(range(8))


def test_a_leader_appends_only_in_the_epoch_that_it_began(open_log: Open) -> None:
    log = open_log()
    with pytest.raises(AssertionError, match="has not begun"):
        log.append(prepared(0), leader_epoch=1, timestamp_ms=0)


def test_an_epoch_without_records_survives_reopening_and_gives_way_to_the_next(open_log: Open) -> None:
    log = open_log()
    lead(log, 1, 2)
    log.begin_epoch(4)
    log.close()
    log = open_log()
    assert log.epochs == EpochHistory.of([(1, 0), (4, 4)])
    log.begin_epoch(6)
    assert log.epochs == EpochHistory.of([(1, 0), (6, 4)])


@pytest.mark.parametrize(
    ("end", "log_end", "epochs"),
    [
        (30, 24, [(1, 0), (2, 12), (5, 24)]),
        (24, 24, [(1, 0), (2, 12)]),
        (23, 22, [(1, 0), (2, 12)]),
        (13, 12, [(1, 0)]),
        (12, 12, [(1, 0)]),
        (1, 0, []),
        (0, 0, []),
    ],
)
def test_truncation_forgets_batches_epochs_and_checkpoint(
    open_log: Open, end: int, log_end: int, epochs: list[tuple[int, int]]
) -> None:
    log = open_log(segment_bytes=SMALL_SEGMENT)
    lead(log, 1, 6)
    lead(log, 2, 6)
    log.begin_epoch(5)
    log.checkpoint(24)
    log.truncate(end)
    for _ in range(2):
        assert (log.log_end, log.high_watermark, log.epochs) == (log_end, log_end, EpochHistory.of(epochs))
        assert read_rows(log) == list(range(log_end))
        log.close()
        log = open_log(segment_bytes=SMALL_SEGMENT)
        assert log.recovery.lossless
        assert log.recovery.why == ""
    lead(log, 9, 3)
    assert read_rows(log) == list(range(log_end + 6))


def test_a_follower_has_its_leaders_files_byte_for_byte(open_log: Open, tmp_path: Path) -> None:
    leader, follower = open_log(segment_bytes=SMALL_SEGMENT), open_log("follower", segment_bytes=10 * SMALL_SEGMENT)
    lead(leader, 1, 7)
    follow(follower, leader)
    lead(leader, 4, 7, count=3)
    follow(follower, leader)
    assert files_of(tmp_path / "follower") == files_of(tmp_path / "leader")
    assert len(files_of(tmp_path / "leader")) > 4
    assert follower.epochs == leader.epochs == EpochHistory.of([(1, 0), (4, 14)])


def test_replicas_are_identical_again_after_the_old_leader_followed_the_new_one(open_log: Open, tmp_path: Path) -> None:
    one, two = open_log("one", segment_bytes=SMALL_SEGMENT), open_log("two", segment_bytes=SMALL_SEGMENT // 2)
    lead(one, 1, 7)
    follow(two, one)
    lead(one, 1, 4)
    lead(two, 2, 5, count=3)
    one.truncate(14)
    follow(one, two)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert one.epochs == two.epochs


def test_a_slice_that_does_not_continue_the_log_changes_nothing(open_log: Open, tmp_path: Path) -> None:
    leader, follower = open_log(), open_log("follower")
    lead(leader, 1, 4)
    first = read(leader, 0, bytes_max=1, end=8)
    later = read(leader, 4, bytes_max=1, end=8)
    second = read(leader, 2, bytes_max=1, end=8)
    assert first is not None
    assert second is not None
    assert later is not None
    for bad in (second, later):
        with pytest.raises(CorruptLog, match="do not continue"):
            follower.append_slice(bad)
    follower.append_slice(first)
    before = files_of(tmp_path / "follower")
    for bad in (first, later, *damaged(second)):
        with pytest.raises(CorruptLog):
            follower.append_slice(bad)
    assert (files_of(tmp_path / "follower"), follower.log_end) == (before, 2)
    follower.append_slice(second)
    assert read_rows(follower) == [0, 1, 2, 3]


def damaged(records: LogSlice) -> list[LogSlice]:
    """Every byte of the entries and of the data flipped, and pieces missing."""

    def changed(entries: bytes, data: bytes) -> LogSlice:
        return LogSlice(records.first_offset, records.next_offset, records.segment_base, entries, data, records.schema)

    entries, data = bytes(records.entries), bytes(records.data)
    return [
        *(changed(flipped(entries, place), data) for place in range(len(entries))),
        *(changed(entries, flipped(data, place)) for place in range(len(data))),
        changed(entries[:-1], data),
        changed(entries, data[:-8]),
        changed(entries, data + bytes(8)),
        changed(b"", b""),
        changed(bytes(80), data),
    ]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def test_an_epoch_that_was_begun_and_never_written_gives_way_to_an_older_one(open_log: Open) -> None:
    leader, once_elected = open_log(), open_log("once elected")
    lead(leader, 2, 3)
    first = read(leader, 0, bytes_max=1, end=2)
    assert first is not None
    once_elected.append_slice(first)
    once_elected.begin_epoch(3)

    follow(once_elected, leader)

    assert list(once_elected.epochs) == [(2, 0)]
    assert list(open_log("once elected").epochs) == [(2, 0)]
    assert read_rows(once_elected) == list(range(6))


def test_an_older_epoch_is_not_appended_after_a_newer_one(open_log: Open) -> None:
    old, new = open_log("old"), open_log("new")
    lead(old, 1, 2)
    lead(new, 3, 1)
    records = read(old, 2, bytes_max=1, end=4)
    assert records is not None
    with pytest.raises(CorruptLog, match="the leader epoch falls"):
        new.append_slice(records)


def test_idempotent_producers_places_come_back_from_leader_follower_and_disk(open_log: Open) -> None:
    leader, follower = open_log(segment_bytes=SMALL_SEGMENT), open_log("follower")
    leader.begin_epoch(0)
    expected = []
    for sequence in range(8):
        batch = replace(prepared(leader.log_end, producer=7, sequence=sequence), digest=sequence and DIGEST + sequence)
        expected.append(leader.append(batch, leader_epoch=0, timestamp_ms=0))
        leader.append(prepared(leader.log_end), leader_epoch=0, timestamp_ms=0)
    learnt: list[BatchPlace] = []
    while (records := read(leader, follower.log_end, bytes_max=900, end=leader.log_end)) is not None:
        learnt += follower.append_slice(records)
    assert learnt == list(leader.places(8)) == list(follower.places(8)) == expected
    last = expected[-1]
    assert last == BatchPlace(7, 0, 7, 28, 29, last.crc, 0, DIGEST + 7)
    assert (expected[0].digest, expected[0].sequence) == (0, 0)
    assert len(leader.segments()) > 1
    assert list(leader.places(1))[-1] == last


def test_what_is_known_of_producers_is_kept_beside_the_log(
    open_log: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    assert log.saved_producers() == b""
    log.save_producers(b"known\nof them")
    log.begin_anew(7)
    log.close()
    again = open_log()
    assert (again.saved_producers(), again.recovery.lossless) == (b"known\nof them", True)
    (file,) = tmp_path.rglob(PRODUCERS_FILE)
    file.write_bytes(file.read_bytes()[:-3])
    assert again.saved_producers() == b""
    assert "does not have its checksum" in caplog.text
    again.close()
    with pytest.raises(StorageFailed, match="is closed"):
        again.save_producers(b"more")


def test_a_time_is_found_although_clocks_went_back(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    for timestamp_ms in (10, 30, 20, 40):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
    assert [log.offset_of_time(at) for at in (0, 10, 11, 30, 31, 40, 41)] == [0, 0, 2, 2, 6, 6, 8]


def test_the_time_of_an_offset_is_that_of_the_batch_that_holds_it(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    for timestamp_ms in (10, 30, 20):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
    assert [log.time_of(offset) for offset in range(6)] == [10, 10, 30, 30, 20, 20]


def test_a_time_is_found_over_segments_of_which_a_later_one_may_be_older(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    assert log.offset_of_time(0) == 0, "of an empty log, its end"
    log.begin_epoch(0)
    for timestamp_ms in (10, 40, 20, 30, 50):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
    assert len(log.segments()) == 5
    assert [log.offset_of_time(at) for at in (9, 10, 11, 40, 41, 50, 51)] == [0, 0, 2, 2, 8, 8, 10]
    log.forget(4)
    assert [log.offset_of_time(at) for at in (0, 20, 21, 40, 51)] == [4, 4, 6, 8, 10]


def test_a_log_gives_all_of_its_descriptors_back(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=SMALL_SEGMENT)
    lead(log, 0, 30)
    log.flush()
    assert len(read_rows(log)) == 60
    assert len(list(log.places(1))) == 0
    assert len(open_files(tmp_path)) == 10
    log.close()
    assert open_files(tmp_path) == []
    with pytest.raises(StorageFailed, match="is closed"):
        log.append(prepared(60), leader_epoch=0, timestamp_ms=0)
