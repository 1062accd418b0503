"""A log that loses its head: by retention, or because its leader has forgotten more; and crashes in the midst of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.core.replica.retention import SegmentSize
from spark_replication.errors import OffsetOutOfRange, StorageFailed
from spark_replication.storage.log.log_start import LOG_START_FILE
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import Open, files_of, prepared, read, read_rows

EPOCHS = EpochHistory.of([(1, 0), (2, 4), (5, 10)])


def write(log: PartitionLog) -> None:
    """Six batches of two rows, each its own segment; the last epoch has no records yet."""
    for epoch, batches in ((1, 2), (2, 3), (5, 0)):
        log.begin_epoch(epoch)
        for _ in range(batches):
            log.append(prepared(log.log_end), leader_epoch=epoch, timestamp_ms=100 + log.log_end)
    log.checkpoint(8)


def test_whole_segments_below_go_and_the_last_stays(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1)
    write(log)
    sizes = [(each.base, each.end, each.timestamp_max_ms) for each in log.segments()]
    assert sizes == [(0, 2, 100), (2, 4, 102), (4, 6, 104), (6, 8, 106), (8, 10, 108)]
    assert sum(each.bytes for each in log.segments()) == sum(
        len(content) for name, content in files_of(tmp_path / "leader").items() if name.endswith(".arrow")
    )
    log.forget(1)
    assert log.log_start == 0
    log.forget(7)
    for _ in range(2):
        assert (log.log_start, log.log_end, log.high_watermark) == (6, 10, 8)
        assert log.epochs == EpochHistory.of([(2, 6), (5, 10)])
        assert read_rows(log, 6) == [6, 7, 8, 9]
        assert log.offset_of_time(0) == 6
        with pytest.raises(OffsetOutOfRange, match=r"offset 5 is outside the log, which is \[6, 10\)"):
            read(log, 5, bytes_max=1, end=10)
        log.close()
        log = open_log(segment_bytes=1)
        assert (log.recovery.why, log.recovery.rebuilt, log.recovery.lossless) == ("", (), True)
    log.forget(8)
    log.forget(10)
    assert (log.log_start, log.segments()) == (8, [SegmentSize(8, 10, log.segments()[0].bytes, 108)])
    assert sorted(files_of(tmp_path / "leader")) == [f"{8:020}.arrow", f"{8:020}.index"]
    log.append(prepared(10), leader_epoch=5, timestamp_ms=0)
    assert read_rows(log, 8) == [8, 9, 10, 11]


def test_the_high_watermark_is_never_below_the_start(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    write(log)
    log.checkpoint(1)
    log.forget(8)
    assert (log.log_start, log.high_watermark) == (8, 8)
    log.close()
    assert open_log(segment_bytes=1).high_watermark == 8


def test_a_log_begins_anew_above_its_end(open_log: Open) -> None:
    log, leader = open_log(segment_bytes=1), open_log("other", segment_bytes=1)
    write(log)
    write(leader)
    for _ in range(5):
        leader.append(prepared(leader.log_end), leader_epoch=5, timestamp_ms=0)
    leader.forget(14)
    log.begin_anew(leader.log_start)
    for _ in range(2):
        assert (log.log_start, log.log_end, log.high_watermark) == (14, 14, 14)
        assert (log.epochs, log.segments(), read(log, 14, bytes_max=1, end=14)) == (EpochHistory(), [], None)
        log.close()
        log = open_log(segment_bytes=1)
        assert (log.recovery.why, log.recovery.rebuilt, log.recovery.lossless) == ("", (), True)
    while (records := read(leader, log.log_end, bytes_max=1, end=leader.log_end)) is not None:
        log.append_slice(records)
    assert (read_rows(log, 14), log.epochs) == (list(range(14, 20)), EpochHistory.of([(5, 14)]))


def test_a_log_begins_anew_below_its_start(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    write(log)
    log.forget(8)
    log.begin_anew(3)
    for _ in range(2):
        assert (log.log_start, log.log_end, log.high_watermark, log.epochs) == (3, 3, 3, EpochHistory())
        log.close()
        log = open_log(segment_bytes=1)
        assert (log.recovery.why, log.recovery.lossless) == ("", True)
    log.begin_epoch(7)
    log.append(prepared(3), leader_epoch=7, timestamp_ms=0)
    assert read_rows(log, 3) == [3, 4]


MOVES: list[tuple[Callable[[PartitionLog], None], int, set[tuple[int, int]]]] = [
    (lambda log: log.forget(6), 0, {(0, 10), (6, 10)}),
    (lambda log: log.begin_anew(20), 0, {(0, 10), (20, 20)}),
    (lambda log: log.begin_anew(5), 0, {(0, end) for end in (10, 8, 6, 4, 2, 0)} | {(5, 5)}),
    # Downwards it is cut first, from its end: any shorter log is one.
    (lambda log: log.begin_anew(3), 6, {(6, 10), (6, 8), (6, 6), (3, 3)}),
]


@pytest.mark.parametrize(("move", "from_start", "found"), MOVES)
def test_a_crash_at_any_point_leaves_a_log(
    open_log: Open, tmp_path: Path, move: Callable[[PartitionLog], None], from_start: int, found: set[tuple[int, int]]
) -> None:
    crashes, seen = 0, set()
    while True:
        files, name = FailingFiles(), f"log {crashes}"
        log = open_log(name, segment_bytes=1, files=files)
        write(log)
        log.forget(from_start)
        files.changes_left = crashes
        try:
            move(log)
        except Crash:
            pass
        else:
            break
        crashes += 1
        again = open_log(name, segment_bytes=1)
        assert again.recovery.lossless
        seen.add((again.log_start, again.log_end))
        assert again.log_start <= again.high_watermark <= again.log_end
        assert read_rows(again, again.log_start) == list(range(again.log_start, again.log_end))
        assert all(int(each[:20]) >= again.log_start for each in files_of(tmp_path / name))
        again.begin_epoch(9)
        again.append(prepared(again.log_end), leader_epoch=9, timestamp_ms=0)
        again.close()
        assert open_log(name, segment_bytes=1).recovery.lossless
    assert crashes > 5
    assert seen == found


@pytest.mark.parametrize("operation", ["sync", "sync_folder", "create"])
def test_a_start_that_does_not_reach_the_disk_removes_nothing(open_log: Open, tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    log = open_log(segment_bytes=1, files=files)
    write(log)
    before = files_of(tmp_path / "leader")
    files.refuse(operation)
    with pytest.raises(StorageFailed, match="a new log start"):
        log.forget(6)
    assert (log.log_start, files_of(tmp_path / "leader"), read_rows(log)) == (0, before, list(range(10)))
    files.heal()
    log.forget(6)
    assert (log.log_start, read_rows(log, 6)) == (6, [6, 7, 8, 9])


def test_segments_that_could_not_be_removed_go_with_the_next_recovery(open_log: Open, tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(segment_bytes=1, files=files)
    write(log)
    files.refuse("remove", ".arrow")
    log.forget(6)
    assert (log.log_start, read_rows(log, 6)) == (6, [6, 7, 8, 9])
    log.close()
    again = open_log(segment_bytes=1)
    assert (again.log_start, again.recovery.lossless, again.epochs) == (6, True, EpochHistory.of([(2, 6), (5, 10)]))
    assert sorted(files_of(tmp_path / "leader"))[0] == f"{6:020}.arrow"


@pytest.mark.parametrize("refused", [("remove", ".arrow"), ("truncate", ".index"), ("create", "epochs.jsonl.tmp")])
def test_what_lies_below_a_new_start_and_could_not_be_removed_goes_with_the_next(
    open_log: Open, tmp_path: Path, refused: tuple[str, str]
) -> None:
    files = FailingFiles()
    log = open_log(segment_bytes=1, files=files)
    write(log)
    files.refuse(*refused)
    log.begin_anew(20)
    assert (log.log_start, log.log_end, log.high_watermark) == (20, 20, 20)
    files.heal()
    log.begin_epoch(7)
    for _ in range(2):
        log.append(prepared(log.log_end), leader_epoch=7, timestamp_ms=0)
    log.checkpoint(22)
    log.forget(22)
    assert sorted(files_of(tmp_path / "leader")) == [f"{22:020}.arrow", f"{22:020}.index"]
    log.close()
    assert (open_log(segment_bytes=1).log_start, open_log(segment_bytes=1).recovery.lossless) == (22, True)


def test_a_lower_start_waits_until_what_was_to_go_is_gone(open_log: Open, tmp_path: Path) -> None:
    """Else a segment of before would be found where the new ones have come to its base."""
    files = FailingFiles()
    log = open_log(segment_bytes=1, files=files)
    write(log)
    files.refuse("remove", ".arrow")
    log.begin_anew(20)
    with pytest.raises(StorageFailed, match="a new log start"):
        log.begin_anew(0)
    assert (log.log_start, log.log_end) == (20, 20)
    files.heal()
    log.begin_anew(0)
    assert (log.log_start, log.log_end, files_of(tmp_path / "leader")) == (0, 0, {})


def test_a_high_watermark_outside_the_log_is_refused_and_ends_nobody(open_log: Open) -> None:
    log = open_log()
    for outside in (-1, 1):
        with pytest.raises(StorageFailed, match=r"outside .*, which is \[0, 0\)"):
            log.checkpoint(outside)


@pytest.mark.parametrize("content", [b"", b"torn", b"00000000 {}\n"])
def test_a_damaged_start_is_the_first_segments_and_nobody_vouches_for_the_log(
    open_log: Open, tmp_path: Path, content: bytes
) -> None:
    log = open_log(segment_bytes=1)
    write(log)
    log.forget(6)
    log.close()
    (tmp_path / "leader" / LOG_START_FILE).write_bytes(content)
    log = open_log(segment_bytes=1)
    assert (log.log_start, read_rows(log, 6)) == (6, [6, 7, 8, 9])
    assert (log.recovery.rebuilt, log.recovery.lossless) == ((LOG_START_FILE,), False)
    log.close()
    again = open_log(segment_bytes=1)
    assert (again.log_start, again.recovery.rebuilt) == (6, ())


def test_a_head_that_is_missing_without_a_start_is_a_loss(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1)
    write(log)
    log.forget(6)
    log.close()
    (tmp_path / "leader" / LOG_START_FILE).unlink()
    log = open_log(segment_bytes=1)
    assert (log.log_start, log.log_end, log.recovery.lossless) == (0, 0, False)


def test_a_leader_closes_a_segment_whose_first_batch_is_old_and_its_follower_does_the_same(
    open_log: Open, tmp_path: Path
) -> None:
    leader, follower = open_log(segment_ms=10), open_log("follower", segment_ms=1)
    leader.begin_epoch(0)
    for timestamp_ms in (100, 109, 90, 110, 119, 120):
        leader.append(prepared(leader.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
    assert [each.base for each in leader.segments()] == [0, 6, 10]
    leader.close()
    leader = open_log(segment_ms=10)
    leader.append(prepared(12), leader_epoch=0, timestamp_ms=129)
    leader.append(prepared(14), leader_epoch=0, timestamp_ms=130)
    assert [each.base for each in leader.segments()] == [0, 6, 10, 14]
    while (records := read(leader, follower.log_end, bytes_max=1, end=16)) is not None:
        follower.append_slice(records)
    assert files_of(tmp_path / "follower") == files_of(tmp_path / "leader")
    assert follower.segments() == leader.segments()
