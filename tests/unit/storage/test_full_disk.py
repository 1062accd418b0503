"""A full disk can be emptied: what makes room is done with a reserve, on the kernel's files and on the simulator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_replication.config import Settings, TopicSettings
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.engine.replica.numbered_log import NumberedLog
from spark_replication.errors import StorageFailed
from spark_replication.model import TopicPartition
from spark_replication.sim.world.faulty_files import FaultyFiles
from spark_replication.storage.directory.local_files import LocalLogs
from spark_replication.storage.disk.files import Files, LocalFiles
from spark_replication.storage.disk.reserve import RESERVE_BYTES, RESERVE_FILE, RESERVE_PART_BYTES
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.storage.log.segment_memory import SegmentMemory
from tests.small_disk import fill, leave, small_disk
from tests.unit.storage.storage_stories import prepared

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
SETTINGS = TopicSettings(segment_bytes=1)  # a segment a batch


class Disk(NamedTuple):
    files: Files
    directory: Path
    fill: Callable[[], None]
    leave: Callable[[], None]

    def logs(self) -> LocalLogs:
        memory = SegmentMemory(index_bytes_max=1 << 20, batch_bytes_max=1 << 20)
        logs = LocalLogs(
            self.directory,
            files=self.files,
            memory=memory,
            now_ms=lambda: 1_000,
            before_cut=lambda: None,
            distrust=lambda: None,
        )
        logs.recover()
        return logs


def simulated() -> Disk:
    files = FaultyFiles()
    directory = Path("logs")
    files.make_folder(directory)
    return Disk(files, directory, lambda: setattr(files, "full", True), lambda: setattr(files, "full", False))


@pytest.fixture(params=["kernel", "simulator"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "simulator":
        yield simulated()
        return
    with small_disk(tmp_path / "disk", 4 << 20) as mounted:
        directory = mounted / "broker-1"
        directory.mkdir()
        files = LocalFiles(open_files_max=10, reserve=directory / RESERVE_FILE)
        yield Disk(files, directory, lambda: fill(mounted), lambda: leave(mounted))


def written(logs: LocalLogs, partition: TopicPartition, batches: int = 20) -> PartitionLog:
    log = logs.open(partition, "id1", SETTINGS)
    log.begin_epoch(0)
    for number in range(batches):
        log.append(prepared(2 * number), leader_epoch=0, timestamp_ms=0)
    log.checkpoint(log.log_end)
    return log


def test_retention_makes_room_on_a_full_disk_and_the_log_takes_more_without_a_restart(disk: Disk) -> None:
    log = written(disk.logs(), ORDERS)
    disk.fill()
    with pytest.raises(StorageFailed, match="No space left"):
        log.append(prepared(40), leader_epoch=0, timestamp_ms=0)
    log.forget(34)
    assert (log.log_start, len(log.segments())) == (34, 3)
    log.append(prepared(40), leader_epoch=0, timestamp_ms=0)
    assert log.log_end == 42
    log.close()


def test_retention_makes_room_on_a_full_disk_and_remembers_who_wrote_what_goes(disk: Disk) -> None:
    log = disk.logs().open(ORDERS, "id1", SETTINGS)
    log.begin_epoch(0)
    numbered = NumberedLog(log, Settings())
    for number in range(20):
        numbered.append(prepared(2 * number, producer=7, sequence=number), leader_epoch=0, timestamp_ms=0)
    log.checkpoint(log.log_end)
    disk.fill()
    numbered.forget(34)
    assert log.log_start == 34
    assert numbered.known(prepared(32, producer=7, sequence=16)) == OffsetSpan(32, 33)
    log.close()


def test_a_topic_is_deleted_on_a_full_disk(disk: Disk) -> None:
    logs = disk.logs()
    other = written(logs, PAYMENTS)
    written(logs, ORDERS).close()
    disk.fill()
    logs.quarantine(ORDERS, "id1", asked=True)
    assert logs.found() == [(PAYMENTS, "id1")]
    assert logs.delete_quarantined(asked_delay_ms=0, unasked_delay_ms=0, now_ms=1_000) == [
        "orders-0.id1.1.deleted-1000"
    ]
    other.append(prepared(40), leader_epoch=0, timestamp_ms=0)
    other.close()


def test_a_log_is_cut_and_a_new_epoch_begun_on_a_full_disk(disk: Disk) -> None:
    """A follower parts from its leader, or is elected, whatever its disk can take."""
    log = written(disk.logs(), ORDERS)
    disk.fill()
    log.truncate(10)
    log.begin_epoch(1)
    assert (log.log_end, log.high_watermark, log.epochs.last_epoch) == (10, 10, 1)
    log.begin_anew(4)
    assert (log.log_start, log.log_end) == (4, 4)
    log.close()


def test_the_reserve_is_made_again_once_there_is_room(disk: Disk) -> None:
    logs = disk.logs()
    disk.fill()
    with pytest.raises(OSError, match="No space left"):  # more than all of it
        disk.files.with_reserve(lambda: disk.files.create(disk.directory / "much", bytes(3 << 20)))
    disk.files.remove(disk.directory / "much")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        disk.files.with_reserve(lambda: disk.files.create(disk.directory / "one", b"x"))
    logs.keep_reserve()
    with pytest.raises(OSError, match="No space left"):
        disk.files.with_reserve(lambda: disk.files.create(disk.directory / "one", b"x"))
    disk.leave()
    logs.keep_reserve()
    disk.fill()
    disk.files.with_reserve(lambda: disk.files.create(disk.directory / "one", b"x"))
    assert disk.files.read_whole(disk.directory / "one") == b"x"


def test_the_reserve_is_given_a_part_at_a_time_to_a_full_disk_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as mounted:
        files = LocalFiles(open_files_max=1, reserve=mounted / RESERVE_FILE)
        files.keep_reserve()
        kept = (mounted / RESERVE_FILE).stat()
        assert (kept.st_size, kept.st_blocks * 512) == (RESERVE_BYTES, RESERVE_BYTES)
        fill(mounted)
        files.with_reserve(lambda: files.create(mounted / "small", b"x"))
        assert (mounted / RESERVE_FILE).stat().st_size == RESERVE_BYTES - RESERVE_PART_BYTES
        with pytest.raises(FileNotFoundError):
            files.with_reserve(lambda: files.truncate(mounted / "none", 0))
        assert (mounted / RESERVE_FILE).stat().st_size == RESERVE_BYTES - RESERVE_PART_BYTES
        files.remove(mounted / "small")
        files.keep_reserve()
        assert (mounted / RESERVE_FILE).stat().st_size == RESERVE_BYTES


def test_a_reserve_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as mounted:
        files = LocalFiles(open_files_max=1, reserve=mounted / RESERVE_FILE)
        files.keep_reserve()
        files.remove(mounted / RESERVE_FILE)
        fill(mounted)
        with pytest.raises(OSError, match="No space left"):
            files.with_reserve(lambda: files.create(mounted / "small", b"x"))
        files.remove(mounted / "small")
        leave(mounted)
        files.keep_reserve()
        assert (mounted / RESERVE_FILE).stat().st_size == RESERVE_BYTES


def test_without_a_reserve_a_full_disk_refuses(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as mounted:
        files = LocalFiles(open_files_max=1)
        files.keep_reserve()
        fill(mounted)
        with pytest.raises(OSError, match="No space left"):
            files.with_reserve(lambda: files.create(mounted / "small", b"x"))
