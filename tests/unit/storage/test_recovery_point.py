"""What was flushed is believed after a crash, and everything else is checksummed: whatever was cut, and came since."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.sim.world.faulty_files import FaultyFiles
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.log import partition_log
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.storage.log.recovery_point import RECOVERY_POINT_FILE, RecoveryPoint
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import Open, StoryLog, log_in, prepared, read_rows

FILES = LocalFiles(open_files_max=1)


class ReadFiles(FailingFiles):
    """data_bytes: read of segments' data."""

    def __init__(self) -> None:
        super().__init__()
        self.data_bytes = 0

    def read(self, path: Path, length: int, position: int) -> bytes:
        found = super().read(path, length, position)
        if path.name.endswith(".arrow") and position:
            self.data_bytes += len(found)
        return found


def append(log: PartitionLog, batches: int = 1) -> None:
    for _ in range(batches):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def begun(log: StoryLog, batches: int) -> StoryLog:
    log.begin_epoch(0)
    append(log, batches)
    return log


def point(folder: Path) -> int:
    return RecoveryPoint.read(folder, FILES).offset


def flush(log: PartitionLog) -> None:
    due = log.begin_flush()
    assert due is not None
    due.perform()
    log.end_flush(None)


def damage(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_after_a_clean_stop_no_data_is_read_and_after_a_crash_what_was_not_flushed(
    open_log: Open, tmp_path: Path
) -> None:
    log = begun(open_log(segment_bytes=3_000), 10)
    log.flush()
    log.close()
    assert point(tmp_path / "leader") == 20
    files = ReadFiles()
    log = open_log(segment_bytes=3_000, files=files)
    assert (log.log_end, files.data_bytes) == (20, 0)
    append(log)
    log.close()  # killed: nothing was flushed
    assert (open_log(segment_bytes=3_000, files=files).log_end, files.data_bytes) == (22, len(prepared(20).message))


def test_a_stop_writes_no_point_for_what_is_read_as_soon(open_log: Open, tmp_path: Path) -> None:
    """Of ten thousand logs, each would cost a file."""
    one = len(prepared(0).message)
    little = 2 * one * partition_log.POINT_SHARE
    log = begun(open_log(segment_bytes=little), 1)
    log.flush()
    assert (point(tmp_path / "leader"), log.flushed_end) == (0, 2)
    append(log, 2)
    log.flush()
    assert point(tmp_path / "leader") == 6
    append(log)
    log.flush()
    assert point(tmp_path / "leader") == 8, "what is read is the segment"
    log.close()
    files = ReadFiles()
    assert (open_log(segment_bytes=little, files=files).log_end, files.data_bytes) == (8, 0)


def test_damage_above_the_recovery_point_is_cut_and_below_it_a_reader_meets_it(open_log: Open, tmp_path: Path) -> None:
    log = begun(open_log(), 2)
    log.flush()
    append(log, 2)
    log.close()
    (data,) = (tmp_path / "leader").glob("*.arrow")
    damage(data)
    log = open_log()
    assert (log.log_end, log.recovery.entries_cut, read_rows(log)) == (6, 1, [0, 1, 2, 3, 4, 5])
    log.flush()
    log.close()
    damage(data)
    log = open_log()
    assert (log.log_end, log.recovery.lossless) == (6, True)
    with pytest.raises(Exception, match="CRC-32C"):
        read_rows(log)


@pytest.mark.parametrize("kept", [0, 1, 79, 80, 100])
def test_entries_and_sizes_are_checked_below_it_too(open_log: Open, tmp_path: Path, kept: int) -> None:
    log = begun(open_log(), 3)
    log.flush()
    log.close()
    (index,) = (tmp_path / "leader").glob("*.index")
    index.write_bytes(index.read_bytes()[:kept])
    log = open_log()
    assert (log.log_end, point(tmp_path / "leader")) == (kept // 80 * 2, kept // 80 * 2)
    log.close()


@pytest.mark.parametrize(("place", "log_end"), [(0, 0), (85, 2), (170, 4)])
def test_entries_that_do_not_continue_are_cut(open_log: Open, tmp_path: Path, place: int, log_end: int) -> None:
    log = begun(open_log(), 3)
    log.flush()
    log.close()
    (index,) = (tmp_path / "leader").glob("*.index")
    damage(index, place)
    assert open_log().log_end == log_end


def test_a_shorter_data_file_is_cut_to_its_whole_batches(open_log: Open, tmp_path: Path) -> None:
    log = begun(open_log(), 3)
    log.flush()
    log.close()
    (data,) = (tmp_path / "leader").glob("*.arrow")
    data.write_bytes(data.read_bytes()[:-1])
    log = open_log()
    assert (log.log_end, log.recovery.entries_cut, point(tmp_path / "leader")) == (4, 1, 4)


CUTS: list[Callable[[PartitionLog], None]] = [lambda log: log.truncate(6), lambda log: log.begin_anew(6)]


@pytest.mark.parametrize("cut", CUTS, ids=["truncate", "begin anew"])
def test_a_cut_below_it_lowers_it_first_and_for_good(
    open_log: Open, tmp_path: Path, cut: Callable[[PartitionLog], None]
) -> None:
    """Whichever change the process dies in: the point is never above the end of what is flushed."""
    for changes in range(60):
        files = FailingFiles()
        log = begun(open_log(f"log {changes}", segment_bytes=2_000, files=files), 10)
        log.flush()
        log.forget(4)
        files.changes_left = changes
        folder = tmp_path / f"log {changes}"
        size_before = sum(path.stat().st_size for path in folder.glob("0*"))
        try:
            cut(log)
        except Crash:
            shrunk = sum(path.stat().st_size for path in folder.glob("0*")) < size_before
            assert not shrunk or point(folder) <= 6
        else:
            assert point(folder) <= 6
            break
    else:
        raise AssertionError("it never ended")


def test_a_log_that_begins_anew_below_its_start_trusts_nothing_of_what_comes(open_log: Open, tmp_path: Path) -> None:
    log = begun(open_log(segment_bytes=1), 5)
    log.checkpoint(10)
    log.forget(6)
    log.flush()
    log.begin_anew(2)
    assert point(tmp_path / "leader") <= 2
    log.close()


def test_a_cut_waits_for_a_disk_that_cannot_lower_it(open_log: Open, tmp_path: Path) -> None:
    files = FailingFiles()
    log = begun(open_log(files=files), 3)
    log.flush()
    files.refuse("remove", RECOVERY_POINT_FILE)
    with pytest.raises(StorageFailed):
        log.truncate(2)
    assert (log.log_end, read_rows(log)) == (6, [0, 1, 2, 3, 4, 5])
    files.heal()
    log.truncate(2)
    assert (log.log_end, point(tmp_path / "leader")) == (2, 2)


def test_it_is_written_once_a_segment(open_log: Open, tmp_path: Path) -> None:
    log = begun(open_log(segment_bytes=2_000), 1)
    found = []
    for _ in range(8):
        append(log)
        flush(log)
        found.append((log.flushed_end, point(tmp_path / "leader")))
    segments = [segment.base for segment in log.segments()]
    written = sorted({offset for _, offset in found})
    assert len(segments) > 1
    assert written[:1] == [0]
    assert len(written) == len(segments), "the first segment needs none"
    assert all(written_at <= flushed_end for flushed_end, written_at in found)


def test_within_a_segment_it_is_written_once_in_so_many_bytes(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a process after one that was killed has little to read, and to write again."""
    log = begun(open_log(segment_bytes=1 << 20), 1)
    batch_bytes = log.bytes_from(0)
    monkeypatch.setattr(partition_log, "POINT_BYTES", 3 * batch_bytes)
    found = []
    for _ in range(11):
        append(log)
        flush(log)
        found.append((log.flushed_end // 2, point(tmp_path / "leader") // 2))
    assert len(log.segments()) == 1
    assert [written for _, written in found] == [0, 3, 3, 3, 6, 6, 6, 9, 9, 9, 12]
    assert [flushed for flushed, _ in found] == list(range(2, 13))


def test_a_flush_that_fails_leaves_it(open_log: Open, tmp_path: Path) -> None:
    files = FailingFiles()
    log = begun(open_log(files=files), 1)
    log.flush()
    append(log)
    files.refuse("sync", ".index")
    with pytest.raises(StorageFailed):
        log.flush()
    assert point(tmp_path / "leader") == 2


def test_a_damaged_one_counts_for_nothing(open_log: Open, tmp_path: Path) -> None:
    log = begun(open_log(), 2)
    log.flush()
    log.close()
    damage(tmp_path / "leader" / RECOVERY_POINT_FILE)
    files = ReadFiles()
    log = open_log(files=files)
    assert (log.log_end, log.recovery.lossless, files.data_bytes > 0) == (4, True, True)


def begun_anew_twice(log: PartitionLog) -> None:
    log.begin_anew(20)
    log.begin_anew(0)


REPLACED: list[Callable[[PartitionLog], None]] = [
    lambda log: log.truncate(2),
    lambda log: log.begin_anew(0),
    begun_anew_twice,
]


@pytest.mark.slow
@pytest.mark.parametrize("replaced", REPLACED, ids=["truncate", "begin anew", "begin anew, later and then earlier"])
def test_no_loss_of_power_makes_a_recovery_believe_what_came_in_place_of_a_cut(
    replaced: Callable[[PartitionLog], None],
) -> None:
    folder = Path("logs/orders-0.id1")
    ends = set()
    for seed in range(200):
        files = FaultyFiles()
        files.make_folder(folder)
        log = begun(log_in(folder, files=files), 4)
        log.flush()
        files.write_back()
        replaced(log)
        log.begin_epoch(1)
        for number in range(3):
            # Of another content: what the cut leaves behind is not what comes in its place.
            log.append(prepared(100 * number), leader_epoch=1, timestamp_ms=0)
        log.close()
        files.lose_power(random.Random(seed))
        log = log_in(folder, files=files)
        read_rows(log, log.log_start)  # every batch has its checksum
        ends.add(log.log_end)
    assert len(ends) > 2, "the loss takes this or that"
