"""What was cut is on the disk before anything is written in its place: no loss of power makes a log that nobody had."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.sim.world.faulty_files import FaultyFiles
from spark_replication.storage.format.index import decode_entries
from spark_replication.storage.log.cuts import CUT_FILE
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import Open, log_in, prepared, read_rows

FOLDER = Path("orders-0.id")
PAIR = [f"{0:020}.arrow", f"{0:020}.index"]


class SyncedFiles(FailingFiles):
    """done: what was synced, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.done.append(f"sync {path.name}")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.done.append(f"sync {folder.name}")

    def take(self) -> list[str]:
        taken, self.done = self.done, []
        return taken


@pytest.fixture
def files() -> SyncedFiles:
    return SyncedFiles()


def append(log: PartitionLog, epoch: int = 0) -> None:
    log.append(prepared(log.log_end), leader_epoch=epoch, timestamp_ms=0)


def begun(log: PartitionLog, batches: int = 3) -> PartitionLog:
    log.begin_epoch(0)
    for _ in range(batches):
        append(log)
    return log


SYNC = [*(f"sync {name}" for name in PAIR), "sync leader"]


def test_cuts_are_synced_once_and_by_the_next_write(open_log: Open, tmp_path: Path, files: SyncedFiles) -> None:
    log = begun(open_log(files=files))
    assert files.take() == [], "flush is none, and nothing was cut"
    log.truncate(4)
    log.truncate(2)
    assert (files.take(), (tmp_path / "leader" / CUT_FILE).exists()) == ([], True)
    append(log)
    assert (files.take(), (tmp_path / "leader" / CUT_FILE).exists()) == (SYNC, False)
    append(log)
    assert files.take() == []


def test_of_a_log_that_was_cut_to_nothing_the_folder_is_synced(open_log: Open, files: SyncedFiles) -> None:
    log = begun(open_log(files=files))
    log.truncate(0)
    log.begin_epoch(0)
    append(log)
    assert files.take() == ["sync leader"]


def test_a_truncation_that_cuts_nothing_is_no_cut(open_log: Open, files: SyncedFiles) -> None:
    log = begun(open_log(files=files))
    log.truncate(6)
    append(log)
    assert files.take() == []


def test_the_process_after_a_killed_one_syncs_what_that_had_cut(open_log: Open, files: SyncedFiles) -> None:
    begun(open_log(files=files)).truncate(4)
    again = open_log(files=files)
    assert again.recovery.lossless
    append(again)
    assert files.take() == SYNC
    append(open_log(files=files))
    assert files.take() == [], "that was all"


def test_what_recovery_cuts_is_a_cut(open_log: Open, tmp_path: Path, files: SyncedFiles) -> None:
    begun(open_log())
    with (tmp_path / "leader" / PAIR[1]).open("ab") as index:
        index.write(b"torn")
    append(open_log(files=files))
    assert files.take() == SYNC


@pytest.mark.parametrize("ending", [".arrow", ".index"])
def test_an_undone_append_is_a_cut(open_log: Open, files: SyncedFiles, ending: str) -> None:
    log = begun(open_log(files=files))
    files.refuse("write", ending)
    with pytest.raises(StorageFailed):
        append(log)
    files.heal()
    append(log)
    assert (files.take(), read_rows(log)) == (SYNC, list(range(8)))


def test_no_word_no_truncation(open_log: Open, files: SyncedFiles) -> None:
    log = begun(open_log(files=files))
    files.refuse("create", CUT_FILE)
    with pytest.raises(StorageFailed):
        log.truncate(2)
    assert (log.log_end, read_rows(log)) == (6, list(range(6)))
    files.heal()
    log.truncate(2)
    assert log.log_end == 2


@pytest.mark.parametrize("refused", [("create", CUT_FILE), ("truncate", ".index")])
@pytest.mark.parametrize("then", [append, lambda log: log.truncate(2), lambda log: log.begin_anew(9)])
def test_what_could_not_be_undone_is_undone_before_the_next_change(
    open_log: Open, files: SyncedFiles, refused: tuple[str, str], then: Callable[[PartitionLog], None]
) -> None:
    log = begun(open_log(files=files))
    files.refuse("write", ".index")
    files.refuse(*refused)
    with pytest.raises(StorageFailed):
        append(log)
    files.refused.discard(("write", ".index"))
    with pytest.raises(StorageFailed):
        then(log)
    assert (log.log_end, read_rows(log)) == (6, list(range(6)))
    files.heal()
    then(log)
    files.take()
    log.begin_epoch(1)
    append(log, 1)
    end = log.log_end
    log.close()
    assert (open_log().log_end, open_log().recovery.why) == (end, "")


def test_a_sync_of_a_cut_that_fails_takes_the_log_offline(open_log: Open, files: SyncedFiles) -> None:
    log = begun(open_log(files=files))
    log.truncate(4)
    files.refuse("sync", ".index")
    with pytest.raises(StorageFailed, match=r"what was cut off .* could not be flushed"):
        append(log)
    files.heal()
    with pytest.raises(StorageFailed, match="offline"):
        append(log)
    assert read_rows(log) == [0, 1, 2, 3]
    assert not open_log().recovery.lossless


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
@pytest.mark.parametrize("killed", [False, True])
def test_whatever_a_loss_of_power_keeps_the_log_is_one_that_somebody_had(*, segment_bytes: int, killed: bool) -> None:
    """A follower that parts from its leader in the middle of what it has, is cut, and goes on with other records."""
    old, new = [(0, "old")] * 6, [(0, "old")] * 3 + [(1, "new")] * 2
    kept: set[int] = set()
    for seed in range(150):
        files = FaultyFiles()
        files.make_folder(FOLDER)
        log = log_in(FOLDER, files=files, segment_bytes=segment_bytes)
        begun(log, len(old))
        files.write_back()
        log.truncate(2 * 3)
        if killed:
            log = log_in(FOLDER, files=files, segment_bytes=segment_bytes)
        log.begin_epoch(1)
        for _ in range(2):
            append(log, 1)
        files.lose_power(random.Random(seed))
        found = log_in(FOLDER, files=files, segment_bytes=segment_bytes)
        indexes = [bytes(segment._entries()) for segment in found._segments]
        entries = [entry.leader_epoch for index in indexes for entry in decode_entries(index)]
        told = [(epoch, "old" if epoch == 0 else "new") for epoch in entries]
        assert told in (old[: len(told)], new[: len(told)]), f"seed {seed}"
        kept.add(len(told))
    assert {3, 5} <= kept, "of some the new records are kept, and of some they are not"


def test_a_crash_at_any_point_of_a_cut_leaves_word_of_it(open_log: Open, tmp_path: Path, files: SyncedFiles) -> None:
    for changes in range(10):
        folder = f"log {changes}"
        log = begun(open_log(folder, files=files))
        files.changes_left = changes
        try:
            log.truncate(2)
        except Crash:
            files.changes_left = None
            cut = open_log(folder).log_end < 6
            assert cut <= (tmp_path / folder / CUT_FILE).exists()
            continue
        files.changes_left = None
        return
    raise AssertionError("it never came to its end")
