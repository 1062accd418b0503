"""What of a log goes to the disk: data before index, the folder on a roll, and nothing twice; and what a cut undoes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.storage.disk.flush_threads import FlushAtOnce, FlushThreads
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import WIDENED, Open, prepared, read_rows


class SyncedFiles(FailingFiles):
    """synced: in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.synced.append(path.name)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.synced.append(folder.name)

    def take(self) -> list[str]:
        taken, self.synced = self.synced, []
        return taken


@pytest.fixture
def files() -> SyncedFiles:
    return SyncedFiles()


def append(log: PartitionLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def flushed(log: PartitionLog) -> PartitionLog:
    flush = log.begin_flush()
    assert flush is not None
    flush.perform()
    log.end_flush(None)
    return log


def pair(base: int) -> list[str]:
    return [f"{base:020}.arrow", f"{base:020}.index"]


def test_data_then_index_then_the_folder_and_only_what_is_due(
    open_log: Open, tmp_path: Path, files: SyncedFiles
) -> None:
    log = open_log(segment_bytes=2_000, files=files)
    log.begin_epoch(0)
    append(log)
    assert log.flushed_end == 0
    flushed(log)
    assert (files.take(), log.flushed_end) == ([*pair(0), "leader", tmp_path.name], 2)
    assert log.begin_flush() is None
    append(log)
    flushed(log)
    assert files.take() == pair(0)
    while len(log.segments()) < 3:
        append(log)
    flushed(log)
    bases = [each.base for each in log.segments()]
    assert files.take() == [*pair(0), *pair(bases[1]), *pair(bases[2]), "leader"]
    append(log)
    log.flush()
    assert (files.take(), log.flushed_end) == (pair(bases[2]), log.log_end)
    log.close()
    # An earlier process may have been killed before it flushed.
    again = flushed(open_log(segment_bytes=2_000, files=files))
    assert (files.take()[:2], again.flushed_end) == (pair(0), again.log_end)


def test_a_flush_covers_what_was_there_when_it_began(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    flush = log.begin_flush()
    append(log)
    assert flush is not None
    flush.perform()
    log.end_flush(None)
    assert (log.flushed_end, log.log_end) == (2, 4)
    assert flushed(log).flushed_end == 4


def test_a_flush_of_everything_relies_on_none_that_is_under_way(
    open_log: Open, tmp_path: Path, files: SyncedFiles
) -> None:
    """A stop may flush while another is still waiting for its thread: the names of new segments are in that one."""
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    files.take()
    assert log.begin_flush() is not None
    log.flush()
    assert (files.take(), log.flushed_end) == ([*pair(0), "leader", tmp_path.name], 2)


def test_what_comes_in_place_of_what_was_cut_is_not_flushed_by_the_flush_before(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    for _ in range(4):
        append(log)
    flush = log.begin_flush()
    log.truncate(2)
    log.begin_epoch(0)
    append(log)
    append(log)
    assert flush is not None
    flush.perform()
    log.end_flush(None)
    assert (log.flushed_end, log.log_end) == (2, 6)
    flushed(log)
    log.truncate(4)
    assert log.flushed_end == 4
    assert flushed(log).flushed_end == 4


def test_what_was_cut_off_a_segment_is_off_the_disk_before_what_follows_it_counts(
    open_log: Open, files: SyncedFiles
) -> None:
    """Else a loss of power brings the old end back, and recovery takes the next segment for one that has a gap."""
    log = open_log(files=files)
    log.begin_epoch(0)
    for _ in range(3):
        append(log)
    flushed(log)
    files.take()
    log.truncate(4)
    log.append(prepared(4, topic=WIDENED), leader_epoch=0, timestamp_ms=0)
    assert files.take() == [*pair(0), "leader"]
    flushed(log)
    assert (files.take(), log.flushed_end) == ([*pair(4), "leader"], 6)


@pytest.mark.parametrize(("log_start", "flushed_end"), [(20, 20), (1, 1)])
def test_a_log_that_begins_anew_during_a_flush_has_nothing_flushed_but_its_start(
    open_log: Open, log_start: int, flushed_end: int
) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    for _ in range(4):
        append(log)
    flush = log.begin_flush()
    log.begin_anew(log_start)
    log.begin_epoch(1)
    for _ in range(3):
        log.append(prepared(log.log_end), leader_epoch=1, timestamp_ms=0)
    assert flush is not None
    flush.perform()  # of files that are gone
    log.end_flush(None)
    assert (log.flushed_end, log.log_end) == (flushed_end, log_start + 6)
    assert flushed(log).flushed_end == log_start + 6


def test_what_retention_took_during_a_flush_is_no_failure(open_log: Open) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    for _ in range(4):
        append(log)
    flush = log.begin_flush()
    log.forget(6)
    assert flush is not None
    flush.perform()
    log.end_flush(None)
    assert (log.log_start, log.flushed_end) == (6, 8)


def test_a_flush_that_failed_takes_the_log_offline_whatever_the_next_would_do(
    open_log: Open, files: SyncedFiles
) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    flush = log.begin_flush()
    files.refuse("sync", ".index")
    assert flush is not None
    with pytest.raises(StorageFailed, match=r"\.index could not be flushed") as failed:
        flush.perform()
    files.heal()
    log.end_flush(failed.value)
    assert (log.flushed_end, read_rows(log)) == (0, [0, 1])
    for refused in (lambda: append(log), log.begin_flush, log.flush):
        with pytest.raises(StorageFailed, match=r"could not be flushed.* the log is offline"):
            refused()


def test_a_log_that_was_closed_during_a_flush_stays_closed(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    flush = log.begin_flush()
    log.close()
    assert flush is not None
    flush.perform()
    log.end_flush(StorageFailed("late"))
    with pytest.raises(StorageFailed, match="is closed"):
        append(log)


class Waiting:
    """A flush that takes until it is let go. performed: by which thread."""

    def __init__(self, failed: StorageFailed | None = None) -> None:
        self.go = threading.Event()
        self.ended = threading.Event()
        self.performed = ""
        self.outcome: StorageFailed | None = None
        self._failed = failed

    def perform(self) -> None:
        assert self.go.wait(20)
        self.performed = threading.current_thread().name
        if self._failed is not None:
            raise self._failed

    def end(self, failed: StorageFailed | None) -> None:
        self.outcome = failed
        self.ended.set()


def test_one_slow_disk_holds_up_no_other_and_all_end_before_the_threads_do() -> None:
    threads = FlushThreads(2)
    failed = StorageFailed("EIO")
    slow, quick, failing, last = Waiting(), Waiting(), Waiting(failed), Waiting()
    for each in (slow, quick, failing, last):
        threads.flush(each, each.end)
    for each in (quick, failing):
        each.go.set()
        assert each.ended.wait(20)
    assert (slow.performed, quick.performed, quick.outcome, failing.outcome) == ("", "flush", None, failed)
    slow.go.set()
    last.go.set()
    assert threads.close()
    assert slow.ended.is_set()
    assert last.ended.is_set()


def test_a_disk_that_never_answers_holds_up_a_stop_for_a_while_only() -> None:
    threads = FlushThreads(2)
    hanging, quick = Waiting(), Waiting()
    for each in (hanging, quick):
        threads.flush(each, each.end)
    quick.go.set()
    assert not threads.close(0.05)
    assert quick.ended.wait(20)
    hanging.go.set()
    assert threads.close(20)


def test_who_has_one_thread_flushes_at_once() -> None:
    failed = StorageFailed("EIO")
    for flush in (Waiting(), Waiting(failed)):
        flush.go.set()
        FlushAtOnce().flush(flush, flush.end)
        assert flush.ended.is_set()
    assert flush.outcome is failed
