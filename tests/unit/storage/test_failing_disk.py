"""A disk that is full or failing: nothing torn is served or kept, the caller hears what to do (B4)."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.storage.partition_log import PartitionLog
from tests.unit.storage.storage_stories import Open, files_of, prepared, read_rows


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """The kernel takes bytes up to this file size, then refuses: a short write, then an error, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def replaced(path: Path, handle: int) -> Iterator[None]:
    """The open descriptor of `path` is another file for a while."""
    (found,) = [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists() and link.readlink() == path]
    kept = os.dup(found)
    os.dup2(handle, found)
    try:
        yield
    finally:
        os.dup2(kept, found)
        os.close(kept)
        os.close(handle)


def sealed_at(size: int) -> int:
    """A file that may be cut, and cannot grow past `size`."""
    handle = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return handle


def append(log: PartitionLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def test_a_disk_that_fills_up_at_any_byte_of_an_append_leaves_the_log_as_it_was(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    append(log)
    before = files_of(tmp_path / "leader")
    data_bytes = len(before[f"{0:020}.arrow"])
    for taken in range(len(prepared(4).message)):
        with files_end_at(data_bytes + taken), pytest.raises(StorageFailed, match="Free space"):
            append(log)
        assert (log.log_end, files_of(tmp_path / "leader")) == (4, before)
    append(log)
    assert read_rows(log) == list(range(6))


def test_a_segment_that_cannot_be_begun_is_not_there(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1)
    log.begin_epoch(0)
    append(log)
    before = files_of(tmp_path / "leader")
    size = len(before[f"{0:020}.arrow"])
    for limit in range(1, size, 11):
        with files_end_at(limit), pytest.raises(StorageFailed):
            append(log)
        assert (log.log_end, files_of(tmp_path / "leader")) == (2, before)
    append(log)
    assert read_rows(log) == [0, 1, 2, 3]


def test_an_index_that_cannot_grow_takes_the_data_back(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    before = files_of(tmp_path / "leader")
    with replaced(tmp_path / "leader" / f"{0:020}.index", sealed_at(80)), pytest.raises(StorageFailed):
        append(log)
    assert (log.log_end, files_of(tmp_path / "leader")) == (2, before)
    append(log)
    assert read_rows(log) == [0, 1, 2, 3]


def test_a_follower_keeps_its_epochs_when_the_slice_that_begins_one_fails(open_log: Open, tmp_path: Path) -> None:
    leader, follower = open_log(), open_log("follower")
    for epoch in (0, 3):
        leader.begin_epoch(epoch)
        leader.append(prepared(leader.log_end), leader_epoch=epoch, timestamp_ms=0)
    for offset in (0, 2):
        records = leader.read(offset, bytes_max=1, end=4)
        assert records is not None
        before = files_of(tmp_path / "follower"), (follower.log_end, follower.epochs)
        with files_end_at(len(log_data(tmp_path / "follower")) + 100), pytest.raises(StorageFailed):
            follower.append_slice(records)
        assert (files_of(tmp_path / "follower"), (follower.log_end, follower.epochs)) == before
        follower.append_slice(records)
    assert (follower.epochs, follower.log_end) == (leader.epochs, 4)


def log_data(folder: Path) -> bytes:
    path = folder / f"{0:020}.arrow"
    return path.read_bytes() if path.exists() else bytes(200)


def test_a_disk_that_refuses_the_cut_as_well_takes_the_log_offline(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    full = os.open("/dev/full", os.O_RDWR)  # refuses to be written, and to be cut
    with replaced(tmp_path / "leader" / f"{0:020}.index", full), pytest.raises(StorageFailed, match="No space left"):
        append(log)
    refusing: list[Callable[[], None]] = [
        lambda: append(log),
        lambda: log.begin_epoch(1),
        lambda: log.truncate(0),
        log.flush,
    ]
    for refused in refusing:
        with pytest.raises(StorageFailed, match=r"could not be cut back .* the log is offline. Repair the disk"):
            refused()
    assert read_rows(log) == [0, 1]
    log.close()
    again = open_log()
    assert (again.log_end, again.recovery.lossless) == (2, True)


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(open_log: Open) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    log.checkpoint(1)
    with files_end_at(3), pytest.raises(StorageFailed, match="checkpoint in"):
        log.checkpoint(2)
    log.close()
    assert open_log().high_watermark == 1


def test_a_flush_that_fails_takes_the_log_offline(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    append(log)
    reader, writer = os.pipe()  # cannot be synced
    with replaced(tmp_path / "leader" / f"{0:020}.arrow", writer), pytest.raises(StorageFailed, match="flushed"):
        log.flush()
    os.close(reader)
    with pytest.raises(StorageFailed, match="offline"):
        append(log)
