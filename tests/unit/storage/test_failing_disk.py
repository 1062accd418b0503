"""A disk that is full or failing: nothing torn is served or kept, the caller hears what to do (B4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import Open, files_of, prepared, read, read_rows

ENTRY = 80
DATA, INDEX = ".arrow", ".index"


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


def append(log: PartitionLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def test_a_disk_that_fills_up_at_any_byte_of_an_append_leaves_the_log_as_it_was(
    open_log: Open, tmp_path: Path, files: FailingFiles
) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    append(log)
    before = files_of(tmp_path / "leader")
    for room in range(len(prepared(4).message) + ENTRY):
        files.room = room
        with pytest.raises(StorageFailed, match="Free space"):
            append(log)
        assert (log.log_end, files_of(tmp_path / "leader"), read_rows(log)) == (4, before, [0, 1, 2, 3])
    files.heal()
    append(log)
    assert read_rows(log) == list(range(6))


@pytest.mark.parametrize("ending", [DATA, INDEX])
def test_an_io_error_in_either_write_leaves_the_log_as_it_was(
    open_log: Open, tmp_path: Path, files: FailingFiles, ending: str
) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    before = files_of(tmp_path / "leader")
    files.refuse("write", ending)
    with pytest.raises(StorageFailed, match="Input/output error"):
        append(log)
    assert (log.log_end, files_of(tmp_path / "leader")) == (2, before)
    files.heal()
    append(log)
    assert read_rows(log) == [0, 1, 2, 3]


def test_a_segment_that_cannot_be_begun_is_not_there(open_log: Open, tmp_path: Path, files: FailingFiles) -> None:
    log = open_log(segment_bytes=1, files=files)
    log.begin_epoch(0)
    append(log)
    before = files_of(tmp_path / "leader")
    for room in range(1, len(before[f"{0:020}.arrow"]) + ENTRY, 11):
        files.room = room
        with pytest.raises(StorageFailed):
            append(log)
        assert (log.log_end, files_of(tmp_path / "leader")) == (2, before)
    files.heal()
    append(log)
    assert read_rows(log) == [0, 1, 2, 3]


def test_a_follower_keeps_its_epochs_when_the_slice_that_begins_one_fails(
    open_log: Open, tmp_path: Path, files: FailingFiles
) -> None:
    leader, follower = open_log(), open_log("follower", files=files)
    for epoch in (0, 3):
        leader.begin_epoch(epoch)
        leader.append(prepared(leader.log_end), leader_epoch=epoch, timestamp_ms=0)
    for offset in (0, 2):
        records = read(leader, offset, bytes_max=1, end=4)
        assert records is not None
        before = files_of(tmp_path / "follower"), (follower.log_end, follower.epochs)
        # The history is in its file when the data does not fit.
        files.room = 100 + len(records.head)
        with pytest.raises(StorageFailed):
            follower.append_slice(records)
        assert (files_of(tmp_path / "follower"), (follower.log_end, follower.epochs)) == before
        files.heal()
        follower.append_slice(records)
    assert (follower.epochs, follower.log_end) == (leader.epochs, 4)


@pytest.mark.parametrize("ending", [DATA, INDEX])
def test_a_follower_says_so_whose_disk_makes_no_segment(
    open_log: Open, tmp_path: Path, files: FailingFiles, ending: str
) -> None:
    """An error that its broker does not expect would end it."""
    leader, follower = open_log(), open_log("follower", files=files)
    leader.begin_epoch(0)
    append(leader)
    records = read(leader, 0, bytes_max=1, end=2)
    assert records is not None
    files.refuse("create", ending)
    with pytest.raises(StorageFailed, match="Free space or repair the disk"):
        follower.append_slice(records)
    assert follower.log_end == 0
    files.heal()
    follower.append_slice(records)
    assert read_rows(follower) == [0, 1]


def test_a_disk_that_refuses_the_cut_as_well_takes_nothing_until_it_has_taken_that(
    open_log: Open, files: FailingFiles
) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    files.refuse("write", INDEX)
    files.refuse("truncate", INDEX)
    with pytest.raises(StorageFailed, match="Input/output error"):
        append(log)
    files.refused.discard(("write", INDEX))
    with pytest.raises(StorageFailed, match="Input/output error"):
        append(log)
    assert read_rows(log) == [0, 1]
    killed = open_log()
    assert (killed.log_end, killed.recovery.lossless) == (2, True)
    files.heal()
    append(log)
    assert read_rows(log) == [0, 1, 2, 3]


def test_a_truncation_that_the_disk_refuses_serves_nothing_of_what_was_cut(open_log: Open, files: FailingFiles) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    append(log)
    files.refuse("truncate", INDEX)
    with pytest.raises(StorageFailed, match="could not be cut to 2"):
        log.truncate(2)
    assert (log.log_end, read_rows(log)) == (2, [0, 1])
    with pytest.raises(StorageFailed, match="offline"):
        append(log)


def test_a_read_that_fails_says_so_and_the_next_one_may_work(open_log: Open, files: FailingFiles) -> None:
    log = open_log(files=files, batch_bytes_max=1)  # in memory there is none
    log.begin_epoch(0)
    append(log)
    files.refuse("read", DATA)
    with pytest.raises(StorageFailed, match=r"offsets 0 to 1 could not be read: .*Repair the disk"):
        read(log, 0, bytes_max=1, end=2)
    files.heal()
    assert read_rows(log) == [0, 1]


@pytest.mark.parametrize(("operation", "ending"), [("sync", DATA), ("sync", INDEX), ("sync_folder", "")])
def test_a_flush_that_fails_takes_the_log_offline(
    open_log: Open, files: FailingFiles, operation: str, ending: str
) -> None:
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    files.refuse(operation, ending)
    with pytest.raises(StorageFailed, match="flushed"):
        log.flush()
    files.heal()
    with pytest.raises(StorageFailed, match="offline"):
        append(log)
    with pytest.raises(StorageFailed, match="offline"):
        log.flush()


@pytest.mark.slow
def test_a_kernel_that_takes_less_than_it_is_given_at_any_byte(tmp_path: Path) -> None:
    """A real one, in a process of its own, since the limit is the process's: short writes, then EFBIG."""
    script = """
import resource, sys
from pathlib import Path
from spark_replication.errors import StorageFailed
from tests.unit.storage.storage_stories import files_of, log_in, prepared, read, read_rows
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
log = log_in(folder)
log.begin_epoch(0)
for _ in range(2):
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)
before = files_of(folder)
data_bytes = len(before[f"{0:020}.arrow"])
batch = prepared(4)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
refused = 0
for taken in range(len(batch.message)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (data_bytes + taken, hard))
    try:
        log.append(batch, leader_epoch=0, timestamp_ms=0)
    except StorageFailed:
        refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert (log.log_end, files_of(folder)) == (4, before)
log.append(batch, leader_epoch=0, timestamp_ms=0)
assert read_rows(log) == list(range(6))
print(refused == len(batch.message))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")
